package integration_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

// ladderOf is a policy with a tier for each model and one for any device.
func ladderOf(models ...string) v1alpha1.AcceleratorPolicySpec {
	var spec v1alpha1.AcceleratorPolicySpec
	for i, m := range models {
		spec.Tiers = append(spec.Tiers, v1alpha1.Tier{Name: fmt.Sprintf("t%d", i), Models: []string{m}})
	}
	return spec
}

// mixed is 22 nodes: 2 with H100, 10 with A100, 10 with L4, two boards each.
func mixed() []fleet.Group {
	return []fleet.Group{
		{Name: "h100", Nodes: 2, Board: "H100-SXM5-80GB", GPUs: 2},
		{Name: "a100", Nodes: 10, Board: "A100-SXM4-80GB", GPUs: 2},
		{Name: "l4", Nodes: 10, Board: "L4", GPUs: 2},
	}
}

func TestStrictOrder(t *testing.T) {
	c := newCluster(t)
	c.addFleet(mixed()...)
	c.addPolicy("h100-first", ladderOf("H100", "A100", "L4"))
	c.startScheduler()
	var got []string
	for i := range 8 {
		name := fmt.Sprintf("pod-%d", i)
		c.addPod(name, "h100-first")
		got = append(got, c.placed(name))
	}
	assert.Equal(t, []string{
		"h100-0000/gpu-0", "h100-0000/gpu-1", "h100-0001/gpu-0", "h100-0001/gpu-1",
		"a100-0000/gpu-0", "a100-0000/gpu-1", "a100-0001/gpu-0", "a100-0001/gpu-1",
	}, got)
	assert.Equal(t, "A100 (tier t1, revision 1): a100-0000/a100-0000/gpu-0", c.condition("pod-4", "Allocated"))
	record := c.record("pod-4", v1alpha1.OutcomeAllocated)
	assert.Equal(t, "t1", record.Spec.Tier)
	assert.Equal(t, "a100-0000", record.Spec.Node)
	require.Len(t, record.Spec.Tiers, 3)
	assert.Equal(t, v1alpha1.TierRejected, record.Spec.Tiers[0].Outcome)
	assert.Equal(t, int32(4), count(record, "t0", v1alpha1.ReasonInUse)+count(record, "t0", v1alpha1.ReasonReserved))
	bound := c.pod("pod-4")
	assert.Equal(t, "1", bound.Annotations[v1alpha1.AnnotationRevision])
	assert.Equal(t, "t1", bound.Annotations[v1alpha1.AnnotationTier])
	assert.Equal(t, "A100", bound.Annotations[v1alpha1.AnnotationModel])
	assert.Equal(t, record.Spec.InputDigest, bound.Annotations[v1alpha1.AnnotationDigest])
}

// A better tier wins however unattractive its node is to the other plugins.
func TestOrderBeatsScores(t *testing.T) {
	c := newCluster(t)
	c.addFleet(mixed()...)
	c.addPolicy("h100-first", ladderOf("H100", "A100"))
	for i := range 2 {
		busy := plainPod(fmt.Sprintf("busy-%d", i), withCPU("28"))
		busy.Spec.NodeName = fmt.Sprintf("h100-%04d", i)
		c.create(busy)
	}
	c.startScheduler()
	c.addPod("pod", "h100-first", withCPU("1"))
	assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
}

func TestNodesThatOthersRefuse(t *testing.T) {
	c := newCluster(t)
	c.addFleet(mixed()...)
	c.addPolicy("h100-first", ladderOf("H100", "A100", "L4"))
	full := plainPod("full", withCPU("32"))
	full.Spec.NodeName = "h100-0000"
	c.create(full)
	node := &corev1.Node{}
	require.NoError(t, c.Get(t.Context(), clusterKey("h100-0001"), node))
	node.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoSchedule}}
	require.NoError(t, c.Update(t.Context(), node))
	c.startScheduler()

	c.addPod("pod", "h100-first", withCPU("1"))
	assert.Equal(t, "a100-0000/gpu-0", c.placed("pod"))
	record := c.record("pod", v1alpha1.OutcomeAllocated)
	assert.Equal(t, int32(4), count(record, "t0", v1alpha1.ReasonNodeUnsuitable))
	why := details(record, "t0", v1alpha1.ReasonNodeUnsuitable)
	assert.Contains(t, why["h100-0000"], "NodeResourcesFit: Insufficient cpu")
	assert.Contains(t, why["h100-0001"], "TaintToleration")

	c.addPod("choosy", "h100-first", withCPU("1"), notOn("a100-0000", "a100-0001"))
	assert.Equal(t, "a100-0002/gpu-0", c.placed("choosy"))
	record = c.record("choosy", v1alpha1.OutcomeAllocated)
	why = details(record, "t1", v1alpha1.ReasonNodeUnsuitable)
	assert.Contains(t, why["a100-0000"], "NodeAffinity")
}

