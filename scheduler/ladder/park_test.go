package ladder

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// change is one that the scheduler is told of.
type change struct {
	name  string
	event fwk.ClusterEvent
	old   any
	now   any
}

// changesAround are changes around the Pod ns/p, which has the claim ns/c.
func changesAround() []change {
	slice := poolOf(1, gpu("H100"))[0]
	tainted := poolOf(1, gpu("H100", taint("bad", resourceapi.DeviceTaintEffectNoSchedule)))[0]
	elsewhere := slice.DeepCopy()
	elsewhere.Spec.Pool.Name = "q"
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	reserved := func(c *resourceapi.ResourceClaim, pods ...types.UID) *resourceapi.ResourceClaim {
		for _, uid := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", UID: uid})
		}
		return c
	}
	claim := func(name string, held bool) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		if held {
			c.Status.Allocation = &resourceapi.AllocationResult{}
		}
		return c
	}
	user := testPod()
	user.UID, user.Spec.ResourceClaims = "other", []corev1.PodResourceClaim{{Name: "r", ResourceClaimName: ptr.To("d")}}
	plain := testPod()
	plain.UID = "plain"
	byResource := resourcePod(1)
	byResource.UID = "by resource"
	on := func(r fwk.EventResource, a fwk.ActionType) fwk.ClusterEvent {
		return fwk.ClusterEvent{Resource: r, ActionType: a}
	}
	return []change{
		{"slice new", on(fwk.ResourceSlice, fwk.Add), nil, slice},
		{"slice tainted", on(fwk.ResourceSlice, fwk.Update), slice, tainted},
		{"slice changed", on(fwk.ResourceSlice, fwk.Update), slice, poolOf(1, gpu("A100"))[0]},
		{"slice elsewhere", on(fwk.ResourceSlice, fwk.Add), nil, elsewhere},
		{"slice gone", on(fwk.ResourceSlice, fwk.Delete), slice, nil},
		{"node new", on(fwk.Node, fwk.Add), nil, node("n")},
		{"node labels", on(fwk.Node, fwk.UpdateNodeLabel), node("n"), node("n")},
		{"node taints", on(fwk.Node, fwk.UpdateNodeTaint), node("n"), node("n")},
		{"node condition elsewhere", on(fwk.Node, fwk.UpdateNodeCondition), node("m"), node("m")},
		{"node gone", on(fwk.Node, fwk.Delete), node("n"), nil},
		{"class new", on(fwk.DeviceClass, fwk.Add), nil, &resourceapi.DeviceClass{}},
		{"class gone", on(fwk.DeviceClass, fwk.Delete), &resourceapi.DeviceClass{}, nil},
		{"own claim new", on(fwk.ResourceClaim, fwk.Add), nil, claim("c", false)},
		{"own claim same status", on(fwk.ResourceClaim, fwk.Update), claim("c", false), claim("c", false)},
		{"own claim allocated", on(fwk.ResourceClaim, fwk.Update), claim("c", false), claim("c", true)},
		{"own claim tried", on(fwk.ResourceClaim, fwk.Update), claim("c", false), reserved(claim("c", true), "u")},
		{"own claim given up", on(fwk.ResourceClaim, fwk.Update), reserved(claim("c", true), "u"), claim("c", true)},
		{"own claim left by another", on(fwk.ResourceClaim, fwk.Update), reserved(claim("c", true), "u", "v"), reserved(claim("c", true), "u")},
		{"own claim gone", on(fwk.ResourceClaim, fwk.Delete), claim("c", false), nil},
		{"other claim new", on(fwk.ResourceClaim, fwk.Add), nil, claim("d", false)},
		{"other claim allocated", on(fwk.ResourceClaim, fwk.Update), claim("d", false), claim("d", true)},
		{"other claim freed", on(fwk.ResourceClaim, fwk.Update), claim("d", true), claim("d", false)},
		{"other claim gone, held", on(fwk.ResourceClaim, fwk.Delete), claim("d", true), nil},
		{"other claim gone, free", on(fwk.ResourceClaim, fwk.Delete), claim("d", false), nil},
		{"other claim gone, state unknown", on(fwk.ResourceClaim, fwk.Delete), cache.DeletedFinalStateUnknown{Obj: claim("d", false)}, nil},
		{"some claim gone, nothing known", on(fwk.ResourceClaim, fwk.Delete), cache.DeletedFinalStateUnknown{}, nil},
		{"Pod with claims gone", on(fwk.AssignedPod, fwk.Delete), user, nil},
		{"Pod without claims gone", on(fwk.AssignedPod, fwk.Delete), plain, nil},
		{"Pod with an extended resource gone", on(fwk.AssignedPod, fwk.Delete), byResource, nil},
		{"Pod bound", on(fwk.AssignedPod, fwk.Add), nil, user},
		{"volume", on(fwk.PersistentVolume, fwk.Add), nil, &corev1.PersistentVolume{}},
	}
}

