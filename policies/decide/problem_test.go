package decide

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func aTemplate(name string, spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: spec},
	}
}

func fromTemplate(entry, template string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels = nil
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: entry, ResourceClaimTemplateName: ptr.To(template)})
	}
}

// tiersClaim is a claim as the usual policy's template makes it.
func tiersClaim(name string, tiers ...string) *resourceapi.ResourceClaim {
	return aClaim(name, firstAvailable(v1alpha1.RequestName, tiers...))
}

func TestProblemsThatCannotBeRead(t *testing.T) {
	broken := exactly("r", 1, "device.(")
	unknownClass := exactly("r", 1)
	unknownClass.Exactly.DeviceClassName = "nic"
	strange := exactly("r", 1)
	strange.Exactly.AllocationMode = "Some"
	derived := exactly("r", 1)
	derived.Exactly.DerivedAttributes = []resourceapi.DeviceDerivedAttribute{{}}
	noCEL := exactly("r", 1)
	noCEL.Exactly.Selectors = []resourceapi.DeviceSelector{{}}
	for _, c := range []struct {
		name    string
		pod     func(*corev1.Pod)
		objects []runtime.Object
		err     error
		says    string
	}{
		{"no claim", plain("c"), nil, ErrNotFound, `spec.resourceClaims[0]: ResourceClaim "c"`},
		{"no template", fromTemplate("c", "t"), nil, ErrNotFound, `ResourceClaimTemplate "t"`},
		{"no class", plain("c"), []runtime.Object{aClaim("c", unknownClass)}, ErrNotFound, `spec.devices.requests[0].exactly.deviceClassName: DeviceClass "nic"`},
		{"a selector that does not compile", plain("c"), []runtime.Object{aClaim("c", broken)}, ErrInvalid, "spec.devices.requests[0].exactly.selectors[0].cel.expression"},
		{"a class that does not compile", plain("c"), []runtime.Object{aClass("gpu", "1"), aClaim("c", exactly("r", 1))}, ErrInvalid, "DeviceClass gpu, spec.selectors[0].cel.expression"},
		{"no kind of request", plain("c"), []runtime.Object{aClaim("c", resourceapi.DeviceRequest{Name: "r"})}, ErrInvalid, "neither exactly nor firstAvailable"},
		{"an unknown mode", plain("c"), []runtime.Object{aClaim("c", strange)}, ErrInvalid, `unknown mode "Some"`},
		{"derived attributes", plain("c"), []runtime.Object{aClaim("c", derived)}, ErrInvalid, "derivedAttributes"},
		{"an unknown selector", plain("c"), []runtime.Object{aClaim("c", noCEL)}, ErrInvalid, "unknown kind of selector"},
		{"an unknown constraint", plain("c"), []runtime.Object{constrained(aClaim("c", exactly("r", 1)), resourceapi.DeviceConstraint{})}, ErrInvalid, "spec.devices.constraints[0]"},
		{"a claim that is not the policy's", func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimName: ptr.To("c")}}
		}, []runtime.Object{ladder(), aClaim("c", exactly("r", 1))}, ErrInvalid, "not made from revision 1 of policy"},
		{"other tiers than the policy's", func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimName: ptr.To("c")}}
		}, []runtime.Object{ladder(), tiersClaim("c", "a100", "h100")}, ErrInvalid, "alternatives are not the policy's tiers"},
		{"no alternatives", func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimName: ptr.To("c")}}
		}, []runtime.Object{ladder(), aClaim("c", exactly(v1alpha1.RequestName, 1))}, ErrInvalid, "it has no alternatives"},
		{"a claim of another Pod", func(p *corev1.Pod) {
			fromTemplate("c", "t")(p)
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: ptr.To("other")}}
		}, []runtime.Object{aClaim("other", exactly("r", 1))}, ErrInvalid, "other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := stateOf(t, aNode("n-1"), aClass("gpu"), aPod("p", c.pod))
			mustPut(t, st, c.objects...)
			_, err := st.Decide(ask("p"))
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.err, c.says)
			}
			if _, err := st.Candidates(ask("p")); !errors.Is(err, c.err) {
				t.Errorf("candidates: %v", err)
			}
		})
	}
	if _, err := NewState(Options{}).Decide(ask("p")); !errors.Is(err, ErrNotFound) {
		t.Errorf("a Pod that is not there: %v", err)
	}
}

