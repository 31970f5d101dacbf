package ladder

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/outcome"
)

func TestClassify(t *testing.T) {
	claims := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
	for name, test := range map[string]struct {
		err  error
		want v1alpha1.FailureClass
	}{
		"written by another": {errors.New("claim ns/c got allocated elsewhere in the meantime"), v1alpha1.FailureBindConflict},
		"conflict":           {apierrors.NewConflict(claims, "c", errors.New("changed")), v1alpha1.FailureBindConflict},
		"gone":               {fmt.Errorf("get updated claim, %w", apierrors.NewNotFound(claims, "c")), v1alpha1.FailureClaimGone},
		"busy":               {apierrors.NewTooManyRequests("busy", 1), v1alpha1.FailureAPIUnavailable},
		"down":               {&url.Error{Op: "Put", URL: "https://x", Err: syscall.ECONNREFUSED}, v1alpha1.FailureAPIUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			var failure *BindError
			require.ErrorAs(t, classify(test.err), &failure)
			assert.Equal(t, test.want, failure.Class)
			assert.ErrorIs(t, failure, test.err)
		})
	}
}

// standIn is the framework's handle as far as failures need it.
type standIn struct {
	fwk.Handle
	*queue
	recorder events.EventRecorderLogger
	api      kubernetes.Interface
	factory  informers.SharedInformerFactory
}

func (h *standIn) Activate(l klog.Logger, pods map[string]*corev1.Pod)    { h.queue.Activate(l, pods) }
func (h *standIn) EventRecorder() events.EventRecorderLogger              { return h.recorder }
func (h *standIn) ClientSet() kubernetes.Interface                        { return h.api }
func (h *standIn) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }
func (h *standIn) APICacher() fwk.APICacher                               { return nil }

// claimsStub is the claims that the scheduler knows.
type claimsStub struct {
	fwk.SharedDRAManager
	fwk.ResourceClaimTracker
	claim *resourceapi.ResourceClaim
}

func (c *claimsStub) ResourceClaims() fwk.ResourceClaimTracker { return c }
func (c *claimsStub) Get(_, name string) (*resourceapi.ResourceClaim, error) {
	if c.claim == nil {
		return nil, fmt.Errorf("no claim %s", name)
	}
	return c.claim, nil
}

// failing is a Pod whose attempts fail.
type failing struct {
	*rig
	plugin *Plugin
	pod    *corev1.Pod
	claims *claimsStub
	api    *fake.Clientset
	events chan string
}

