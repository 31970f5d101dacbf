package tenants

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// ofJob has a Job make the Pod.
func ofJob(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: name, UID: types.UID(name), Controller: ptr.To(true)}}
	}
}

// lending has tenant b borrow what a is guaranteed, with a Pod of a Job.
func lending(t *testing.T, change ...func(*corev1.Pod)) (w *world, holder *corev1.Pod) {
	w = newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", func(s *v1alpha1.AcceleratorPolicySpec) { s.Preempts = v1alpha1.PreemptsBorrowed }, tier("H100"))
	w.quota("a", []string{"a"}, part("H100", 1, 1))
	w.quota("b", []string{"b"}, part("H100", 0, 1))
	holder = w.pod("b", "holder", "h", change...)
	w.expect("Open b/holder")
	return w, w.run(holder)
}

// ask has a, a minute later, ask for the device.
func (w *world) ask(holder *corev1.Pod) {
	w.now = w.now.Add(time.Minute)
	w.pod("a", "asks", "h")
	w.expect("Notice b/" + holder.Name)
}

// run is what follows the opening of a Pod's gate.
func (w *world) run(p *corev1.Pod) *corev1.Pod {
	p = w.opened(p)
	w.allocate(p, "n/gpu-0")
	return p
}

// takeBack has a ask for the device, and the holder evicted for it.
func (w *world) takeBack(holder *corev1.Pod) *corev1.Pod {
	w.ask(holder)
	deadline := w.now.Add(time.Minute)
	holder = w.edit(holder, func(p *corev1.Pod) {
		annotations := map[string]string{v1alpha1.AnnotationReclaimDeadline: deadline.Format(time.RFC3339Nano), v1alpha1.AnnotationReclaimFor: "asks"}
		for key, value := range p.Annotations {
			annotations[key] = value
		}
		p.Annotations = annotations
	})
	w.now = deadline
	w.expect("Evict b/" + holder.Name)
	holder = w.edit(holder, evictedAtTime(w.now))
	w.sync()
	return w.terminating(holder)
}

// evictedAtTime has a Pod say, as the API server does, that it is being evicted.
func evictedAtTime(at time.Time) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: EvictionReason, LastTransitionTime: metav1.NewTime(at),
		}}
	}
}

// gone ends a Pod with its claim.
func (w *world) gone(p *corev1.Pod) {
	w.remove(p)
	if claim := w.objects["*v1.ResourceClaim "+p.Namespace+"/"+p.Name+"-accelerator"]; claim != nil {
		w.remove(claim)
	}
}

func (w *world) requireReclaims(p *corev1.Pod, times int64, at time.Time) {
	w.t.Helper()
	w.sync()
	want := Reclaims{Times: times, At: at}
	if times == 0 {
		want = Reclaims{}
	}
	if got := w.mirror.Reclaims(IDOf(p.Namespace, p.Name, p.UID)); got != want {
		w.t.Fatalf("%s goes on with %+v, want %+v", p.Name, got, want)
	}
}

func (w *world) requireNothingLeft() {
	w.t.Helper()
	if n := len(w.mirror.estates); n != 0 {
		w.t.Errorf("%d controllers are remembered", n)
	}
}

// The Pod that a Job makes in place of an evicted one does not borrow again at
// once, and after the second time for twice as long; whoever starts anew while
// the evicted one is there, or the new one runs, knows the same.
func TestReplacedPodGoesOnWithTheCount(t *testing.T) {
	w, holder := lending(t, ofJob("j"))
	for times := int64(1); times <= 3; times++ {
		sibling := w.pod("b", "sibling", "h", ofJob("j"))
		w.expect()
		w.now = w.now.Add(time.Second)
		holder = w.takeBack(holder)
		at := w.now
		again := w.pod("b", "again", "h", ofJob("j"))
		w.requireReclaims(again, times, at)
		w.requireReclaims(sibling, 0, at)
		if got := slices.Collect(maps.Keys(w.mirror.Unsaid())); !slices.Equal(got, []string{IDOf("b", "again", again.UID)}) {
			t.Fatalf("unsaid are %q", got)
		}
		w.mirror = w.fresh()
		w.requireReclaims(again, times, at)
		w.requireReclaims(sibling, 0, at)
		again = w.edit(again, func(p *corev1.Pod) { p.Annotations = w.mirror.Reclaims(IDOf("b", "again", p.UID)).Annotations() })
		later := w.pod("b", "later", "h", ofJob("j"))
		w.mirror = w.fresh()
		w.requireReclaims(again, times, at)
		w.requireReclaims(later, 0, at)
		if got := w.mirror.Unsaid(); len(got) != 0 {
			t.Fatalf("unsaid are %q", got)
		}
		w.remove(later)
		w.gone(holder)
		w.mirror = w.fresh()
		w.requireReclaims(again, times, at)
		w.remove(sibling)
		w.expect("Open a/asks")
		asks := w.run(w.objects["*v1.Pod a/asks"].(*corev1.Pod))
		w.now = w.now.Add(time.Minute)
		w.gone(asks)
		w.expect()
		w.now = at.Add(10*time.Minute<<(times-1) - time.Second)
		w.expect()
		w.now = w.now.Add(time.Second)
		w.expect("Open b/again")
		w.requireReclaims(again, times, at)
		w.gone(w.run(again))
		// The next one comes under the same name, as those of an indexed Job.
		holder = again.DeepCopy()
		holder.UID = ""
		holder.Spec.SchedulingGates, holder.Name = nil, "holder"
		holder.Annotations = Reclaims{Times: times, At: at}.Annotations()
		w.put(holder)
		w.allocate(holder, "n/gpu-0")
		w.mirror = w.fresh()
		w.requireReclaims(holder, times, at)
	}
}

