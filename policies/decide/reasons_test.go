package decide

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// A case provokes one reason for the device gpu-0 of node n-1 in the first
// tier; every other device of the fleet, if any, gets what `others` says.
var reasonCases = []struct {
	reason  v1alpha1.Reason
	name    string
	objects []runtime.Object
	query   func(*Query)
	opts    Options
	detail  string // must be in the example's detail
}{
	{
		reason: v1alpha1.ReasonPoolIncomplete, name: "a slice is missing", detail: "generation 1 has 1 of 2 slices",
		objects: []runtime.Object{aNode("n-1"), changed(aSlice("n-1", aGPU("gpu-0", "H100")), func(s *resourceapi.ResourceSlice) {
			s.Spec.Pool.ResourceSliceCount = 2
		}), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonPoolIncomplete, name: "a counter set is missing", detail: "consumes counter board/memory, which is not published",
		objects: []runtime.Object{
			aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", consumes("board", map[string]string{"memory": "1"}))), ladder(), aPod("p"),
		},
	},
	{
		reason: v1alpha1.ReasonNodeMismatch, name: "no such node", detail: "does not exist",
		objects: []runtime.Object{aNode("n-2"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonNodeMismatch, name: "no node is selected", detail: "no node matches",
		objects: []runtime.Object{aNode("n-1"), changed(aSlice("n-1", aGPU("gpu-0", "H100")), func(s *resourceapi.ResourceSlice) {
			s.Spec.NodeName, s.Spec.NodeSelector = nil, &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "fabric", Operator: corev1.NodeSelectorOpExists}},
			}}}
		}), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonNodeUnsuitable, name: "cordoned", detail: "cordoned",
		objects: []runtime.Object{changed(aNode("n-1"), func(n *corev1.Node) { n.Spec.Unschedulable = true }), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonNodeUnsuitable, name: "refused by a plugin", detail: "NodePorts: taken",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p")},
		opts:    Options{NodeChecks: ExternalNodeChecks},
		query:   func(q *Query) { q.NodeRejections = map[string]string{"n-1": "NodePorts: taken"} },
	},
	{
		reason: v1alpha1.ReasonModelMismatch, name: "another model", detail: "model L4",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "L4")), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonModelMismatch, name: "no model", detail: "no model is published",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", without("model"))), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonModelMismatch, name: "another driver", detail: "driver gpu.nvidia.com",
		objects: []runtime.Object{aNode("n-1"), fromNVIDIA(aSlice("n-1", aGPU("gpu-0", "H100"))), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonSelectorNotMatched, name: "of the tier", detail: "selector 0",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Tiers[0].Selectors = []string{`device.attributes["gpu.gpuladder.dev"].type == "mig"`}
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonSelectorNotMatched, name: "of the constraints", detail: "selector 1",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.Selectors = []string{"true", "false"}
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonSelectorError, name: "no such key", detail: "no such key",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.Selectors = []string{`device.attributes["gpu.gpuladder.dev"].nothing == "x"`}
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonTierNotYetAllowed, name: "waits", detail: "waited 59s of 1m0s",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Tiers[0].After = &metav1.Duration{Duration: time.Minute}
		}), aPod("p")},
		query: func(q *Query) { q.Now = epoch.Add(59 * time.Second) },
	},
	{
		reason: v1alpha1.ReasonInUse, name: "by a claim of the namespace", detail: "held by claim team-a/x",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p"), allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"})},
	},
	{
		reason: v1alpha1.ReasonInUse, name: "by another namespace's claim", detail: "held from another namespace",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p"), inNamespace("team-b", allocated(aClaim("secret"), "r", [2]string{"n-1", "gpu-0"}))},
	},
	{
		reason: v1alpha1.ReasonCountersExhausted, name: "by a partition", detail: "board/memory: 40 < 80",
		objects: []runtime.Object{aNode("n-1"), counterSlice("n-1", "board", map[string]string{"memory": "80"}), changed(aSlice("n-1",
			aGPU("gpu-0", "H100", consumes("board", map[string]string{"memory": "80"})),
			aGPU("half", "L4", consumes("board", map[string]string{"memory": "40"}))), twoSlices), ladder(), aPod("p"), allocated(aClaim("x"), "r", [2]string{"n-1", "half"})},
	},
	{
		reason: v1alpha1.ReasonDeviceTainted, name: "by the driver", detail: "taint gpu.gpuladder.dev/unhealthy:NoSchedule",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", withTaint(v1alpha1.TaintUnhealthy, resourceapi.DeviceTaintEffectNoSchedule))), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonDeviceTainted, name: "by a rule", detail: "taint example.com/audit=x:NoExecute",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p"), &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: "audit"},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{},
				Taint:          resourceapi.DeviceTaint{Key: "example.com/audit", Value: "x", Effect: resourceapi.DeviceTaintEffectNoExecute},
			},
		}},
	},
	{
		reason: v1alpha1.ReasonDeviceUnhealthy, name: "healthy is false", detail: "reported unhealthy",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", attr("healthy", boolean(false)))), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonDeviceUnhealthy, name: "health is Unhealthy", detail: "reported unhealthy",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", attr(ours+"/health", text("Unhealthy")))), ladder(), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonMemoryTooSmall, name: "too small", detail: "81559Mi < 80Gi",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(minMemory("80Gi")), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonMemoryTooSmall, name: "not published", detail: "no memory is published",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", without("memory"))), ladder(minMemory("1Gi")), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonComputeCapabilityTooLow, name: "too low", detail: "9.0.0 < 9.0.1",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.MinComputeCapability = "9.0.1"
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonDriverTooOld, name: "number by number", detail: "570.148.8 < 570.148.10",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.MinDriverVersion = "570.148.10"
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonDriverTooOld, name: "not published", detail: "no driverVersion is published",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", without("driverVersion"))), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.MinDriverVersion = "1"
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonArchitectureExcluded, name: "another one", detail: "architecture Hopper",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.Architectures = []string{"Ampere", "Ada Lovelace"}
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonIsolationUnsatisfied, name: "shareable", detail: "several claims may share",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", shareable)), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.Isolation = v1alpha1.IsolationExclusive
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonCapacityTooSmall, name: "shared away", detail: "memory: 0 left of 81559Mi, 81559Mi wanted",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", shareable)), ladder(), aPod("p"), changed(
			allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"}), func(c *resourceapi.ResourceClaim) {
				r := &c.Status.Allocation.Devices.Results[0]
				r.ShareID, r.ConsumedCapacity = ptr.To(c.UID), quantities{"memory": resource.MustParse("81559Mi")}
			})},
	},
	{
		reason: v1alpha1.ReasonQuotaExceeded, name: "limit reached", detail: "1 of 1 H100 in use by the tenant, 1 wanted",
		objects: []runtime.Object{
			aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), aNode("n-2"), aSlice("n-2", aGPU("gpu-0", "H100")), ladder(), aPod("p"),
			aQuota("a", []string{"team-a"}, upTo("H100", 1), upTo("A100", 1)), allocated(aClaim("x"), "r", [2]string{"n-2", "gpu-0"}),
		},
	},
	{
		reason: v1alpha1.ReasonQuotaExceeded, name: "not listed", detail: "does not list H100",
		objects: []runtime.Object{
			aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p"), aQuota("a", []string{"team-a"}, upTo("A100", 1)),
		},
	},
	{
		reason: v1alpha1.ReasonQuotaExceeded, name: "another model's turn", detail: "the Pod's turn is for A100 only",
		objects: []runtime.Object{
			aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p", turnFor("A100")),
			aQuota("a", []string{"team-a"}, upTo("H100", 1), upTo("A100", 1)),
		},
	},
	{
		reason: v1alpha1.ReasonGroupNotServed, name: "another tier is the group's", detail: "can serve 1 of the group's 2 Pods",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(), aPod("p")},
		query: func(q *Query) {
			q.Group = &GroupTier{Tier: 1, Why: []string{"the tier can serve 1 of the group's 2 Pods now"}}
		},
	},
	{
		reason: v1alpha1.ReasonTopologyUnsatisfied, name: "two NUMA nodes", detail: "must share resource.kubernetes.io/numaNode",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1",
			aGPU("gpu-0", "H100", attr("resource.kubernetes.io/numaNode", number(0))),
			aGPU("gpu-1", "H100", attr("resource.kubernetes.io/numaNode", number(1)))), ladder(count(2), func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.MatchAttributes = []string{"resource.kubernetes.io/numaNode"}
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonTopologyUnsatisfied, name: "attribute not published", detail: "must share resource.kubernetes.io/numaNode",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.MatchAttributes = []string{"resource.kubernetes.io/numaNode"}
		}), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonNotEnoughDevices, name: "one of two", detail: "1 eligible on the node, 2 wanted",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), ladder(count(2)), aPod("p")},
	},
	{
		reason: v1alpha1.ReasonNotEnoughDevices, name: "not of one model", detail: "not 2 of one model together",
		objects: []runtime.Object{aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "L4")), changed(aPolicy(aTier("h100", "H100", "L4")), func(p *v1alpha1.AcceleratorPolicy) {
			count(2)(&p.Spec)
		}), aPod("p")},
	},
}

