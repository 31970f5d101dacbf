package ladder

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
)

func member(name, policy string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{v1alpha1.LabelPolicy: policy},
		CreationTimestamp: metav1.Unix(100, 0),
	}}
	p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("job")}
	for _, c := range change {
		c(p)
	}
	return p
}

// A Pod is held for what is wrong with itself, and not for what is wrong with
// another of its group.
func TestHeldForOwnMistakesOnly(t *testing.T) {
	about := fmt.Errorf("Pod ns/other, %w", decide.ErrNotFound)
	for name, test := range map[string]struct {
		claim string
		held  bool
	}{"another's": {"", false}, "its own": {"missing", true}} {
		t.Run(name, func(t *testing.T) {
			f := newFailing(t, v1alpha1.RetryPolicy{})
			state := decide.NewState(decide.Options{})
			f.plugin.core.engine = state
			if test.claim != "" {
				f.pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr.To(test.claim)}}
			}
			require.NoError(t, state.Put(f.pod))
			s := &search{pod: f.pod, seen: sight{changes: f.version()}}
			err := f.plugin.blame(s, about)
			status := f.plugin.undecided(s, err)
			assert.Equal(t, fwk.UnschedulableAndUnresolvable, status.Code())
			assert.Equal(t, test.held, f.held(f.pod, f.queue) != "", status.Message())
			assert.Contains(t, status.Message(), map[bool]string{true: "missing", false: "ns/other"}[test.held])
		})
	}
}

func TestGroupKey(t *testing.T) {
	for name, test := range map[string]struct {
		pod *corev1.Pod
		ok  bool
	}{
		"a member":         {member("a", "one"), true},
		"without a policy": {member("a", ""), false},
		"without a group":  {member("a", "one", func(p *corev1.Pod) { p.Spec.SchedulingGroup = nil }), false},
		"without a name":   {member("a", "one", func(p *corev1.Pod) { p.Spec.SchedulingGroup.PodGroupName = nil }), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, ok := groupKeyOf(test.pod)
			assert.Equal(t, test.ok, ok)
		})
	}
	one, _ := groupKeyOf(member("a", "one"))
	other, _ := groupKeyOf(member("b", "two"))
	pinned, _ := groupKeyOf(member("c", "one", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPolicyRevision] = "2" }))
	claimed := func(template string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To(template)}}
		}
	}
	first, _ := groupKeyOf(member("d", "one", claimed("one-1")))
	second, _ := groupKeyOf(member("e", "one", claimed("one-2")))
	again, _ := groupKeyOf(member("f", "one", claimed("one-2")))
	assert.Equal(t, second, pinned, "the label says the same")
	assert.NotEqual(t, first, second, "made before and after the policy changed")
	assert.Equal(t, second, again)
	assert.NotEqual(t, one.state(), other.state())
	assert.NotEqual(t, one.state(), pinned.state())
}

// As many may stay without devices as the group has more Pods than it needs;
// who can't be tried yet, or follows another policy, is not asked for.
func TestGroupQuery(t *testing.T) {
	self := member("self", "one")
	older := member("older", "one", func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(1, 0) })
	gated := member("gated", "one", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}} })
	going := member("going", "one", func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Unix(101, 0)) })
	leader := member("leader", "none")
	for name, test := range map[string]struct {
		waiting        []*corev1.Pod
		placed, needed int
		want           []string
		least          int
	}{
		"all are needed":       {[]*corev1.Pod{self, older}, 0, 2, []string{"older", "self"}, 2},
		"one is to spare":      {[]*corev1.Pod{self, older}, 1, 2, []string{"older", "self"}, 1},
		"more are to spare":    {[]*corev1.Pod{self, older}, 5, 2, []string{"older", "self"}, 1},
		"others do not count":  {[]*corev1.Pod{self, gated, going, leader}, 0, 4, []string{"self"}, 1},
		"the Pod is not known": {nil, 0, 1, []string{"self"}, 1},
		"too few are there":    {[]*corev1.Pod{self, older}, 0, 5, []string{"older", "self"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			key, _ := groupKeyOf(self)
			q := groupQuery(&search{pod: self, now: time.Unix(200, 0)}, key, test.waiting, test.placed, test.needed)
			var got []string
			for _, p := range q.Pods {
				got = append(got, p.Name)
			}
			assert.Equal(t, test.want, got)
			assert.Equal(t, test.least, q.Least)
			assert.Len(t, q.pods, len(q.Pods))
		})
	}
}

// A tier is left out until the group is served, gone, or out of tiers.
func TestExcludedTiers(t *testing.T) {
	g := newGroups()
	key, _ := groupKeyOf(member("a", "one"))
	assert.Empty(t, g.of(key))
	g.exclude(key, "h100", "no CPU")
	g.exclude(key, "a100", "a taint")
	left := g.of(key)
	assert.Equal(t, map[string]string{"h100": "no CPU", "a100": "a taint"}, left)
	delete(left, "h100")
	assert.Len(t, g.of(key), 2, "what was handed out is a copy")
	other, _ := groupKeyOf(member("b", "two"))
	assert.Empty(t, g.of(other))
	g.forget(key)
	assert.Empty(t, g.of(key))
}
