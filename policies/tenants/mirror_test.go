package tenants

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// A Pod's life: at its gate, opened, with devices, ending, gone. At each step
// who starts anew counts the same.
func TestLifeOfAPod(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 2)
	w.gpus("m", "A100", 2)
	w.policy("first", nil, tier("H100"), tier("A100"))
	w.quota("team", []string{"team"}, part("H100", 0, 1), part("A100", 0, 2))
	p := w.pod("team", "p", "first")
	w.requireSameAsRestarted()
	w.requireUsage("team", "H100", 0, 0)
	w.expect("Open team/p")
	w.expect() // done, although the Pod is still seen with its gate
	w.requireUsage("team", "H100", 0, 1)
	p = w.opened(p)
	w.requireSameAsRestarted()
	w.requireUsage("team", "H100", 0, 1)

	// What it got is not what it was charged: made right at once.
	w.allocate(p, "m/gpu-0")
	w.requireUsage("team", "H100", 0, 0)
	w.requireUsage("team", "A100", 1, 1)
	w.requireSameAsRestarted()

	// The scheduler gives it back and gives another.
	w.allocate(p)
	w.requireUsage("team", "A100", 0, 0)
	w.requireUsage("team", "H100", 0, 1)
	w.requireSameAsRestarted()
	claim := w.allocate(p, "n/gpu-1")
	w.requireUsage("team", "H100", 1, 1)

	second := w.pod("team", "q", "first")
	w.expect("Open team/q") // on an A100: the limit of H100 is reached
	second = w.opened(second)
	w.requireUsage("team", "A100", 0, 1)

	p = w.terminating(p)
	w.requireUsage("team", "H100", 1, 1)
	w.requireSameAsRestarted()
	w.remove(p)
	w.requireUsage("team", "H100", 1, 1)
	w.requireSameAsRestarted()
	w.remove(claim)
	w.requireUsage("team", "H100", 0, 1) // what the second might take now
	w.requireSameAsRestarted()

	// One that ends before it has anything holds nothing.
	w.terminating(second)
	w.requireUsage("team", "H100", 0, 0)
	w.requireSameAsRestarted()
}

// A Pod that is deleted by force is gone before its node has released anything.
func TestForceDeletion(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", nil, tier("H100"))
	w.quota("team", []string{"team"}, part("H100", 0, 1))
	p := w.pod("team", "p", "h")
	w.expect("Open team/p")
	p = w.opened(p)
	claim := w.allocate(p, "n/gpu-0")
	w.pod("team", "q", "h")
	w.remove(p)
	w.expect()
	w.requireUsage("team", "H100", 1, 1)
	w.requireCapacity("H100", 1, 0)
	w.requireSameAsRestarted()
	// A Pod of the same name is another Pod.
	again := w.pod("team", "p", "h")
	w.expect()
	w.requireUsage("team", "H100", 1, 1)
	w.remove(again)
	w.claim("team", claim.Name, p)
	w.expect("Open team/q")
}

func TestSharedClaimIsCountedOnce(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 4)
	w.quota("team", []string{"team"}, part("H100", 0, 4))
	shared := w.claim("team", "shared", nil, "n/gpu-0", "n/gpu-1")
	w.requireUsage("team", "H100", 2, 2) // nobody uses it, it is held all the same
	use := func(p *corev1.Pod) {
		p.Labels, p.Spec.SchedulingGates = nil, nil
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "s", ResourceClaimName: ptr.To("shared")}}
	}
	a, b := w.pod("team", "a", "", use), w.pod("team", "b", "", use)
	w.requireUsage("team", "H100", 2, 2)
	w.requireSameAsRestarted()
	w.remove(a)
	w.requireUsage("team", "H100", 2, 2)
	w.terminating(b)
	w.requireUsage("team", "H100", 2, 2)
	w.requireSameAsRestarted()
	w.requireCapacity("H100", 4, 2)
	w.remove(shared)
	w.requireUsage("team", "H100", 0, 0)
	w.requireCapacity("H100", 4, 4)
}

func TestHandWrittenClaimsCount(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 4)
	w.policy("h", nil, tier("H100"))
	w.quota("team", []string{"team"}, part("H100", 0, 2))
	bare := w.pod("team", "bare", "", func(p *corev1.Pod) { p.Labels, p.Spec.SchedulingGates = nil, nil })
	w.requireUsage("team", "H100", 0, 0) // nobody can say what it will get
	w.allocate(bare, "n/gpu-0", "n/gpu-1")
	w.requireUsage("team", "H100", 2, 2)
	w.pod("team", "p", "h")
	w.expect()
	w.requireSameAsRestarted()
	if got := reasonOf(t, w.mirror, "team", "p"); got != fair.ReasonLimitReached {
		t.Errorf("got reason %s, want LimitReached", got)
	}
}