func newFailing(t *testing.T, limits v1alpha1.RetryPolicy) *failing {
	t.Helper()
	pod := testPod()
	f := &failing{
		rig: newRig(t, pod), pod: pod, api: fake.NewClientset(pod),
		claims: &claimsStub{claim: &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c", ResourceVersion: "1"}}},
	}
	recorder := events.NewFakeRecorder(100)
	f.events = recorder.Events
	policy := &v1alpha1.AcceleratorPolicy{}
	policy.Spec.Retry = limits
	core := &Core{clock: f.clock, waiting: f.waiting, objects: &objectsStub{policies: map[string]*v1alpha1.AcceleratorPolicy{"p": policy}}}
	core.publisher = outcome.NewPublisher(f.api, nil, f.clock, func(*corev1.Pod) bool { return true }, klog.Background())
	f.plugin = &Plugin{core: core, dra: f.claims, handle: &standIn{queue: f.queue, recorder: recorder}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		core.publisher.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

// fail is one attempt that fails and comes back to the queue.
func (f *failing) fail(class v1alpha1.FailureClass) {
	f.t.Helper()
	s := &search{pod: f.pod, seen: sight{changes: f.version()}, claims: []podClaim{{"c", f.claims.claim}}}
	d := decisionOf("p", 1)
	d.Node, d.IdempotencyKey = "n", "c/1"
	f.waiting.drop(f.pod.UID)
	status := f.plugin.failed(s, d, &BindError{class, errors.New("broken")})
	require.Equal(f.t, fwk.Error, status.Code())
	require.NoError(f.t, f.plugin.core.publisher.Flush(f.t.Context()))
}

// says is the Pod's condition.
func (f *failing) says() (reason, message string) {
	f.t.Helper()
	pod, err := f.api.CoreV1().Pods("ns").Get(f.t.Context(), "p", metav1.GetOptions{})
	require.NoError(f.t, err)
	for _, c := range pod.Status.Conditions {
		if c.Type == v1alpha1.ConditionAccelerator {
			return c.Reason, c.Message
		}
	}
	return "", ""
}

func seconds(n int) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(n) * time.Second}
}

// Attempts go on with the policy's backoff until they are used up. The Pod says
// each time where it stands, and one Event tells of it, and one of the end.
func TestFailuresUntilNoAttemptIsLeft(t *testing.T) {
	f := newFailing(t, v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](3), InitialBackoff: seconds(10), MaxBackoff: seconds(60), Deadline: seconds(3600)})
	for i, wait := range []time.Duration{10 * time.Second, 20 * time.Second} {
		f.fail(v1alpha1.FailureBindConflict)
		reason, message := f.says()
		assert.Equal(t, outcome.ReasonPending, reason)
		assert.Contains(t, message, fmt.Sprintf("BindConflict: broken [failed %d of 3 attempts, first 1970-01-01T00:16:40Z, next ", i+1))
		require.NotEmpty(t, f.held(f.pod, f.queue))
		f.step(wait)
		f.woken("ns/p")
	}
	f.fail(v1alpha1.FailureBindConflict)
	reason, message := f.says()
	assert.Equal(t, outcome.ReasonGaveUp, reason)
	assert.Contains(t, message, "failed 3 of 3 attempts")
	assert.Contains(t, message, "gave up: no attempt is left")
	require.NotEmpty(t, f.held(f.pod, f.queue))
	f.step(time.Hour)
	f.asleep()
	require.Len(t, f.events, 2)
	assert.Contains(t, <-f.events, "AcceleratorPending BindConflict")
	assert.Contains(t, <-f.events, "AcceleratorGaveUp BindConflict")
}

func TestFailuresUntilTheDeadline(t *testing.T) {
	f := newFailing(t, v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](100), InitialBackoff: seconds(10), MaxBackoff: seconds(10), Deadline: seconds(15)})
	f.fail(v1alpha1.FailureStaleSlice)
	require.NotEmpty(t, f.held(f.pod, f.queue))
	f.step(10 * time.Second)
	f.woken("ns/p")
	f.fail(v1alpha1.FailureNodeLost)
	reason, message := f.says()
	assert.Equal(t, outcome.ReasonGaveUp, reason)
	assert.Contains(t, message, "gave up: the deadline has passed")
	<-f.events
	assert.Contains(t, <-f.events, "the deadline has passed")
}

// What is fatal is not counted, and not tried again without a change.
func TestFatalFailure(t *testing.T) {
	f := newFailing(t, v1alpha1.RetryPolicy{})
	f.fail(v1alpha1.FailureClaimGone)
	reason, message := f.says()
	assert.Equal(t, outcome.ReasonPending, reason)
	assert.Equal(t, "ClaimGone: broken", message)
	require.NotEmpty(t, f.held(f.pod, f.queue))
	f.step(time.Hour)
	f.asleep()
}

// The change that a Pod would wait for came while the failure was on its way.
func TestFailureThatIsOverAlready(t *testing.T) {
	f := newFailing(t, v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](1)})
	for name, change := range map[string]func(){
		"claim": func() {
			f.claims.claim = f.claims.claim.DeepCopy()
			f.claims.claim.Status.ReservedFor = append(f.claims.claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{UID: "another"})
		},
		"reserved for the Pod": func() {
			f.claims.claim = f.claims.claim.DeepCopy()
			f.claims.claim.ResourceVersion += "0"
			f.claims.claim.Status.ReservedFor = append(f.claims.claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{UID: f.pod.UID})
		},
		"policy":  func() { f.wake(func(*corev1.Pod) bool { return false }) },
		"nothing": func() {},
	} {
		t.Run(name, func(t *testing.T) {
			f.fail(v1alpha1.FailureBindConflict)
			change()
			require.NotEmpty(t, f.held(f.pod, f.queue))
			if name == "nothing" || name == "reserved for the Pod" {
				f.asleep()
			} else {
				f.woken("ns/p")
			}
		})
	}
	f.fail(v1alpha1.FailureClaimGone)
	f.claims.claim = nil
	require.NotEmpty(t, f.held(f.pod, f.queue))
	f.woken("ns/p")
}

