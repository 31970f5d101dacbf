package decide

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func generation(n, of int64, name string) func(*resourceapi.ResourceSlice) {
	return func(s *resourceapi.ResourceSlice) {
		s.Name, s.Spec.Pool.Generation, s.Spec.Pool.ResourceSliceCount = name, n, of
	}
}

func TestOnlyTheNewestGenerationIsSeen(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), ladder(), aPod("p"),
		changed(aSlice("n-1", aGPU("old-0", "H100"), aGPU("old-1", "H100")), generation(1, 1, "a")),
	)
	step := func(what string, outcome v1alpha1.Outcome, total int32, device string) {
		t.Helper()
		d := decideFor(t, st, ask("p"))
		var sum int32
		for _, n := range countsOf(t, d, "h100") {
			sum += n
		}
		if d.Outcome != outcome || sum != total || st.deviceCount != int(total) {
			t.Fatalf("%s: %s over %d devices (%d), want %s over %d", what, d.Outcome, sum, st.deviceCount, outcome, total)
		}
		if device != "" && namesOf(d)[0] != device {
			t.Fatalf("%s: chose %v, want %s", what, namesOf(d), device)
		}
	}
	step("one generation", v1alpha1.OutcomeAllocated, 2, "n-1/old-0")
	mustPut(t, st, changed(aSlice("n-1", aGPU("new-1", "H100")), generation(2, 2, "b")))
	step("half of the next", v1alpha1.OutcomePending, 1, "")
	mustPut(t, st, changed(aSlice("n-1", aGPU("new-0", "H100")), generation(2, 2, "c")))
	step("all of the next", v1alpha1.OutcomeAllocated, 2, "n-1/new-0")
	mustPut(t, st, changed(aSlice("n-1", aGPU("new-0", "H100"), aGPU("new-1", "H100")), generation(2, 2, "c")))
	step("a name twice", v1alpha1.OutcomePending, 2, "")
	mustDelete(t, st, changed(aSlice("n-1"), generation(2, 2, "b")), changed(aSlice("n-1"), generation(2, 2, "c")))
	step("the next is withdrawn", v1alpha1.OutcomeAllocated, 2, "n-1/old-0")
	mustDelete(t, st, changed(aSlice("n-1"), generation(1, 1, "a")))
	step("nothing is left", v1alpha1.OutcomeUnsatisfiable, 0, "")
	if len(st.pools)+len(st.poolOrder)+len(st.slices)+len(st.shared) != 0 || len(st.nodes["n-1"].local) != 0 {
		t.Error("something of the pool is left")
	}
}

// Slices stand in the order of their smallest device, whatever their names.
func TestOrderOfSlicesAndDevices(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), ladder(count(3)), aPod("p"),
		changed(aSlice("n-1", aGPU("gpu-9", "H100"), aGPU("gpu-1", "H100")), generation(1, 2, "z")),
		changed(aSlice("n-1", aGPU("gpu-2", "H100"), aGPU("gpu-10", "H100")), generation(1, 2, "a")),
	)
	want := []string{"n-1/gpu-1", "n-1/gpu-9", "n-1/gpu-10"}
	if got := namesOf(decideFor(t, st, ask("p"))); !slices.Equal(got, want) {
		t.Errorf("chose %v, want %v", got, want)
	}
}

func TestPoolsThatCannotBeUsed(t *testing.T) {
	counters := map[string]string{"memory": "80"}
	for _, c := range []struct {
		name   string
		slices []*resourceapi.ResourceSlice
	}{
		{"devices and counters in one slice", []*resourceapi.ResourceSlice{changed(aSlice("n-1", aGPU("g", "H100")), func(s *resourceapi.ResourceSlice) {
			s.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "x"}}
		})}},
		{"a counter set twice", []*resourceapi.ResourceSlice{
			changed(aSlice("n-1", aGPU("g", "H100")), generation(1, 3, "d")),
			changed(counterSlice("n-1", "board", counters), generation(1, 3, "e")),
			changed(counterSlice("n-1", "board", counters), generation(1, 3, "f")),
		}},
		{"no such counter", []*resourceapi.ResourceSlice{
			counterSlice("n-1", "board", counters), changed(aSlice("n-1", aGPU("g", "H100", consumes("board", map[string]string{"engines": "1"}))), twoSlices),
		}},
		{"slices that disagree on their number", []*resourceapi.ResourceSlice{
			changed(aSlice("n-1", aGPU("g", "H100")), generation(1, 2, "d")), changed(aSlice("n-1", aGPU("h", "H100")), generation(1, 3, "e")),
		}},
		{"compatibility groups", []*resourceapi.ResourceSlice{counterSlice("n-1", "board", counters), changed(aSlice("n-1", aGPU("g", "H100", consumes("board", counters))), func(s *resourceapi.ResourceSlice) {
			twoSlices(s)
			s.Spec.Devices[0].ConsumesCounters[0].CompatibilityGroups = []string{"a"}
		})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := stateOf(t, aNode("n-1"), ladder(), aPod("p"))
			for _, s := range c.slices {
				mustPut(t, st, s)
			}
			d := decideFor(t, st, ask("p"))
			if n := countsOf(t, d, "h100")[v1alpha1.ReasonPoolIncomplete]; n == 0 || d.Outcome != v1alpha1.OutcomePending {
				t.Errorf("%s: %+v", d.Outcome, d.Tiers[0])
			}
		})
	}
}

func rule(name string, sel *resourceapi.DeviceTaintSelector, effect resourceapi.DeviceTaintEffect) *resourceapi.DeviceTaintRule {
	return &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.DeviceTaintRuleSpec{DeviceSelector: sel, Taint: resourceapi.DeviceTaint{Key: name, Effect: effect}},
	}
}

