package ladder

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/retry"
)

// queue notes what is activated, together and one after another.
type queue struct {
	mu      sync.Mutex
	batches [][]string
}

func (q *queue) Activate(_ klog.Logger, pods map[string]*corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var names []string
	for name := range pods {
		names = append(names, name)
	}
	slices.Sort(names)
	q.batches = append(q.batches, names)
}

func (q *queue) take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	woken := slices.Concat(q.batches...)
	q.batches = nil
	return woken
}

// rig is a waiting room with a clock of its own.
type rig struct {
	*waiting
	t     *testing.T
	clock *testclock.FakeClock
	queue *queue
	store cache.Indexer
	// busy are the timers whose work goes on.
	busy sync.WaitGroup
}

func newRig(t *testing.T, pods ...*corev1.Pod) *rig {
	t.Helper()
	r := &rig{t: t, clock: testclock.NewFakeClock(time.Unix(1000, 0)), queue: &queue{}, store: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
	for _, p := range pods {
		require.NoError(t, r.store.Add(p))
	}
	r.waiting = newWaiting(r.clock, corelisters.NewPodLister(r.store))
	r.background = func(f func()) { r.busy.Go(f) }
	return r
}

// step lets the time go on, and what is due by then happen.
func (r *rig) step(d time.Duration) {
	r.clock.Step(d)
	r.busy.Wait()
}

// woken waits until as many Pods were woken as are named.
func (r *rig) woken(names ...string) {
	r.t.Helper()
	var got []string
	for range 100 {
		r.step(wakePause)
		if got = append(got, r.queue.take()...); len(got) >= len(names) {
			break
		}
	}
	slices.Sort(got)
	assert.Equal(r.t, names, got)
}

// asleep says that nothing is woken.
func (r *rig) asleep() {
	r.t.Helper()
	r.step(0)
	assert.Empty(r.t, r.queue.take())
}

// hold parks a Pod held for a class, as the queue sees it then.
func (r *rig) hold(pod *corev1.Pod, h *hold) {
	r.t.Helper()
	r.park(pod, r.queue, noTime, h, sight{changes: r.version()})
	require.NotEmpty(r.t, r.held(pod, r.queue))
}

func TestWokenWhenTheTimeComes(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	r.park(pod, r.queue, r.clock.Now().Add(time.Minute), nil, sight{})
	assert.Empty(t, r.held(pod, r.queue), "the queue may try it before")
	r.step(59 * time.Second)
	r.asleep()
	r.step(time.Second)
	r.woken("ns/p")
	// Parked again with no time of its own, it is woken by changes only.
	r.park(pod, r.queue, noTime, nil, sight{})
	r.step(time.Hour)
	r.asleep()
	r.wake(func(p *corev1.Pod) bool { return p.Name == "other" })
	r.asleep()
	r.wake(everyPod)
	r.woken("ns/p")
	r.drop(pod.UID)
	r.wake(everyPod)
	r.asleep()
}

func TestNotWokenWhenGoneOrBound(t *testing.T) {
	gone, bound, replaced := testPod(), testPod(), testPod()
	bound.Name, bound.UID = "bound", "b"
	replaced.Name, replaced.UID = "replaced", "old"
	now, placed := replaced.DeepCopy(), bound.DeepCopy()
	now.UID, placed.Spec.NodeName = "new", "n"
	r := newRig(t, placed, now)
	for _, p := range []*corev1.Pod{gone, bound, replaced} {
		r.park(p, r.queue, r.clock.Now().Add(time.Second), nil, sight{})
	}
	r.step(time.Minute)
	r.asleep()
	assert.NotContains(t, r.parked, gone.UID, "nobody would tell of it again")
}

// A change that comes between the decision and the parking is not missed.
func TestChangeWhileDeciding(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	seen := sight{changes: r.version()}
	r.wake(everyPod)
	r.park(pod, r.queue, noTime, holdOf(v1alpha1.FailurePolicyInvalid), seen)
	r.woken("ns/p")
	r.park(pod, r.queue, noTime, holdOf(v1alpha1.FailureClaimGone), seen)
	r.asleep()
}

// PreEnqueue keeps a Pod until its backoff is over, whatever happens, and then
// Ladder puts it back itself.
func TestBackoff(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	limits := retry.Limits{MaxAttempts: 3, InitialBackoff: 10 * time.Second, MaxBackoff: time.Minute, Deadline: time.Hour}
	for _, wait := range []time.Duration{10 * time.Second, 20 * time.Second} {
		state := r.failed(pod.UID, limits, "k")
		require.Empty(t, state.GaveUp)
		r.hold(pod, backoff(state))
		r.wake(everyPod)
		r.apiAnswers()
		r.step(wait - time.Second)
		r.asleep()
		assert.Contains(t, r.held(pod, r.queue), "waiting until")
		r.step(time.Second)
		r.woken("ns/p")
		assert.Empty(t, r.held(pod, r.queue))
	}
	assert.Equal(t, retry.AttemptsUsed, r.failed(pod.UID, limits, "k").GaveUp)
}

// A backoff that is over before the queue has the Pod back is over at once, and
// not only after kube-scheduler's own.
func TestBackoffThatIsOverAlready(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	state := r.failed(pod.UID, retry.Limits{MaxAttempts: 3, Deadline: time.Hour}, "k")
	r.hold(pod, backoff(state))
	r.woken("ns/p")
	assert.Empty(t, r.held(pod, r.queue))
}

// A Pod that never comes to PreEnqueue is woken a little later.
func TestBackoffWithoutPreEnqueue(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	state := r.failed(pod.UID, retry.Limits{MaxAttempts: 3, InitialBackoff: time.Second, MaxBackoff: time.Second, Deadline: time.Hour}, "k")
	r.park(pod, r.queue, noTime, backoff(state), sight{})
	r.step(time.Second)
	r.asleep()
	r.step(lateTimer)
	r.woken("ns/p")
}

// What changed between the failure and the return to the queue is found out
// there, since nobody tells of it again.
func TestChangeBeforeTheQueueHasThePod(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	unchanged := true
	h := holdOf(v1alpha1.FailureClaimGone)
	h.unchanged = func() bool { return unchanged }
	r.hold(pod, h)
	r.asleep()
	unchanged = false
	assert.NotEmpty(t, r.held(pod, r.queue))
	r.asleep() // asked once, later changes are told
	again := holdOf(v1alpha1.FailureClaimGone)
	again.unchanged = h.unchanged
	r.hold(pod, again)
	r.woken("ns/p")
}

// A Pod that was given up on gets all of its attempts again once a change that
// can help came; one that is merely tried again does not.
func TestAttemptsAfterAChange(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	limits := retry.Limits{MaxAttempts: 2, Deadline: time.Hour}
	r.failed(pod.UID, limits, "k")
	assert.Contains(t, r.failureText(pod.UID), "failed 1 of 2")
	r.park(pod, r.queue, noTime, nil, sight{})
	r.wake(everyPod)
	r.woken("ns/p")
	state := r.failed(pod.UID, limits, "k")
	require.Equal(t, retry.AttemptsUsed, state.GaveUp)
	r.hold(pod, holdForGood(v1alpha1.FailureBindConflict, nil, "n"))
	r.wake(everyPod)
	r.woken("ns/p")
	assert.Empty(t, r.failureText(pod.UID))
	assert.Equal(t, int32(1), r.failed(pod.UID, limits, "k").Failures)
	r.forget(pod.UID)
	assert.Empty(t, r.failureText(pod.UID))
}

// told is a Pod whose condition says what a scheduler wrote before it ended.
func told(state retry.State, now time.Time) *corev1.Pod {
	pod := testPod()
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: v1alpha1.ConditionAccelerator, Status: corev1.ConditionFalse, Message: "StaleSlice: gone" + state.Text(now),
	}}
	return pod
}