// What an attempt itself wrote is no change of the claim, and what anybody else did
// is one.
func TestWhatTryingWrites(t *testing.T) {
	allocated := func(device string, pods ...types.UID) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Driver: poolKey.Driver, Pool: poolKey.Pool, Device: device},
		}}}
		for _, uid := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{UID: uid})
		}
		return c
	}
	s := &search{pod: testPod(), reserved: &reservation{devices: []reservedDevice{{pool: poolKey, device: resourceapi.Device{Name: "gpu-0"}}}}}
	free := &resourceapi.ResourceClaim{}
	for name, test := range map[string]struct {
		before, after *resourceapi.ResourceClaim
		same          bool
	}{
		"nothing":               {free, free, true},
		"all of it":             {free, allocated("gpu-0", "u"), true},
		"the reservation went":  {free, allocated("gpu-0"), true},
		"it was there before":   {allocated("gpu-0"), allocated("gpu-0", "u"), true},
		"another device":        {free, allocated("gpu-1"), false},
		"another Pod":           {free, allocated("gpu-0", "u", "v"), false},
		"the devices went":      {allocated("gpu-0"), free, false},
		"other devices instead": {allocated("gpu-0"), allocated("gpu-1"), false},
	} {
		assert.Equal(t, test.same, sameButTried(test.before, test.after, s), name)
	}
}

// While the API server is away nothing is tried beyond the attempts; when it
// answers they begin again.
func TestAPIServerDownAndBack(t *testing.T) {
	f := newFailing(t, v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](1)})
	core := f.plugin.core
	core.askAPI(t.Context())
	f.fail(v1alpha1.FailureAPIUnavailable)
	require.NotEmpty(t, f.held(f.pod, f.queue))
	objects := core.objects.(*objectsStub)
	objects.down = errors.New("connection refused")
	core.askAPI(t.Context())
	f.asleep()
	objects.down = nil
	core.askAPI(t.Context())
	f.woken("ns/p")
	assert.Empty(t, f.failureText(f.pod.UID))
	assert.False(t, f.waitsForAPI())
}

// An error without a class is kube-scheduler's business.
func TestFailureWithoutClass(t *testing.T) {
	f := newFailing(t, v1alpha1.RetryPolicy{})
	status := f.plugin.failed(&search{pod: f.pod}, decisionOf("", 0), errors.New("a bug"))
	assert.Equal(t, fwk.Error, status.Code())
	assert.Empty(t, f.held(f.pod, f.queue))
	assert.Empty(t, f.events)
}

func TestLimits(t *testing.T) {
	f := newFailing(t, v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](7)})
	assert.Equal(t, int32(7), f.plugin.limits(decisionOf("p", 1)).MaxAttempts)
	assert.Equal(t, int32(5), f.plugin.limits(decisionOf("", 0)).MaxAttempts, "a claim without a policy")
	assert.Equal(t, int32(5), f.plugin.limits(decisionOf("gone", 1)).MaxAttempts)
}

// slicesStub is the slices that the scheduler knows.
type slicesStub struct {
	fwk.SharedDRAManager
	slices []*resourceapi.ResourceSlice
}

func (s *slicesStub) ResourceSlices() fwk.ResourceSliceLister { return s }
func (s *slicesStub) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	return s.slices, nil
}