func notOn(nodes ...string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: nodes,
				}},
			}}},
		}}
	}
}

// The first eight nodes in the order are full: the search goes on in the same
// attempt.
func TestWidening(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "a100", Nodes: 30, Board: "A100-SXM4-80GB", GPUs: 1, CPU: resource.MustParse("4")})
	c.addPolicy("any", ladderOf("A100"))
	for i := range 27 {
		full := plainPod(fmt.Sprintf("full-%02d", i), withCPU("4"))
		full.Spec.NodeName = fmt.Sprintf("a100-%04d", i)
		c.create(full)
	}
	c.startScheduler()
	c.addPod("pod", "any", withCPU("1"))
	assert.Equal(t, "a100-0027/gpu-0", c.placed("pod"))
	record := c.record("pod", v1alpha1.OutcomeAllocated)
	assert.Equal(t, int32(27), count(record, "t0", v1alpha1.ReasonNodeUnsuitable))
	assert.Equal(t, int32(1), record.Spec.Attempt, "one attempt is enough")
}

// Of many nodes that would do kube-scheduler looks at some. Of a part of the
// order it looks at all, or the best one would be found by chance, attempt after
// attempt.
func TestLongPartsAreLookedAtWhole(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "a100", Nodes: 504, Board: "A100-SXM4-80GB", GPUs: 1})
	c.addPolicy("any", ladderOf("A100"))
	c.startScheduler()
	var elsewhere []string
	for i := range 250 {
		elsewhere = append(elsewhere, fmt.Sprintf("a100-%04d", i))
	}
	for i := range 6 {
		name := fmt.Sprintf("pod-%d", i)
		c.addPod(name, "any", notOn(elsewhere...))
		assert.Equal(t, fmt.Sprintf("a100-%04d/gpu-0", 250+i), c.placed(name))
		assert.Equal(t, int32(1), c.record(name, v1alpha1.OutcomeAllocated).Spec.Attempt)
	}
}

// Every run of the same Pods, one after another, gives the same places.
func TestSamePlacesEachTime(t *testing.T) {
	c := newCluster(t)
	c.addFleet(mixed()...)
	c.addPolicy("h100-first", ladderOf("H100", "A100", "L4"))
	c.startScheduler()
	var first []string
	for run := range 3 {
		var got []string
		for i := range 12 {
			name := fmt.Sprintf("pod-%d", i)
			c.addPod(name, "h100-first")
			got = append(got, c.placed(name))
		}
		if run == 0 {
			first = got
		}
		if !assert.Equal(t, first, got, "run %d", run) {
			c.explain()
		}
		for i := range 12 {
			c.remove(fmt.Sprintf("pod-%d", i))
		}
	}
}

// TestServedInOrder: what comes free goes to the first of those that wait, one
// after another, whoever was being tried when it came free.
func TestServedInOrder(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 1})
	c.addPolicy("h100", ladderOf("H100"))
	c.startScheduler()
	c.addPod("first", "h100")
	c.placed("first")
	names := []string{"d", "b", "e", "a", "c", "f", "h", "g"}
	var pods []*corev1.Pod
	for _, name := range names {
		pods = append(pods, c.addPod(name, "h100"))
	}
	for _, name := range names { // each has been tried, and not as often as the others
		c.condition(name, "Pending")
	}
	pods = append(pods, c.addPod("urgent", "h100", func(p *corev1.Pod) { p.Spec.PriorityClassName = systemPriority }))
	c.condition("urgent", "Pending")
	slices.SortFunc(pods[:len(names)], func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	want := []string{"urgent"}
	for _, pod := range pods[:len(names)] {
		want = append(want, pod.Name)
	}
	c.remove("first")
	var got []string
	for range pods {
		c.eventually(func() error {
			for _, other := range pods {
				if _, err := c.place(other.Name); err == nil {
					got = append(got, other.Name)
					c.remove(other.Name)
					return nil
				}
			}
			return fmt.Errorf("nobody was served after %v", got)
		})
	}
	assert.Equal(t, want, got)
}