func podWithClaim() *corev1.Pod {
	pod := testPod()
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "r", ResourceClaimName: ptr.To("c")}}
	return pod
}

// What wakes a Pod that PreEnqueue keeps, by why it waits.
func TestWhatWakesAParkedPod(t *testing.T) {
	devices := []reservedDevice{{pool: poolKey}}
	freed := []string{"other claim freed", "other claim gone, held", "other claim gone, state unknown", "Pod with claims gone", "Pod with an extended resource gone"}
	own := []string{"own claim new", "own claim allocated", "own claim left by another", "some claim gone, nothing known"}
	tried := []string{"own claim tried", "own claim given up"}
	placed := []string{"slice new", "slice changed", "slice elsewhere", "node new", "node labels", "class new", "class gone"}
	gaveUp := slices.Concat([]string{"slice new", "slice elsewhere", "node new"}, own, freed)
	for name, test := range map[string]struct {
		hold *hold
		want []string
	}{
		"waits for devices": {nil, slices.Concat(placed, []string{"slice tainted"}, own, tried, freed)},
		"Unsatisfiable":     {holdOf(v1alpha1.FailureUnsatisfiable), slices.Concat(placed, own)},
		"PolicyInvalid":     {holdOf(v1alpha1.FailurePolicyInvalid), slices.Concat([]string{"class new", "class gone"}, own)},
		"ClaimGone":         {holdOf(v1alpha1.FailureClaimGone), own},
		"StaleSlice":        {holdForGood(v1alpha1.FailureStaleSlice, devices, "n"), slices.Concat([]string{"slice tainted", "slice changed", "slice gone"}, gaveUp)},
		"NodeLost":          {holdForGood(v1alpha1.FailureNodeLost, devices, "n"), slices.Concat([]string{"node labels", "node taints", "node gone"}, gaveUp)},
		"BindConflict":      {holdForGood(v1alpha1.FailureBindConflict, devices, "n"), gaveUp},
		"backoff":           {&hold{until: time.Unix(1e6, 0), why: "later"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range changesAround() {
				pod := podWithClaim()
				r := newRig(t, pod)
				var h *hold
				if test.hold != nil {
					h = ptr.To(*test.hold)
				}
				r.park(pod, r.queue, noTime, h, sight{})
				require.True(t, r.parkFirmly(pod))
				r.observe(c.event, c.old, c.now)
				if r.sweep.due.Has(pod.UID) {
					got = append(got, c.name)
				}
			}
			assert.ElementsMatch(t, test.want, got)
		})
	}
}

// The queue's questions about one Pod, and what Ladder sees for all of them, have
// one answer: whoever minds a change in one way minds it in the other.
func TestParkedPodsMindWhatHintsSay(t *testing.T) {
	all := changesAround()
	classes := []v1alpha1.FailureClass{
		"", v1alpha1.FailureUnsatisfiable, v1alpha1.FailurePolicyInvalid, v1alpha1.FailureClaimGone, v1alpha1.FailureStaleSlice,
		v1alpha1.FailureNodeLost, v1alpha1.FailureBindConflict, v1alpha1.FailureAPIUnavailable,
	}
	rapid.Check(t, func(rt *rapid.T) {
		class := rapid.SampledFrom(classes).Draw(rt, "class")
		newHold := func() *hold {
			if h := holdOf(class); h != nil || class == "" {
				return h
			}
			return holdForGood(class, []reservedDevice{{pool: poolKey}}, "n")
		}
		c := rapid.SampledFrom(all).Draw(rt, "change")
		wakes := func(tell func(r *rig, pod *corev1.Pod)) bool {
			pod := podWithClaim()
			r := newRig(t, pod)
			r.park(pod, r.queue, noTime, newHold(), sight{})
			require.True(rt, r.parkFirmly(pod))
			tell(r, pod)
			return r.sweep.due.Has(pod.UID)
		}
		seen := wakes(func(r *rig, _ *corev1.Pod) { r.observe(c.event, c.old, c.now) })
		asked := wakes(func(r *rig, pod *corev1.Pod) {
			for _, e := range registered(r) {
				if framework.MatchClusterEvents(e.Event, c.event) {
					_, err := e.QueueingHintFn(klog.Background(), pod, c.old, c.now)
					require.NoError(rt, err)
				}
			}
		})
		require.Equal(rt, asked, seen, "%s of a Pod with %q", c.name, class)
	})
}

