package v1alpha1

import (
	"reflect"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func decoded[T any](t *testing.T, doc string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
		t.Fatalf("decoding %s, %v", doc, err)
	}
	return object
}

func TestDefaultOfAcceleratorPolicy(t *testing.T) {
	p := decoded[AcceleratorPolicy](t, `{metadata: {name: p}, spec: {tiers: [{name: a}]}}`)
	p.Default()
	want := decoded[AcceleratorPolicy](t, `
metadata: {name: p}
spec:
  driver: gpu.gpuladder.dev
  count: 1
  tiers: [{name: a}]
  ranking: Packed
  mixModels: Never
  preempts: Never
  retry: {maxAttempts: 5, initialBackoff: 1s, maxBackoff: 30s, deadline: 1h}
  onUnhealthy: {action: Evict}
`)
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, want %+v", p.Spec, want.Spec)
	}
}

func TestDefaultKeepsWhatIsSet(t *testing.T) {
	const doc = `
metadata: {name: p}
spec:
  driver: gpu.nvidia.com
  count: 4
  tiers: [{name: a, count: 2, after: 0s}]
  ranking: Spread
  mixModels: WithinTier
  preempts: Borrowed
  retry: {maxAttempts: 1, initialBackoff: 0s, maxBackoff: 0s, deadline: 0s}
  onUnhealthy: {action: Keep}
`
	p, want := decoded[AcceleratorPolicy](t, doc), decoded[AcceleratorPolicy](t, doc)
	p.Default()
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, want %+v", p.Spec, want.Spec)
	}
}

func TestDefaultTwiceIsDefaultOnce(t *testing.T) {
	once := decoded[AcceleratorPolicy](t, `{spec: {tiers: [{name: a}], retry: {maxBackoff: 5m}}}`)
	once.Default()
	twice := once.DeepCopy()
	twice.Default()
	if !reflect.DeepEqual(once, twice) {
		t.Errorf("once %+v, twice %+v", once.Spec, twice.Spec)
	}
	if got := once.Spec.Retry.MaxBackoff.Duration; got != 5*time.Minute {
		t.Errorf("maxBackoff became %v", got)
	}
}

// TestDefaultsAreNotShared holds that changing one object's default leaves the
// next object's alone.
func TestDefaultsAreNotShared(t *testing.T) {
	var a, b AcceleratorPolicySpec
	a.Default()
	*a.Count = 9
	a.Retry.Deadline.Duration = 0
	b.Default()
	if *b.Count != 1 || b.Retry.Deadline.Duration != time.Hour {
		t.Errorf("defaults are shared: count %d, deadline %v", *b.Count, b.Retry.Deadline)
	}
}

func TestDefaultOfOtherKinds(t *testing.T) {
	r := &PolicyRevision{}
	r.Default()
	if r.Spec.State != RevisionUsable || r.Spec.PolicySpec.Driver != DriverName {
		t.Errorf("revision: %+v", r.Spec)
	}
	q := &TenantQuota{}
	q.Default()
	if q.Spec.Weight == nil || *q.Spec.Weight != 1 {
		t.Errorf("quota: %+v", q.Spec)
	}
	m := &DeviceMigration{}
	m.Default()
	if m.Spec.Target != TargetDevicePlugin || m.Spec.LegacyResource != "nvidia.com/gpu" || m.Spec.OnGateFailure != GateRollback ||
		m.Spec.BoundPods != BoundPodsWait || *m.Spec.Gates.MinSample != 20 {
		t.Errorf("migration: %+v", m.Spec)
	}
	d := &AllocationDecision{Spec: AllocationDecisionSpec{Outcome: OutcomePending}}
	before := d.DeepCopy()
	d.Default()
	if !reflect.DeepEqual(d, before) {
		t.Errorf("decision: %+v", d.Spec)
	}
}

func TestCountOf(t *testing.T) {
	two, four := int32(2), int32(4)
	for _, c := range []struct {
		policy, tier *int32
		want         int32
	}{
		{nil, nil, 1}, {&two, nil, 2}, {nil, &four, 4}, {&two, &four, 4}, {&four, &two, 2},
	} {
		s := &AcceleratorPolicySpec{Count: c.policy}
		if got := s.CountOf(&Tier{Count: c.tier}); got != c.want {
			t.Errorf("policy %v, tier %v: %d, want %d", c.policy, c.tier, got, c.want)
		}
	}
}

func TestDurationOf(t *testing.T) {
	if got := durationOf(nil); got != 0 {
		t.Errorf("unset: %v", got)
	}
	if got := durationOf(&metav1.Duration{Duration: time.Minute}); got != time.Minute {
		t.Errorf("a minute: %v", got)
	}
}
