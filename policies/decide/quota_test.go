package decide

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func reservedFor(pod string, c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: aPod(pod).UID}}
	return c
}

// The tenant's usage spans its namespaces, and nobody else's.
func TestUsageSpansTheTenantsNamespaces(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100"), aGPU("gpu-2", "H100")), ladder(), aPod("p"),
		inNamespace("team-b", allocated(aClaim("b"), "r", [2]string{"n-1", "gpu-0"})), aQuota("a", []string{"team-a", "team-a-dev"}, upTo("H100", 1)),
	)
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeAllocated {
		t.Fatalf("charged for another tenant: %s", d.Message)
	}
	mustPut(t, st, inNamespace("team-a-dev", allocated(aClaim("dev"), "r", [2]string{"n-1", "gpu-1"})))
	if got := countsOf(t, decideFor(t, st, ask("p")), "h100"); got[v1alpha1.ReasonQuotaExceeded] != 1 || got[v1alpha1.ReasonInUse] != 2 {
		t.Fatalf("counts %v", got)
	}
	mustPut(t, st, aQuota("a", []string{"team-a"}, upTo("H100", 1)))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeAllocated {
		t.Fatalf("the other namespace has left the tenant: %s", d.Message)
	}
	mustPut(t, st, aQuota("b", []string{"team-a-dev"}, upTo("H100", 1))) // free again
}

// Where two quotas list a namespace it belongs to the one with the smallest
// name, whichever came first, and to the other when that is gone. Neither is
// refused, so that the order in which changes are told does not matter.
func TestOverlappingQuotas(t *testing.T) {
	loose, strict := aQuota("a", []string{"team-a"}, upTo("H100", 1)), aQuota("b", []string{"team-a", "team-b"}, upTo("H100", 0))
	objects := []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p")}
	limited := func(st *State) bool {
		t.Helper()
		return countsOf(t, decideFor(t, st, ask("p")), "h100")[v1alpha1.ReasonQuotaExceeded] > 0
	}
	var digests []string
	for _, quotas := range [][]runtime.Object{{loose, strict}, {strict, loose}} {
		st := stateOf(t, append(slices.Clone(objects), quotas...)...)
		if limited(st) {
			t.Fatal("the quota with the larger name counts")
		}
		digests = append(digests, st.Digest())
		mustDelete(t, st, loose)
		if !limited(st) {
			t.Fatal("the namespace has not gone to the other tenant")
		}
		mustPut(t, st, loose)
		mustDelete(t, st, strict)
		if limited(st) {
			t.Fatal("the quota that is gone still counts")
		}
	}
	if digests[0] != digests[1] {
		t.Error("the order of the quotas is in the digest")
	}
}

// What a namespace holds is charged to the tenant that it belongs to, and not to
// another whose quota lists it too.
func TestOverlappingQuotasChargeOnce(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), ladder(), aPod("p"),
		aQuota("b", []string{"team-a", "shared"}, upTo("H100", 1)), aQuota("a", []string{"shared"}, upTo("H100", 1)),
		inNamespace("shared", allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"})),
	)
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeAllocated {
		t.Fatalf("charged for another tenant: %s", d.Message)
	}
	mustDelete(t, st, aQuota("a", nil))
	if got := countsOf(t, decideFor(t, st, ask("p")), "h100"); got[v1alpha1.ReasonQuotaExceeded] != 1 {
		t.Fatalf("counts %v", got)
	}
}

func TestWholeCountMustFit(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100"), aGPU("gpu-2", "H100")), ladder(count(2)), aPod("p"),
		aQuota("a", []string{"team-a"}, upTo("H100", 2)), allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"}),
	)
	if got := countsOf(t, decideFor(t, st, ask("p")), "h100"); got[v1alpha1.ReasonQuotaExceeded] != 2 {
		t.Fatalf("counts %v", got)
	}
	mustDelete(t, st, aClaim("x"))
	if d := decideFor(t, st, ask("p")); len(d.Devices) != 2 {
		t.Fatalf("%s", d.Message)
	}
}