// What admin access and other drivers give is nobody's quota.
func TestWhatDoesNotCount(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.quota("team", []string{"team"}, part("H100", 0, 1))
	c := w.claim("team", "c", nil, "n/gpu-0", "n/gpu-0").DeepCopy()
	c.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	c.Status.Allocation.Devices.Results[1].Driver = "nic.example.com"
	w.put(c)
	w.requireUsage("team", "H100", 0, 0)
	w.requireCapacity("H100", 1, 1)
}

func TestCapacity(t *testing.T) {
	w := newWorld(t)
	slice := w.gpus("n", "H100", 4)
	w.requireCapacity("H100", 4, 4)

	tainted := slice.DeepCopy()
	tainted.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: v1alpha1.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	w.put(tainted)
	w.requireCapacity("H100", 3, 3)

	// A device that fails under its holder takes nothing from others.
	claim := w.claim("other", "c", nil, "n/gpu-0")
	w.requireCapacity("H100", 4, 3)
	w.remove(claim)

	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: ptr.To("n"), Device: ptr.To("gpu-1")},
		Taint:          resourceapi.DeviceTaint{Key: "example.com/repair", Effect: resourceapi.DeviceTaintEffectNoExecute},
	}}
	w.put(rule)
	w.requireCapacity("H100", 2, 2)
	w.remove(rule)

	node := w.node("n").DeepCopy()
	node.Spec.Unschedulable = true
	w.put(node)
	w.requireCapacity("H100", 0, 0)
	node = node.DeepCopy()
	node.Spec.Unschedulable = false
	w.put(node)
	w.requireCapacity("H100", 3, 3)
	gone := node.DeepCopy()
	gone.Status.Conditions[0].Status = corev1.ConditionUnknown
	w.put(gone)
	w.requireCapacity("H100", 0, 0)
	w.put(node)

	// Of a new generation nothing counts until it is whole.
	half := slice.DeepCopy()
	half.Name, half.UID = "n-new", ""
	half.Spec.Pool.Generation, half.Spec.Pool.ResourceSliceCount = 2, 2
	w.put(half)
	w.requireCapacity("H100", 0, 0)
	other := half.DeepCopy()
	other.Name, other.UID = "n-more", ""
	other.Spec.Devices = []resourceapi.Device{{Name: "gpu-9", Attributes: slice.Spec.Devices[0].Attributes}}
	w.put(other)
	w.requireCapacity("H100", 5, 5)
	w.requireSameAsRestarted()
}

// What a claim holds stays what it was when its slice is gone; who starts then
// reads it from the Pod.
func TestModelOfADeviceThatIsGone(t *testing.T) {
	w := newWorld(t)
	slice := w.gpus("n", "H100", 1)
	w.policy("h", nil, tier("H100"))
	w.quota("team", []string{"team"}, part("H100", 0, 2))
	p := w.pod("team", "p", "h")
	w.expect("Open team/p")
	p = w.opened(p)
	w.allocate(p, "n/gpu-0")
	w.edit(p, func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationModel: "H100"} })
	w.remove(slice)
	w.requireUsage("team", "H100", 1, 1)
	w.requireCapacity("H100", 1, 0)
	w.requireSameAsRestarted()
}

// A namespace that no quota names is not held back, and not evicted.
func TestNamespaceWithoutAQuota(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", func(s *v1alpha1.AcceleratorPolicySpec) { s.Preempts = v1alpha1.PreemptsBorrowed }, tier("H100"))
	p, q := w.pod("free", "p", "h"), w.pod("free", "q", "h")
	w.expect("Open free/p", "Open free/q")
	w.edit(p, func(p *corev1.Pod) { p.Annotations = map[string]string{"x": "y"} })
	w.expect() // the cache shows the gate still
	w.allocate(w.opened(p), "n/gpu-0")
	w.remove(q)
	w.quota("team", []string{"team"}, part("H100", 1, 1))
	w.pod("team", "r", "h")
	w.expect()
	w.now = w.now.Add(time.Hour)
	w.expect()
}

