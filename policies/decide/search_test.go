package decide

import (
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const numa = "resource.kubernetes.io/numaNode"

func onNUMA(n int64) func(*resourceapi.Device) { return attr(numa, number(n)) }

func matching(attribute string, requests ...string) resourceapi.DeviceConstraint {
	name := resourceapi.FullyQualifiedName(attribute)
	return resourceapi.DeviceConstraint{MatchAttribute: &name, Requests: requests}
}

func distinct(attribute string, requests ...string) resourceapi.DeviceConstraint {
	name := resourceapi.FullyQualifiedName(attribute)
	return resourceapi.DeviceConstraint{DistinctAttribute: &name, Requests: requests}
}

func constrained(c *resourceapi.ResourceClaim, constraints ...resourceapi.DeviceConstraint) *resourceapi.ResourceClaim {
	c.Spec.Devices.Constraints = constraints
	return c
}

// firstAvailable is a request whose alternatives take a device of each model.
func firstAvailable(name string, models ...string) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name}
	for _, m := range models {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: m, DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Selectors: celOf(ofModel(m)),
		})
	}
	return r
}

func ofModel(m string) string {
	return fmt.Sprintf(`device.attributes["gpu.gpuladder.dev"].?model.orValue("") == %q`, m)
}

// on one node with these devices, a Pod with this claim gets want, or nothing.
func TestSetsOfDevices(t *testing.T) {
	eight := func(per int64) []resourceapi.Device {
		var out []resourceapi.Device
		for i := range int64(8) {
			out = append(out, aGPU(fmt.Sprintf("gpu-%d", i), "H100", onNUMA(i/per)))
		}
		return out
	}
	all := exactly("r", 0)
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	for _, c := range []struct {
		name    string
		devices []resourceapi.Device
		claim   *resourceapi.ResourceClaim
		taken   []string
		want    []string
		reason  v1alpha1.Reason
		count   int32
	}{
		{name: "the first two", devices: eight(4), claim: aClaim("c", exactly("r", 2)), want: []string{"gpu-0", "gpu-1"}},
		{name: "the first that match", devices: eight(2), claim: constrained(aClaim("c", exactly("r", 2)), matching(numa)), taken: []string{"gpu-0"}, want: []string{"gpu-2", "gpu-3"}},
		{name: "none that match", devices: eight(2), claim: constrained(aClaim("c", exactly("r", 3)), matching(numa)), reason: v1alpha1.ReasonTopologyUnsatisfied, count: 8},
		{name: "distinct", devices: eight(4), claim: constrained(aClaim("c", exactly("r", 2)), distinct(numa)), want: []string{"gpu-0", "gpu-4"}},
		{name: "not so many distinct", devices: eight(4), claim: constrained(aClaim("c", exactly("r", 3)), distinct(numa)), reason: v1alpha1.ReasonTopologyUnsatisfied, count: 8},
		{name: "too few", devices: eight(4), claim: aClaim("c", exactly("r", 9)), reason: v1alpha1.ReasonNotEnoughDevices, count: 8},
		{name: "more than a claim can hold", devices: eight(4), claim: aClaim("c", exactly("r", 1<<40)), reason: v1alpha1.ReasonNotEnoughDevices, count: 8},
		{name: "all", devices: eight(4)[:3], claim: aClaim("c", all), want: []string{"gpu-0", "gpu-1", "gpu-2"}},
		{name: "all, one is taken", devices: eight(4)[:3], claim: aClaim("c", all), taken: []string{"gpu-1"}, reason: v1alpha1.ReasonNotEnoughDevices, count: 2},
		{name: "all, which do not match", devices: eight(2)[:3], claim: constrained(aClaim("c", all), matching(numa)), reason: v1alpha1.ReasonTopologyUnsatisfied, count: 3},
		{name: "two requests", devices: eight(4), claim: aClaim("c", exactly("a", 1), exactly("b", 2)), want: []string{"gpu-0", "gpu-1", "gpu-2"}},
		{name: "two requests that match", devices: eight(2), claim: constrained(aClaim("c", exactly("a", 1), exactly("b", 1)), matching(numa)), taken: []string{"gpu-1", "gpu-2"}, want: []string{"gpu-4", "gpu-5"}},
		{name: "one of two is constrained", devices: eight(2), claim: constrained(aClaim("c", exactly("a", 1), exactly("b", 2)), matching(numa, "b")), want: []string{"gpu-0", "gpu-2", "gpu-3"}},
		{
			name:    "the first request leaves what the second needs",
			devices: []resourceapi.Device{aGPU("gpu-0", "H100"), aGPU("gpu-1", "A100")},
			claim:   aClaim("c", exactly("a", 1), exactly("b", 1, ofModel("H100"))), want: []string{"gpu-1", "gpu-0"},
		},
		{
			name:    "the vector counts before the devices",
			devices: []resourceapi.Device{aGPU("gpu-0", "H100"), aGPU("gpu-1", "A100")},
			claim:   aClaim("c", exactly("a", 1), firstAvailable("b", "H100", "A100")), want: []string{"gpu-1", "gpu-0"},
		},
		{
			name:    "a constraint on one alternative only",
			devices: []resourceapi.Device{aGPU("gpu-0", "H100"), aGPU("gpu-1", "A100")},
			claim:   constrained(aClaim("c", firstAvailable("b", "H100", "A100")), matching(numa, "b/H100")), want: []string{"gpu-1"},
		},
		{
			name:    "an attribute that is a list never equals",
			devices: []resourceapi.Device{aGPU("gpu-0", "H100", attr(numa, resourceapi.DeviceAttribute{IntValues: []int64{0}})), aGPU("gpu-1", "H100", attr(numa, resourceapi.DeviceAttribute{IntValues: []int64{0}}))},
			claim:   constrained(aClaim("c", exactly("r", 2)), matching(numa)), reason: v1alpha1.ReasonTopologyUnsatisfied, count: 2,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := stateOf(t, aNode("n-1"), aSlice("n-1", c.devices...), aClass("gpu"), aPod("p", plain("c")), c.claim)
			for _, taken := range c.taken {
				mustPut(t, st, allocated(aClaim("x-"+taken), "r", [2]string{"n-1", taken}))
			}
			d := decideFor(t, st, ask("p"))
			var got []string
			for _, x := range d.Devices {
				got = append(got, x.Device)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("got %v, want %v: %s", got, c.want, d.Message)
			}
			if c.reason != "" {
				if n := countsOf(t, d, d.Tiers[0].Name)[c.reason]; n != c.count {
					t.Errorf("%d %s, want %d: %+v", n, c.reason, c.count, d.Tiers)
				}
			}
		})
	}
}