// Nobody waits for a node or a pool that was gone before the wait began.
func TestHoldForWhatIsGone(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	require.NoError(t, factory.Core().V1().Nodes().Informer().GetStore().Add(readyNode(corev1.ConditionTrue)))
	p := &Plugin{handle: &standIn{factory: factory}, dra: &slicesStub{slices: poolOf(1, gpu("H100"))}}
	elsewhere := poolKey
	elsewhere.Pool = "q"
	for name, test := range map[string]struct {
		hold *hold
		gone bool
	}{
		"a node":          {holdForGood(v1alpha1.FailureNodeLost, nil, "n"), false},
		"no such node":    {holdForGood(v1alpha1.FailureNodeLost, nil, "m"), true},
		"a pool":          {holdForGood(v1alpha1.FailureStaleSlice, []reservedDevice{{pool: poolKey}}, "n"), false},
		"one pool of two": {holdForGood(v1alpha1.FailureStaleSlice, []reservedDevice{{pool: poolKey}, {pool: elsewhere}}, "n"), true},
		"neither":         {holdForGood(v1alpha1.FailureBindConflict, nil, "m"), false},
	} {
		assert.Equal(t, test.gone, p.gone(test.hold), name)
	}
}

// Each class waits for what can change its answer and for nothing else.
func TestWhatEndsAHold(t *testing.T) {
	slice := poolOf(1, gpu("H100"))[0]
	tainted := poolOf(1, gpu("H100", taint("bad", resourceapi.DeviceTaintEffectNoSchedule)))[0]
	other := poolOf(1, gpu("A100"))[0]
	elsewhere := slice.DeepCopy()
	elsewhere.Spec.Pool.Name = "q"
	changedElsewhere := elsewhere.DeepCopy()
	changedElsewhere.Spec.Devices = other.Spec.Devices
	node, ready := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	own := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	allocated := own.DeepCopy()
	allocated.Status.Allocation = &resourceapi.AllocationResult{}
	tried := allocated.DeepCopy()
	tried.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", UID: testPod().UID}}
	foreign := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}}
	pod := testPod()
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "r", ResourceClaimName: ptr.To("c")}}
	neighbour := testPod()
	neighbour.UID = "other"

	changes := []struct {
		name string
		old  any
		now  any
	}{
		{"slice new", nil, slice},
		{"slice tainted", slice, tainted},
		{"slice changed", slice, other},
		{"slice elsewhere", nil, elsewhere},
		{"slice elsewhere changed", elsewhere, changedElsewhere},
		{"slice gone", slice, nil},
		{"slice elsewhere gone", elsewhere, nil},
		{"node", node, node},
		{"other node", ready, ready},
		{"node new", nil, node},
		{"other node new", nil, ready},
		{"node gone", node, nil},
		{"other node gone", ready, nil},
		{"class", nil, &resourceapi.DeviceClass{}},
		{"own claim", own, allocated},
		{"own claim as tried", own, tried},
		{"other claim", foreign, foreign},
		{"other claim gone", foreign, nil},
		{"own Pod", pod, pod},
		{"other Pod", neighbour, nil},
	}
	devices := []reservedDevice{{pool: poolKey}}
	anyFleet := []string{
		"slice new", "slice changed", "slice elsewhere", "slice elsewhere changed",
		"node", "other node", "node new", "other node new", "class", "own claim", "own Pod",
	}
	afterGivingUp := func(own ...string) []string {
		return append(own, "slice new", "slice elsewhere", "node new", "other node new", "own claim", "other claim", "other claim gone", "own Pod", "other Pod")
	}
	for name, test := range map[string]struct {
		hold *hold
		want []string
	}{
		"Unsatisfiable":         {holdOf(v1alpha1.FailureUnsatisfiable), anyFleet},
		"QuotaNeverFits":        {holdOf(v1alpha1.FailureQuotaNeverFits), anyFleet},
		"PolicyInvalid":         {holdOf(v1alpha1.FailurePolicyInvalid), []string{"class", "own claim", "own Pod"}},
		"ClaimGone":             {holdOf(v1alpha1.FailureClaimGone), []string{"own claim", "own Pod"}},
		"StaleSlice":            {holdForGood(v1alpha1.FailureStaleSlice, devices, "n"), afterGivingUp("slice tainted", "slice changed", "slice gone")},
		"DeviceBecameUnhealthy": {holdForGood(v1alpha1.FailureDeviceBecameUnhealthy, devices, "n"), afterGivingUp("slice tainted", "slice changed", "slice gone")},
		"NodeLost":              {holdForGood(v1alpha1.FailureNodeLost, devices, "n"), afterGivingUp("node", "node gone")},
		"BindConflict":          {holdForGood(v1alpha1.FailureBindConflict, devices, "n"), afterGivingUp()},
		"APIUnavailable":        {holdForGood(v1alpha1.FailureAPIUnavailable, devices, "n"), afterGivingUp()},
		"backoff":               {&hold{until: time.Unix(1e6, 0), why: "later"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, change := range changes {
				r := newRig(t, pod)
				h := *test.hold
				r.hold(pod, &h)
				hint, err := r.hint(nil)(klog.Background(), pod, change.old, change.now)
				require.NoError(t, err)
				require.Equal(t, fwk.QueueSkip, hint, "Ladder wakes it, not the queue")
				if r.sweep.due.Has(pod.UID) {
					got = append(got, change.name)
				}
			}
			assert.ElementsMatch(t, test.want, got)
		})
	}
	for _, class := range []v1alpha1.FailureClass{"", v1alpha1.FailureBindConflict, v1alpha1.FailureStaleSlice} {
		assert.Nil(t, holdOf(class), "%s: not for good at once", class)
	}
}

