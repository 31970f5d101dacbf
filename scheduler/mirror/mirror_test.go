package mirror

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/view"
)

// log is a State that writes down its calls.
type log struct {
	calls   []string
	refuse  map[string]bool
	assumed map[types.UID]bool
}

func (l *log) note(op string, obj runtime.Object) string {
	o := obj.(metav1.Object)
	call := fmt.Sprintf("%s %T %s", op, obj, o.GetName())
	l.calls = append(l.calls, call)
	return o.GetName()
}

func (l *log) Put(obj runtime.Object) error {
	if l.refuse[l.note("put", obj)] {
		return errors.New("refused")
	}
	return nil
}

func (l *log) Delete(obj runtime.Object) error {
	l.note("delete", obj)
	return nil
}

func (l *log) Forget(pod types.NamespacedName) { l.calls = append(l.calls, "forget "+pod.Name) }

func (l *log) Assumed(claim *resourceapi.ResourceClaim) bool { return l.assumed[claim.UID] }

func (l *log) take() []string {
	calls := l.calls
	l.calls = nil
	return calls
}

// world is what a scheduler knows.
type world struct {
	fwk.SharedDRAManager
	fwk.ResourceClaimTracker
	nodes  []fwk.NodeInfo
	slices []*resourceapi.ResourceSlice
	// sliceErr is why slices can't be listed.
	sliceErr error
	classes  []*resourceapi.DeviceClass
	claims   []*resourceapi.ResourceClaim
	pending  map[types.UID]*resourceapi.AllocationResult
}

func (w *world) ResourceClaims() fwk.ResourceClaimTracker { return w }
func (w *world) ResourceSlices() fwk.ResourceSliceLister  { return sliceList{w} }
func (w *world) DeviceClasses() fwk.DeviceClassLister     { return classList{w} }
func (w *world) List() ([]*resourceapi.ResourceClaim, error) {
	return w.claims, nil
}

func (w *world) SignalClaimPendingAllocation(uid types.UID, c *resourceapi.ResourceClaim) error {
	w.pending[uid] = c.Status.Allocation
	return nil
}

func (w *world) GetPendingAllocation(uid types.UID) *resourceapi.AllocationResult {
	return w.pending[uid]
}

func (w *world) MaybeRemoveClaimPendingAllocation(uid types.UID, _ bool) bool {
	delete(w.pending, uid)
	return true
}

type sliceList struct{ w *world }

func (l sliceList) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	return l.w.slices, l.w.sliceErr
}

type classList struct{ w *world }

func (l classList) List() ([]*resourceapi.DeviceClass, error) { return l.w.classes, nil }
func (l classList) Get(string) (*resourceapi.DeviceClass, error) {
	return nil, errors.New("not used")
}

func (w *world) setNodes(nodes ...*corev1.Node) {
	w.nodes = nil
	for _, n := range nodes {
		info := framework.NewNodeInfo()
		info.SetNode(n)
		w.nodes = append(w.nodes, info)
	}
}

func node(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func poolSlice(name, pool string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceSliceSpec{Driver: "d", Pool: resourceapi.ResourcePool{Name: pool}},
	}
}

func claim(name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
}

func newMirror() (*Mirror, *log, *world, *view.InFlight) {
	state, inFlight := &log{refuse: map[string]bool{}, assumed: map[types.UID]bool{}}, view.NewInFlight()
	return New(state, inFlight, klog.Background()), state, &world{pending: map[types.UID]*resourceapi.AllocationResult{}}, inFlight
}

