package ladder

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/view"
)

// listening is an engine that notes what it is told.
type listening struct {
	Engine
	puts, deletes int
}

func (e *listening) Put(obj runtime.Object) error {
	e.puts++
	return e.Engine.Put(obj)
}

func (e *listening) Delete(obj runtime.Object) error {
	e.deletes++
	return e.Engine.Delete(obj)
}

// The engine is told what is new, and forgets what nobody needs any more.
func TestWhatTheEngineIsTold(t *testing.T) {
	engine := &listening{Engine: decide.NewState(decide.Options{NodeChecks: decide.ExternalNodeChecks})}
	empty := engine.Digest()
	x := newExtensions()
	revision := aRevision(tier("h100", 0, "H100"))
	put := func(uid types.UID, n int64, claim *resourceapi.ResourceClaim) {
		t.Helper()
		v, err := variantOf(revision, resourceAsked{gpuName, classNamed("c"), n})
		require.NoError(t, err)
		require.NoError(t, x.put(engine, uid, v, claim))
	}
	claim := func(n int64) *resourceapi.ResourceClaim {
		return claimOf(testPod(), []resourceAsked{{"example.com/nic", classNamed("nic"), n}})
	}
	put("u", 1, claim(1))
	assert.Equal(t, 2, engine.puts)
	put("u", 1, claim(1))
	put("other", 1, nil)
	assert.Equal(t, 2, engine.puts, "nothing is new")
	put("u", 2, claim(2))
	assert.Equal(t, 4, engine.puts)
	revision.Spec.State = v1alpha1.RevisionWithdrawn
	put("u", 2, nil)
	assert.Equal(t, 5, engine.puts, "the revision was withdrawn")
	x.forget("stranger")
	assert.Empty(t, x.gone, "nothing was told of that Pod")
	x.forget("u")
	put("other", 2, nil)
	assert.Empty(t, x.gone)
	assert.Equal(t, 1, engine.deletes, "the claim of a Pod that is gone")
	base := x.variants["h100-first-3 for 2 nvidia.com/gpu"]
	for i := range maxVariants {
		v := base.DeepCopy()
		v.Name, v.Spec.Policy = fmt.Sprintf("v%d", i), fmt.Sprintf("v%d", i)
		require.NoError(t, x.put(engine, "other", v, nil))
	}
	assert.LessOrEqual(t, len(x.variants), maxVariants)
	for _, v := range x.variants {
		require.NoError(t, engine.Delete(v))
	}
	assert.Equal(t, empty, engine.Digest(), "nothing else is left of it")
}

// tracker is what the in-tree tracker does with allocations that are pending.
type tracker struct {
	fwk.SharedDRAManager
	fwk.ResourceClaimTracker
	pending map[types.UID]*resourceapi.AllocationResult
	claims  []*resourceapi.ResourceClaim
}

func (c *tracker) ResourceClaims() fwk.ResourceClaimTracker { return c }

func (c *tracker) List() ([]*resourceapi.ResourceClaim, error) { return c.claims, nil }

func (c *tracker) SignalClaimPendingAllocation(uid types.UID, claim *resourceapi.ResourceClaim) error {
	c.pending[uid] = claim.Status.Allocation
	return nil
}

func (c *tracker) GetPendingAllocation(uid types.UID) *resourceapi.AllocationResult {
	return c.pending[uid]
}

// special is a claim as the embedded plugin makes it.
func special(owner types.UID, devices ...string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "<extended-resources>", UID: "temporary-" + owner,
		Annotations:     map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", UID: owner, Controller: ptr.To(true)}},
	}}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: fmt.Sprintf("container-%d-request-0", i), Driver: "d", Pool: "n", Device: d})
	}
	return claim
}

func decidedDevices(claim string, devices ...string) []v1alpha1.DecidedDevice {
	var out []v1alpha1.DecidedDevice
	for _, d := range devices {
		out = append(out, v1alpha1.DecidedDevice{Driver: "d", Pool: "n", Device: d, Claim: claim, Request: "accelerator/t"})
	}
	return out
}

