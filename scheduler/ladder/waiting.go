package ladder

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"
)

// waiting holds the Pods that Ladder parked and wakes them: when the time of a
// later tier comes, or when a policy, revision, quota or namespace changes.
// Other events reach parked Pods through the scheduling queue's own hints.
//
// Nothing here needs to survive a restart: the queue then tries every Pod that
// is not bound, and a Pod that must still wait is parked again.
type waiting struct {
	clock clock.WithDelayedExecution
	pods  corelisters.PodLister

	mu     sync.Mutex
	parked map[types.UID]*parkedPod
}

type parkedPod struct {
	pod       *corev1.Pod
	activator fwk.PodActivator
	timer     clock.Timer
}

func newWaiting(c clock.WithDelayedExecution, pods corelisters.PodLister) *waiting {
	return &waiting{clock: c, pods: pods, parked: map[types.UID]*parkedPod{}}
}

// park notes that the Pod waits. With a time that is not zero it is woken then.
func (w *waiting) park(pod *corev1.Pod, activator fwk.PodActivator, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop(pod.UID)
	p := &parkedPod{pod: pod, activator: activator}
	w.parked[pod.UID] = p
	if !until.IsZero() {
		uid := pod.UID
		p.timer = w.clock.AfterFunc(until.Sub(w.clock.Now()), func() {
			w.wake(func(pod *corev1.Pod) bool { return pod.UID == uid })
		})
	}
}

// drop forgets a Pod that no longer waits.
func (w *waiting) drop(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop(uid)
}

func (w *waiting) stop(uid types.UID) {
	if p := w.parked[uid]; p != nil && p.timer != nil {
		p.timer.Stop()
	}
	delete(w.parked, uid)
}

// wake has the queue try the parked Pods that match.
func (w *waiting) wake(match func(*corev1.Pod) bool) {
	w.mu.Lock()
	var woken []*parkedPod
	for _, p := range w.parked {
		if match(p.pod) {
			woken = append(woken, p)
		}
	}
	w.mu.Unlock()
	for _, p := range woken {
		current, err := w.pods.Pods(p.pod.Namespace).Get(p.pod.Name)
		if err != nil || current.UID != p.pod.UID || current.Spec.NodeName != "" {
			continue
		}
		p.activator.Activate(klog.Background(), map[string]*corev1.Pod{klog.KObj(current).String(): current})
	}
}