func minMemory(q string) func(*v1alpha1.AcceleratorPolicySpec) {
	return func(s *v1alpha1.AcceleratorPolicySpec) { s.Constraints.MinMemory = ptr.To(resource.MustParse(q)) }
}

func count(n int32) func(*v1alpha1.AcceleratorPolicySpec) {
	return func(s *v1alpha1.AcceleratorPolicySpec) { s.Count = ptr.To(n) }
}

func changed[T any](o T, change func(T)) T {
	change(o)
	return o
}

func twoSlices(s *resourceapi.ResourceSlice) { s.Spec.Pool.ResourceSliceCount = 2 }

// counterSlice holds the shared counters of a pool of two slices.
func counterSlice(pool, set string, counters map[string]string) *resourceapi.ResourceSlice {
	s := aSlice(pool)
	s.Name += "-counters"
	twoSlices(s)
	c := resourceapi.CounterSet{Name: set, Counters: map[string]resourceapi.Counter{}}
	for name, q := range counters {
		c.Counters[name] = resourceapi.Counter{Value: resource.MustParse(q)}
	}
	s.Spec.SharedCounters = []resourceapi.CounterSet{c}
	return s
}

func TestEveryReason(t *testing.T) {
	seen := map[v1alpha1.Reason]bool{}
	for _, c := range reasonCases {
		seen[c.reason] = true
		t.Run(string(c.reason)+"/"+c.name, func(t *testing.T) {
			st := stateWith(t, c.opts, c.objects...)
			q := ask("p")
			if c.query != nil {
				c.query(&q)
			}
			d := decideFor(t, st, q)
			if d.Outcome == v1alpha1.OutcomeAllocated {
				t.Fatalf("allocated %v", namesOf(d))
			}
			if n := countsOf(t, d, "h100")[c.reason]; n == 0 {
				t.Fatalf("no %s in %+v", c.reason, d.Tiers)
			}
			if got := detailOf(d, "h100", c.reason); !strings.Contains(got, c.detail) {
				t.Errorf("detail %q, want %q", got, c.detail)
			}
			if strings.Contains(d.Message, "secret") || strings.Contains(d.Message, "team-b") {
				t.Errorf("the message tells of others: %s", d.Message)
			}
		})
	}
	// The reasons that a search which ends well gives have their own tests.
	elsewhere := map[v1alpha1.Reason]bool{
		v1alpha1.ReasonReserved: true, v1alpha1.ReasonTierNotReached: true, v1alpha1.ReasonLowerRank: true, v1alpha1.ReasonSelected: true,
	}
	for _, r := range reasons[1:] {
		if !seen[r] && !elsewhere[r] {
			t.Errorf("no case provokes %s", r)
		}
	}
}

