package ladder

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/outcome"
	"gpuladder.dev/ladder/scheduler/retry"
)

// waiting is the Pods that Ladder parked, what may wake each of them, and what
// is remembered of their failures.
//
// A Pod without a hold lacks something that others have now; whatever concerns
// it wakes it. A held one is kept out of the scheduling queue by PreEnqueue:
// until its backoff is over, or until something happens that can change the
// answer. Either way it is Ladder that puts it back, past kube-scheduler's own
// backoff: see wake.go.
//
// Failures survive a restart because the Pod's condition says them; who waits
// for what need not, since the queue of a new process tries every Pod that is
// not bound.
type waiting struct {
	clock clock.WithDelayedExecution
	pods  corelisters.PodLister
	// background runs what a timer starts. The timer of a real clock has a
	// goroutine of its own; that of a fake one must not be kept, for the clock is
	// locked then.
	background func(func())

	mu     sync.Mutex
	parked map[types.UID]*parkedPod
	// users are the parked Pods of each claim.
	users map[types.NamespacedName]sets.Set[types.UID]
	// failures has an entry for each Pod whose condition was read, too.
	failures map[types.UID]retry.State
	// changes counts the changes of policies, revisions, quotas and namespaces.
	changes uint64
	// settled is how many gains all had seen that wait for devices when it was
	// looked last; see [waiting.ahead].
	settled uint64
	sweep   sweep
	// searches are those that go on in the Pod's next attempt.
	searches map[types.UID]*search
}

type parkedPod struct {
	pod       *corev1.Pod
	claims    []types.NamespacedName // of the Pod, as far as they have names
	activator fwk.PodActivator
	timer     clock.Timer
	hold      *hold
	// gains is how many the state had that the Pod was told no on, and yields
	// how often in a row it let others go first.
	gains  uint64
	yields int
	// woken is when the Pod was last put into the queue, or zero.
	woken time.Time
	// since is when PreEnqueue began to keep the Pod, or zero; see park.go.
	since time.Time
}

// sight is how far changes had come when a decision about a Pod began.
type sight struct {
	// changes is [waiting.version] then.
	changes uint64
	// gains is [mirror.Mirror.Gains] then.
	gains uint64
}

// lateTimer is how much later than the end of a backoff a Pod is woken that
// never came to PreEnqueue, which sets the exact timer.
const lateTimer = 2 * time.Second

func newWaiting(c clock.WithDelayedExecution, pods corelisters.PodLister) *waiting {
	return &waiting{
		clock: c, pods: pods, background: func(f func()) { go f() },
		parked: map[types.UID]*parkedPod{}, users: map[types.NamespacedName]sets.Set[types.UID]{}, failures: map[types.UID]retry.State{}, sweep: newSweep(), searches: map[types.UID]*search{},
	}
}

// version counts the changes that [waiting.wake] told of. Whoever parks a Pod
// says the version that the decision began with, so that a change in between is
// not missed.
func (w *waiting) version() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}

// park notes that the Pod waits, held if h is not nil. With a time that is not
// zero it is woken then.
func (w *waiting) park(pod *corev1.Pod, activator fwk.PodActivator, until time.Time, h *hold, seen sight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &parkedPod{pod: pod, activator: activator, hold: h, gains: seen.gains}
	w.settled = min(w.settled, seen.gains)
	w.add(p)
	if h != nil && !h.until.IsZero() {
		until = h.until.Add(lateTimer)
	}
	if !until.IsZero() {
		w.wakeAt(p, until)
	}
	// A Pod that was deleted meanwhile is not told of again.
	current := w.current(pod)
	if current == nil {
		w.stop(pod.UID)
		delete(w.failures, pod.UID)
		return
	}
	w.fruitless(pod.UID)
	// What is said of its policy or turn may have changed while it was tried; the
	// queue knows nothing of that.
	if w.changes != seen.changes && p.minds(causeObjects) || !sameAnnotations(pod, current) && p.minds(causeOwn) {
		w.due(pod.UID)
	}
}

// current is the Pod as the scheduler sees it now, or nil where it is gone.
func (w *waiting) current(pod *corev1.Pod) *corev1.Pod {
	current, err := w.pods.Pods(pod.Namespace).Get(pod.Name)
	if err != nil || current.UID != pod.UID {
		return nil
	}
	return current
}