// Nobody inherits from a Pod that somebody else deleted, from one without a
// controller, or of another controller; and only one does.
func TestWhoInheritsNothing(t *testing.T) {
	t.Run("no controller", func(t *testing.T) {
		w, holder := lending(t)
		w.gone(w.takeBack(holder))
		w.requireReclaims(w.pod("b", "again", "h"), 0, start)
	})
	t.Run("another controller", func(t *testing.T) {
		w, holder := lending(t, ofJob("j"))
		w.gone(w.takeBack(holder))
		w.requireReclaims(w.pod("b", "again", "h", ofJob("k")), 0, start)
	})
	t.Run("only one", func(t *testing.T) {
		w, holder := lending(t, ofJob("j"))
		holder = w.takeBack(holder)
		first, second := w.pod("b", "first", "h", ofJob("j")), w.pod("b", "second", "h", ofJob("j"))
		w.requireReclaims(first, 1, w.now)
		w.requireReclaims(second, 0, w.now)
		w.gone(holder)
		w.requireReclaims(second, 0, w.now)
		w.requireReclaims(w.pod("b", "third", "h", ofJob("j")), 0, w.now)
		w.requireNothingLeft()
	})
	t.Run("deleted before", func(t *testing.T) {
		w, holder := lending(t, ofJob("j"))
		w.ask(holder)
		holder = w.edit(holder, func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.AnnotationReclaimDeadline: w.now.Add(time.Minute).Format(time.RFC3339Nano)}
		})
		w.gone(w.terminating(w.edit(holder, evictedAtTime(w.now))))
		w.requireReclaims(w.pod("b", "again", "h", ofJob("j")), 0, start)
	})
	t.Run("not evicted", func(t *testing.T) {
		w, holder := lending(t, ofJob("j"))
		holder = w.takeBack(holder)
		holder = w.edit(holder, func(p *corev1.Pod) { p.Status.Conditions[0].Reason = "PreemptionByScheduler" })
		w.mirror = w.fresh()
		w.gone(holder)
		w.requireReclaims(w.pod("b", "again", "h", ofJob("j")), 0, start)
	})
	t.Run("no policy", func(t *testing.T) {
		w, _ := lending(t)
		forged := w.pod("b", "forged", "h", ofJob("j"), func(p *corev1.Pod) {
			p.Labels = nil
			p.Annotations = map[string]string{v1alpha1.AnnotationReclaimDeadline: w.now.Format(time.RFC3339Nano)}
		}, evictedAtTime(w.now))
		w.sync()
		w.gone(forged)
		w.requireReclaims(w.pod("b", "again", "h", ofJob("j")), 0, start)
	})
	t.Run("another namespace", func(t *testing.T) {
		w, holder := lending(t, ofJob("j"))
		w.gone(w.takeBack(holder))
		w.requireReclaims(w.pod("a", "again", "h", ofJob("j")), 0, start)
	})
	t.Run("too late", func(t *testing.T) {
		w, holder := lending(t, ofJob("j"))
		w.gone(w.takeBack(holder))
		w.sync()
		w.now = w.now.Add(estateKept + time.Second)
		w.sync()
		w.requireReclaims(w.pod("b", "again", "h", ofJob("j")), 0, start)
		w.requireNothingLeft()
	})
}

// What stands on a Pod counts where only the controller can write it.
func TestReclaimsOn(t *testing.T) {
	at := start.Add(time.Hour)
	for name, test := range map[string]struct {
		label, times, at string
		want             Reclaims
	}{
		"said":          {"h", "2", "2026-11-01T13:00:00Z", Reclaims{2, at}},
		"other zone":    {"h", "2", "2026-11-01T14:00:00+01:00", Reclaims{2, at}},
		"no policy":     {"", "2", "2026-11-01T13:00:00Z", Reclaims{}},
		"no number":     {"h", "two", "2026-11-01T13:00:00Z", Reclaims{}},
		"never":         {"h", "0", "2026-11-01T13:00:00Z", Reclaims{}},
		"no time":       {"h", "2", "", Reclaims{}},
		"beyond reason": {"h", "9999999999", "2026-11-01T13:00:00Z", Reclaims{maxReclaims, at}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Labels:      map[string]string{v1alpha1.LabelPolicy: test.label},
				Annotations: map[string]string{v1alpha1.AnnotationReclaims: test.times, v1alpha1.AnnotationReclaimed: test.at},
			}}
			if got := ReclaimsOn(pod); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
