package view

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const driver = "gpu.example.com"

func slice(name, pool string, generation int64, devices ...string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.Spec.Driver = driver
	s.Spec.Pool = resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: 2}
	for _, d := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: d})
	}
	return s
}

func chosen(pool string, devices ...string) []v1alpha1.DecidedDevice {
	var result []v1alpha1.DecidedDevice
	for _, d := range devices {
		result = append(result, v1alpha1.DecidedDevice{Driver: driver, Pool: pool, Device: d, Request: "gpu"})
	}
	return result
}

func sourceOf(pool string, slices ...*resourceapi.ResourceSlice) Source {
	return Source{
		Pool: func(key PoolKey) []*resourceapi.ResourceSlice {
			if key != (PoolKey{Driver: driver, Pool: pool}) {
				return nil
			}
			return slices
		},
		Allocated: func(structured.DeviceID) bool { return false },
	}
}

func deviceNames(s *resourceapi.ResourceSlice) []string {
	names := []string{}
	for _, d := range s.Spec.Devices {
		names = append(names, d.Name)
	}
	return names
}

func TestViewShowsChosenDevicesInTheEnginesOrder(t *testing.T) {
	// The slice with the random name that sorts first holds the later devices.
	late := slice("aaa", "n1", 2, "gpu-3", "gpu-2")
	early := slice("zzz", "n1", 2, "gpu-1", "gpu-0")
	old := slice("old", "n1", 1, "gpu-0")
	v := New(sourceOf("n1", old, late, early), chosen("n1", "gpu-3", "gpu-1", "gpu-0"), nil)
	require.Len(t, v.slices, 2, "every slice of the newest generation, so that the pool is complete")
	assert.Equal(t, []string{"gpu-0", "gpu-1"}, deviceNames(v.slices[0]))
	assert.Equal(t, []string{"gpu-3"}, deviceNames(v.slices[1]))
	assert.Less(t, v.slices[0].Name, v.slices[1].Name)
	assert.Equal(t, []string{"gpu-1", "gpu-0"}, deviceNames(early), "the source is not changed")
	assert.Equal(t, "zzz", early.Name)
}

func TestViewKeepsSlicesWithoutChosenDevices(t *testing.T) {
	v := New(sourceOf("n1", slice("a", "n1", 1, "gpu-0"), slice("b", "n1", 1, "gpu-1")), chosen("n1", "gpu-1"), nil)
	require.Len(t, v.slices, 2)
	assert.Empty(t, deviceNames(v.slices[0]))
	assert.Equal(t, []string{"gpu-1"}, deviceNames(v.slices[1]))
}

func TestViewTakesHiddenAllocationsOffTheCounters(t *testing.T) {
	counters := func(memory string) map[string]resourceapi.Counter {
		return map[string]resourceapi.Counter{"memory": {Value: resource.MustParse(memory)}}
	}
	s := slice("a", "n1", 1, "part-0", "part-1", "part-2")
	s.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "gpu", Counters: counters("80Gi")}}
	for i := range s.Spec.Devices {
		s.Spec.Devices[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu", Counters: counters("20Gi")}}
	}
	source := sourceOf("n1", s)
	source.Allocated = func(id structured.DeviceID) bool {
		return id == structured.MakeDeviceID(driver, "n1", "part-0")
	}
	v := New(source, chosen("n1", "part-1"), nil)
	left := v.slices[0].Spec.SharedCounters[0].Counters["memory"]
	assert.Zero(t, left.Value.Cmp(resource.MustParse("60Gi")), "left %s", left.Value.String())
	whole := s.Spec.SharedCounters[0].Counters["memory"]
	assert.Zero(t, whole.Value.Cmp(resource.MustParse("80Gi")), "the source is not changed")
}

func TestNarrow(t *testing.T) {
	claim := &resourceapi.ResourceClaim{}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{
		{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "h100"}, {Name: "a100"}}},
		{Name: "nic", Exactly: &resourceapi.ExactDeviceRequest{}},
	}
	alternatives := Alternatives([]v1alpha1.DecidedDevice{{Request: "gpu/a100"}, {Request: "nic"}})
	assert.Equal(t, map[string]map[string]string{"": {"gpu": "a100"}}, alternatives)
	narrowed := Narrow(claim, alternatives[""])
	require.Len(t, narrowed.Spec.Devices.Requests[0].FirstAvailable, 1)
	assert.Equal(t, "a100", narrowed.Spec.Devices.Requests[0].FirstAvailable[0].Name)
	assert.NotNil(t, narrowed.Spec.Devices.Requests[1].Exactly)
	assert.Len(t, claim.Spec.Devices.Requests[0].FirstAvailable, 2, "the claim is not changed")
}