func TestFailuresSurviveARestart(t *testing.T) {
	limits := retry.Limits{MaxAttempts: 3, InitialBackoff: time.Minute, MaxBackoff: time.Minute, Deadline: time.Hour}
	begin := time.Unix(1000, 0)
	once := retry.State{}.Failed(limits, retry.Key("c/1"), begin)
	pod := told(once, begin)
	r := newRig(t, pod)
	assert.NotEmpty(t, r.held(pod, r.queue), "the backoff is not over yet")
	r.step(time.Minute)
	r.woken("ns/p")
	assert.Empty(t, r.held(pod, r.queue))
	state := r.failed(pod.UID, limits, retry.Key("c/1"))
	assert.Equal(t, int32(2), state.Failures)
	assert.Equal(t, begin, state.First.Local())

	// What is told later by this process is not taken from an older Pod.
	r.forget(pod.UID)
	later := newRig(t, pod)
	later.step(2 * time.Minute)
	assert.Empty(t, later.held(pod, later.queue), "the backoff is over")
	assert.Equal(t, int32(2), later.failed(pod.UID, limits, retry.Key("c/1")).Failures)
	assert.Empty(t, later.held(pod, later.queue))
	assert.Equal(t, int32(3), later.failed(pod.UID, limits, retry.Key("c/1")).Failures)
}

