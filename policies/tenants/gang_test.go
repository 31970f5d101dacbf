package tenants

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// group makes a PodGroup that starts with so many Pods.
func (w *world) group(namespace, name string, least int32) *schedulingapi.PodGroup {
	g := &schedulingapi.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: schedulingapi.PodGroupSpec{SchedulingPolicy: schedulingapi.PodGroupSchedulingPolicy{
			Gang: &schedulingapi.GangSchedulingPolicy{MinCount: least},
		}},
	}
	w.put(g)
	return g
}

func of(group string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(group)}
	}
}

// members makes Pods of a group at their gate: group-a, group-b, and so on.
func (w *world) members(namespace, group, policy string, n int) (pods []*corev1.Pod) {
	for i := range n {
		pods = append(pods, w.pod(namespace, group+"-"+string(rune('a'+i)), policy, of(group)))
	}
	return pods
}

func (w *world) requireReason(namespace, name string, want fair.Reason) {
	w.t.Helper()
	w.sync()
	if got := reasonOf(w.t, w.mirror, namespace, name); got != want {
		w.t.Fatalf("%s/%s waits because of %q, want %q", namespace, name, got, want)
	}
}

// oneModel is a fleet of n H100, a tenant that may have all of them, and a policy.
func oneModel(t *testing.T, n int) *world {
	w := newWorld(t)
	w.gpus("n", "H100", n)
	w.policy("h", nil, tier("H100"))
	w.quota("team", []string{"team"}, part("H100", 0, int32(n)))
	return w
}

// A gang waits until it is complete, is let in as one, and then counted as what
// its Pods were given.
func TestLifeOfAGang(t *testing.T) {
	w := oneModel(t, 4)
	a := w.pod("team", "job-a", "h", of("job")) // before its group
	w.expect()
	w.requireReason("team", "job-a", ReasonGroupMissing)
	w.group("team", "job", 3)
	w.now = w.now.Add(time.Second)
	b := w.pod("team", "job-b", "h", of("job"))
	w.expect()
	w.requireReason("team", "job-a", ReasonGroupIncomplete)
	w.requireReason("team", "job-b", ReasonGroupIncomplete)
	s := w.mirror.Status(w.mirror.Quota("team"))
	if s.Waiting != 2 || len(s.Next) != 1 || s.Next[0].Name != "job-a" || s.Next[0].Reason != "GroupIncomplete" ||
		!strings.Contains(s.Next[0].Message, "PodGroup job, 2 of 3 Pods") || !s.WaitingSince.Time.Equal(start) {
		t.Errorf("got status %+v", s)
	}
	w.requireUsage("team", "H100", 0, 0)

	c := w.pod("team", "job-c", "h", of("job"))
	w.requireSameAsRestarted()
	w.expect("Open team/job-a", "Open team/job-b", "Open team/job-c")
	w.requireUsage("team", "H100", 0, 3)
	b = w.opened(b)
	w.expect() // the others are on their way
	a, c = w.opened(a), w.opened(c)
	w.requireUsage("team", "H100", 0, 3)
	w.requireSameAsRestarted()

	w.allocate(b, "n/gpu-0")
	w.requireUsage("team", "H100", 1, 3)
	w.requireSameAsRestarted()
	w.allocate(a, "n/gpu-1")
	last := w.allocate(c, "n/gpu-2")
	w.requireUsage("team", "H100", 3, 3)
	w.requireCapacity("H100", 4, 1)
	w.requireSameAsRestarted()
	if s := w.mirror.Status(w.mirror.Quota("team")); s.Models[0].FirstChoice != 3 || s.Waiting != 0 {
		t.Errorf("got status %+v", s)
	}

	// Ending one by one.
	w.terminating(c)
	w.requireUsage("team", "H100", 3, 3)
	w.requireSameAsRestarted()
	w.remove(c)
	w.requireUsage("team", "H100", 3, 3)
	w.requireSameAsRestarted()
	w.remove(last)
	w.requireUsage("team", "H100", 2, 2)
	w.edit(a, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	w.terminating(b)
	w.requireUsage("team", "H100", 2, 2)
	w.requireSameAsRestarted()
}

// All of a gang or none of it, by the limit and by what is free.
func TestGangIsLetInWhole(t *testing.T) {
	w := oneModel(t, 4)
	single := w.pod("team", "single", "h")
	w.expect("Open team/single")
	w.allocate(w.opened(single), "n/gpu-3")
	w.now = w.now.Add(time.Second)
	w.group("team", "job", 4)
	w.members("team", "job", "h", 4)
	w.expect()
	w.requireUsage("team", "H100", 1, 1)
	w.requireReason("team", "job-c", fair.ReasonLimitReached)
	w.quota("team", []string{"team"}, part("H100", 0, 9))
	w.expect()
	w.requireReason("team", "job-c", fair.ReasonNoFreeDevices)
	w.remove(w.objects["*v1.Pod team/single"], w.objects["*v1.ResourceClaim team/single-accelerator"])
	w.expect("Open team/job-a", "Open team/job-b", "Open team/job-c", "Open team/job-d")
}

// Two gangs of a tenant never hold a part of what the other one needs.
func TestTwoGangsDoNotBlockEachOther(t *testing.T) {
	w := oneModel(t, 4)
	w.group("team", "one", 3)
	w.group("team", "two", 3)
	w.members("team", "two", "h", 2)
	w.now = w.now.Add(time.Second)
	w.members("team", "one", "h", 3)
	w.now = w.now.Add(time.Second)
	w.pod("team", "two-c", "h", of("two"))
	// The first that was complete goes first.
	w.expect("Open team/one-a", "Open team/one-b", "Open team/one-c")
	w.requireReason("team", "two-a", fair.ReasonLimitReached)
	w.requireUsage("team", "H100", 0, 3)
}

// A gang that no fleet of this size could hold says so.
func TestGangTooLarge(t *testing.T) {
	w := oneModel(t, 3)
	w.gpus("m", "A100", 1)
	w.quota("team", []string{"team"}, part("H100", 0, 3), part("A100", 0, 9))
	w.policy("mixing", func(s *v1alpha1.AcceleratorPolicySpec) { s.MixTiers = v1alpha1.MixTiersWithinGroup }, tier("H100"), tier("A100"))
	w.group("team", "job", 4)
	w.members("team", "job", "h", 4)
	w.group("team", "mixed", 5)
	w.members("team", "mixed", "mixing", 5)
	w.expect()
	w.requireReason("team", "job-a", fair.ReasonNeverFits)
	w.requireReason("team", "mixed-a", fair.ReasonNeverFits)
	w.gpus("more", "A100", 1)
	w.expect("Open team/mixed-a", "Open team/mixed-b", "Open team/mixed-c", "Open team/mixed-d", "Open team/mixed-e")
	w.requireUsage("team", "H100", 0, 3)
	w.requireUsage("team", "A100", 0, 2)
}

// The Pods of a gang take one tier, as the scheduler gives them; those of
// another policy their own.
func TestGangTakesOneTier(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 2)
	w.gpus("m", "A100", 4)
	w.policy("ha", nil, tier("H100"), tier("A100"))
	w.policy("two", func(s *v1alpha1.AcceleratorPolicySpec) { s.Count = ptr.To[int32](2) }, tier("H100"))
	w.quota("team", []string{"team"}, part("H100", 0, 2), part("A100", 0, 4))
	w.group("team", "job", 4)
	workers := w.members("team", "job", "ha", 3)
	head := w.pod("team", "job-head", "two", of("job"))
	w.expect("Open team/job-a", "Open team/job-b", "Open team/job-c", "Open team/job-head")
	w.requireUsage("team", "H100", 0, 2)
	w.requireUsage("team", "A100", 0, 3)
	for _, p := range workers {
		w.opened(p)
	}
	w.allocate(w.opened(head), "n/gpu-0", "n/gpu-1")
	w.requireUsage("team", "H100", 2, 2)
	w.requireUsage("team", "A100", 0, 3)
	w.requireSameAsRestarted()
}

