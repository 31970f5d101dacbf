package decide

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestRecordOfAnAllocation(t *testing.T) {
	st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), ladder(count(2)), aPod("p"))
	query := ask("p")
	query.Attempt = 3
	d := decideFor(t, st, query)
	for what, ok := range map[string]bool{
		"who":       d.Namespace == "team-a" && d.Pod == "p" && d.PodUID == "uid-p",
		"what":      d.Outcome == v1alpha1.OutcomeAllocated && d.Class == "" && d.Tier == "h100" && d.TierIndex != nil && *d.TierIndex == 0,
		"policy":    d.Policy == "h100-first" && d.PolicyRevision == 1 && d.PolicyHash == st.policies["h100-first"].hash,
		"key":       d.IdempotencyKey == "uid-p/1" && d.Attempt == 3,
		"origin":    d.EngineVersion == EngineVersion && d.DecidedAt.Time.Equal(epoch) && strings.HasPrefix(d.InputDigest, v1alpha1.HashPrefix) && d.Journal == "",
		"devices":   len(d.Devices) == 2 && d.Devices[1] == v1alpha1.DecidedDevice{Driver: ours, Pool: "n-1", Device: "gpu-1", Request: "accelerator/h100", Model: "H100"},
		"message":   d.Message == "Allocated: 2 H100 on node n-1 by tier h100 of policy h100-first revision 1.",
		"tiers":     len(d.Tiers) == 2 && d.Tiers[0].Outcome == v1alpha1.TierSelected && d.Tiers[1].Outcome == v1alpha1.TierNotReached,
		"untouched": st.Digest() == stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), ladder(count(2)), aPod("p")).Digest(),
	} {
		if !ok {
			t.Errorf("%s: %+v", what, d)
		}
	}
	raw, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(raw), `{"namespace":"team-a","pod":"p"`) {
		t.Errorf("%s", raw)
	}
	if again, _ := json.Marshal(decideFor(t, st, query)); string(again) != string(raw) {
		t.Error("the second answer differs")
	}
}

func TestExamplesAreLimited(t *testing.T) {
	for examples, want := range map[int]int{0: 3, 1: 1, -1: 5} {
		st := stateWith(t, Options{Examples: examples}, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "T4"), aGPU("gpu-1", "T4"), aGPU("gpu-2", "T4"), aGPU("gpu-3", "T4"), aGPU("gpu-4", "T4")), ladder(), aPod("p"))
		r := decideFor(t, st, ask("p")).Tiers[0].Rejections[0]
		if r.Count != 5 || len(r.Examples) != want {
			t.Errorf("%d asked for: %d of %d", examples, len(r.Examples), r.Count)
		}
		if e := r.Examples[0]; e.Node != "n-1" || e.Pool != "n-1" || e.Device != "gpu-0" || e.Detail != "model T4" {
			t.Errorf("the first example is %+v", e)
		}
	}
}

