package decide

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// aRevision is a revision of h100-first whose first tier has this name.
func aRevision(n int64, tier string) *v1alpha1.PolicyRevision {
	r := &v1alpha1.PolicyRevision{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("h100-first-%d", n)},
		Spec:       v1alpha1.PolicyRevisionSpec{Policy: "h100-first", Revision: n, PolicySpec: aPolicy(aTier(tier)).Spec},
	}
	r.Spec.Hash = r.Spec.PolicySpec.ContentHash()
	return r
}

func withdrawn(r *v1alpha1.PolicyRevision) *v1alpha1.PolicyRevision {
	r.Spec.State = v1alpha1.RevisionWithdrawn
	return r
}

func pinned(to string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPolicyRevision] = to }
}

func madeFromTemplate(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To(name)}}
	}
}

func TestRevisionOfAPod(t *testing.T) {
	policyWith := func(tier string, change func(*v1alpha1.AcceleratorPolicy)) *v1alpha1.AcceleratorPolicy {
		p := aPolicy(aTier(tier))
		if change != nil {
			change(p)
		}
		return p
	}
	active := func(n int64) func(*v1alpha1.AcceleratorPolicy) {
		return func(p *v1alpha1.AcceleratorPolicy) { p.Spec.ActiveRevision = &n }
	}
	for _, c := range []struct {
		name    string
		objects []runtime.Object
		pod     func(*corev1.Pod)
		want    int64
		err     error
		says    string
	}{
		{name: "no revisions", objects: []runtime.Object{policyWith("a", nil)}, want: 1},
		{name: "no revisions, 1 pinned", objects: []runtime.Object{policyWith("a", nil)}, pod: pinned("1"), want: 1},
		{name: "no revisions, 2 pinned", objects: []runtime.Object{policyWith("a", nil)}, pod: pinned("2"), err: ErrNotFound, says: "gpuladder.dev/policy-revision"},
		{name: "no policy", err: ErrNotFound, says: "gpuladder.dev/policy]"},
		{name: "not a number", objects: []runtime.Object{policyWith("a", nil)}, pod: pinned("x"), err: ErrInvalid, says: `"x" is not a revision`},
		{name: "zero", objects: []runtime.Object{policyWith("a", nil)}, pod: pinned("0"), err: ErrInvalid},
		{name: "the one that equals the policy", objects: []runtime.Object{policyWith("b", nil), aRevision(1, "a"), aRevision(2, "b"), aRevision(3, "c")}, want: 2},
		{name: "the newest of those that do", objects: []runtime.Object{policyWith("a", nil), aRevision(1, "a"), aRevision(2, "b"), aRevision(3, "a")}, want: 3},
		{name: "none equals, the active one", objects: []runtime.Object{policyWith("x", func(p *v1alpha1.AcceleratorPolicy) { p.Status.ActiveRevision = 1 }), aRevision(1, "a"), aRevision(2, "b")}, want: 1},
		{name: "none equals, the newest usable", objects: []runtime.Object{policyWith("x", nil), aRevision(1, "a"), aRevision(2, "b"), withdrawn(aRevision(3, "c"))}, want: 2},
		{name: "none is usable", objects: []runtime.Object{policyWith("x", nil), withdrawn(aRevision(1, "a")), withdrawn(aRevision(2, "b"))}, want: 2},
		{name: "activeRevision", objects: []runtime.Object{policyWith("b", active(1)), aRevision(1, "a"), aRevision(2, "b")}, want: 1},
		{name: "activeRevision is not there", objects: []runtime.Object{policyWith("b", active(7)), aRevision(1, "a")}, err: ErrNotFound, says: "spec.activeRevision"},
		{name: "pinned", objects: []runtime.Object{policyWith("b", active(2)), aRevision(1, "a"), aRevision(2, "b")}, pod: pinned("1"), want: 1},
		{name: "pinned, policy gone", objects: []runtime.Object{aRevision(1, "a")}, pod: pinned("1"), want: 1},
		{name: "made from a template", objects: []runtime.Object{policyWith("b", active(2)), aRevision(1, "a"), aRevision(2, "b")}, pod: madeFromTemplate("h100-first-1"), want: 1},
		{name: "made from another than pinned", objects: []runtime.Object{policyWith("b", nil), aRevision(1, "a"), aRevision(2, "b")}, pod: func(p *corev1.Pod) {
			madeFromTemplate("h100-first-1")(p)
			pinned("2")(p)
		}, err: ErrInvalid, says: "made from revision 1, the label says 2"},
		{name: "template of another policy", objects: []runtime.Object{policyWith("b", nil), aRevision(1, "b")}, pod: madeFromTemplate("h100-first-x-1"), want: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := aPod("p")
			if c.pod != nil {
				c.pod(p)
			}
			st := stateOf(t, append(c.objects, p, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")))...)
			d, err := st.Decide(ask("p"))
			if c.err != nil {
				if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("error %v, want %v that says %q", err, c.err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d.PolicyRevision != c.want {
				t.Fatalf("revision %d, want %d", d.PolicyRevision, c.want)
			}
			if d.Policy != "h100-first" || !strings.HasPrefix(d.PolicyHash, v1alpha1.HashPrefix) {
				t.Errorf("policy %q, hash %q", d.Policy, d.PolicyHash)
			}
		})
	}
}

func TestWithdrawnRevisionParks(t *testing.T) {
	st := stateOf(t, aPolicy(aTier("a")), withdrawn(aRevision(1, "a")), aPod("p"), aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")))
	d := decideFor(t, st, ask("p"))
	if d.Outcome != v1alpha1.OutcomePending || d.Class != v1alpha1.FailurePolicyInvalid || !strings.Contains(d.Message, "revision 1 of policy h100-first is withdrawn") {
		t.Fatalf("%s %s: %s", d.Outcome, d.Class, d.Message)
	}
	if got := d.Tiers[0]; got.Outcome != v1alpha1.TierNotReached || countsOf(t, d, "a")[v1alpha1.ReasonTierNotReached] != 1 {
		t.Errorf("nothing was looked at, yet %+v", got)
	}
	candidates, err := st.Candidates(ask("p"))
	if err != nil {
		t.Fatal(err)
	}
	for c := range candidates {
		t.Errorf("candidate %+v", c)
	}
}

func TestNamespaceSelector(t *testing.T) {
	policy := ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
		s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"gpus": "yes"}}
	})
	st := stateOf(t, policy, aPod("p"), aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeAllocated {
		t.Fatalf("a namespace that is not known: %s", d.Message)
	}
	ns := func(labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a", Labels: labels}}
	}
	mustPut(t, st, ns(nil))
	if d := decideFor(t, st, ask("p")); d.Class != v1alpha1.FailurePolicyInvalid {
		t.Fatalf("a namespace that is not selected: %s %s", d.Outcome, d.Message)
	}
	mustPut(t, st, ns(map[string]string{"gpus": "yes"}))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeAllocated {
		t.Fatalf("a namespace that is selected: %s", d.Message)
	}
	mustDelete(t, st, ns(nil))
	if len(st.namespaces) != 0 {
		t.Error("the namespace is still there")
	}
}

func TestPutRefusesBadPolicies(t *testing.T) {
	for _, c := range []struct {
		name, field string
		obj         runtime.Object
	}{
		{"no tiers", "spec.tiers", aPolicy()},
		{"bad selector of a tier", "spec.tiers[1].selectors[0]", changed(ladder(), func(p *v1alpha1.AcceleratorPolicy) {
			p.Spec.Tiers[1].Selectors = []string{"device.nothing("}
		})},
		{"bad selector of the constraints", "spec.constraints.selectors[1]", changed(ladder(), func(p *v1alpha1.AcceleratorPolicy) {
			p.Spec.Constraints.Selectors = []string{"true", "1 + 1"}
		})},
		{"bad revision", "spec.policySpec.tiers[0].selectors[0]", changed(aRevision(1, "a"), func(r *v1alpha1.PolicyRevision) {
			r.Spec.PolicySpec.Tiers[0].Selectors = []string{"("}
		})},
		{"same number twice", "spec.revision", changed(aRevision(9, "a"), func(r *v1alpha1.PolicyRevision) { r.Name = "other" })},
		{"slice without a pool", "spec.pool.name", changed(aSlice("n-1"), func(s *resourceapi.ResourceSlice) { s.Spec.Pool.Name = "" })},
		{"device without a name", "spec.devices[0].name", aSlice("n-1", aGPU("", "H100"))},
		{"no name", "metadata.name", &corev1.Pod{}},
		{"a kind that is not read", "does not read", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := stateOf(t, aRevision(9, "a"))
			before := st.Digest()
			err := st.Put(c.obj)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.field) {
				t.Fatalf("error %v, want one that names %s", err, c.field)
			}
			if st.Digest() != before {
				t.Error("the State has changed")
			}
		})
	}
	if err := NewState(Options{}).Delete(&corev1.Secret{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("deleting a kind that is not read: %v", err)
	}
}