func TestReasonsOfASearchThatEndsWell(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), aNode("n-2"), aNode("n-3"),
		aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), aSlice("n-2", aGPU("gpu-0", "H100")), aSlice("n-3", aGPU("gpu-0", "A100")),
		ladder(), aPod("p"), aPod("q"),
	)
	first := decideFor(t, st, ask("q"))
	if got := namesOf(first); len(got) != 1 || got[0] != "n-2/gpu-0" {
		t.Fatalf("chose %v, want the node with the fewest", got)
	}
	if err := st.Assume(first, true); err != nil {
		t.Fatal(err)
	}
	d := decideFor(t, st, ask("p"))
	want := map[v1alpha1.Reason]int32{v1alpha1.ReasonModelMismatch: 1, v1alpha1.ReasonReserved: 1, v1alpha1.ReasonLowerRank: 1, v1alpha1.ReasonSelected: 1}
	for reason, n := range want {
		if got := countsOf(t, d, "h100"); got[reason] != n || len(got) != len(want) {
			t.Errorf("counts %v, want %v", got, want)
		}
	}
	if got := detailOf(d, "h100", v1alpha1.ReasonReserved); got != "held for Pod team-a/q" {
		t.Errorf("detail %q", got)
	}
	if got := countsOf(t, d, "a100"); got[v1alpha1.ReasonTierNotReached] != 4 || len(got) != 1 {
		t.Errorf("the lower tier counts %v", got)
	}
}