// A claim is found by its name, by the Pod's status, by its owner; else it is
// decided from the template.
func TestWhereAClaimIsFound(t *testing.T) {
	generated := aClaim("p-c-xyz", exactly("r", 1, ofModel("A100")))
	generated.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: "c"}
	generated.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "uid-p", Controller: ptr.To(true)}}
	pod := func(change ...func(*corev1.Pod)) *corev1.Pod {
		return aPod("p", append([]func(*corev1.Pod){fromTemplate("c", "t")}, change...)...)
	}
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "A100")), aClass("gpu"), pod(),
		aTemplate("t", aClaim("", exactly("r", 1, ofModel("H100"))).Spec),
	)
	step := func(what, device, claim, key string) {
		t.Helper()
		d := decideFor(t, st, ask("p"))
		if got := namesOf(d); len(got) != 1 || got[0] != device || d.Claim != claim || d.IdempotencyKey != key {
			t.Fatalf("%s: %v, claim %q, key %q", what, got, d.Claim, d.IdempotencyKey)
		}
	}
	step("from the template", "n-1/gpu-0", "", "uid-p/0")
	mustPut(t, st, generated)
	step("by owner", "n-1/gpu-1", "p-c-xyz", "uid-p-c-xyz/0")
	mustPut(t, st, pod(func(p *corev1.Pod) {
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: ptr.To("p-c-xyz")}}
	}))
	step("by status", "n-1/gpu-1", "p-c-xyz", "uid-p-c-xyz/0")
	mustDelete(t, st, generated)
	if _, err := st.Decide(ask("p")); !errors.Is(err, ErrNotFound) {
		t.Errorf("the claim is gone: %v", err)
	}
	mustPut(t, st, pod(func(p *corev1.Pod) {
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c"}}
	}))
	mustDelete(t, st, aTemplate("t", resourceapi.ResourceClaimSpec{}))
	if d := decideFor(t, st, ask("p")); len(d.Devices) != 0 || d.Node != "n-1" {
		t.Errorf("no claim is needed, yet %v: %s", d.Devices, d.Message)
	}
}

// A claim that the policy's template made gives its UID, and is decided by the
// policy: the reasons stay typed.
func TestPolicyClaimThatExists(t *testing.T) {
	pod := aPod("p", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimName: ptr.To("c")}}
	})
	claim := tiersClaim("c", "h100", "a100")
	st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "A100")), aClass("gpu"), pod, claim, ladder(minMemory("80Gi")))
	d := decideFor(t, st, ask("p"))
	if d.Tier != "a100" || *d.TierIndex != 1 || d.Claim != "c" || d.IdempotencyKey != "uid-c/1" || d.Devices[0].Request != "accelerator/a100" || d.Devices[0].Claim != "" {
		t.Fatalf("%+v", d)
	}
	if countsOf(t, d, "h100")[v1alpha1.ReasonModelMismatch] != 1 {
		t.Errorf("%+v", d.Tiers)
	}
}