func TestWishes(t *testing.T) {
	pcie := "resource.kubernetes.io/pcieRoot"
	policy := ladder(count(2), func(s *v1alpha1.AcceleratorPolicySpec) { s.PreferAttributes = []string{numa, pcie} })
	device := func(name string, n int64, root string) resourceapi.Device {
		return aGPU(name, "H100", onNUMA(n), attr(pcie, text(root)))
	}
	st := stateOf(
		t, aNode("n-1"), aNode("n-2"), policy, aPod("p"),
		aSlice("n-1", device("gpu-0", 0, "a"), device("gpu-1", 1, "b"), device("gpu-2", 1, "c")), // two share NUMA only
	)
	step := func(what, node string, want ...string) {
		t.Helper()
		d := decideFor(t, st, ask("p"))
		var got []string
		for _, x := range d.Devices {
			got = append(got, x.Device)
		}
		if d.Node != node || !slices.Equal(got, want) {
			t.Fatalf("%s: %v on %s, want %v on %s", what, got, d.Node, want, node)
		}
	}
	step("one of two wishes", "n-1", "gpu-1", "gpu-2")
	mustPut(t, st, aSlice("n-2", device("gpu-0", 0, "a"), device("gpu-1", 1, "b"), device("gpu-2", 1, "a"), device("gpu-3", 1, "b")))
	step("both wishes, though the node is less packed", "n-2", "gpu-1", "gpu-3")
	mustDelete(t, st, aSlice("n-2"))
	mustPut(t, st, aSlice("n-1", device("gpu-0", 0, "a"), device("gpu-1", 1, "a"), device("gpu-2", 0, "b"))) // each pair meets one
	step("either wish will do, the first devices", "n-1", "gpu-0", "gpu-1")
	mustPut(t, st, aSlice("n-2", device("gpu-0", 0, "a"), device("gpu-1", 1, "b")), aSlice("n-1", device("gpu-0", 0, "c"), device("gpu-1", 1, "d"), device("gpu-2", 2, "e")))
	step("no wish, the packed node", "n-2", "gpu-0", "gpu-1")
}

// partitions are n boards of a two-way counter puzzle each.
func partitions(boards int) []runtime.Object {
	counters := changed(aSlice("n-1"), func(s *resourceapi.ResourceSlice) { s.Name += "-counters"; twoSlices(s) })
	devices := changed(aSlice("n-1"), twoSlices)
	for b := range boards {
		set := resourceapi.CounterSet{Name: fmt.Sprintf("board-%02d", b), Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("70")}}}
		for s := range 7 {
			set.Counters[fmt.Sprintf("slot-%d", s)] = resourceapi.Counter{Value: resource.MustParse("1")}
		}
		counters.Spec.SharedCounters = append(counters.Spec.SharedCounters, set)
		// Partitions of three slots that overlap: two of them fit, and only in
		// the right places.
		for at := range 5 {
			takes := map[string]string{"memory": "30"}
			for s := at; s < at+3; s++ {
				takes[fmt.Sprintf("slot-%d", s)] = "1"
			}
			devices.Spec.Devices = append(devices.Spec.Devices, aGPU(fmt.Sprintf("gpu-%02d-%d", b, at), "H100", consumes(set.Name, takes)))
		}
	}
	return []runtime.Object{aNode("n-1"), counters, devices}
}