// What the embedded plugin allocates by its own claim is held against what was
// decided, whichever of its requests of one class has which device.
func TestCompareExtended(t *testing.T) {
	inFlight := view.NewInFlight()
	claims := &tracker{pending: map[types.UID]*resourceapi.AllocationResult{}}
	reserve := func(c *resourceapi.ResourceClaim) {
		require.NoError(t, view.NewManager(claims, inFlight).ResourceClaims().SignalClaimPendingAllocation(c.UID, c))
	}
	reserve(special("other", "gpu-7"))
	p := &Plugin{core: &Core{inFlight: inFlight}, dra: claims}
	s := &search{pod: testPod(), extended: &extended{}}
	d := decisionOf("p", 1)
	d.Devices = decidedDevices("", "gpu-0", "gpu-1")
	assert.ErrorIs(t, p.compare(s, d), ErrMismatch, "nothing was allocated")
	reserve(special("u", "gpu-1", "gpu-0"))
	require.NoError(t, p.compare(s, d))
	assert.Contains(t, p.allocatedTo(s), "d/n/gpu-1")
	d.Devices = decidedDevices("", "gpu-0")
	assert.ErrorIs(t, p.compare(s, d), ErrMismatch)

	// Beside a claim of its own.
	own := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "own", UID: "own"}}
	own.Status.Allocation = &resourceapi.AllocationResult{}
	own.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Request: "accelerator/t", Driver: "d", Pool: "n", Device: "gpu-2"}}
	s.claims = []podClaim{{"accelerator", own}}
	d.Devices = append(decidedDevices("accelerator", "gpu-2"), decidedDevices(v1alpha1.ExtendedRef, "gpu-0", "gpu-1")...)
	require.NoError(t, p.compare(s, d))
	// Two resources: each has to have its own.
	policys := special("u", "gpu-1", "gpu-0")
	for i, class := range []string{"class.b", "class.a"} {
		policys.Spec.Devices.Requests = append(policys.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: fmt.Sprintf("container-%d-request-0", i), Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class},
		})
	}
	claims.pending, s.claims = map[types.UID]*resourceapi.AllocationResult{}, nil
	inFlight = view.NewInFlight()
	p.core.inFlight = inFlight
	reserve(policys)
	s.extended.class = "class.a"
	s.extended.claim = claimOf(s.pod, []resourceAsked{{name: "example.com/b", class: &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "class.b"}}, count: 1}})
	both := func(policys, other string) []v1alpha1.DecidedDevice {
		d := append(decidedDevices("accelerator", policys), decidedDevices(v1alpha1.ExtendedRef, other)...)
		d[1].Request = "example.com/b"
		return d
	}
	d.Devices = both("gpu-0", "gpu-1")
	require.NoError(t, p.compare(s, d))
	d.Devices = both("gpu-1", "gpu-0")
	assert.ErrorIs(t, p.compare(s, d), ErrMismatch, "they are exchanged")
	s.claims = []podClaim{{"accelerator", own}}
	d.Devices = append(decidedDevices("accelerator", "gpu-2"), decidedDevices(v1alpha1.ExtendedRef, "gpu-0", "gpu-1")...)
	d.Devices[0].Device, d.Devices[1].Device = "gpu-0", "gpu-2"
	assert.ErrorIs(t, p.compare(s, d), ErrMismatch, "the claim has another of the devices")

	// No policy speaks for the resource, and there is no other claim.
	p.core.inFlight = view.NewInFlight()
	inFlight = p.core.inFlight
	alone := special("u", "gpu-0")
	alone.Spec.Devices.Requests = policys.Spec.Devices.Requests[:1]
	reserve(alone)
	s.claims, s.extended.class = nil, ""
	d.Devices = decidedDevices("", "gpu-0")
	d.Devices[0].Request = "example.com/b"
	require.NoError(t, p.compare(s, d))
}

func TestLeftBehind(t *testing.T) {
	claims := &tracker{claims: []*resourceapi.ResourceClaim{special("other"), {ObjectMeta: metav1.ObjectMeta{Name: "plain"}}}}
	p := &Plugin{dra: claims}
	left, err := p.leftBehind(testPod())
	require.NoError(t, err)
	assert.False(t, left)
	claims.claims = append(claims.claims, special("u"))
	left, err = p.leftBehind(testPod())
	require.NoError(t, err)
	assert.True(t, left)
}

func TestRevisionThatIsFollowed(t *testing.T) {
	policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	revision := &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: "p-2"}}
	p := &Plugin{core: &Core{objects: &objectsStub{policies: map[string]*v1alpha1.AcceleratorPolicy{"p": policy}}}}
	r, err := p.revisionFor(testPod(), "p")
	require.NoError(t, err)
	assert.Equal(t, int64(1), r.Spec.Revision, "a policy without revisions is revision 1 of itself")
	_, err = p.revisionFor(testPod(), "q")
	assert.ErrorIs(t, err, decide.ErrNotFound)
	policy.Status.ActiveRevision = 2
	_, err = p.revisionFor(testPod(), "p")
	assert.ErrorIs(t, err, decide.ErrNotFound, "its revision is not known yet")
	p.core.objects = &objectsStub{policies: map[string]*v1alpha1.AcceleratorPolicy{"p": policy}, revisions: map[string]*v1alpha1.PolicyRevision{"p-2": revision}}
	r, err = p.revisionFor(testPod(), "p")
	require.NoError(t, err)
	assert.Same(t, revision, r)
	pin := testPod()
	for label, want := range map[string]error{"3": decide.ErrNotFound, "two": decide.ErrInvalid, "0": decide.ErrInvalid} {
		pin.Labels = map[string]string{v1alpha1.LabelPolicyRevision: label}
		_, err = p.revisionFor(pin, "p")
		assert.ErrorIs(t, err, want, label)
	}
	policy.Spec.ActiveRevision = ptr.To[int64](9)
	pin.Labels[v1alpha1.LabelPolicyRevision] = "2"
	r, err = p.revisionFor(pin, "p")
	require.NoError(t, err)
	assert.Same(t, revision, r, "the label counts before the policy")
}

