package ladder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
)

// queue notes what is activated.
type queue struct{ woken []string }

func (q *queue) Activate(_ klog.Logger, pods map[string]*corev1.Pod) {
	for name := range pods {
		q.woken = append(q.woken, name)
	}
}

func (q *queue) take() []string {
	woken := q.woken
	q.woken = nil
	return woken
}

func newWaitingFor(t *testing.T, pods ...*corev1.Pod) (*waiting, *testclock.FakeClock, *queue) {
	t.Helper()
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, p := range pods {
		require.NoError(t, store.Add(p))
	}
	c := testclock.NewFakeClock(time.Unix(0, 0))
	return newWaiting(c, corelisters.NewPodLister(store)), c, &queue{}
}

func TestWokenWhenTheTimeComes(t *testing.T) {
	pod := testPod()
	w, c, q := newWaitingFor(t, pod)
	w.park(pod, q, c.Now().Add(time.Minute))
	c.Step(59 * time.Second)
	assert.Empty(t, q.take())
	c.Step(time.Second)
	assert.Equal(t, []string{"ns/p"}, q.take())
	// Parked again with no time of its own, it is woken by changes only.
	w.park(pod, q, time.Time{})
	c.Step(time.Hour)
	assert.Empty(t, q.take())
	w.wake(func(p *corev1.Pod) bool { return p.Name == "other" })
	assert.Empty(t, q.take())
	w.wake(everyPod)
	assert.Equal(t, []string{"ns/p"}, q.take())
	w.drop(pod.UID)
	w.wake(everyPod)
	assert.Empty(t, q.take())
}

func TestNotWokenWhenGoneOrBound(t *testing.T) {
	gone, bound, replaced := testPod(), testPod(), testPod()
	bound.Name, bound.UID = "bound", "b"
	replaced.Name, replaced.UID = "replaced", "old"
	now, placed := replaced.DeepCopy(), bound.DeepCopy()
	now.UID, placed.Spec.NodeName = "new", "n"
	w, c, q := newWaitingFor(t, placed, now)
	for _, p := range []*corev1.Pod{gone, bound, replaced} {
		w.park(p, q, c.Now().Add(time.Second))
	}
	c.Step(time.Minute)
	assert.Empty(t, q.take())
}

func decisionOf(policy string, revision int64) *decide.Decision {
	d := &decide.Decision{}
	d.Policy, d.PolicyRevision = policy, revision
	return d
}

func TestNextTier(t *testing.T) {
	after := func(d time.Duration) v1alpha1.Tier { return v1alpha1.Tier{After: &metav1.Duration{Duration: d}} }
	policy := &v1alpha1.AcceleratorPolicy{Spec: v1alpha1.AcceleratorPolicySpec{
		Tiers: []v1alpha1.Tier{{}, after(time.Hour), after(time.Minute)},
	}}
	revision := &v1alpha1.PolicyRevision{}
	revision.Spec.PolicySpec.Tiers = []v1alpha1.Tier{after(2 * time.Minute)}
	p := &Plugin{core: &Core{objects: &objectsStub{
		policies:  map[string]*v1alpha1.AcceleratorPolicy{"p": policy},
		revisions: map[string]*v1alpha1.PolicyRevision{"p-2": revision},
	}}}
	pod := testPod()
	created := time.Unix(1000, 0)
	pod.CreationTimestamp = metav1.NewTime(created)
	for name, test := range map[string]struct {
		revision int64
		waited   time.Duration
		want     *time.Duration
	}{
		"the nearest":             {1, 0, ptr.To(time.Minute)},
		"the next after that":     {1, time.Minute, ptr.To(time.Hour)},
		"none left":               {1, time.Hour, nil},
		"of the Pod's revision":   {2, 0, ptr.To(2 * time.Minute)},
		"of a revision, all open": {2, 2 * time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := &search{pod: pod, now: created.Add(test.waited)}
			next := p.nextTier(s, decisionOf("p", test.revision))
			if test.want == nil {
				assert.Zero(t, next)
				return
			}
			assert.True(t, created.Add(*test.want).Equal(next), "%s", next)
		})
	}
	assert.Zero(t, p.nextTier(&search{pod: pod}, decisionOf("", 0)))
}
