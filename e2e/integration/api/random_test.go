package api_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// TestRandomPolicies compares the rules that tie several fields together, CEL
// on the one side and Go on the other, on policies that nobody thought up.
func TestRandomPolicies(t *testing.T) {
	const policies = 300
	server := apiserver.Get(t)
	r := rand.New(rand.NewPCG(20261129, policies))
	accepted := 0
	for range policies {
		p := policy(func(s *v1alpha1.AcceleratorPolicySpec) { *s = randomSpec(r) })
		ours := p.DeepCopy()
		ours.Default()
		want := paths(ours.Validate())
		err := server.Client.Create(t.Context(), p.DeepCopy(), client.DryRunAll)
		if got := refusedFields(t, err); !slices.Equal(got, want) {
			t.Fatalf("Validate refuses %q, the API server %q:\n%v\n%v\n%+v", want, got, ours.Validate().ToAggregate(), err, p.Spec)
		}
		if err == nil {
			accepted++
		}
	}
	if accepted < policies/10 || accepted > policies*9/10 {
		t.Errorf("%d of %d were accepted: the test says little", accepted, policies)
	}
}

func randomSpec(r *rand.Rand) v1alpha1.AcceleratorPolicySpec {
	s := v1alpha1.AcceleratorPolicySpec{
		Driver:           pick(r, "", v1alpha1.DriverName, v1alpha1.NVIDIADriverName),
		Count:            pick(r, nil, ptr.To[int32](1), ptr.To[int32](2)),
		PreferAttributes: subset(r, "a.example/x", "a.example/y", "a.example/z"),
		Constraints:      v1alpha1.Constraints{MatchAttributes: subset(r, "a.example/x", "a.example/w")},
	}
	if r.IntN(4) > 0 {
		s.PreferAttributes = nil
	}
	for i := range 1 + r.IntN(4) {
		s.Tiers = append(s.Tiers, v1alpha1.Tier{
			Name:      "tier-" + string(rune('a'+i)),
			Models:    subset(r, "A", "B", "C", "D E"),
			Selectors: subset(r, "x", "y"),
			Count:     pick(r, nil, ptr.To[int32](1), ptr.To[int32](2), ptr.To[int32](3)),
			After:     pick(r, nil, lasting(0), lasting(time.Minute), lasting(61*time.Second)),
		})
	}
	if r.IntN(4) == 0 {
		s.Constraints.Isolation = pick(r, "", v1alpha1.IsolationExclusive, v1alpha1.IsolationShared)
		s.Sharing = &v1alpha1.Sharing{
			Strategy:    pick(r, "", v1alpha1.SharingExclusive, v1alpha1.SharingTimeSlicing, v1alpha1.SharingMPS),
			TimeSlicing: pick(r, nil, nil, &v1alpha1.TimeSlicing{}, &v1alpha1.TimeSlicing{Interval: v1alpha1.IntervalShort}),
			MPS:         pick(r, nil, nil, &v1alpha1.MPS{}, &v1alpha1.MPS{ActiveThreadPercentage: pick(r, nil, ptr.To[int32](0), ptr.To[int32](50))}),
		}
	}
	if r.IntN(4) == 0 {
		durations := []*metav1.Duration{nil, lasting(time.Second), lasting(30 * time.Second), lasting(time.Minute)}
		s.Retry = v1alpha1.RetryPolicy{InitialBackoff: pick(r, durations...), MaxBackoff: pick(r, durations...)}
		s.OnUnhealthy = v1alpha1.OnUnhealthy{
			Action:      pick(r, "", v1alpha1.UnhealthyEvict, v1alpha1.UnhealthyKeep),
			GracePeriod: pick(r, nil, lasting(time.Minute), lasting(1500*time.Millisecond)),
		}
	}
	return s
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func subset(r *rand.Rand, from ...string) []string {
	var list []string
	for _, v := range from {
		if r.IntN(2) == 0 {
			list = append(list, v)
		}
	}
	return list
}