func TestDeviceTaintRules(t *testing.T) {
	no := resourceapi.DeviceTaintEffectNoSchedule
	for _, c := range []struct {
		name string
		rule *resourceapi.DeviceTaintRule
		want int32
	}{
		{"no selector selects nothing", rule("r", nil, no), 0},
		{"an empty one everything", rule("r", &resourceapi.DeviceTaintSelector{}, no), 3},
		{"by driver", rule("r", &resourceapi.DeviceTaintSelector{Driver: ptr.To(ours)}, no), 3},
		{"by another driver", rule("r", &resourceapi.DeviceTaintSelector{Driver: ptr.To("x")}, no), 0},
		{"by pool", rule("r", &resourceapi.DeviceTaintSelector{Pool: ptr.To("n-1")}, no), 2},
		{"by device", rule("r", &resourceapi.DeviceTaintSelector{Device: ptr.To("gpu-0")}, no), 2},
		{"by pool and device", rule("r", &resourceapi.DeviceTaintSelector{Pool: ptr.To("n-1"), Device: ptr.To("gpu-0")}, no), 1},
		{"no effect", rule("r", &resourceapi.DeviceTaintSelector{}, resourceapi.DeviceTaintEffectNone), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := stateOf(t, aNode("n-1"), aNode("n-2"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), aPod("p"), ladder())
			mustPut(t, st, c.rule)
			mustPut(t, st, aSlice("n-2", aGPU("gpu-0", "H100"))) // after the rule
			if got := countsOf(t, decideFor(t, st, ask("p")), "h100")[v1alpha1.ReasonDeviceTainted]; got != c.want {
				t.Fatalf("%d tainted, want %d", got, c.want)
			}
			mustPut(t, st, rule("r", &resourceapi.DeviceTaintSelector{Device: ptr.To("gpu-1")}, no))
			if got := countsOf(t, decideFor(t, st, ask("p")), "h100")[v1alpha1.ReasonDeviceTainted]; got != 1 {
				t.Fatalf("%d tainted after the rule has changed, want 1", got)
			}
			mustDelete(t, st, c.rule)
			if got := countsOf(t, decideFor(t, st, ask("p")), "h100")[v1alpha1.ReasonDeviceTainted]; got != 0 {
				t.Fatalf("%d tainted after the rule has gone", got)
			}
		})
	}
}

// onlyOn makes a slice reachable by node selection instead of by name.
func onlyOn(s *resourceapi.ResourceSlice, label, value string) *resourceapi.ResourceSlice {
	s.Spec.NodeName = nil
	s.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
	}}}
	return s
}

func TestDevicesThatSeveralNodesReach(t *testing.T) {
	rack := func(n string) *corev1.Node {
		return changed(aNode(n), func(o *corev1.Node) { o.Labels["rack"] = "1" })
	}
	fabric := onlyOn(aSlice("fabric", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), "rack", "1")
	st := stateOf(t, aNode("n-0"), rack("n-2"), rack("n-1"), fabric, ladder(), aPod("p"), aPod("q"))
	d := decideFor(t, st, ask("p"))
	if d.Node != "n-1" || namesOf(d)[0] != "fabric/gpu-0" {
		t.Fatalf("%s on %s", namesOf(d), d.Node)
	}
	assume(t, st, d, false)
	if got := countsOf(t, decideFor(t, st, ask("q")), "h100"); got[v1alpha1.ReasonInUse] != 1 || got[v1alpha1.ReasonSelected] != 1 {
		t.Errorf("counts %v", got)
	}
	mustPut(t, st, aNode("n-1")) // leaves the rack
	st.Forget(ask("p").Pod)
	if d := decideFor(t, st, ask("p")); d.Node != "n-2" {
		t.Errorf("the node has left the rack, yet %s", d.Node)
	}
	mustPut(t, st, changed(rack("n-2"), func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	if got := countsOf(t, decideFor(t, st, ask("p")), "h100"); got[v1alpha1.ReasonNodeUnsuitable] != 2 {
		t.Errorf("counts %v", got)
	}
	everywhere := changed(aSlice("fabric", aGPU("gpu-0", "H100")), func(s *resourceapi.ResourceSlice) { s.Spec.NodeName, s.Spec.AllNodes = nil, ptr.To(true) })
	mustPut(t, st, everywhere)
	if d := decideFor(t, st, ask("p")); d.Node != "n-0" {
		t.Errorf("all nodes reach it, yet %s", d.Node)
	}
}

func TestNodeSelectionByDevice(t *testing.T) {
	each := changed(aSlice("fabric",
		aGPU("gpu-0", "H100", func(d *resourceapi.Device) { d.NodeName = ptr.To("n-2") }),
		aGPU("gpu-1", "H100", func(d *resourceapi.Device) { d.AllNodes = ptr.To(true) }),
		aGPU("gpu-2", "H100", func(d *resourceapi.Device) { d.NodeName = ptr.To("n-9") }),
		aGPU("gpu-3", "H100"),
	), func(s *resourceapi.ResourceSlice) { s.Spec.NodeName, s.Spec.PerDeviceNodeSelection = nil, ptr.To(true) })
	st := stateOf(t, aNode("n-1"), aNode("n-2"), each, aSlice("n-2", aGPU("gpu-0", "H100")), ladder(count(3)), aPod("p"))
	d := decideFor(t, st, ask("p"))
	if want := []string{"fabric/gpu-0", "fabric/gpu-1", "n-2/gpu-0"}; d.Node != "n-2" || !slices.Equal(namesOf(d), want) {
		t.Fatalf("%v on %s", namesOf(d), d.Node)
	}
	if got := countsOf(t, d, "h100"); got[v1alpha1.ReasonNodeMismatch] != 2 {
		t.Errorf("counts %v", got)
	}
}
