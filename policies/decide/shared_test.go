package decide

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// board is a pool with one set of counters, enough for two halves.
func board(devices ...resourceapi.Device) []*resourceapi.ResourceSlice {
	return []*resourceapi.ResourceSlice{
		counterSlice("n-1", "board", map[string]string{"memory": "80Gi", "slots": "1"}), changed(aSlice("n-1", devices...), twoSlices),
	}
}

func half(name string, change ...func(*resourceapi.Device)) resourceapi.Device {
	return aGPU(name, "H100", append(change, consumes("board", map[string]string{"memory": "40Gi"}))...)
}

func putBoard(t testing.TB, st *State, devices ...resourceapi.Device) {
	t.Helper()
	for _, s := range board(devices...) {
		mustPut(t, st, s)
	}
}

// A decision of the Pod itself that is assumed counts as free for it, counters
// included; for others it is taken.
func TestOwnAssumptionGivesCountersBack(t *testing.T) {
	st := stateOf(t, aNode("n-1"), ladder(count(2)), aPod("p"), aPod("q"))
	putBoard(t, st, half("half-0"), half("half-1"), half("half-2"))
	d := decideFor(t, st, ask("p"))
	assume(t, st, d, true)
	if again := decideFor(t, st, ask("p")); !slices.Equal(namesOf(again), namesOf(d)) {
		t.Errorf("%v, then %v", namesOf(d), namesOf(again))
	}
	if got := countsOf(t, decideFor(t, st, ask("q")), "h100"); got[v1alpha1.ReasonReserved] != 2 || got[v1alpha1.ReasonCountersExhausted] != 1 {
		t.Errorf("counts %v", got)
	}
	st.Forget(ask("p").Pod)
	if d := decideFor(t, st, ask("q")); d.Outcome != v1alpha1.OutcomeAllocated {
		t.Errorf("%s", d.Message)
	}
}

// A shared device consumes its counters once, however many shares it has.
func TestSharedDevicePaysItsCountersOnce(t *testing.T) {
	requests := []resourceapi.DeviceRequest{exactly("a", 1, "device.allowMultipleAllocations"), exactly("b", 1, "device.allowMultipleAllocations"), exactly("c", 1, "!device.allowMultipleAllocations")}
	st := stateOf(t, aNode("n-1"), aClass("gpu"), aPod("p", plain("c")), aClaim("c", requests...))
	putBoard(t, st, half("plain"), half("shared", shareable, without("memory")))
	d := decideFor(t, st, ask("p"))
	if want := []string{"n-1/shared", "n-1/shared", "n-1/plain"}; !slices.Equal(namesOf(d), want) {
		t.Fatalf("%v: %s", namesOf(d), d.Message)
	}
	assume(t, st, d, false)
	if left := st.pools[poolKey{ours, "n-1"}].countersLeft(); left[0] != 0 {
		t.Errorf("%v is left", left)
	}
	mustPut(t, st, aPod("q", plain("d")), aClaim("d", exactly("r", 1, "device.allowMultipleAllocations")))
	if d := decideFor(t, st, ask("q")); !slices.Equal(namesOf(d), []string{"n-1/shared"}) {
		t.Errorf("a third share: %s", d.Message)
	}
	st.Forget(types.NamespacedName{Namespace: "team-a", Name: "p"})
	if left := st.pools[poolKey{ours, "n-1"}].countersLeft(); left[0] == 0 {
		t.Error("nothing is given back")
	}
}

// A pool that has more allocated than it now publishes gives nothing more.
func TestOverdrawnPool(t *testing.T) {
	st := stateOf(t, aNode("n-1"), ladder(), aPod("p"), allocated(aClaim("x"), "r", [2]string{"n-1", "half-0"}, [2]string{"n-1", "half-1"}, [2]string{"n-1", "half-2"}))
	putBoard(t, st, half("half-0"), half("half-1"), half("half-2"), aGPU("tiny", "H100", consumes("board", map[string]string{"slots": "1"})))
	d := decideFor(t, st, ask("p"))
	if got := countsOf(t, d, "h100"); got[v1alpha1.ReasonInUse] != 3 || got[v1alpha1.ReasonCountersExhausted] != 1 {
		t.Fatalf("counts %v", got)
	}
	if got := detailOf(d, "h100", v1alpha1.ReasonCountersExhausted); got != "more is allocated of the pool's counters than it has" {
		t.Errorf("detail %q", got)
	}
}