// A Pod that was given up on is tried once by a new process, with no attempt
// more than that.
func TestGivenUpBeforeARestart(t *testing.T) {
	limits := retry.Limits{MaxAttempts: 1, Deadline: time.Hour}
	begin := time.Unix(1000, 0)
	pod := told(retry.State{}.Failed(limits, retry.Key("c/1"), begin), begin)
	r := newRig(t, pod)
	assert.Empty(t, r.held(pod, r.queue))
	state := r.failed(pod.UID, limits, retry.Key("c/1"))
	assert.Equal(t, retry.AttemptsUsed, state.GaveUp)
	assert.Equal(t, int32(2), state.Failures)
}

// crowd is many Pods that wait, the oldest last in the list.
func crowd(n int) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range n {
		pod := testPod()
		pod.Name, pod.UID = fmt.Sprintf("p%04d", n-i), types.UID(fmt.Sprint(i))
		pod.CreationTimestamp = metav1.Unix(int64(n-i), 0)
		pods = append(pods, pod)
	}
	return pods
}

// Pods that a change concerns are woken together and in order, the others get
// their turn before any comes a second time, and attempts in vain slow it down.
func TestWokenInOrder(t *testing.T) {
	const n = 3 * wakeBatch
	pods := crowd(n)
	byName := map[string]*corev1.Pod{}
	r := newRig(t, pods...)
	for _, pod := range pods {
		byName["ns/"+pod.Name] = pod
		r.park(pod, r.queue, noTime, nil, sight{})
	}
	urgent := testPod()
	urgent.Name, urgent.UID, urgent.Spec.Priority = "urgent", "urgent", ptr.To[int32](5)
	urgent.CreationTimestamp = metav1.Unix(1e6, 0)
	require.NoError(t, r.store.Add(urgent))
	r.park(urgent, r.queue, noTime, nil, sight{})

	r.wake(everyPod)
	r.step(0)
	batch := r.queue.take()
	require.Len(t, batch, wakeBatch)
	assert.Contains(t, batch, "ns/urgent")
	assert.Contains(t, batch, "ns/p0001")
	assert.NotContains(t, batch, fmt.Sprintf("ns/p%04d", wakeBatch))
	r.asleep() // the next batch has a pause
	for _, name := range batch {
		if pod := byName[name]; pod != nil {
			r.park(pod, r.queue, noTime, nil, sight{changes: r.version()})
			r.wake(func(p *corev1.Pod) bool { return p == pod })
		}
	}
	r.step(wakeGap)
	r.asleep() // in vain: a longer one
	r.step(wakeBatch*wakePause - wakeGap)
	second := r.queue.take()
	require.Len(t, second, wakeBatch)
	assert.Contains(t, second, fmt.Sprintf("ns/p%04d", wakeBatch), "those that had no turn yet")
	for range 20 {
		r.step(time.Second)
	}
	rest := r.queue.take()
	assert.Len(t, rest, n+1-2*wakeBatch+wakeBatch-1, "the rest, and then those that came back, once")
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

// An annotation that is mended while the Pod is tried is not missed.
func TestAnnotatedAnewDuringAnAttempt(t *testing.T) {
	for name, test := range map[string]struct {
		now  func(*corev1.Pod)
		want bool
	}{
		"mended": {withAnnotation("good"), true}, "as it was": {withAnnotation("bad"), false},
		"another turn": {turnFor("L4", withAnnotation("bad")), true},
	} {
		t.Run(name, func(t *testing.T) {
			tried := resourcePod(1, withAnnotation("bad"))
			current := resourcePod(1, test.now)
			r := newRig(t, current)
			r.park(tried, r.queue, noTime, holdOf(v1alpha1.FailurePolicyInvalid), sight{})
			assert.Equal(t, test.want, r.sweep.due.Has(tried.UID))
		})
	}
}
