package tenants

// Whose a claim is, whatever is written on it by those who may update claims.

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// saidByStatus is the stage of lending, where the Pod's status names its claim.
func saidByStatus(t *testing.T) (w *world, holder *corev1.Pod) {
	t.Helper()
	w, holder = lending(t)
	return w, w.edit(holder, func(p *corev1.Pod) {
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: v1alpha1.ClaimRefName, ResourceClaimName: ptr.To("holder-accelerator")}}
	})
}

func (w *world) editClaim(c *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
	c = c.DeepCopy()
	change(c)
	w.put(c)
	return c
}

// Who may update claims can make one say that it is nobody's, or another's.
func TestClaimIsWhoseTheStatusSays(t *testing.T) {
	for name, change := range map[string]func(*resourceapi.ResourceClaim){
		"without owner":      func(c *resourceapi.ResourceClaim) { c.OwnerReferences = nil },
		"without annotation": func(c *resourceapi.ResourceClaim) { c.Annotations = nil },
		"of another": func(c *resourceapi.ResourceClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "x", UID: "x", Controller: ptr.To(true)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, holder := saidByStatus(t)
			w.editClaim(w.allocate(holder, "n/gpu-0"), change)
			w.requireUsage("b", "H100", 1, 1)
			w.requireSameAsRestarted()
			w.ask(holder)
			w.requireUsage("b", "H100", 1, 1)
		})
	}
}

// A second claim that says it is the Pod's hides nothing.
func TestAnotherClaimOfTheSameName(t *testing.T) {
	w, holder := saidByStatus(t)
	w.gpus("m", "T4", 1)
	side := w.claim("b", "a-forged", holder, "m/gpu-0")
	w.requireUsage("b", "H100", 1, 1)
	w.requireUsage("b", "T4", 1, 1)
	w.requireCapacity("H100", 1, 0)
	w.requireCapacity("T4", 1, 0)
	w.requireSameAsRestarted()
	w.ask(holder)
	w.remove(side)
	w.requireUsage("b", "T4", 0, 0)
}

// What was made for one Pod and is used by another counts once, for as long as
// either has it.
func TestClaimOfOneNamedByAnother(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 4)
	w.policy("h", nil, tier("H100"))
	w.quota("team", []string{"team"}, part("H100", 4, 4))
	a := w.pod("team", "a", "h")
	w.expect("Open team/a")
	a = w.opened(a)
	held := w.allocate(a, "n/gpu-0", "n/gpu-1")
	b := w.pod("team", "b", "", func(p *corev1.Pod) {
		p.Labels, p.Spec.SchedulingGates = nil, nil
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: ptr.To(held.Name)}}
	})
	w.requireUsage("team", "H100", 2, 2)
	w.requireCapacity("H100", 4, 2)
	w.requireSameAsRestarted()
	w.terminating(a)
	w.requireUsage("team", "H100", 2, 2)
	w.requireCapacity("H100", 4, 2)
	w.requireSameAsRestarted()
	w.remove(a)
	w.requireUsage("team", "H100", 2, 2)
	w.requireSameAsRestarted()
	w.remove(b)
	w.requireUsage("team", "H100", 2, 2)
	w.remove(held)
	w.requireUsage("team", "H100", 0, 0)
	w.requireCapacity("H100", 4, 4)
}

// Devices that a Pod has by an extended resource are not on their way back.
func TestExtendedResourcesAreHeld(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 2)
	w.policy("h", func(s *v1alpha1.AcceleratorPolicySpec) { s.Preempts = v1alpha1.PreemptsBorrowed }, tier("H100"))
	w.quota("a", []string{"a"}, part("H100", 1, 1))
	w.quota("b", []string{"b"}, part("H100", 0, 2))
	holder := w.pod("b", "holder", "h")
	w.expect("Open b/holder")
	w.allocate(w.opened(holder), "n/gpu-1")
	runs := w.pod("c", "runs", "", func(p *corev1.Pod) {
		p.Labels, p.Spec = nil, corev1.PodSpec{}
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "runs-extended-resources"}
	})
	held := w.claim("c", "runs-extended-resources", runs, "n/gpu-0")
	w.requireSameAsRestarted()
	w.ask(holder)
	w.terminating(runs)
	w.remove(runs)
	w.remove(held)
	w.expect("Open a/asks", "Cancel b/holder")
}

// A claim that no Pod uses may be used by something else.
func TestClaimOfAnotherConsumer(t *testing.T) {
	w, holder := saidByStatus(t)
	w.gpus("n", "H100", 2)
	group := w.claim("c", "of-a-group", nil, "n/gpu-1")
	w.editClaim(group, func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "g"}}
	})
	w.requireSameAsRestarted()
	w.ask(holder)
}

// What a claim will hold that is not allocated yet nobody knows. It could be
// devices of others that could not be taken back then.
func TestPodThatNamesAnUndecidedClaim(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", nil, tier("H100"))
	w.quota("a", []string{"a"}, part("H100", 1, 1))
	w.quota("b", []string{"b"}, part("H100", 0, 1))
	claim := w.claim("b", "named", nil)
	w.pod("b", "borrows", "h", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "x", ResourceClaimName: ptr.To("named")})
	})
	w.expect()
	if reason := reasonOf(t, w.mirror, "b", "borrows"); reason != "NotLent" {
		t.Errorf("the Pod waits because of %s", reason)
	}
	w.editClaim(claim, func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation = &resourceapi.AllocationResult{} // of a driver without models, say
	})
	w.expect("Open b/borrows")
}

// The order of the status is the order of the turns.
func TestOldWorkIsListedFirst(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", nil, tier("H100"))
	q := w.quota("team", []string{"team"}, part("H100", 0, 0))
	w.pod("team", "old", "h")
	w.now = w.now.Add(25 * time.Hour)
	w.pod("team", "young", "h", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](10) })
	w.sync()
	if next := w.mirror.Status(q).Next; len(next) != 2 || next[0].Name != "old" {
		t.Errorf("next are %+v", next)
	}
}