// "All" means all that the node reaches, shared ones included, and waits for
// pools that are being published.
func TestAllDevicesOfANode(t *testing.T) {
	all := exactly("r", 0, ofModel("H100"))
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	rack := func(n string) *corev1.Node {
		return changed(aNode(n), func(o *corev1.Node) { o.Labels["rack"] = "1" })
	}
	st := stateOf(
		t, rack("n-1"), aNode("n-2"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "L4")), aSlice("n-2", aGPU("gpu-0", "L4")),
		onlyOn(aSlice("fabric", aGPU("gpu-0", "H100")), "rack", "1"), aClass("gpu"), aPod("p", plain("c")), aClaim("c", all),
	)
	d := decideFor(t, st, ask("p"))
	if want := []string{"fabric/gpu-0", "n-1/gpu-0"}; d.Node != "n-1" || !slices.Equal(namesOf(d), want) {
		t.Fatalf("%v on %s: %s", namesOf(d), d.Node, d.Message)
	}
	mustPut(t, st, allocated(aClaim("x"), "r", [2]string{"fabric", "gpu-0"}))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomePending {
		t.Errorf("one is taken: %s", d.Message)
	}
	mustDelete(t, st, aClaim("x"))
	late := changed(aSlice("late", aGPU("gpu-0", "T4")), twoSlices)
	late.Spec.NodeName = ptr.To("n-1")
	mustPut(t, st, late)
	if got := countsOf(t, decideFor(t, st, ask("p")), "r"); got[v1alpha1.ReasonNotEnoughDevices] != 2 {
		t.Errorf("a pool of the node is not whole: %v", got)
	}
}

// Constraints compare values of every kind, and only of one kind.
func TestKindsOfAttributeValues(t *testing.T) {
	values := map[string]resourceapi.DeviceAttribute{
		"text": text("1"), "number": number(1), "true": boolean(true), "false": boolean(false), "version": version("1.0.0"), "list": {StringValues: []string{"1"}},
	}
	same, other := newConstraint(matchValues, "example.com/x", nil), newConstraint(distinctValues, "example.com/x", nil)
	names := sortedKeys(values)
	for i, a := range names {
		for j, b := range names {
			device := func(name string, v resourceapi.DeviceAttribute) *device {
				return newSlice(aSlice("n-1", aGPU(name, "H100", attr("example.com/x", v)))).devices[0]
			}
			x, y := same.valueOf(device("a", values[a])), same.valueOf(device("b", values[b]))
			equal := i == j && a != "list"
			if same.allows(x, y) != equal {
				t.Errorf("%s matches %s: %v", a, b, !equal)
			}
			if want := !equal && a != "list"; other.allows(x, y) != want {
				t.Errorf("%s differs from %s: %v", a, b, !want)
			}
		}
	}
	if v := same.valueOf(newSlice(aSlice("n-1", aGPU("a", "H100"))).devices[0]); v.kind != 0 {
		t.Error("an attribute that is not there has a value")
	}
	own := newConstraint(matchValues, ours+"/model", nil)
	if v := own.valueOf(newSlice(aSlice("n-1", aGPU("a", "H100"))).devices[0]); v.text != "H100" {
		t.Errorf("an attribute of the driver's own domain is %+v", v)
	}
}

// Details name the first of several holders, whatever the order.
func TestHoldersInWords(t *testing.T) {
	for i := range 2 {
		st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p"))
		for j := range 2 {
			mustPut(t, st, allocated(aClaim(fmt.Sprintf("claim-%d", (i+j)%2)), "r", [2]string{"n-1", "gpu-0"}))
		}
		if got := detailOf(decideFor(t, st, ask("p")), "h100", v1alpha1.ReasonInUse); got != "held by claim team-a/claim-0" {
			t.Errorf("detail %q", got)
		}
	}
}