// A controller that is killed between two gates opens the others at once.
func TestHalfOpenGangIsCompleted(t *testing.T) {
	w := oneModel(t, 3)
	w.group("team", "job", 3)
	pods := w.members("team", "job", "h", 3)
	w.expect("Open team/job-a", "Open team/job-b", "Open team/job-c")
	w.opened(pods[1])
	w.mirror = w.fresh()
	w.requireUsage("team", "H100", 0, 3)
	w.pod("team", "a-single", "h")
	w.expect("Open team/job-a", "Open team/job-c")
	w.expect()
	// One that the API server refuses is tried again later; the rest stays charged.
	w.mirror.Pause(IDOf("team", "job-a", pods[0].UID), w.now.Add(time.Minute))
	w.expect()
	w.requireUsage("team", "H100", 0, 3)
	w.now = w.now.Add(time.Minute)
	w.expect("Open team/job-a")
}

// Where no gate of it can be opened a gang gives way to others.
func TestPausedGangGivesWay(t *testing.T) {
	w := oneModel(t, 2)
	w.group("team", "job", 2)
	pods := w.members("team", "job", "h", 2)
	w.expect("Open team/job-a", "Open team/job-b")
	w.now = w.now.Add(time.Second)
	w.pod("team", "other", "h")
	for _, p := range pods {
		w.mirror.Pause(IDOf("team", p.Name, p.UID), w.now.Add(time.Minute))
	}
	w.expect("Open team/other")
	w.requireReason("team", "job-b", ReasonOpenRefused)
	w.remove(w.objects["*v1.Pod team/other"])
	w.now = w.now.Add(time.Minute)
	w.expect("Open team/job-a", "Open team/job-b")
}