// A Pod that another plugin refused is the queue's business, and so is a hint
// that says no.
func TestHintsOfPodsThatAreNotParked(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	yes := func(klog.Logger, *corev1.Pod, any, any) (fwk.QueueingHint, error) { return fwk.Queue, nil }
	no := func(klog.Logger, *corev1.Pod, any, any) (fwk.QueueingHint, error) { return fwk.QueueSkip, nil }
	bad := func(klog.Logger, *corev1.Pod, any, any) (fwk.QueueingHint, error) {
		return fwk.Queue, errors.New("bad")
	}
	hint, err := r.hint(yes)(klog.Background(), pod, nil, &corev1.Node{})
	require.NoError(t, err)
	assert.Equal(t, fwk.Queue, hint)
	r.park(pod, r.queue, noTime, nil, sight{})
	hint, _ = r.hint(no)(klog.Background(), pod, nil, &corev1.Node{})
	assert.Equal(t, fwk.QueueSkip, hint)
	r.asleep()
	_, err = r.hint(bad)(klog.Background(), pod, nil, &corev1.Node{})
	assert.Error(t, err)
	hint, _ = r.hint(yes)(klog.Background(), pod, nil, &corev1.Node{})
	assert.Equal(t, fwk.QueueSkip, hint)
	r.woken("ns/p")
}

// A node that is ready again wakes the Pods that gave up on it, and no others.
func TestAfterNodeHealth(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	tell := func(name string) {
		hint, err := r.afterNodeHealth(klog.Background(), pod, nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		require.NoError(t, err)
		assert.Equal(t, fwk.QueueSkip, hint)
	}
	tell("n")
	r.park(pod, r.queue, noTime, nil, sight{})
	tell("n")
	r.hold(pod, holdOf(v1alpha1.FailureUnsatisfiable))
	tell("n")
	r.hold(pod, holdForGood(v1alpha1.FailureNodeLost, nil, "n"))
	tell("m")
	r.asleep()
	tell("n")
	r.woken("ns/p")
}

func TestSameButTaints(t *testing.T) {
	a := poolOf(1, gpu("H100"))[0]
	assert.True(t, sameButTaints(a, poolOf(1, gpu("H100", taint("x", "")))[0]))
	assert.False(t, sameButTaints(a, poolOf(1, gpu("A100"))[0]))
	assert.False(t, sameButTaints(a, poolOf(1)[0]))
	assert.False(t, sameButTaints(a, poolOf(2, gpu("H100"))[0]))
	assert.Empty(t, a.Spec.Devices[0].Taints)
	assert.Len(t, a.Spec.Devices, 1)
}