// tracker keeps claims as the in-tree one does.
type tracker struct {
	fwk.ResourceClaimTracker
	claims  map[string]*resourceapi.ResourceClaim
	pending map[types.UID]*resourceapi.AllocationResult
}

func (f *tracker) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	return f.claims[namespace+"/"+name], nil
}

func (f *tracker) SignalClaimPendingAllocation(uid types.UID, c *resourceapi.ResourceClaim) error {
	if f.claims[c.Namespace+"/"+c.Name].Status.Allocation == nil {
		f.pending[uid] = c.Status.Allocation
	}
	return nil
}

func (f *tracker) GetPendingAllocation(uid types.UID) *resourceapi.AllocationResult {
	return f.pending[uid]
}

func (f *tracker) MaybeRemoveClaimPendingAllocation(uid types.UID, _ bool) bool {
	_, found := f.pending[uid]
	delete(f.pending, uid)
	return found
}

type manager struct {
	fwk.SharedDRAManager
	tracker *tracker
}

func (m manager) ResourceClaims() fwk.ResourceClaimTracker { return m.tracker }

func newClaim(name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
}

func TestManagerShowsAndHides(t *testing.T) {
	whole := newClaim("a")
	f := &tracker{claims: map[string]*resourceapi.ResourceClaim{"ns/a": whole, "ns/b": newClaim("b")}, pending: map[types.UID]*resourceapi.AllocationResult{}}
	m := NewManager(manager{tracker: f}, NewInFlight())
	narrowed := newClaim("a")
	v := &View{
		slices: []*resourceapi.ResourceSlice{slice("s", "n1", 1, "gpu-0")},
		claims: map[types.NamespacedName]*resourceapi.ResourceClaim{{Namespace: "ns", Name: "a"}: narrowed},
	}
	m.Show(v, func() {
		got, err := m.ResourceClaims().Get("ns", "a")
		require.NoError(t, err)
		assert.Same(t, narrowed, got)
		other, err := m.ResourceClaims().Get("ns", "b")
		require.NoError(t, err)
		assert.Same(t, f.claims["ns/b"], other)
		slices, err := m.ResourceSlices().ListWithDeviceTaintRules()
		require.NoError(t, err)
		assert.Equal(t, v.slices, slices)
	})
	got, err := m.ResourceClaims().Get("ns", "a")
	require.NoError(t, err)
	assert.Same(t, whole, got)
}

func TestInFlight(t *testing.T) {
	taken := newClaim("taken")
	taken.Status.Allocation = &resourceapi.AllocationResult{}
	f := &tracker{
		claims:  map[string]*resourceapi.ResourceClaim{"ns/free": newClaim("free"), "ns/taken": taken},
		pending: map[types.UID]*resourceapi.AllocationResult{},
	}
	inFlight := NewInFlight()
	claims := NewManager(manager{tracker: f}, inFlight).ResourceClaims()
	for _, name := range []string{"free", "taken"} {
		c := newClaim(name)
		c.Status.Allocation = &resourceapi.AllocationResult{}
		require.NoError(t, claims.SignalClaimPendingAllocation(c.UID, c))
	}
	require.Len(t, inFlight.Claims(), 1, "a claim that is allocated already is not in flight")
	assert.NotNil(t, inFlight.Claims()["uid-free"])
	assert.True(t, claims.MaybeRemoveClaimPendingAllocation("uid-free", false))
	assert.Empty(t, inFlight.Claims())
}

// The API server refuses a change of a claim's specification.
func TestClientWritesTheWholeClaim(t *testing.T) {
	whole := newClaim("a")
	whole.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "h100"}, {Name: "a100"}}}}
	api := fake.NewClientset(whole.DeepCopy())
	f := &tracker{claims: map[string]*resourceapi.ResourceClaim{"ns/a": whole}}
	c := &Client{Interface: api, claims: f}
	shown := Narrow(whole, map[string]string{"gpu": "a100"})
	shown.Finalizers = []string{"example.com/f"}
	updated, err := c.ResourceV1().ResourceClaims("ns").Update(context.Background(), shown, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, whole.Spec, updated.Spec)
	assert.Equal(t, shown.Finalizers, updated.Finalizers)
	assert.Len(t, shown.Spec.Devices.Requests[0].FirstAvailable, 1, "the caller's claim is not changed")
}