// Nodes that the device plugin serves come after the order, once, and with the
// other plugins' scores.
func TestNodesOfTheDevicePluginComeLast(t *testing.T) {
	node := func(name string, n int64) fwk.NodeInfo {
		info := framework.NewNodeInfo()
		obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if n > 0 {
			obj.Status.Allocatable = corev1.ResourceList{gpuName: *resource.NewQuantity(n, resource.DecimalSI)}
		}
		info.SetNode(obj)
		return info
	}
	plugin := pluginNodes([]fwk.NodeInfo{node("a", 0), node("b", 4), node("c", 1), framework.NewNodeInfo()}, []resourceAsked{{name: gpuName}})
	assert.Equal(t, map[string]string{"b": "a device plugin serves nvidia.com/gpu there", "c": "a device plugin serves nvidia.com/gpu there"}, plugin)

	state := framework.NewCycleState()
	s := begin(state, testPod(), time.Unix(0, 0), nil)
	s.extended = &extended{byPlugin: plugin, last: sets.KeySet(plugin), resolvable: sets.New[string]()}
	assert.True(t, s.extended.hasLast())
	p := &Plugin{}
	assert.True(t, p.PreScore(t.Context(), state, s.pod, nil).IsSuccess())
	s.extended.tried, s.extended.trying = true, sets.KeySet(plugin)
	assert.False(t, s.extended.hasLast(), "once")
	assert.True(t, p.PreScore(t.Context(), state, s.pod, nil).IsSkip())
	assert.True(t, p.Filter(t.Context(), state, s.pod, node("a", 0)).IsRejected(), "not one of them")

	again, _ := s.refuse(diagnosis(map[string]*fwk.Status{
		"b": refusal(fwk.Unschedulable, "NodeResourcesFit", "Insufficient nvidia.com/gpu"),
		"c": refusal(fwk.UnschedulableAndUnresolvable, "TaintToleration", "untolerated taint"),
	}))
	assert.True(t, again, "then it is told why the Pod waits")
	assert.False(t, s.extended.tries())
	assert.Contains(t, s.refused["b"], "a device plugin serves nvidia.com/gpu there; NodeResourcesFit: Insufficient")
	assert.Equal(t, sets.New("b"), s.extended.resolvable, "preemption could help there")
	d := diagnosis(nil)
	s.conclude(&d)
	assert.Equal(t, fwk.Unschedulable, d.NodeToStatus.Get("b").Code())
	again, _ = s.refuse(diagnosis(nil))
	assert.False(t, again)
	assert.False(t, (*extended)(nil).hasLast())
	assert.False(t, (*extended)(nil).tries())
}

// Of several resources all must be a device plugin's where no policy speaks for one.
func TestNodesOfDevicePluginsAlone(t *testing.T) {
	var nodes []fwk.NodeInfo
	for name, offered := range map[string][]corev1.ResourceName{"none": nil, "one": {gpuName}, "other": {"example.com/l4"}, "both": {gpuName, "example.com/l4"}} {
		obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{}}}
		for _, r := range offered {
			obj.Status.Allocatable[r] = *resource.NewQuantity(1, resource.DecimalSI)
		}
		info := framework.NewNodeInfo()
		info.SetNode(obj)
		nodes = append(nodes, info)
	}
	assert.Equal(t, sets.New("one", "both"), onlyPluginNodes(nodes, []resourceAsked{{name: gpuName}}))
	assert.Equal(t, sets.New("both"), onlyPluginNodes(nodes, []resourceAsked{{name: gpuName}, {name: "example.com/l4"}}))
}

// Who may be told something by Ladder is tried by itself: who names a policy, and who
// asks for devices and has a tenant.
func TestPodsThatAreNotBatched(t *testing.T) {
	objects := &objectsStub{}
	p := &Plugin{core: &Core{objects: objects}}
	_, status := p.SignPod(t.Context(), resourcePod(1, withAnnotation("p")))
	assert.True(t, status.IsRejected())
	assert.False(t, p.answersFor(resourcePod(1)))
	objects.quota = &v1alpha1.TenantQuota{}
	_, status = p.SignPod(t.Context(), resourcePod(1))
	assert.True(t, status.IsRejected())
	assert.False(t, p.answersFor(testPod()))
}
