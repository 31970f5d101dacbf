package decide

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func onNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels, p.Spec.NodeName = nil, name }
}

func requests(cpu, memory string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}
	}
}

func TestBuiltinNodeChecks(t *testing.T) {
	taint := corev1.Taint{Key: "team", Value: "b", Effect: corev1.TaintEffectNoSchedule}
	selects := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }
	affine := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"n-1"}}},
			}}},
		}}
	}
	for _, c := range []struct {
		name   string
		node   func(*corev1.Node)
		pod    func(*corev1.Pod)
		placed []*corev1.Pod
		want   string // "" where the Pod can run
	}{
		{name: "fine"},
		{name: "cordoned", node: func(n *corev1.Node) { n.Spec.Unschedulable = true }, want: "cordoned"},
		{name: "cordoned, tolerated", node: func(n *corev1.Node) { n.Spec.Unschedulable = true }, pod: func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
		}},
		{name: "not ready", node: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, want: "not Ready"},
		{name: "never reported", node: func(n *corev1.Node) { n.Status.Conditions = nil }, want: "not Ready"},
		{name: "tainted", node: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} }, want: "taint team=b:NoSchedule"},
		{name: "tainted, tolerated", node: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} }, pod: func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "team", Operator: corev1.TolerationOpEqual, Value: "b"}}
		}},
		{name: "taint that only prefers", node: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectPreferNoSchedule}}
		}},
		{name: "node selector", pod: selects, want: "node selector or affinity"},
		{name: "node selector met", pod: selects, node: func(n *corev1.Node) { n.Labels["disk"] = "ssd" }},
		{name: "affinity", pod: affine, want: "node selector or affinity"},
		{name: "cpu", pod: requests("9", "1Gi"), want: "cpu: 8000m free, 9000m wanted"},
		{name: "cpu beside another Pod", pod: requests("5", "1Gi"), placed: []*corev1.Pod{aPod("a", onNode("n-1"), requests("4", "1Gi"))}, want: "cpu: 4000m free"},
		{name: "cpu beside a Pod that has ended", pod: requests("5", "1Gi"), placed: []*corev1.Pod{aPod("a", onNode("n-1"), requests("4", "1Gi"), func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
		})}},
		{name: "cpu, as much as is free", pod: requests("4", "1Gi"), placed: []*corev1.Pod{aPod("a", onNode("n-1"), requests("4", "1Gi"))}},
		{name: "memory", pod: requests("1", "65Gi"), want: "memory:"},
		{name: "Pods", node: func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }, placed: []*corev1.Pod{aPod("a", onNode("n-1"))}, want: "1 of 1 Pods"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, p := aNode("n-1"), aPod("p")
			if c.node != nil {
				c.node(n)
			}
			if c.pod != nil {
				c.pod(p)
			}
			st := stateOf(t, n, p, aSlice("n-1", aGPU("gpu-0", "H100")), ladder())
			for _, placed := range c.placed {
				mustPut(t, st, placed)
			}
			d := decideFor(t, st, ask("p"))
			if (c.want == "") != (d.Outcome == v1alpha1.OutcomeAllocated) {
				t.Fatalf("%s: %s", d.Outcome, d.Message)
			}
			if got := detailOf(d, "h100", v1alpha1.ReasonNodeUnsuitable); !strings.Contains(got, c.want) {
				t.Errorf("detail %q, want %q", got, c.want)
			}
			if c.want != "" && d.Outcome != v1alpha1.OutcomePending {
				t.Errorf("%s: a node can become usable", d.Outcome)
			}
		})
	}
}

// What placed Pods take is counted once, whatever is put and in which order.
func TestNodeUsageFollowsPods(t *testing.T) {
	st := stateOf(t, aPod("a", onNode("n-1"), requests("2", "1Gi")))
	used := func() int64 {
		if n := st.nodes["n-1"]; n != nil {
			return n.used.cpu
		}
		return -1
	}
	step := func(what string, want int64) {
		t.Helper()
		if got := used(); got != want {
			t.Fatalf("%s: %dm used, want %dm", what, got, want)
		}
	}
	step("a Pod before its node", 2000)
	mustPut(t, st, aNode("n-1"), aPod("a", onNode("n-1"), requests("3", "1Gi")))
	step("the Pod changed", 3000)
	mustPut(t, st, aPod("a", onNode("n-2"), requests("3", "1Gi")))
	step("the Pod moved", 0)
	mustPut(t, st, aPod("a", onNode("n-1"), requests("3", "1Gi")))
	mustDelete(t, st, aNode("n-1"))
	step("the node went", 3000)
	mustDelete(t, st, aPod("a"))
	step("both went", -1)
	mustDelete(t, st, aPod("a"), aNode("n-1")) // not there: no error
}

func TestExternalChecksLeaveNodesToOthers(t *testing.T) {
	cordonedNode := aNode("n-1")
	cordonedNode.Spec.Unschedulable = true
	st := stateWith(t, Options{NodeChecks: ExternalNodeChecks}, cordonedNode, aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p", requests("99", "1Gi")))
	if d := decideFor(t, st, ask("p")); d.Node != "n-1" {
		t.Fatalf("%s: %s", d.Outcome, d.Message)
	}
	q := ask("p")
	q.NodeRejections = map[string]string{"n-1": "no"}
	if d := decideFor(t, st, q); d.Outcome != v1alpha1.OutcomePending {
		t.Fatalf("%s on a refused node", d.Outcome)
	}
}