// held says why the Pod must not be tried yet, or "". PreEnqueue asks, with the
// queue locked: a change that is told later finds the Pod in the queue.
func (w *waiting) held(pod *corev1.Pod, activator fwk.PodActivator) string {
	w.mu.Lock()
	w.restore(pod, activator)
	p := w.parked[pod.UID]
	if p == nil || p.hold == nil {
		w.mu.Unlock()
		return ""
	}
	defer w.mu.Unlock()
	h := p.hold
	if h.armed {
		return h.why
	}
	h.armed = true
	if !h.until.IsZero() {
		w.wakeAt(p, h.until)
		return h.why
	}
	if h.unchanged == nil {
		return h.why
	}
	w.mu.Unlock()
	unchanged := h.unchanged()
	w.mu.Lock()
	if !unchanged && w.parked[pod.UID] == p && p.hold == h {
		w.due(pod.UID)
	}
	return h.why
}

// restore takes over what an earlier process wrote of the Pod's failures. The
// caller holds the lock. A Pod that it had given up on is tried once more:
// what happened in between is not known.
func (w *waiting) restore(pod *corev1.Pod, activator fwk.PodActivator) {
	if _, known := w.failures[pod.UID]; known {
		return
	}
	state, ok := retry.Parse(outcome.MessageOf(pod))
	if !ok {
		return
	}
	w.failures[pod.UID] = state
	if state.Next.After(w.clock.Now()) && w.parked[pod.UID] == nil {
		w.add(&parkedPod{pod: pod, activator: activator, hold: backoff(state)})
	}
}

// failed counts a failure of a retryable class.
func (w *waiting) failed(uid types.UID, limits retry.Limits, key string) retry.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	state := w.failures[uid].Failed(limits, key, w.clock.Now())
	w.failures[uid] = state
	return state
}

// failureText says, for the end of a message, what is remembered of a Pod's
// failures.
func (w *waiting) failureText(uid types.UID) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failures[uid].Text(w.clock.Now())
}

// drop says that the Pod no longer waits. Its failures are still remembered.
func (w *waiting) drop(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop(uid)
}

// forget drops everything about a Pod that is bound or gone.
func (w *waiting) forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop(uid)
	delete(w.failures, uid)
	delete(w.searches, uid)
	w.sweep.forget(uid)
}

// unfinished keeps a search for the Pod's next attempt, unless the Pod is gone.
func (w *waiting) unfinished(s *search) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current(s.pod) != nil {
		w.searches[s.pod.UID] = s
	}
}

// resume returns the search that the Pod's last attempt left, or nil.
func (w *waiting) resume(uid types.UID) *search {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.searches[uid]
	delete(w.searches, uid)
	return s
}

// add has the Pod among those that are parked, in place of what was known of its
// wait. The caller holds the lock.
func (w *waiting) add(p *parkedPod) {
	w.stop(p.pod.UID)
	w.parked[p.pod.UID] = p
	p.claims = claimNames(p.pod)
	for _, name := range p.claims {
		if w.users[name] == nil {
			w.users[name] = sets.New[types.UID]()
		}
		w.users[name].Insert(p.pod.UID)
	}
}

// stop has it no longer among them. The caller holds the lock.
func (w *waiting) stop(uid types.UID) {
	p := w.parked[uid]
	if p == nil {
		return
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	delete(w.parked, uid)
	for _, name := range p.claims {
		if w.users[name].Delete(uid).Len() == 0 {
			delete(w.users, name)
		}
	}
}

// wakeAt sets the Pod's timer. The caller holds the lock.
func (w *waiting) wakeAt(p *parkedPod, at time.Time) {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.timer = w.clock.AfterFunc(max(0, at.Sub(w.clock.Now())), func() { w.background(func() { w.timeUp(p) }) })
}

// timeUp wakes a Pod whose time has come, whatever else is to be woken.
func (w *waiting) timeUp(p *parkedPod) {
	w.mu.Lock()
	if w.parked[p.pod.UID] != p {
		w.mu.Unlock()
		return
	}
	w.release(p)
	w.mu.Unlock()
	w.activate([]*parkedPod{p})
}

// release ends a Pod's hold, because it is woken. Where the hold was for good, what happened gives
// the Pod all of its attempts again. The caller holds the lock.
func (w *waiting) release(p *parkedPod) {
	if p.hold != nil && p.hold.gaveUp {
		w.failures[p.pod.UID] = retry.State{}
	}
	p.hold, p.woken, p.since = nil, w.clock.Now(), time.Time{}
}

// waitsForAPI says whether a Pod waits for nothing but the API server.
func (w *waiting) waitsForAPI() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.parked {
		if p.hold != nil && p.hold.class == v1alpha1.FailureAPIUnavailable && p.hold.until.IsZero() {
			return true
		}
	}
	return false
}