func TestSyncPutsOnlyWhatChanged(t *testing.T) {
	m, state, w, _ := newMirror()
	a, b := node("a", nil), node("b", nil)
	w.setNodes(b, a)
	w.slices = []*resourceapi.ResourceSlice{poolSlice("s2", "a"), poolSlice("s1", "a")}
	w.classes = []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "class"}}}
	w.claims = []*resourceapi.ResourceClaim{claim("c")}
	require.NoError(t, m.Sync(w.nodes, w))
	assert.Equal(t, []string{
		"put *v1.Node a", "put *v1.Node b", "put *v1.DeviceClass class",
		"put *v1.ResourceSlice s1", "put *v1.ResourceSlice s2", "put *v1.ResourceClaim c",
	}, state.take(), "by name, whatever the order of the lists")

	require.NoError(t, m.Sync(w.nodes, w))
	assert.Empty(t, state.take(), "nothing changed")

	heartbeat := a.DeepCopy()
	heartbeat.Status.Images = []corev1.ContainerImage{{Names: []string{"x"}}}
	labelled := node("b", map[string]string{"l": "1"})
	w.setNodes(heartbeat, labelled)
	changed := w.slices[0].DeepCopy()
	w.slices = []*resourceapi.ResourceSlice{changed, w.slices[1]}
	require.NoError(t, m.Sync(w.nodes, w))
	assert.Equal(t, []string{"put *v1.Node b", "put *v1.ResourceSlice s2"}, state.take(), "heartbeats are not news")

	w.setNodes(heartbeat)
	w.slices, w.claims = w.slices[:1], nil
	require.NoError(t, m.Sync(w.nodes, w))
	assert.Equal(t, []string{"delete *v1.Node b", "delete *v1.ResourceSlice s1", "delete *v1.ResourceClaim c"}, state.take())
}

// Where changes of slices are told nobody looks without one, and none is missed: not
// one from before, and not one for which a list failed.
func TestSlicesAreListedAfterAChange(t *testing.T) {
	m, state, w, _ := newMirror()
	w.slices = []*resourceapi.ResourceSlice{poolSlice("a", "p")}
	m.TellOfSlices()
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceSlice a"}, state.take())
	w.slices = append(w.slices, poolSlice("b", "p"))
	require.NoError(t, m.Sync(nil, w))
	assert.Empty(t, state.take(), "nothing was told")
	m.NoteSlices()
	w.sliceErr = errors.New("not now")
	require.Error(t, m.Sync(nil, w))
	w.sliceErr = nil
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceSlice b"}, state.take())
}

func TestPoolIndex(t *testing.T) {
	m, _, w, _ := newMirror()
	key := view.PoolKey{Driver: "d", Pool: "p"}
	first, second := poolSlice("a", "p"), poolSlice("b", "p")
	w.slices = []*resourceapi.ResourceSlice{second, first}
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []*resourceapi.ResourceSlice{first, second}, m.Pool(key))
	// A slice of the same name may come back for another pool.
	moved := poolSlice("a", "q")
	w.slices = []*resourceapi.ResourceSlice{moved, second}
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []*resourceapi.ResourceSlice{second}, m.Pool(key))
	assert.Equal(t, []*resourceapi.ResourceSlice{moved}, m.Pool(view.PoolKey{Driver: "d", Pool: "q"}))
	w.slices = nil
	require.NoError(t, m.Sync(nil, w))
	assert.Empty(t, m.Pool(key))
}

// An update that the engine does not take must not leave the older version in
// force.
func TestRefusedObjectIsRemoved(t *testing.T) {
	m, state, w, _ := newMirror()
	state.refuse["s"] = true
	w.slices = []*resourceapi.ResourceSlice{poolSlice("s", "p")}
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceSlice s", "delete *v1.ResourceSlice s"}, state.take())
}

// A namespace that goes from one tenant to another leaves neither without a
// limit, whichever of the two changes is told first.
func TestNamespaceChangesItsTenant(t *testing.T) {
	quota := func(name string, namespaces ...string) *v1alpha1.TenantQuota {
		return &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TenantQuotaSpec{
			Namespaces: namespaces, Models: []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](1)}},
		}}
	}
	for name, after := range map[string][]*v1alpha1.TenantQuota{
		"to the smaller name": {quota("a", "y", "x"), quota("b")},
		"to the larger name":  {quota("a"), quota("b", "y", "x")},
	} {
		t.Run(name, func(t *testing.T) {
			want := decide.NewState(decide.Options{})
			for _, q := range after {
				require.NoError(t, want.Put(q))
			}
			state, w := decide.NewState(decide.Options{}), &world{}
			m := New(state, view.NewInFlight(), klog.Background())
			m.Note(quota("a", "y"), false)
			m.Note(quota("b", "x"), false)
			require.NoError(t, m.Sync(nil, w))
			for _, q := range after {
				m.Note(q, false)
			}
			require.NoError(t, m.Sync(nil, w))
			assert.Equal(t, want.Digest(), state.Digest())
		})
	}
}