// A gate on a Pod that is no policy's is nobody's business.
func TestStrayGate(t *testing.T) {
	w := newWorld(t)
	w.quota("team", []string{"team"}, part("H100", 0, 1))
	w.pod("team", "p", "", func(p *corev1.Pod) { p.Labels, p.Spec.ResourceClaims = nil, nil })
	w.expect("Open team/p")
}

func TestNamespaceInTwoQuotas(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 2)
	w.policy("h", nil, tier("H100"))
	second := w.quota("b", []string{"shared", "own"}, part("H100", 0, 2))
	p := w.pod("shared", "p", "h")
	w.expect("Open shared/p")
	w.opened(p)
	w.requireUsage("b", "H100", 0, 1)
	first := w.quota("a", []string{"shared"}, part("H100", 0, 1))
	w.requireUsage("a", "H100", 0, 1)
	w.requireUsage("b", "H100", 0, 0)
	w.requireSameAsRestarted()
	if got := w.mirror.Conflicts("b"); len(got) != 1 || got[0] != (Conflict{"shared", "a"}) {
		t.Errorf("got conflicts %v", got)
	}
	if got := w.mirror.Conflicts("a"); len(got) != 0 {
		t.Errorf("got conflicts %v of the one that has the namespace", got)
	}
	ready := w.mirror.Status(second).Conditions[0]
	if ready.Status != metav1.ConditionFalse || ready.Reason != "NamespaceConflict" || !strings.Contains(ready.Message, "namespace shared belongs to TenantQuota a") {
		t.Errorf("got condition %+v", ready)
	}
	if ready := w.mirror.Status(first).Conditions[0]; ready.Status != metav1.ConditionTrue {
		t.Errorf("got condition %+v", ready)
	}
	w.remove(first)
	w.requireUsage("b", "H100", 0, 1)
}

func TestBlocked(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.quota("team", []string{"team"}, part("H100", 0, 1))
	w.pod("team", "p", "h")
	w.expect()
	if got := reasonOf(t, w.mirror, "team", "p"); got != ReasonRevisionMissing {
		t.Errorf("got %s", got)
	}
	revision := w.policy("h", nil, tier("H100")).DeepCopy()
	withdrawn := revision.DeepCopy()
	withdrawn.Spec.State = v1alpha1.RevisionWithdrawn
	w.put(withdrawn)
	w.expect()
	if got := reasonOf(t, w.mirror, "team", "p"); got != ReasonRevisionWithdrawn {
		t.Errorf("got %s", got)
	}
	status := w.mirror.Status(w.mirror.Quota("team"))
	if status.Waiting != 1 || len(status.Next) != 1 || status.Next[0].Reason != string(ReasonRevisionWithdrawn) {
		t.Errorf("got status %+v", status)
	}
	w.put(revision)
	w.expect("Open team/p")
}

// A tier without models is those of the fleet that pass its conditions.
func TestTierWithoutModels(t *testing.T) {
	w := newWorld(t)
	w.quota("team", []string{"team"}, part("H100", 0, 9), part("T4", 0, 9))
	w.policy("any", nil, v1alpha1.Tier{Name: "any", Selectors: []string{`device.attributes["gpu.gpuladder.dev"].model != "A100"`}})
	p := w.pod("team", "p", "any")
	w.expect()
	if got := reasonOf(t, w.mirror, "team", "p"); got != ReasonNoSuchDevices {
		t.Errorf("got %s", got)
	}
	w.gpus("a", "A100", 1)
	w.expect()
	w.gpus("h", "H100", 1)
	w.expect("Open team/p")
	w.requireUsage("team", "H100", 0, 1)
	w.opened(p)
	w.gpus("t", "T4", 1)
	w.requireUsage("team", "H100", 0, 1) // the dearest that is possible
	w.requireSameAsRestarted()
	if got := w.mirror.tiersOf(w.mirror.revisions["any-1"]).alternatives[0].Models; strings.Join(got, " ") != "T4 H100" {
		t.Errorf("got models %q, want the cheaper first and no A100", got)
	}
}

func TestModelOfNVIDIAsDriver(t *testing.T) {
	w := newWorld(t)
	slice := w.gpus("n", "", 1).DeepCopy()
	slice.Spec.Driver = v1alpha1.NVIDIADriverName
	slice.Spec.Devices[0].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"productName": {StringValue: ptr.To("NVIDIA A100-SXM4-80GB")}}
	w.put(slice)
	w.requireCapacity("A100", 1, 1)
}