// Waiting helps, or nothing ever does.
func TestPendingOrUnsatisfiable(t *testing.T) {
	t.Run("nothing to wait for", func(t *testing.T) {
		st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "T4")), ladder(), aPod("p"))
		d := decideFor(t, st, ask("p"))
		if d.Outcome != v1alpha1.OutcomeUnsatisfiable || d.Class != v1alpha1.FailureUnsatisfiable {
			t.Fatalf("%s %s", d.Outcome, d.Class)
		}
		if want := "Unsatisfiable: no tier of policy h100-first revision 1 can ever be met by this fleet: h100 (1 ModelMismatch); a100 (1 ModelMismatch)."; d.Message != want {
			t.Errorf("message %q, want %q", d.Message, want)
		}
		for _, e := range d.Tiers {
			if e.Outcome != v1alpha1.TierRejected {
				t.Errorf("tier %s is %s", e.Name, e.Outcome)
			}
		}
		// Somebody else's pool that is incomplete changes nothing, ours does.
		nic := changed(aSlice("n-1", aGPU("nic", "T4")), twoSlices)
		nic.Name, nic.Spec.Driver = "nics", "dra.example.com"
		mustPut(t, st, nic)
		if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeUnsatisfiable {
			t.Errorf("a NIC pool: %s", d.Outcome)
		}
		mustPut(t, st, aNode("n-2"), changed(aSlice("n-2", aGPU("gpu-0", "T4")), twoSlices))
		if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomePending {
			t.Errorf("a GPU pool: %s", d.Outcome)
		}
	})
	t.Run("no devices at all", func(t *testing.T) {
		st := stateOf(t, aNode("n-1"), ladder(), aPod("p"))
		if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeUnsatisfiable || !strings.Contains(d.Message, "h100 (no devices)") {
			t.Errorf("%s: %s", d.Outcome, d.Message)
		}
	})
	t.Run("everything is in the way at once", func(t *testing.T) {
		n := changed(aNode("n-1"), func(n *corev1.Node) { n.Spec.Unschedulable = true })
		st := stateOf(
			t, n, aSlice("n-1", aGPU("gpu-0", "H100", withTaint("x", resourceapi.DeviceTaintEffectNoExecute), attr("healthy", boolean(false))), aGPU("gpu-1", "H100")),
			allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"}, [2]string{"n-1", "gpu-1"}), ladder(count(2)), aPod("p"), aQuota("a", []string{"team-a"}, upTo("H100", 2)),
		)
		if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomePending || d.Class != "" {
			t.Errorf("%s: %s", d.Outcome, d.Message)
		}
	})
	t.Run("more than the limit", func(t *testing.T) {
		st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), ladder(count(2)), aPod("p"), aQuota("a", []string{"team-a"}, upTo("H100", 1)))
		if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeUnsatisfiable || d.Class != v1alpha1.FailureQuotaNeverFits {
			t.Errorf("%s %s: %s", d.Outcome, d.Class, d.Message)
		}
	})
}

// What is allocated already is the answer.
func TestAllocatedClaim(t *testing.T) {
	claim := allocated(tiersClaim("c", "h100", "a100"), "accelerator/a100", [2]string{"n-2", "gpu-0"})
	claim.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n-2"}}},
	}}}
	pod := aPod("p", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimName: ptr.To("c")}}
	})
	st := stateOf(
		t, aNode("n-1"), aNode("n-2"), aSlice("n-1", aGPU("gpu-0", "H100")), aSlice("n-2", aGPU("gpu-0", "A100")), ladder(), pod, claim, aClass("gpu"),
		aQuota("a", []string{"team-a"}, upTo("A100", 1)),
	)
	d := decideFor(t, st, ask("p"))
	if d.Outcome != v1alpha1.OutcomeAllocated || d.Node != "n-2" || d.Tier != "a100" || *d.TierIndex != 1 || d.Devices[0].Model != "A100" || d.IdempotencyKey != "uid-c/1" {
		t.Fatalf("%+v", d)
	}
	if got := countsOf(t, d, "h100"); got[v1alpha1.ReasonTierNotReached] != 2 || d.Tiers[0].Outcome != v1alpha1.TierNotReached {
		t.Errorf("the other tier counts %v", got)
	}
	if got := countsOf(t, d, "a100"); got[v1alpha1.ReasonSelected] != 1 || got[v1alpha1.ReasonTierNotReached] != 1 {
		t.Errorf("the chosen tier counts %v", got)
	}
	before := st.Digest()
	assume(t, st, d, false)
	if u := st.uses[deviceID{ours, "n-2", "gpu-0"}]; len(u.holds) != 1 {
		t.Error("what is written is charged again")
	}
	st.Forget(ask("p").Pod)
	if st.Digest() != before {
		t.Error("something is left")
	}
	if got := candidatesFor(t, st, ask("p")); len(got) != 1 || got[0].Node != "n-2" {
		t.Errorf("candidates %+v", got)
	}

	mustPut(t, st, changed(aNode("n-2"), func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomePending {
		t.Errorf("its node is cordoned: %s", d.Message)
	}
	mustPut(t, st, aNode("n-2"), aSlice("n-2", aGPU("gpu-0", "A100", withTaint(v1alpha1.TaintUnhealthy, resourceapi.DeviceTaintEffectNoSchedule))))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomePending || !strings.Contains(d.Message, "taint gpu.gpuladder.dev/unhealthy:NoSchedule") {
		t.Errorf("its device is tainted: %s", d.Message)
	}
	if got := candidatesFor(t, st, ask("p")); len(got) != 0 {
		t.Errorf("candidates %+v", got)
	}
	mustPut(t, st, aSlice("n-2", aGPU("gpu-0", "A100", attr("healthy", boolean(false)))))
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomePending {
		t.Errorf("its device is unhealthy: %s", d.Message)
	}
	mustDelete(t, st, aSlice("n-2"))
	if d := decideFor(t, st, ask("p")); d.Node != "n-2" || d.Devices[0].Device != "gpu-0" {
		t.Errorf("its slice is gone: %+v", d)
	}
}

// One claim of two is allocated: the other one follows it to its node.
func TestHalfAllocatedPod(t *testing.T) {
	have := allocated(aClaim("a", exactly("r", 1)), "r", [2]string{"n-2", "gpu-0"})
	have.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n-2"}}},
	}}}
	st := stateOf(
		t, aNode("n-1"), aNode("n-2"), aSlice("n-1", aGPU("gpu-0", "H100")), aSlice("n-2", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")),
		aClass("gpu"), have, aClaim("b", exactly("r", 1)), aPod("p", plain("a", "b")),
	)
	d := decideFor(t, st, ask("p"))
	if got := namesOf(d); d.Node != "n-2" || len(got) != 2 || got[0] != "n-2/gpu-0" || got[1] != "n-2/gpu-1" {
		t.Fatalf("%v on %s: %s", got, d.Node, d.Message)
	}
	if got := detailOf(d, "b/r", v1alpha1.ReasonNodeUnsuitable); got != "an allocated claim of the Pod is not usable there" {
		t.Errorf("detail %q", got)
	}
}