// Pods beyond those that a gang starts with have turns of their own, after it.
func TestMorePodsThanTheGangNeeds(t *testing.T) {
	w := oneModel(t, 3)
	w.group("team", "job", 2)
	pods := w.members("team", "job", "h", 4)
	w.sync()
	w.requireReason("team", "job-c", ReasonBehindGroup)
	w.expect("Open team/job-a", "Open team/job-b")
	w.expect()
	w.opened(pods[0])
	w.expect("Open team/job-c") // as it is known now that the gang is open
	w.opened(pods[1])
	w.expect()
	third := w.opened(pods[2])
	w.requireUsage("team", "H100", 0, 3)
	w.requireSameAsRestarted()
	w.requireReason("team", "job-d", fair.ReasonLimitReached)
	w.allocate(third, "n/gpu-0")
	w.requireUsage("team", "H100", 1, 3)
	w.requireSameAsRestarted()
}

// Before it has started a gang keeps the place of a Pod that is missing; after
// that a Pod that replaces another has a turn of its own.
func TestPodOfAGangIsReplaced(t *testing.T) {
	w := oneModel(t, 3)
	w.group("team", "job", 3)
	pods := w.members("team", "job", "h", 3)
	w.expect("Open team/job-a", "Open team/job-b", "Open team/job-c")
	for i, p := range pods {
		pods[i] = w.opened(p)
	}
	w.remove(pods[1])
	single := w.pod("team", "single", "h")
	w.expect()
	w.requireUsage("team", "H100", 0, 3)
	w.requireSameAsRestarted()
	d := w.pod("team", "job-d", "h", of("job"))
	w.expect("Open team/job-d")
	d = w.opened(d)
	w.requireUsage("team", "H100", 0, 3)

	for i, p := range []*corev1.Pod{pods[0], pods[2], d} {
		w.allocate(p, []string{"n/gpu-0", "n/gpu-1", "n/gpu-2"}[i])
	}
	w.remove(d, w.objects["*v1.ResourceClaim team/job-d-accelerator"])
	w.now = w.now.Add(time.Second)
	w.pod("team", "job-e", "h", of("job"))
	w.expect("Open team/single") // it is older
	w.opened(single)
	w.requireUsage("team", "H100", 2, 3)
	w.requireReason("team", "job-e", fair.ReasonLimitReached)
	w.requireSameAsRestarted()
}

// Pods of a gang that follow no policy wait at no gate, but they are of it.
func TestGangWithPodsOfNoPolicy(t *testing.T) {
	w := oneModel(t, 2)
	w.group("team", "job", 3)
	w.members("team", "job", "h", 2)
	w.expect()
	w.pod("team", "head", "", of("job"), func(p *corev1.Pod) { p.Labels, p.Spec.SchedulingGates, p.Spec.ResourceClaims = nil, nil, nil })
	w.expect("Open team/job-a", "Open team/job-b")
}

// What is no gang is a Pod: a group without the policy, a namespace without a
// quota, a cluster without PodGroups.
func TestPodsThatAreNoGang(t *testing.T) {
	w := oneModel(t, 4)
	g := w.group("team", "basic", 3).DeepCopy()
	g.Spec.SchedulingPolicy = schedulingapi.PodGroupSchedulingPolicy{Basic: &schedulingapi.BasicSchedulingPolicy{}}
	w.put(g)
	w.pod("team", "basic-a", "h", of("basic"))
	w.expect("Open team/basic-a")
	w.group("free", "job", 3)
	w.pod("free", "job-a", "h", of("job"))
	w.expect("Open free/job-a")

	m, err := NewMirror(w.config)
	if err != nil {
		t.Fatal(err)
	}
	w.mirror = m
	for _, o := range w.objects {
		m.Put(o)
	}
	w.pod("team", "none-a", "h", of("none"))
	w.expect("Open free/job-a", "Open team/basic-a", "Open team/none-a")
}

// The group that a Pod waits for is gone, or asks for fewer.
func TestGroupChanges(t *testing.T) {
	w := oneModel(t, 4)
	g := w.group("team", "job", 3)
	pods := w.members("team", "job", "h", 2)
	w.expect()
	w.remove(g)
	w.expect()
	w.requireReason("team", "job-a", ReasonGroupMissing)
	w.group("team", "job", 2)
	w.expect("Open team/job-a", "Open team/job-b")
	for _, p := range pods {
		w.opened(p)
	}
	w.requireUsage("team", "H100", 0, 2)
	w.remove(w.objects["*v1beta1.PodGroup team/job"])
	w.requireUsage("team", "H100", 0, 2) // each for itself
	w.requireSameAsRestarted()
}
