package decide

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// What no decision depends on does not enter the digest; what one can does.
func TestWhatEntersTheDigest(t *testing.T) {
	node := func(change func(*corev1.Node)) runtime.Object { return changed(aNode("n-1"), change) }
	pod := func(change func(*corev1.Pod)) runtime.Object { return aPod("p", change) }
	slice := func(change func(*resourceapi.ResourceSlice)) runtime.Object {
		return changed(aSlice("n-1", aGPU("gpu-0", "H100", withTaint("x", resourceapi.DeviceTaintEffectNoSchedule))), change)
	}
	policy := func(change func(*v1alpha1.AcceleratorPolicy)) runtime.Object { return changed(ladder(), change) }
	quota := func(change func(*v1alpha1.TenantQuota)) runtime.Object {
		return changed(aQuota("a", []string{"team-a", "team-x"}, upTo("H100", 1)), change)
	}
	claim := func(change func(*resourceapi.ResourceClaim)) runtime.Object {
		return changed(allocated(aClaim("c"), "r", [2]string{"n-1", "gpu-0"}), change)
	}
	base := func() []runtime.Object {
		return []runtime.Object{
			node(func(*corev1.Node) {}), pod(func(*corev1.Pod) {}), slice(func(*resourceapi.ResourceSlice) {}),
			policy(func(*v1alpha1.AcceleratorPolicy) {}), quota(func(*v1alpha1.TenantQuota) {}), claim(func(*resourceapi.ResourceClaim) {}), aClass("gpu", "true"),
		}
	}
	now := metav1.NewTime(epoch)
	for _, c := range []struct {
		name   string
		obj    runtime.Object
		enters bool
	}{
		{"a heartbeat", node(func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = now }), false},
		{"a node's annotation", node(func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }), false},
		{"a node's label", node(func(n *corev1.Node) { n.Labels["a"] = "b" }), true},
		{"a node's readiness", node(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }), true},
		{"a Pod's resourceVersion", pod(func(p *corev1.Pod) { p.ResourceVersion = "7" }), false},
		{"a Pod's condition", pod(func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: "x"}} }), false},
		{"a Pod's other label", pod(func(p *corev1.Pod) { p.Labels["a"] = "b" }), false},
		{"a Pod's other annotation", pod(func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }), false},
		{"the models of a Pod's turn", pod(turnFor("A100")), true},
		{"a Pod's creation", pod(func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(epoch.Add(time.Second)) }), true},
		{"a Pod's end", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		{"when a taint came", slice(func(s *resourceapi.ResourceSlice) { s.Spec.Devices[0].Taints[0].TimeAdded = &now }), false},
		{"a device's attribute", slice(func(s *resourceapi.ResourceSlice) { s.Spec.Devices[0].Attributes["x"] = text("y") }), true},
		{"a policy's condition", policy(func(p *v1alpha1.AcceleratorPolicy) { p.Status.ObservedGeneration = 3 }), false},
		{"a default spelled out", policy(func(p *v1alpha1.AcceleratorPolicy) { p.Default() }), false},
		{"a policy's active revision", policy(func(p *v1alpha1.AcceleratorPolicy) { p.Status.ActiveRevision = 3 }), true},
		{"a policy's tier", policy(func(p *v1alpha1.AcceleratorPolicy) { p.Spec.Tiers[0].Name = "x" }), true},
		{"a quota's weight", quota(func(q *v1alpha1.TenantQuota) { q.Spec.Weight = ptr.To(int32(7)) }), false},
		{"a quota's guarantee", quota(func(q *v1alpha1.TenantQuota) { q.Spec.Models[0].Guaranteed = 1 }), false},
		{"the order of its namespaces", quota(func(q *v1alpha1.TenantQuota) { q.Spec.Namespaces = []string{"team-x", "team-a"} }), false},
		{"a quota's limit", quota(func(q *v1alpha1.TenantQuota) { q.Spec.Models[0].Limit = nil }), true},
		{"when a claim was allocated", claim(func(c *resourceapi.ResourceClaim) { c.Status.Allocation.AllocationTimestamp = &now }), false},
		{"what was allocated", claim(func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = "gpu-1" }), true},
		{"a class's selector", aClass("gpu", "false"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := stateOf(t, base()...)
			before := st.Digest()
			mustPut(t, st, c.obj)
			if got := st.Digest() != before; got != c.enters {
				t.Errorf("the digest changes: %v", got)
			}
			mustPut(t, st, base()...)
			if st.Digest() != before {
				t.Error("changing back leaves a trace")
			}
		})
	}
}