// With mixed models each device is charged to its own, so what one model
// lacks another can give; and where a set fails for the quota alone it says so.
func TestMixedModelsShareTheQuota(t *testing.T) {
	policy := aPolicy(aTier("any", "H100", "A100"))
	policy.Spec.MixModels = v1alpha1.MixModelsWithinTier
	count(2)(&policy.Spec)
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100"), aGPU("gpu-2", "A100")), policy, aPod("p"),
		aQuota("a", []string{"team-a"}, upTo("H100", 1), upTo("A100", 1)),
	)
	d := decideFor(t, st, ask("p"))
	if got := namesOf(d); len(got) != 2 || got[0] != "n-1/gpu-0" || got[1] != "n-1/gpu-2" {
		t.Fatalf("chose %v: %s", got, d.Message)
	}
	mustPut(t, st, aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")))
	d = decideFor(t, st, ask("p"))
	if got := countsOf(t, d, "any"); got[v1alpha1.ReasonQuotaExceeded] != 2 {
		t.Fatalf("counts %v", got)
	}
	if d.Outcome != v1alpha1.OutcomeUnsatisfiable || d.Class != v1alpha1.FailureQuotaNeverFits {
		t.Errorf("%s %s: %s", d.Outcome, d.Class, d.Message)
	}
}

func TestQuotaOfNVIDIAsProductNames(t *testing.T) {
	policy := ladder(func(s *v1alpha1.AcceleratorPolicySpec) { s.Driver = v1alpha1.NVIDIADriverName })
	held := allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"})
	held.Status.Allocation.Devices.Results[0].Driver = v1alpha1.NVIDIADriverName
	st := stateOf(
		t, aNode("n-1"), fromNVIDIA(aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100"), aGPU("gpu-2", "A100"))), policy, aPod("p"),
		aQuota("a", []string{"team-a"}, upTo("H100", 1), upTo("A100", 1)), held,
	)
	d := decideFor(t, st, ask("p"))
	if d.Tier != "a100" || d.Devices[0].Model != "A100" {
		t.Fatalf("tier %s, %+v", d.Tier, d.Devices)
	}
	if got := countsOf(t, d, "h100"); got[v1alpha1.ReasonQuotaExceeded] != 1 || got[v1alpha1.ReasonInUse] != 1 {
		t.Errorf("counts %v", got)
	}
}

// A device whose slice has gone stays charged: as the Pod's annotation has it.
func TestChargeOutlivesTheSlice(t *testing.T) {
	bound := aPod("bound", onNode("n-1"), func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationModel: "H100"} })
	claim := reservedFor("bound", allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"}))
	st := stateOf(
		t, aNode("n-1"), aNode("n-2"), aSlice("n-2", aGPU("gpu-0", "H100")), ladder(), aPod("p"), claim,
		aQuota("a", []string{"team-a"}, upTo("H100", 1)),
	)
	exceeded := func() bool {
		return countsOf(t, decideFor(t, st, ask("p")), "h100")[v1alpha1.ReasonQuotaExceeded] > 0
	}
	if exceeded() {
		t.Error("nobody knows the model, yet it is charged")
	}
	mustPut(t, st, bound)
	if !exceeded() {
		t.Error("the annotation is not charged")
	}
	mustPut(t, st, aSlice("n-1", aGPU("gpu-0", "A100")))
	if exceeded() {
		t.Error("the slice knows better, but is not believed")
	}
	mustDelete(t, st, aSlice("n-1"))
	if !exceeded() {
		t.Error("the slice is gone, and with it the charge")
	}
	mustDelete(t, st, bound)
	if exceeded() {
		t.Error("the Pod is gone, its annotation is not")
	}
	mustDelete(t, st, claim)
	if len(st.charges) != 0 || len(st.uses) != 0 || len(st.reservedFor) != 0 {
		t.Errorf("left: %v, %v, %v", st.charges, st.uses, st.reservedFor)
	}
}

// What is assumed stays charged when the slice goes before the claim is written.
func TestAssumedChargeOutlivesTheSlice(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), aNode("n-2"), aSlice("n-1", aGPU("gpu-0", "H100")), aSlice("n-2", aGPU("gpu-0", "H100")), ladder(), aPod("p"), aPod("q"),
		aQuota("a", []string{"team-a"}, upTo("H100", 1)),
	)
	assume(t, st, decideFor(t, st, ask("p")), true)
	mustDelete(t, st, aSlice("n-1"))
	if got := countsOf(t, decideFor(t, st, ask("q")), "h100"); got[v1alpha1.ReasonQuotaExceeded] != 1 {
		t.Errorf("counts %v", got)
	}
}

func TestDevicesOfOtherDriversAreExempt(t *testing.T) {
	nic := aSlice("n-1", aGPU("nic-0", "H100"))
	nic.Spec.Driver = "dra.example.com"
	st := stateOf(t, aNode("n-1"), nic, aClass("gpu"), aPod("p", plain("c")), aClaim("c", exactly("r", 1)), aQuota("a", []string{"team-a"}, upTo("H100", 0)))
	d := decideFor(t, st, ask("p"))
	if d.Outcome != v1alpha1.OutcomeAllocated || d.Devices[0].Model != "" {
		t.Fatalf("%s: %+v", d.Message, d.Devices)
	}
}