func TestNotesAndForgetsWaitForSync(t *testing.T) {
	m, state, w, _ := newMirror()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "1"}}
	require.NoError(t, m.PutPod(pod))
	require.NoError(t, m.PutPod(pod))
	assert.Equal(t, []string{"put *v1.Pod p"}, state.take(), "the same Pod is put once")
	m.Note(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, false)
	m.Forget(types.NamespacedName{Namespace: "ns", Name: "p"}, "1")
	assert.Empty(t, state.take())
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"forget p", "put *v1.Namespace n"}, state.take())

	for i := range 3 {
		m.Note(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"v": fmt.Sprint(i)}}}, i == 2)
	}
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"delete *v1.Namespace n"}, state.take(), "only the last change counts")

	another := pod.DeepCopy()
	another.UID = "2"
	m.Note(another, true)
	m.Note(pod, true)
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"forget p", "delete *v1.Pod p"}, state.take(), "only the Pod that was put")
}

// What is asked to be taken back can be, and nothing else with it.
func TestTakeBackAlone(t *testing.T) {
	m, state, w, _ := newMirror()
	m.Note(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, false)
	m.Forget(types.NamespacedName{Namespace: "ns", Name: "p"}, "1")
	w.slices = []*resourceapi.ResourceSlice{poolSlice("s", "p")}
	m.TakeBack()
	assert.Equal(t, []string{"forget p"}, state.take())
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.Namespace n", "put *v1.ResourceSlice s"}, state.take())
}

// The engine knows of which model a bound Pod's devices are, also while their slice is
// away: of a Pod that it decided on, and of one from before its time.
func TestModelOfABoundPod(t *testing.T) {
	held := claim("c")
	held.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "1"}}
	held.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Request: "r", Driver: v1alpha1.DriverName, Pool: "p", Device: "gpu-0"},
	}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: held.Namespace, Name: "p", UID: "1"}}
	bound := pod.DeepCopy()
	bound.Spec.NodeName, bound.Annotations = "n", map[string]string{v1alpha1.AnnotationModel: "H100"}
	want := decide.NewState(decide.Options{})
	require.NoError(t, want.Put(held))
	without := want.Digest()
	require.NoError(t, want.Put(bound))
	for name, before := range map[string]bool{"decided on": true, "from before": false} {
		t.Run(name, func(t *testing.T) {
			state, w := decide.NewState(decide.Options{}), &world{claims: []*resourceapi.ResourceClaim{held}}
			m := New(state, view.NewInFlight(), klog.Background())
			if before {
				require.NoError(t, m.PutPod(pod))
			}
			m.Note(bound, false)
			require.NoError(t, m.Sync(nil, w))
			assert.Equal(t, want.Digest(), state.Digest())
			m.Note(bound, true)
			require.NoError(t, m.Sync(nil, w))
			assert.Equal(t, without, state.Digest())
			assert.Empty(t, m.known)
			assert.Empty(t, m.pods)
		})
	}
}

// A binding that fails late takes nothing back from a Pod that was made again
// under the same name and has been decided on meanwhile.
func TestForgetOfAnEarlierPod(t *testing.T) {
	m, state, w, _ := newMirror()
	name := types.NamespacedName{Namespace: "ns", Name: "p"}
	again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "2"}}
	require.NoError(t, m.PutPod(again))
	state.take()
	before := m.Gains()
	m.Forget(name, "1")
	require.NoError(t, m.Sync(nil, w))
	assert.Empty(t, state.take())
	assert.Greater(t, m.Gains(), before, "what the earlier one had is free")
	m.Forget(name, "2")
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"forget p"}, state.take())
}