func TestPodWithoutClaims(t *testing.T) {
	st := stateOf(t, aNode("n-2"), aNode("n-1"), aPod("p", plain()))
	d := decideFor(t, st, ask("p"))
	if d.Node != "n-1" || len(d.Tiers) != 0 || d.Message != "Allocated: node n-1, no devices asked for." {
		t.Errorf("%+v", d)
	}
}

// A Pod that is bound is decided for its node, without its own requests.
func TestBoundPod(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), aNode("n-2"), aSlice("n-1", aGPU("gpu-0", "H100")), aSlice("n-2", aGPU("gpu-0", "H100")), ladder(),
		aPod("p", requests("5", "1Gi"), func(p *corev1.Pod) { p.Spec.NodeName = "n-2" }),
	)
	d := decideFor(t, st, ask("p"))
	if d.Node != "n-2" || detailOf(d, "h100", v1alpha1.ReasonNodeUnsuitable) != "the Pod is bound to another node" {
		t.Errorf("%+v", d)
	}
}

func TestMessagesAreShort(t *testing.T) {
	policy := aPolicy()
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		tier := aTier(strings.Repeat(name, 63), "H100-"+name)
		policy.Spec.Tiers = append(policy.Spec.Tiers, tier)
	}
	var devices []resourceapi.Device
	for _, model := range []string{"T4", "L4", "A100"} {
		devices = append(devices, aGPU("gpu-"+strings.ToLower(model), model))
	}
	devices = append(devices, aGPU("gpu-h", "H100", withTaint("x", resourceapi.DeviceTaintEffectNoSchedule)), aGPU("gpu-i", "H100", attr("healthy", boolean(false))))
	st := stateOf(t, aNode("n-1"), aSlice("n-1", devices...), policy, aPod("p"))
	if d := decideFor(t, st, ask("p")); len(d.Message) > 1024 || !strings.HasSuffix(d.Message, ").") && !strings.HasSuffix(d.Message, "....") {
		t.Errorf("%d: %s", len(d.Message), d.Message)
	}
}
