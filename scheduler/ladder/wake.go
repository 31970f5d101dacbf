package ladder

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

// This file puts parked Pods back into the scheduling queue: together and in
// the order of Order, so that what became free goes to the first of them. The
// queue's own way would let each join when its own backoff is over.
//
// Without a backoff thousands of Pods that wait in vain could keep the
// scheduler from those that it can serve. So they come in batches, and for each
// one that was woken in vain the next batch waits a little: at most 200 such
// attempts are made in a second. Each is woken once before any is woken again.

const (
	// wakeBatch is how many Pods are woken at once.
	wakeBatch = 64
	// wakePause is what each attempt in vain puts the next batch off.
	wakePause = 5 * time.Millisecond
	// wakeGap is the least time between two batches.
	wakeGap = 50 * time.Millisecond
)

// sweep is the Pods that are to be woken.
type sweep struct {
	// due are to be woken in this round; done have been, and again are those of
	// them that are to be woken in the next one.
	due, done, again sets.Set[types.UID]
	// notBefore is when the next batch may come; scheduled says that it will.
	notBefore time.Time
	scheduled bool
}

func newSweep() sweep {
	return sweep{due: sets.New[types.UID](), done: sets.New[types.UID](), again: sets.New[types.UID]()}
}

func (s *sweep) forget(uid types.UID) {
	s.due.Delete(uid)
	s.done.Delete(uid)
	s.again.Delete(uid)
}

// wake has the queue try the parked Pods that match, because a policy,
// revision, quota or namespace changed.
func (w *waiting) wake(match func(*corev1.Pod) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes++
	w.wakeAll(causeObjects, match)
}

// apiAnswers has the queue try the Pods that wait for the API server.
func (w *waiting) apiAnswers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeAll(causeAPI, func(pod *corev1.Pod) bool { return w.parked[pod.UID].hold != nil })
}

func (w *waiting) wakeAll(c cause, match func(*corev1.Pod) bool) {
	for uid, p := range w.parked {
		if p.minds(c) && match(p.pod) {
			w.due(uid)
		}
	}
}

// wakeSoon has the queue try a parked Pod, and says whether it is one.
func (w *waiting) wakeSoon(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.parked[uid] == nil {
		return false
	}
	w.due(uid)
	return true
}

// due notes a Pod for the next batch. The caller holds the lock.
func (w *waiting) due(uid types.UID) {
	if w.sweep.done.Has(uid) {
		w.sweep.again.Insert(uid)
	} else {
		w.sweep.due.Insert(uid)
	}
	w.schedule(0)
}

// fruitless puts the next batch off because a Pod that was woken waits again.
// The caller holds the lock.
func (w *waiting) fruitless(uid types.UID) {
	if !w.sweep.done.Has(uid) {
		return
	}
	if now := w.clock.Now(); w.sweep.notBefore.Before(now) {
		w.sweep.notBefore = now
	}
	w.sweep.notBefore = w.sweep.notBefore.Add(wakePause)
}

// schedule sets the time of the next batch. The caller holds the lock.
func (w *waiting) schedule(wait time.Duration) {
	if w.sweep.scheduled {
		return
	}
	w.sweep.scheduled = true
	w.clock.AfterFunc(wait, func() { w.background(w.nextBatch) })
}

// nextBatch wakes the first of the Pods that are due.
func (w *waiting) nextBatch() {
	w.mu.Lock()
	s := &w.sweep
	s.scheduled = false
	if wait := s.notBefore.Sub(w.clock.Now()); wait > 0 {
		w.schedule(wait)
		w.mu.Unlock()
		return
	}
	if s.due.Len() == 0 {
		s.due, s.again = s.again, s.due
		s.done.Clear()
	}
	batch := w.first(wakeBatch)
	for _, p := range batch {
		w.release(p)
		s.due.Delete(p.pod.UID)
		s.done.Insert(p.pod.UID)
	}
	if s.due.Len() > 0 || s.again.Len() > 0 {
		w.schedule(wakeGap)
	}
	w.mu.Unlock()
	w.activate(batch)
}

// first returns the first n Pods that are due, and strikes off those that no
// longer wait. The caller holds the lock.
func (w *waiting) first(n int) []*parkedPod {
	var all []*parkedPod
	for uid := range w.sweep.due {
		if p := w.parked[uid]; p != nil {
			all = append(all, p)
		} else {
			w.sweep.due.Delete(uid)
		}
	}
	slices.SortFunc(all, func(a, b *parkedPod) int { return placeOfPod(a.pod).compare(placeOfPod(b.pod)) })
	return all[:min(n, len(all))]
}

// placeOfPod is where a Pod stands in the queue.
func placeOfPod(pod *corev1.Pod) place {
	return place{
		priority:  corev1helpers.PodPriority(pod),
		created:   pod.CreationTimestamp.Time,
		namespace: pod.Namespace,
		name:      pod.Name,
	}
}

// activate puts Pods into the queue, all at once. Profiles share one queue.
func (w *waiting) activate(batch []*parkedPod) {
	pods := map[string]*corev1.Pod{}
	for _, p := range batch {
		if current := w.current(p.pod); current != nil && current.Spec.NodeName == "" {
			pods[klog.KObj(current).String()] = current
		}
	}
	if len(pods) > 0 {
		batch[0].activator.Activate(klog.Background(), pods)
	}
}

// askAPI finds out, while Pods wait for it, whether the API server answers.
func (c *Core) askAPI(ctx context.Context) {
	if !c.waiting.waitsForAPI() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := c.objects.Ping(ctx); err != nil {
		klog.FromContext(ctx).V(2).Info("The API server does not answer yet", "err", err)
		return
	}
	c.waiting.apiAnswers()
}

const (
	// askInterval is how often the API server is asked whether it answers.
	askInterval = 5 * time.Second
	askTimeout  = 5 * time.Second
)