// The search is exact where it must back out of overlapping partitions, and
// still ends where no combination exists.
func TestPartitionsArePacked(t *testing.T) {
	const boards = 8
	for _, c := range []struct {
		count int64
		fits  bool
	}{{2 * boards, true}, {2*boards + 1, false}, {32, false}} {
		t.Run(fmt.Sprint(c.count), func(t *testing.T) {
			st := stateOf(t, append(partitions(boards), aClass("gpu"), aPod("p", plain("c")), aClaim("c", exactly("r", c.count)))...)
			d := decideFor(t, st, ask("p"))
			if (d.Outcome == v1alpha1.OutcomeAllocated) != c.fits {
				t.Fatalf("%s: %s", d.Outcome, d.Message)
			}
			if !c.fits {
				if got := countsOf(t, d, "r")[v1alpha1.ReasonNotEnoughDevices]; got != 5*boards || d.Outcome != v1alpha1.OutcomeUnsatisfiable {
					t.Errorf("%s, %d", d.Outcome, got)
				}
				return
			}
			for i, x := range d.Devices {
				// The first two that fit together on each board: at 0 and 3.
				if want := fmt.Sprintf("gpu-%02d-%d", i/2, 3*(i%2)); x.Device != want {
					t.Fatalf("device %d is %s, want %s", i, x.Device, want)
				}
			}
		})
	}
}

// A counter puzzle without structure: the search gives up, soon and always in
// the same place, and says that there are not enough devices.
func TestSearchIsBounded(t *testing.T) {
	counters := changed(aSlice("n-1"), func(s *resourceapi.ResourceSlice) {
		s.Name += "-counters"
		twoSlices(s)
		s.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "pot", Counters: map[string]resourceapi.Counter{"a": {Value: resource.MustParse("1000003")}, "b": {Value: resource.MustParse("999983")}}}}
	})
	devices := changed(aSlice("n-1"), twoSlices)
	for i := range 60 {
		a, b := 31000+(i*7919)%9001, 65000-(i*6007)%9001
		devices.Spec.Devices = append(devices.Spec.Devices, aGPU(fmt.Sprintf("g-%02d", i), "H100", consumes("pot", map[string]string{"a": fmt.Sprint(a), "b": fmt.Sprint(b)})))
	}
	st := stateOf(t, aNode("n-1"), counters, devices, aClass("gpu"), aPod("p", plain("c")), aClaim("c", exactly("r", 17)))
	d := decideFor(t, st, ask("p"))
	if d.Outcome == v1alpha1.OutcomeAllocated || countsOf(t, d, "r")[v1alpha1.ReasonNotEnoughDevices] != 60 {
		t.Fatalf("%s: %+v", d.Message, d.Tiers)
	}
	if again := decideFor(t, st, ask("p")); again.Message != d.Message || again.Outcome != d.Outcome {
		t.Errorf("%s, then %s", d.Message, again.Message)
	}
}

// Many equal devices that can't meet a constraint between two requests: without
// leaving equal ones out this takes for ever.
func TestEqualDevicesAreTriedOnce(t *testing.T) {
	var devices []resourceapi.Device
	for i := range 120 {
		devices = append(devices, aGPU(fmt.Sprintf("gpu-%03d", i), "H100", onNUMA(0)))
	}
	devices = append(devices, aGPU("other", "L4", onNUMA(1)))
	claim := constrained(aClaim("c", exactly("a", 10, ofModel("H100")), exactly("b", 1, ofModel("L4"))), matching(numa))
	st := stateOf(t, aNode("n-1"), aSlice("n-1", devices...), aClass("gpu"), aPod("p", plain("c")), claim)
	d := decideFor(t, st, ask("p"))
	if got := countsOf(t, d, "a")[v1alpha1.ReasonTopologyUnsatisfied]; got != 120 {
		t.Errorf("%+v", d.Tiers)
	}
}

func TestAdminAccessInOneClaim(t *testing.T) {
	admin := func(name string) resourceapi.DeviceRequest {
		r := exactly(name, 1)
		r.Exactly.AdminAccess = ptr.To(true)
		return r
	}
	st := stateOf(
		t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), aClass("gpu"), aPod("p", plain("c")), aPod("q", plain("c", "d")),
		aClaim("c", admin("a"), admin("b")), aClaim("d", admin("a")),
	)
	if d := decideFor(t, st, ask("p")); d.Outcome == v1alpha1.OutcomeAllocated {
		t.Error("one device twice in one claim")
	}
	mustPut(t, st, aClaim("c", admin("a")))
	if d := decideFor(t, st, ask("q")); len(d.Devices) != 2 || d.Devices[1].Claim != "d" {
		t.Errorf("one device for two claims: %s", d.Message)
	}
}