// Allocations for claims that do not exist yet hold devices, too.
func TestInFlightWithoutClaim(t *testing.T) {
	m, state, w, inFlight := newMirror()
	manager := view.NewManager(w, inFlight)
	special, ordinary := claim("<extended-resources>"), claim("c")
	special.UID = "x"
	special.Status.Allocation, ordinary.Status.Allocation = &resourceapi.AllocationResult{}, &resourceapi.AllocationResult{}
	w.claims = []*resourceapi.ResourceClaim{claim("c")}
	state.assumed[ordinary.UID] = true
	require.NoError(t, manager.ResourceClaims().SignalClaimPendingAllocation(special.UID, special))
	require.NoError(t, manager.ResourceClaims().SignalClaimPendingAllocation(ordinary.UID, ordinary))
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceClaim c", "put *v1.ResourceClaim in-flight-x"}, state.take(),
		"the engine knows of the ordinary claim by its own decision")
	manager.ResourceClaims().MaybeRemoveClaimPendingAllocation(special.UID, true)
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"delete *v1.ResourceClaim in-flight-x"}, state.take())
}

// So do those for claims that exist, where the engine has not decided.
func TestInFlightWithoutADecision(t *testing.T) {
	m, state, w, inFlight := newMirror()
	manager := view.NewManager(w, inFlight)
	allocated := claim("c")
	allocated.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "p", UID: "p", Controller: ptr.To(true)}}
	allocated.Status.Allocation = &resourceapi.AllocationResult{}
	w.claims = []*resourceapi.ResourceClaim{claim("c")}
	require.NoError(t, manager.ResourceClaims().SignalClaimPendingAllocation("c", allocated))
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceClaim c", "put *v1.ResourceClaim in-flight-c"}, state.take())
	assert.Empty(t, m.synthetic["c"].OwnerReferences, "the Pod has one claim, not two")
	w.claims = []*resourceapi.ResourceClaim{allocated}
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceClaim c", "delete *v1.ResourceClaim in-flight-c"}, state.take(), "written, it counts once")
	manager.ResourceClaims().MaybeRemoveClaimPendingAllocation("c", true)
	require.NoError(t, m.Sync(nil, w))
	assert.Empty(t, state.take())
}

// One that is written before it stops being in flight counts once.
func TestInFlightAndWrittenCountsOnce(t *testing.T) {
	m, state, w, inFlight := newMirror()
	manager := view.NewManager(w, inFlight)
	ofPod := func(name, pod string, devices ...string) *resourceapi.ResourceClaim {
		c := claim(name)
		c.UID = types.UID(name)
		c.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
		c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: ptr.To(true)}}
		for _, device := range devices {
			if c.Status.Allocation == nil {
				c.Status.Allocation = &resourceapi.AllocationResult{}
			}
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: "p", Device: device})
		}
		return c
	}
	require.NoError(t, manager.ResourceClaims().SignalClaimPendingAllocation("<extended-resources>", ofPod("<extended-resources>", "p", "gpu-0", "gpu-1")))
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceClaim in-flight-<extended-resources>"}, state.take())
	w.claims = []*resourceapi.ResourceClaim{ofPod("p-1", "p"), ofPod("q-1", "q", "gpu-2")}
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceClaim p-1", "put *v1.ResourceClaim q-1"}, state.take(), "made, but without devices yet")
	w.claims = append(w.claims, ofPod("mine", "p", "gpu-0"))
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceClaim mine"}, state.take(), "it only says that it is the Pod's")
	w.claims = []*resourceapi.ResourceClaim{ofPod("p-1", "p", "gpu-1", "gpu-0"), w.claims[1], w.claims[2]}
	before := m.Gains()
	require.NoError(t, m.Sync(nil, w))
	assert.Equal(t, []string{"put *v1.ResourceClaim p-1", "delete *v1.ResourceClaim in-flight-<extended-resources>"}, state.take())
	manager.ResourceClaims().MaybeRemoveClaimPendingAllocation("<extended-resources>", true)
	require.NoError(t, m.Sync(nil, w))
	assert.Empty(t, state.take())
	assert.Equal(t, before, m.Gains(), "nothing was given back")
}