func TestReasonsStandInTheOrderOfTheChecks(t *testing.T) {
	st := stateOf(
		t, aNode("n-1"), aNode("n-2"), changed(aNode("n-3"), func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100", withTaint("x", resourceapi.DeviceTaintEffectNoSchedule)), aGPU("gpu-2", "T4")),
		aSlice("n-3", aGPU("gpu-0", "H100")), allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"}), ladder(), aPod("p"),
	)
	d := decideFor(t, st, ask("p"))
	var got []v1alpha1.Reason
	for _, r := range d.Tiers[0].Rejections {
		got = append(got, r.Code)
	}
	want := []v1alpha1.Reason{v1alpha1.ReasonNodeUnsuitable, v1alpha1.ReasonModelMismatch, v1alpha1.ReasonInUse, v1alpha1.ReasonDeviceTainted}
	if len(got) != len(want) {
		t.Fatalf("reasons %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("reasons %v, want %v", got, want)
		}
	}
}

// Each device counts under the first check only, use before health before
// constraints before quota.
func TestFirstFailedCheckCounts(t *testing.T) {
	everything := []runtime.Object{
		aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", withTaint("x", resourceapi.DeviceTaintEffectNoSchedule))),
		allocated(aClaim("x"), "r", [2]string{"n-1", "gpu-0"}), ladder(minMemory("100Gi")), aPod("p"), aQuota("a", []string{"team-a"}, upTo("A100", 1)),
	}
	st := stateOf(t, everything...)
	steps := []struct {
		want   v1alpha1.Reason
		remove func()
	}{
		{v1alpha1.ReasonInUse, func() { mustDelete(t, st, aClaim("x")) }},
		{v1alpha1.ReasonDeviceTainted, func() { mustPut(t, st, aSlice("n-1", aGPU("gpu-0", "H100"))) }},
		{v1alpha1.ReasonMemoryTooSmall, func() { mustPut(t, st, ladder()) }},
		{v1alpha1.ReasonQuotaExceeded, func() { mustDelete(t, st, aQuota("a", nil)) }},
		{v1alpha1.ReasonSelected, func() {}},
	}
	for _, step := range steps {
		if got := countsOf(t, decideFor(t, st, ask("p")), "h100"); got[step.want] != 1 || len(got) != 1 {
			t.Fatalf("counts %v, want one %s", got, step.want)
		}
		step.remove()
	}
}