// borrowed sets the stage: b has borrowed what a is guaranteed, and a asks.
func borrowed(t *testing.T) (w *world, holder *corev1.Pod) {
	w, holder = lending(t)
	w.ask(holder)
	return w, holder
}

func TestReclaimGoesOnAfterARestart(t *testing.T) {
	w, holder := borrowed(t)
	asks, ok := w.objects["*v1.Pod a/asks"].(*corev1.Pod)
	if !ok {
		t.Fatal("the Pod that asks is not there")
	}
	deadline := w.now.Add(time.Minute)
	holder = w.edit(holder, func(p *corev1.Pod) {
		p.Annotations = map[string]string{
			v1alpha1.AnnotationReclaimDeadline: deadline.Format(time.RFC3339Nano), v1alpha1.AnnotationReclaimFor: string(asks.UID),
		}
	})
	w.mirror = w.fresh()
	w.now = w.now.Add(30 * time.Second)
	w.expect()
	w.mirror = w.fresh()
	if at, ok := w.mirror.Wake(w.now); !ok || !at.Equal(deadline) {
		t.Errorf("wakes at %v, want %v", at, deadline)
	}
	w.now = deadline
	w.expect("Evict b/holder")
	w.terminating(holder)
	w.expect()
	w.remove(holder)
	w.expect()
	w.remove(w.objects["*v1.ResourceClaim b/holder-accelerator"])
	w.expect("Open a/asks")
}

func TestReclaimIsCancelledWhenNobodyNeedsIt(t *testing.T) {
	w, _ := borrowed(t)
	w.remove(w.objects["*v1.Pod a/asks"])
	w.expect("Cancel b/holder")
}

// A Pod that can't be evicted is left alone for a while.
func TestSpare(t *testing.T) {
	w, holder := borrowed(t)
	id := IDOf("b", "holder", holder.UID)
	w.mirror.Spare(id, w.now.Add(10*time.Minute))
	w.expect()
	w.now = w.now.Add(10 * time.Minute)
	w.expect("Notice b/holder")
}

// A Pod whose label says so is not evicted, and borrows only what is nobody's.
func TestNotPreemptible(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 2)
	w.policy("h", nil, tier("H100"))
	w.quota("a", []string{"a"}, part("H100", 1, 1))
	w.quota("b", []string{"b"}, part("H100", 0, 2))
	firm := func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPreemptible] = "false" }
	w.pod("b", "one", "h", firm)
	w.pod("b", "two", "h", firm)
	w.expect("Open b/one")
	if got := reasonOf(t, w.mirror, "b", "two"); got != fair.ReasonNotLent {
		t.Errorf("got %s, want NotLent", got)
	}
}

// A Pod whose gate can't be opened gives way for a while.
func TestPause(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", nil, tier("H100"))
	w.quota("team", []string{"team"}, part("H100", 0, 1))
	p := w.pod("team", "p", "h")
	w.now = w.now.Add(time.Second)
	w.pod("team", "q", "h")
	w.expect("Open team/p")
	until := w.now.Add(time.Minute)
	w.mirror.Pause(IDOf("team", "p", p.UID), until)
	w.expect("Open team/q")
	if got := reasonOf(t, w.mirror, "team", "p"); got != ReasonOpenRefused {
		t.Errorf("got %s, want OpenRefused", got)
	}
	if at, ok := w.mirror.Wake(w.now); !ok || at.After(until) {
		t.Errorf("wakes at %v, want %v at the latest", at, until)
	}
	w.remove(w.objects["*v1.Pod team/q"])
	w.now = until
	w.expect("Open team/p")
}

// Whatever happens in whatever order, who starts anew counts the same, limits
// hold for what is opened, and in the end all is served.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t)
			h := &history{world: w, r: r, pods: map[string]*corev1.Pod{}, held: map[string]string{}}
			w.gpus("h", "H100", 3)
			w.gpus("a", "A100", 3)
			w.policy("h", nil, tier("H100"))
			w.policy("ha", func(s *v1alpha1.AcceleratorPolicySpec) { s.Preempts = v1alpha1.PreemptsBorrowed }, tier("H100"), tier("A100"))
			w.quota("x", []string{"x", "x2"}, part("H100", 1, 2), part("A100", 0, 2))
			w.quota("y", []string{"y"}, part("H100", 1, 2), part("A100", 1, 3))
			for range 120 {
				h.step()
			}
			for range 400 {
				if h.drain() {
					return
				}
			}
			t.Fatalf("not all served: %d Pods are left", len(h.pods))
		})
	}
}
