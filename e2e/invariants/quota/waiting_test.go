package quota

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// podOf is a Pod that waits at its gate.
func podOf(namespace, name, policy string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPolicy: policy}}}
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.GateQuota}}
	for _, c := range change {
		c(p)
	}
	return p
}

func opened(p *corev1.Pod) { p.Spec.SchedulingGates = nil }

// scene has two nodes of two H100 and one of two L4, and a tenant in ns-a.
func scene(h100, l4 int32, claims []*resourcev1.ResourceClaim, pods ...*corev1.Pod) Scene {
	two := int32(2)
	return Scene{
		Pods: pods, Claims: claims,
		Slices: []*resourcev1.ResourceSlice{sliceOf("h", "H100", 2), sliceOf("i", "H100", 2), sliceOf("l", "L4", 2)},
		Quotas: []*v1alpha1.TenantQuota{quotaOf("a", "ns-a", part("H100", h100), part("L4", l4))},
		Policies: []*v1alpha1.AcceleratorPolicy{
			{ObjectMeta: metav1.ObjectMeta{Name: "both"}, Spec: v1alpha1.AcceleratorPolicySpec{
				Tiers: []v1alpha1.Tier{{Name: "h", Models: []string{"H100"}}, {Name: "l", Models: []string{"L4"}}},
			}},
			{ObjectMeta: metav1.ObjectMeta{Name: "pair"}, Spec: v1alpha1.AcceleratorPolicySpec{
				Count: &two, Tiers: []v1alpha1.Tier{{Name: "h", Models: []string{"H100"}}},
			}},
			{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: v1alpha1.AcceleratorPolicySpec{
				Tiers: []v1alpha1.Tier{{Name: "h", Models: []string{"H100"}, After: &metav1.Duration{Duration: time.Hour}}},
			}},
		},
	}
}

func holding(devices ...string) []*resourcev1.ResourceClaim {
	return []*resourcev1.ResourceClaim{claimOf("ns-a", "held", devices...)}
}

func TestLeftWaiting(t *testing.T) {
	elsewhere := []*resourcev1.ResourceClaim{claimOf("ns-b", "held", "h/0", "h/1", "i/0", "i/1", "l/0", "l/1")}
	firm := func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPreemptible] = "false" }
	bound := func(p *corev1.Pod) { p.Spec.NodeName = "h" }
	for name, tc := range map[string]struct {
		scene Scene
		want  []string
	}{
		"first tier":        {scene(1, 1, nil, podOf("ns-a", "p", "both")), []string{"ns-a/p waits at its gate: tier h, 2 H100 are free on node h and the tenant has 0 of 1"}},
		"the limit is used": {scene(1, 0, holding("h/0"), podOf("ns-a", "p", "both")), nil},
		"another tier":      {scene(1, 1, holding("h/0"), podOf("ns-a", "p", "both")), []string{"tier l, 2 L4 are free on node l"}},
		"nothing is free":   {scene(9, 9, elsewhere, podOf("ns-a", "p", "both")), nil},
		"has a node":        {scene(1, 1, nil, podOf("ns-a", "p", "both", bound)), nil},
		"no tenant":         {scene(1, 1, nil, podOf("ns-z", "p", "both")), []string{"ns-z/p"}},
		"two on one node":   {scene(9, 9, holding("h/0"), podOf("ns-a", "p", "pair")), []string{"node i"}},
		"two on two nodes":  {scene(9, 9, holding("h/0", "i/0"), podOf("ns-a", "p", "pair")), nil},
		"two above the limit": {
			scene(2, 9, holding("h/0"), podOf("ns-a", "p", "pair")), nil,
		},
		"not yet":       {scene(1, 1, nil, podOf("ns-a", "p", "late")), nil},
		"can't be lent": {scene(1, 1, nil, podOf("ns-a", "p", "both", firm)), nil},
		"for the scheduler": {
			scene(1, 1, nil, podOf("ns-a", "p", "both", opened)), []string{"ns-a/p waits for the scheduler: tier h"},
		},
		"each finds its own": {
			scene(1, 1, nil, podOf("ns-a", "p", "both", opened), podOf("ns-a", "q", "both", opened), podOf("ns-a", "r", "both", opened)),
			[]string{"ns-a/p waits for the scheduler: tier h", "ns-a/q waits for the scheduler: tier l"},
		},
		"what an open one may still take": {
			// It can't be served, so it may take any two; the other has room for none.
			scene(9, 0, holding("h/0", "i/0"), podOf("ns-z", "o", "pair", opened), podOf("ns-a", "p", "both")), nil,
		},
		"one that is open hides none that is open": {
			scene(9, 0, holding("h/0", "i/0"), podOf("ns-z", "o", "pair", opened), podOf("ns-z", "p", "both", opened)),
			[]string{"ns-z/p waits for the scheduler: tier h"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := LeftWaiting(tc.scene)
			if len(found) != len(tc.want) {
				t.Fatalf("found %v, want %q", found, tc.want)
			}
			for i, want := range tc.want {
				if !strings.Contains(found[i].String(), want) {
					t.Errorf("found %q, want %q", found[i], want)
				}
			}
		})
	}
}

// A device that no claim can have is not free.
func TestTaintedDevicesAreNotFree(t *testing.T) {
	s := scene(9, 0, nil, podOf("ns-a", "p", "both"))
	for _, slice := range s.Slices {
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].Taints = []resourcev1.DeviceTaint{{Key: "x", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
		}
	}
	if found := LeftWaiting(s); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}