// registered is what [Plugin.EventsToRegister] registers, with the answers that
// the embedded plugin gives where the Pod's claims are there.
func registered(r *rig) []fwk.ClusterEventWithHint {
	claims := func(_ klog.Logger, pod *corev1.Pod, old, now any) (fwk.QueueingHint, error) {
		if _, unknown := old.(cache.DeletedFinalStateUnknown); unknown {
			return fwk.Queue, nil
		}
		before, _ := old.(*resourceapi.ResourceClaim)
		after, _ := now.(*resourceapi.ResourceClaim)
		held := before != nil && before.Status.Allocation != nil
		switch {
		case held && (after == nil || after.Status.Allocation == nil):
			return fwk.Queue, nil
		case after == nil, !uses(pod, after):
			return fwk.QueueSkip, nil
		case before == nil || !apiequality.Semantic.DeepEqual(before.Status, after.Status):
			return fwk.Queue, nil
		}
		return fwk.QueueSkip, nil
	}
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel | fwk.UpdateNodeAllocatable}, QueueingHintFn: r.hint(nil)},
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceClaim, ActionType: fwk.Add | fwk.Update | fwk.Delete}, QueueingHintFn: r.hint(claims)},
		{Event: fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: r.hint(nil)},
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceSlice, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: r.hint(nil)},
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: r.hint(afterPodLeft)},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeTaint | fwk.UpdateNodeCondition}, QueueingHintFn: r.afterNodeHealth},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Delete}, QueueingHintFn: r.afterGone},
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceSlice, ActionType: fwk.Delete}, QueueingHintFn: r.afterGone},
		{Event: fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Delete}, QueueingHintFn: r.afterGone},
	}
}

// backQueue is the scheduling queue behind the front.
type backQueue struct {
	internalqueue.SchedulingQueue
	did []string
	err error
}

func (q *backQueue) MoveAllToActiveOrBackoffQueue(_ klog.Logger, event fwk.ClusterEvent, _, _ any, _ internalqueue.PreEnqueueCheck) {
	q.did = append(q.did, "move "+event.Label())
}

func (q *backQueue) Update(context.Context, *corev1.Pod, *corev1.Pod) {
	q.did = append(q.did, "update")
}

func (q *backQueue) Activate(_ klog.Logger, pods map[string]*corev1.Pod) {
	for name := range pods {
		q.did = append(q.did, "activate "+name)
	}
}

func (q *backQueue) AddUnschedulablePodIfNotPresent(_ klog.Logger, info *framework.QueuedPodInfo, _ int64) error {
	q.did = append(q.did, "add "+klog.KObj(info.Pod).String())
	return q.err
}

func refused(pod *corev1.Pod, plugins ...string) *framework.QueuedPodInfo {
	return &framework.QueuedPodInfo{
		PodInfo:        &framework.PodInfo{Pod: pod},
		QueueingParams: framework.QueueingParams{UnschedulablePlugins: sets.New(plugins...), PendingPlugins: sets.New[string]()},
	}
}

// Only a Pod that Ladder alone refused is kept, and only until it is woken.
func TestWhoIsParked(t *testing.T) {
	member := podWithClaim()
	member.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		parked  bool
		woken   bool
		plugins []string
		err     error
		want    bool
	}{
		"Ladder alone":         {podWithClaim(), true, false, []string{Name}, nil, true},
		"others too":           {podWithClaim(), true, false, []string{Name, "NodeResourcesFit"}, nil, false},
		"others only":          {podWithClaim(), true, false, []string{"NodeResourcesFit"}, nil, false},
		"a failure":            {podWithClaim(), true, false, nil, nil, false},
		"nothing is known":     {podWithClaim(), false, false, []string{Name}, nil, false},
		"woken meanwhile":      {podWithClaim(), true, true, []string{Name}, nil, false},
		"member of a group":    {member, true, false, []string{Name}, nil, false},
		"the queue has it not": {podWithClaim(), true, false, []string{Name}, fmt.Errorf("it is there"), false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, test.pod)
			back := &backQueue{err: test.err}
			f := &front{SchedulingQueue: back, waiting: r.waiting, slices: func() {}}
			if test.parked {
				r.park(test.pod, r.queue, noTime, nil, sight{})
			}
			if test.woken {
				r.wake(everyPod)
				r.woken("ns/p")
			}
			err := f.AddUnschedulablePodIfNotPresent(klog.Background(), refused(test.pod, test.plugins...), 1)
			assert.Equal(t, test.err, err)
			want := []string{"add ns/p"}
			if test.want {
				want = append(want, "activate ns/p")
			}
			assert.Equal(t, want, back.did)
		})
	}
}