// An object that was written and read again is the same, although what was empty is
// absent then.
func TestEmptyIsAbsent(t *testing.T) {
	for _, o := range []runtime.Object{
		changed(aNode("n-1"), func(n *corev1.Node) { n.Labels, n.Spec.Taints = map[string]string{}, []corev1.Taint{} }),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a", Labels: map[string]string{}}},
		aPod("p", func(p *corev1.Pod) {
			p.Spec.ResourceClaims, p.Status.ResourceClaimStatuses = []corev1.PodResourceClaim{}, []corev1.PodResourceClaimStatus{}
			p.Spec.NodeSelector, p.Spec.Tolerations = map[string]string{}, []corev1.Toleration{}
		}),
		changed(aSlice("n-1", aGPU("gpu-0", "H100")), func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices[0].Taints, s.Spec.SharedCounters = []resourceapi.DeviceTaint{}, []resourceapi.CounterSet{}
		}),
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{}}},
		changed(allocated(aClaim("c"), "r", [2]string{"n-1", "gpu-0"}), func(c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Constraints, c.Status.ReservedFor = []resourceapi.DeviceConstraint{}, []resourceapi.ResourceClaimConsumerReference{}
		}),
		changed(ladder(), func(p *v1alpha1.AcceleratorPolicy) { p.Spec.Constraints.Architectures = []string{} }),
		&v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.TenantQuotaSpec{Namespaces: []string{}, Models: []v1alpha1.ModelQuota{}}},
	} {
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		again := reflect.New(reflect.TypeOf(o).Elem()).Interface().(runtime.Object)
		if err := json.Unmarshal(raw, again); err != nil {
			t.Fatal(err)
		}
		if stateOf(t, o).Digest() != stateOf(t, again).Digest() {
			t.Errorf("%T: another digest once it was written and read: %s", o, raw)
		}
	}
}

// Renaming a slice, as a restarted driver does, is no change.
func TestDigestIgnoresSliceNames(t *testing.T) {
	a := stateOf(t, aSlice("n-1", aGPU("gpu-0", "H100")))
	b := stateOf(t, changed(aSlice("n-1", aGPU("gpu-0", "H100")), generation(1, 1, "other")))
	if a.Digest() != b.Digest() {
		t.Error("the name of a slice is in the digest")
	}
}

func TestEverythingCanBeDeleted(t *testing.T) {
	empty := NewState(Options{}).Digest()
	objects := []runtime.Object{
		aNode("n-1"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}, aPod("p"), aSlice("n-1", aGPU("gpu-0", "H100")),
		rule("r", &resourceapi.DeviceTaintSelector{}, resourceapi.DeviceTaintEffectNoSchedule), aClass("gpu"), allocated(aClaim("c"), "r", [2]string{"n-1", "gpu-0"}),
		&resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t"}}, ladder(), aRevision(1, "a"), aQuota("a", []string{"team-a"}, upTo("H100", 1)),
	}
	st := NewState(Options{})
	for range 2 {
		for _, o := range objects {
			before := st.Digest()
			mustPut(t, st, o)
			if st.Digest() == before {
				t.Errorf("%T is not in the digest", o)
			}
			mustPut(t, st, o) // again: no difference
		}
		for _, o := range objects {
			mustDelete(t, st, o)
		}
		if st.Digest() != empty {
			t.Fatal("something is left")
		}
	}
}

func TestInputDigestCoversTheQuestion(t *testing.T) {
	objects := []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p"), aPod("q")}
	digest := func(opts Options, q Query) string {
		return decideFor(t, stateWith(t, opts, objects...), q).InputDigest
	}
	later, other, second := ask("p"), ask("q"), ask("p")
	later.Now, second.Attempt = epoch.Add(time.Second), 2
	refused := ask("p")
	refused.NodeRejections = map[string]string{"n-9": "no"}
	seen := map[string]string{}
	for name, d := range map[string]string{
		"base": digest(Options{}, ask("p")), "later": digest(Options{}, later), "another Pod": digest(Options{}, other),
		"second attempt": digest(Options{}, second), "examples": digest(Options{Examples: 5}, ask("p")),
		"external": digest(Options{NodeChecks: ExternalNodeChecks}, ask("p")), "refused": digest(Options{NodeChecks: ExternalNodeChecks}, refused),
	} {
		if twin, ok := seen[d]; ok {
			t.Errorf("%s and %s have the same digest", name, twin)
		}
		seen[d] = name
	}
	if digest(Options{}, ask("p")) != digest(Options{Examples: defaultExamples}, ask("p")) || digest(Options{}, refused) != digest(Options{}, ask("p")) {
		t.Error("what makes no difference changes the digest")
	}
}