// A Pod with a policy and claims of its own: all are met on one node.
func TestPolicyBesideOtherClaims(t *testing.T) {
	nic := func(node string) *resourceapi.ResourceSlice {
		s := aSlice(node, aGPU("nic-0", "H100"))
		s.Name, s.Spec.Driver = node+"-nics", "dra.example.com"
		return s
	}
	own := exactly("nic", 1)
	own.Exactly.DeviceClassName = "nic"
	st := stateOf(
		t, aNode("n-1"), aNode("n-2"), aSlice("n-1", aGPU("gpu-0", "H100")), aSlice("n-2", aGPU("gpu-0", "A100")), nic("n-2"), ladder(),
		aClass("nic", `device.driver == "dra.example.com"`), aClaim("net", own), aPod("p", func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "net", ResourceClaimName: ptr.To("net")}}
		}),
	)
	d := decideFor(t, st, ask("p"))
	if d.Node != "n-2" || d.Tier != "a100" || *d.TierIndex != 1 || len(d.Devices) != 2 || d.Claim != "" {
		t.Fatalf("%+v", d)
	}
	if d.Devices[0].Claim != "net" || d.Devices[1].Claim != v1alpha1.ClaimRefName || d.Devices[1].Model != "A100" {
		t.Errorf("%+v", d.Devices)
	}
	if got := countsOf(t, d, "net/nic"); got[v1alpha1.ReasonSelected] != 1 || got[v1alpha1.ReasonSelectorNotMatched] != 2 {
		t.Errorf("the other claim counts %v", got)
	}
	if got := countsOf(t, d, "h100"); got[v1alpha1.ReasonNotEnoughDevices] != 1 || got[v1alpha1.ReasonModelMismatch] != 2 {
		t.Errorf("the H100 without a NIC counts %v", got)
	}
	before := st.Digest()
	assume(t, st, d, false)
	if len(st.uses) != 2 {
		t.Errorf("%d devices are held", len(st.uses))
	}
	st.Forget(ask("p").Pod)
	if st.Digest() != before {
		t.Error("something is left")
	}
}

func TestCapacityRequestsAreVerdicts(t *testing.T) {
	r := exactly("r", 1)
	r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: quantities{"memory": resource.MustParse("100Gi")}}
	st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), aClass("gpu"), aPod("p", plain("c")), aClaim("c", r))
	d := decideFor(t, st, ask("p"))
	if got := detailOf(d, "r", v1alpha1.ReasonCapacityTooSmall); got != "memory: 81559Mi < 100Gi" || d.Outcome != v1alpha1.OutcomeUnsatisfiable {
		t.Errorf("%s, %q", d.Outcome, got)
	}
}

// Tolerations of a plain claim hold for what they name.
func TestTolerations(t *testing.T) {
	r := exactly("r", 1)
	r.Exactly.Tolerations = []resourceapi.DeviceToleration{{Key: "audit", Operator: resourceapi.DeviceTolerationOpExists}}
	device := func(key string) *resourceapi.ResourceSlice {
		return aSlice("n-1", aGPU("gpu-0", "H100", withTaint(key, resourceapi.DeviceTaintEffectNoExecute)))
	}
	st := stateOf(t, aNode("n-1"), device("audit"), aClass("gpu"), aPod("p", plain("c")), aClaim("c", r), aPod("q"))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeAllocated {
		t.Errorf("tolerated: %s", d.Message)
	}
	mustPut(t, st, device("other"))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomePending {
		t.Errorf("not tolerated: %s", d.Message)
	}
	for action, want := range map[v1alpha1.UnhealthyAction]v1alpha1.Outcome{
		v1alpha1.UnhealthyKeep: v1alpha1.OutcomeAllocated, v1alpha1.UnhealthyRecreate: v1alpha1.OutcomeAllocated, v1alpha1.UnhealthyEvict: v1alpha1.OutcomePending,
	} {
		mustPut(t, st, device(v1alpha1.TaintFailed), ladder(func(s *v1alpha1.AcceleratorPolicySpec) { s.OnUnhealthy.Action = action }))
		if d := decideFor(t, st, ask("q")); d.Outcome != want {
			t.Errorf("%s: %s", action, d.Message)
		}
	}
}

// The caches of verdicts stay bounded however many claims come by.
func TestVerdictCachesAreBounded(t *testing.T) {
	st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), aClass("gpu"), aPod("p", plain("c")))
	for i := range 3 * maxAlternatives {
		mustPut(t, st, aClaim("c", exactly("r", 1, "device.driver.size() > "+string(rune('0'+i%10))+strings.Repeat(" ", i/10))))
		if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeAllocated {
			t.Fatalf("%d: %s", i, d.Message)
		}
	}
	if n := len(st.alternativeIDs); n > maxAlternatives {
		t.Errorf("%d alternatives are remembered", n)
	}
	if n := len(st.slices["n-1-gpus"].verdicts.by); n > maxAlternatives {
		t.Errorf("%d verdicts are cached", n)
	}
}
