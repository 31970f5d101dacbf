package tenants

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// lentToGang sets the stage: a gang of b has borrowed what a is guaranteed, and
// a asks for one device.
func lentToGang(t *testing.T) (w *world, gang []*corev1.Pod, asks *corev1.Pod) {
	w = newWorld(t)
	w.gpus("n", "H100", 2)
	w.policy("h", func(s *v1alpha1.AcceleratorPolicySpec) { s.Preempts = v1alpha1.PreemptsBorrowed }, tier("H100"))
	w.quota("a", []string{"a"}, part("H100", 1, 2))
	w.quota("b", []string{"b"}, part("H100", 0, 2))
	w.group("b", "job", 2)
	gang = w.members("b", "job", "h", 2)
	w.expect("Open b/job-a", "Open b/job-b")
	for i, p := range gang {
		gang[i] = w.opened(p)
		w.allocate(p, []string{"n/gpu-0", "n/gpu-1"}[i])
	}
	w.now = w.now.Add(time.Minute)
	asks = w.pod("a", "asks", "h")
	w.expect("Notice b/job-a", "Notice b/job-b")
	return w, gang, asks
}

// told is the Pod after the notice was written.
func (w *world) told(p, servant *corev1.Pod, deadline time.Time) *corev1.Pod {
	return w.edit(p, func(p *corev1.Pod) {
		p.Annotations = map[string]string{
			v1alpha1.AnnotationReclaimDeadline: deadline.Format(time.RFC3339Nano), v1alpha1.AnnotationReclaimFor: string(servant.UID),
		}
	})
}

// A gang is taken back whole, also by a controller that did not begin it.
func TestGangIsTakenBackWhole(t *testing.T) {
	w, gang, asks := lentToGang(t)
	deadline := w.now.Add(time.Minute)
	gang[0] = w.told(gang[0], asks, deadline)
	w.expect() // the other one is on its way
	w.mirror = w.fresh()
	w.expect("Notice b/job-b") // or it is not: told anew, with the same deadline
	gang[1] = w.told(gang[1], asks, deadline)
	w.mirror = w.fresh()
	w.now = deadline.Add(-time.Second)
	w.expect()
	w.now = deadline
	w.expect("Evict b/job-a", "Evict b/job-b")
	w.expect()
	gang[0] = w.terminating(gang[0])
	w.expect()
	// Killed between the two: the device of the first would do, the gang is gone
	// all the same.
	w.remove(w.objects["*v1.ResourceClaim b/job-a-accelerator"])
	w.mirror = w.fresh()
	w.expect("Evict b/job-b", "Open a/asks")
	w.mirror.Evicted(IDOf("b", "job-b", gang[1].UID))
	w.terminating(gang[1])
	w.remove(gang[0])
	w.requireUsage("b", "H100", 1, 1)
	w.expect()
}

// While one was evicted the others are not spared, even if nobody needs it any
// more.
func TestTornGangFollows(t *testing.T) {
	w, gang, asks := lentToGang(t)
	deadline := w.now.Add(time.Minute)
	for i, p := range gang {
		gang[i] = w.told(p, asks, deadline)
	}
	w.expect()
	w.now = deadline
	w.expect("Evict b/job-a", "Evict b/job-b")
	first, second := IDOf("b", "job-a", gang[0].UID), IDOf("b", "job-b", gang[1].UID)
	if w.mirror.Torn(first) {
		t.Error("torn although no Pod of it was evicted")
	}
	w.mirror.Evicted(first)
	w.remove(w.objects["*v1.Pod a/asks"])
	w.expect()
	if !w.mirror.Torn(second) {
		t.Error("not torn although a Pod of it was evicted")
	}
	w.terminating(gang[0])
	w.expect()
	// A Pod that comes in its place waits until the rest is gone.
	w.pod("b", "job-c", "h", of("job"))
	w.expect()
	w.requireReason("b", "job-c", ReasonBehindGroup)
	w.remove(gang[0], w.objects["*v1.ResourceClaim b/job-a-accelerator"])
	w.terminating(gang[1])
	w.expect()
	w.requireReason("b", "job-c", ReasonGroupIncomplete)
}

// A notice that nobody needs any more is taken back from all.
func TestNoticeOfAGangIsCancelled(t *testing.T) {
	w, gang, asks := lentToGang(t)
	gang[0] = w.told(gang[0], asks, w.now.Add(time.Minute))
	w.remove(asks)
	w.expect("Cancel b/job-a", "Cancel b/job-b")
	w.edit(gang[0], func(p *corev1.Pod) { p.Annotations = nil })
	w.expect()
	w.pod("a", "again", "h")
	w.expect("Notice b/job-a", "Notice b/job-b")
}

// A Pod of a gang that can't be evicted spares all of it.
func TestGangIsSparedWhole(t *testing.T) {
	w, gang, _ := lentToGang(t)
	id := IDOf("b", "job-b", gang[1].UID)
	if got := w.mirror.Fellows(id); len(got) != 2 {
		t.Errorf("got fellows %q", got)
	}
	w.mirror.Spare(id, w.now.Add(10*time.Minute))
	w.expect()
	w.now = w.now.Add(10 * time.Minute)
	w.expect("Notice b/job-a", "Notice b/job-b")
}

// Devices are taken back for a gang: the notice names its PodGroup.
func TestTakenBackForAGang(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 2)
	w.policy("h", func(s *v1alpha1.AcceleratorPolicySpec) { s.Preempts = v1alpha1.PreemptsBorrowed }, tier("H100"))
	w.quota("a", []string{"a"}, part("H100", 2, 2))
	w.quota("b", []string{"b"}, part("H100", 0, 2))
	holder := w.pod("b", "holder", "h")
	w.expect("Open b/holder")
	holder = w.opened(holder)
	w.allocate(holder, "n/gpu-0")
	w.now = w.now.Add(time.Minute)
	g := w.group("a", "job", 2)
	w.members("a", "job", "h", 2)
	actions := w.actions()
	if len(actions) != 1 || UIDOf(actions[0].For) != g.UID {
		t.Fatalf("got %+v, want a notice for PodGroup job", actions)
	}
	w.requireReason("a", "job-a", "AwaitingReclaim")
	w.edit(holder, func(p *corev1.Pod) {
		p.Annotations = map[string]string{
			v1alpha1.AnnotationReclaimDeadline: actions[0].Deadline.Format(time.RFC3339Nano), v1alpha1.AnnotationReclaimFor: string(g.UID),
		}
	})
	w.mirror = w.fresh()
	w.expect()
	w.now = actions[0].Deadline
	w.expect("Evict b/holder")
}