// PreEnqueue keeps a parked Pod until something wakes it, or for so long that an
// event may have been missed; without Attach it keeps none.
func TestParkAtPreEnqueue(t *testing.T) {
	pod := podWithClaim()
	r := newRig(t, pod)
	core := &Core{waiting: r.waiting, parks: true}
	park := &Park{core: core, handle: &standIn{queue: r.queue}}
	keeps := func() bool { return !park.PreEnqueue(t.Context(), pod).IsSuccess() }
	again := func() {
		r.park(pod, r.queue, noTime, nil, sight{})
		require.True(t, r.parkFirmly(pod))
	}
	assert.False(t, keeps(), "nothing is known of it")
	r.park(pod, r.queue, noTime, nil, sight{})
	assert.False(t, keeps(), "it has not come back to the queue")
	again()
	assert.True(t, keeps())
	core.parks = false
	assert.False(t, keeps())
	core.parks = true

	f := &front{SchedulingQueue: &backQueue{}, waiting: r.waiting, slices: func() {}}
	gone := podWithClaim()
	gone.UID = "gone"
	f.MoveAllToActiveOrBackoffQueue(klog.Background(), framework.EventAssignedPodDelete, gone, nil, nil)
	r.woken("ns/p")
	assert.False(t, keeps())

	again()
	r.step(maxParked - time.Second)
	assert.True(t, keeps())
	r.step(time.Second)
	assert.False(t, keeps(), "the queue tries it once more")

	again()
	labelled := pod.DeepCopy()
	f.Update(t.Context(), pod, labelled)
	r.asleep()
	labelled.Labels = map[string]string{v1alpha1.LabelPolicy: "other"}
	f.Update(t.Context(), pod, labelled)
	r.woken("ns/p")
	r.drop(pod.UID)
	assert.False(t, keeps())

	r.park(pod, r.queue, noTime, holdOf(v1alpha1.FailureClaimGone), sight{})
	assert.True(t, keeps(), "held, whoever refused it")
	pod.Spec.ResourceClaims = nil
	assert.False(t, keeps(), "not Ladder's")
}

// Of claims nothing is kept once no parked Pod uses them.
func TestParkedPodsAreKnownByTheirClaims(t *testing.T) {
	pod := podWithClaim()
	r := newRig(t, pod)
	r.park(pod, r.queue, noTime, nil, sight{})
	r.park(pod, r.queue, noTime, nil, sight{})
	assert.Equal(t, map[types.NamespacedName]sets.Set[types.UID]{{Namespace: "ns", Name: "c"}: sets.New(pod.UID)}, r.users)
	r.yield(pod, r.queue, pod)
	assert.Len(t, r.users, 1)
	r.drop(pod.UID)
	assert.Empty(t, r.users)
}

// A Pod that could not be bound is no news to itself.
func TestFailedBindingWakesOthersOnly(t *testing.T) {
	pod := podWithClaim()
	r := newRig(t, pod)
	f := &front{SchedulingQueue: &backQueue{}, waiting: r.waiting, slices: func() {}}
	left := fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}
	r.park(pod, r.queue, noTime, holdForGood(v1alpha1.FailureBindConflict, nil, "n"), sight{})
	f.MoveAllToActiveOrBackoffQueue(klog.Background(), left, pod, nil, func(other *corev1.Pod) bool { return other.UID != pod.UID })
	assert.False(t, r.sweep.due.Has(pod.UID))
	f.MoveAllToActiveOrBackoffQueue(klog.Background(), left, pod, nil, nil)
	assert.False(t, r.sweep.due.Has(pod.UID))
	hint, err := afterPodLeft(klog.Background(), pod, pod, nil)
	require.NoError(t, err)
	assert.Equal(t, fwk.QueueSkip, hint)
	other := podWithClaim()
	other.UID = "other"
	f.MoveAllToActiveOrBackoffQueue(klog.Background(), left, other, nil, nil)
	assert.True(t, r.sweep.due.Has(pod.UID))
}

// The Mirror hears of each change of a slice before a Pod is woken by it.
func TestChangesOfSlicesAreTold(t *testing.T) {
	r := newRig(t)
	back, told := &backQueue{}, []int{}
	f := &front{SchedulingQueue: back, waiting: r.waiting}
	f.slices = func() { told = append(told, len(back.did)) }
	for _, c := range changesAround() {
		f.MoveAllToActiveOrBackoffQueue(klog.Background(), c.event, c.old, c.now, nil)
	}
	var want []int
	for i, c := range changesAround() {
		if c.event.Resource == fwk.ResourceSlice {
			want = append(want, i)
		}
	}
	assert.Equal(t, want, told)
	assert.Len(t, want, 5)
}
