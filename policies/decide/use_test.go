package decide

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func assume(t testing.TB, st *State, d *Decision, inFlight bool) {
	t.Helper()
	if err := st.Assume(d, inFlight); err != nil {
		t.Fatal(err)
	}
}

// allocatedAs writes the decision into a claim that belongs to the Pod.
func allocatedAs(d *Decision) *resourceapi.ResourceClaim {
	c := aClaim(d.Pod + "-accelerator")
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, x := range d.Devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: x.Request, Driver: x.Driver, Pool: x.Pool, Device: x.Device,
		})
	}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: d.Pod, UID: d.PodUID}}
	return c
}

func TestAssumeForgetLeavesNoTrace(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), ladder(), aPod("p", requests("5", "1Gi")), aPod("q", requests("5", "1Gi")),
		aQuota("a", []string{"team-a"}, upTo("H100", 1), upTo("A100", 1)),
	)
	before := st.Digest()
	d := decideFor(t, st, ask("p"))
	assume(t, st, d, true)
	if st.Digest() == before {
		t.Error("the digest does not see what is assumed")
	}
	q := decideFor(t, st, ask("q"))
	if got := countsOf(t, q, "h100"); got[v1alpha1.ReasonNodeUnsuitable] != 2 {
		t.Errorf("the node's CPU is taken, yet %v", got)
	}
	if again := decideFor(t, st, ask("p")); !slices.Equal(namesOf(again), namesOf(d)) {
		t.Errorf("the same Pod is told %v after %v", namesOf(again), namesOf(d))
	}
	st.Forget(ask("p").Pod)
	st.Forget(ask("p").Pod) // twice: no harm
	if st.Digest() != before {
		t.Error("something is left")
	}
	if q := decideFor(t, st, ask("q")); q.Outcome != v1alpha1.OutcomeAllocated {
		t.Errorf("%s", q.Message)
	}
}

func TestAssumedQuotaCounts(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), ladder(), aPod("p"), aPod("q"),
		aQuota("a", []string{"team-a"}, upTo("H100", 1)),
	)
	d := decideFor(t, st, ask("p"))
	assume(t, st, d, false)
	want := map[v1alpha1.Reason]int32{v1alpha1.ReasonInUse: 1, v1alpha1.ReasonQuotaExceeded: 1}
	check := func(what string) {
		t.Helper()
		got := countsOf(t, decideFor(t, st, ask("q")), "h100")
		for r, n := range want {
			if got[r] != n || len(got) != len(want) {
				t.Fatalf("%s: %v, want %v", what, got, want)
			}
		}
	}
	check("assumed")
	mustPut(t, st, allocatedAs(d))
	check("written")
	if holds := st.uses[deviceID{ours, "n-1", "gpu-0"}].holds; len(holds) != 1 || holds[0].claim == "" {
		t.Errorf("the written allocation did not replace the assumed one: %d holds", len(holds))
	}
	mustPut(t, st, aPod("p", onNode("n-1")))
	if n := st.nodes["n-1"].used; n.pods != 1 {
		t.Errorf("%d Pods are counted on the node", n.pods)
	}
	mustDelete(t, st, allocatedAs(d))
	if got := countsOf(t, decideFor(t, st, ask("q")), "h100"); got[v1alpha1.ReasonSelected] != 1 {
		t.Errorf("the claim is gone, yet %v", got)
	}
}

// A claim of somebody else on the same device does not replace what is
// assumed: both must be seen.
func TestStrangersClaimReplacesNothing(t *testing.T) {
	st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p"))
	assume(t, st, decideFor(t, st, ask("p")), true)
	mustPut(t, st, allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"}))
	if holds := st.uses[deviceID{ours, "n-1", "gpu-0"}].holds; len(holds) != 2 {
		t.Errorf("%d holds", len(holds))
	}
}

func TestAssumeGoesWithThePod(t *testing.T) {
	st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p"), aPod("q"))
	d := decideFor(t, st, ask("p"))
	assume(t, st, d, true)
	mustPut(t, st, aPod("p", func(p *corev1.Pod) { p.UID = "another" }))
	if got := decideFor(t, st, ask("q")); got.Outcome != v1alpha1.OutcomeAllocated {
		t.Errorf("a Pod of the same name inherits: %s", got.Message)
	}
	mustDelete(t, st, aPod("p"))
	if err := st.Assume(d, true); !errors.Is(err, ErrNotFound) {
		t.Errorf("assuming for a Pod that is gone: %v", err)
	}
	if err := st.Assume(&Decision{}, true); err != nil {
		t.Errorf("assuming what is not allocated: %v", err)
	}
}

func TestAdminAccessIsNotUse(t *testing.T) {
	claim := allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"})
	claim.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p"), claim, aQuota("a", []string{"team-a"}, upTo("H100", 1)))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeAllocated {
		t.Fatalf("%s", d.Message)
	}
}

func TestAdminAccessTakesWhatIsInUse(t *testing.T) {
	admin := exactly("r", 1)
	admin.Exactly.AdminAccess = ptr.To(true)
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), aClass("gpu"), aPod("p", plain("c")), aClaim("c", admin),
		inNamespace("team-b", allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"})), aQuota("a", []string{"team-a"}, upTo("H100", 0)),
	)
	d := decideFor(t, st, ask("p"))
	if d.Outcome != v1alpha1.OutcomeAllocated {
		t.Fatalf("%s", d.Message)
	}
	before := st.Digest()
	assume(t, st, d, false)
	if holds := st.uses[deviceID{ours, "n-1", "gpu-0"}].holds; len(holds) != 1 {
		t.Errorf("admin access is a hold")
	}
	st.Forget(ask("p").Pod)
	if st.Digest() != before {
		t.Error("something is left")
	}
}

func TestSharesAddUp(t *testing.T) {
	half := resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Capacity: &resourceapi.CapacityRequirements{Requests: quantities{"memory": resource.MustParse("40Gi")}},
	}}
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "A100", shareable)), aClass("gpu"),
		aPod("p", plain("c")), aPod("q", plain("d")), aPod("r", plain("e")), aClaim("c", half), aClaim("d", half), aClaim("e", half),
	)
	for _, name := range []string{"p", "q"} {
		d := decideFor(t, st, ask(name))
		if d.Outcome != v1alpha1.OutcomeAllocated {
			t.Fatalf("%s: %s", name, d.Message)
		}
		assume(t, st, d, false)
	}
	d := decideFor(t, st, ask("r"))
	if got := detailOf(d, "r", v1alpha1.ReasonCapacityTooSmall); got != "memory: 0 left of 80Gi, 40Gi wanted" {
		t.Errorf("%s, detail %q", d.Outcome, got)
	}
	if d.Outcome != v1alpha1.OutcomePending {
		t.Errorf("%s, yet the shares can be given back", d.Outcome)
	}
	st.Forget(types.NamespacedName{Namespace: "team-a", Name: "q"})
	if d := decideFor(t, st, ask("r")); d.Outcome != v1alpha1.OutcomeAllocated {
		t.Errorf("a share is free: %s", d.Message)
	}
}
