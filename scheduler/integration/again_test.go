package integration_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// allocate writes an allocation as a scheduler does that ends before it binds.
func (c *cluster) allocate(claimName, request, node, device string, reservedFor ...resourceapi.ResourceClaimConsumerReference) {
	c.t.Helper()
	claim := &resourceapi.ResourceClaim{}
	require.NoError(c.t, c.Get(c.t.Context(), types.NamespacedName{Namespace: namespace, Name: claimName}, claim))
	claim.Finalizers = append(claim.Finalizers, resourceapi.Finalizer)
	require.NoError(c.t, c.Update(c.t.Context(), claim))
	now := metav1.Now()
	claim.Status.Allocation = &resourceapi.AllocationResult{
		AllocationTimestamp: &now, // else it could not be reserved any more
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: request, Driver: v1alpha1.DriverName, Pool: node, Device: device,
		}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}
	claim.Status.ReservedFor = reservedFor
	require.NoError(c.t, c.Status().Update(c.t.Context(), claim))
}

// taint makes a device unfit for new claims.
func (c *cluster) taint(node, device string) {
	c.t.Helper()
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "broken-" + device}}
	rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To(node), Device: ptr.To(device)}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: "example.com/broken", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	c.create(rule)
}

func (c *cluster) untaint(device string) {
	c.t.Helper()
	require.NoError(c.t, c.Delete(c.t.Context(), &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "broken-" + device}}))
}

// A Pod whose claim was allocated by a scheduler that ended before it bound the
// Pod gets those devices, and is told and recorded like any other.
func TestAllocatedBefore(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(2))
	c.addPolicy("h100", ladderOf("A100", "H100"))
	pod := c.addPod("pod", "h100")
	c.allocate("pod-accelerator", v1alpha1.RequestName+"/t1", "h100-0001", "gpu-1",
		resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	c.startScheduler()
	assert.Equal(t, "h100-0001/gpu-1", c.placed("pod"))
	assert.Contains(t, c.condition("pod", "Allocated"), "H100 (tier t1, revision 1): h100-0001/h100-0001/gpu-1")
	record := c.record("pod", v1alpha1.OutcomeAllocated)
	assert.Equal(t, "t1", record.Spec.Tier)
	require.Len(t, record.Spec.Devices, 1)
	assert.Equal(t, "gpu-1", record.Spec.Devices[0].Device)
	bound := c.pod("pod").Annotations
	assert.Equal(t, "t1", bound[v1alpha1.AnnotationTier])
	assert.Equal(t, "H100", bound[v1alpha1.AnnotationModel])
	assert.NotEmpty(t, bound[v1alpha1.AnnotationDigest])
	assert.Equal(t, record.Name, bound[v1alpha1.AnnotationRecord], "the Binding names the record, so that one that gets lost can be missed")
}

// What was allocated before and is no good any more is given back, and the Pod
// gets another device.
func TestAllocatedBeforeAndLost(t *testing.T) {
	for name, tc := range map[string]struct {
		device string
		class  v1alpha1.FailureClass
	}{
		"tainted": {"gpu-1", v1alpha1.FailureDeviceBecameUnhealthy},
		"gone":    {"gpu-7", v1alpha1.FailureStaleSlice},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.addFleet(small(1))
			c.addPolicy("h100", ladderOf("H100"))
			c.addPod("pod", "h100")
			c.allocate("pod-accelerator", v1alpha1.RequestName+"/t0", "h100-0000", tc.device)
			c.taint("h100-0000", "gpu-1")
			c.startScheduler()
			assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
			assert.Contains(t, c.condition("pod", "Allocated"), "gpu-0")
			events := c.events("pod", "AcceleratorPending")
			require.Len(t, events, 1)
			assert.Contains(t, events[0].Note, string(tc.class))
			assert.Contains(t, events[0].Note, tc.device)
		})
	}
}

// Devices of a Pod that can't be placed on their node are for others.
func TestAllocatedBeforeOnANodeThatIsFull(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(2))
	c.addPolicy("h100", ladderOf("H100"))
	node := &corev1.Node{}
	require.NoError(t, c.Get(t.Context(), clusterKey("h100-0000"), node))
	node.Spec.Unschedulable = true
	require.NoError(t, c.Update(t.Context(), node))
	c.addPod("pod", "h100")
	c.allocate("pod-accelerator", v1alpha1.RequestName+"/t0", "h100-0000", "gpu-0")
	c.startScheduler()
	assert.Equal(t, "h100-0001/gpu-0", c.placed("pod"))
}

// A claim that another Pod uses keeps its devices, and the Pod waits for them.
func TestSharedAllocationIsNotGivenBack(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	c.addPolicy("h100", ladderOf("H100"))
	c.addPod("pod", "h100")
	other := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "other", UID: "another-pod"}
	c.allocate("pod-accelerator", v1alpha1.RequestName+"/t0", "h100-0000", "gpu-1", other)
	c.taint("h100-0000", "gpu-1")
	c.startScheduler()
	assert.Contains(t, c.condition("pod", "Pending"), string(v1alpha1.FailureDeviceBecameUnhealthy))
	claim := &resourceapi.ResourceClaim{}
	require.NoError(t, c.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "pod-accelerator"}, claim))
	require.NotNil(t, claim.Status.Allocation)
	assert.Equal(t, []resourceapi.ResourceClaimConsumerReference{other}, claim.Status.ReservedFor)
}

// One claim of two is allocated: its node is the Pod's, and the record has both.
func TestOneOfTwoClaimsAllocatedBefore(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(2))
	for _, name := range []string{"first", "second"} {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName},
		}}
		c.create(claim)
	}
	c.allocate("first", "gpu", "h100-0001", "gpu-1")
	c.create(plainPod("pod", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{
			{Name: "one", ResourceClaimName: ptr.To("first")}, {Name: "two", ResourceClaimName: ptr.To("second")},
		}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "one"}, {Name: "two"}}
	}))
	c.startScheduler()
	assert.Equal(t, "h100-0001/gpu-1+gpu-0", c.placed("pod"))
	assert.Len(t, c.record("pod", v1alpha1.OutcomeAllocated).Spec.Devices, 2)
}

// The check before the allocation is written comes after what other plugins
// prepare: a device that is lost while a volume is being made is not taken.
func TestDeviceLostWhileAVolumeIsMade(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	c.addPolicy("h100", ladderOf("H100"))
	c.taint("h100-0000", "gpu-1")
	c.startScheduler()
	pod := c.detain("pod", "h100")
	// The probe waits for gpu-1. Once it has it, the scheduler knows what came
	// before in the same watch: that gpu-0 is lost.
	c.addPod("probe", "h100")
	c.condition("probe", "Pending")
	c.taint("h100-0000", "gpu-0")
	c.untaint("gpu-1")
	assert.Equal(t, "h100-0000/gpu-1", c.placed("probe"))
	c.remove("probe")
	pod.free()
	assert.Equal(t, "h100-0000/gpu-1", c.placed("pod"))
	c.condition("pod", "Allocated")
	events := c.events("pod", "AcceleratorPending")
	require.Len(t, events, 1)
	assert.Contains(t, events[0].Note, string(v1alpha1.FailureDeviceBecameUnhealthy))
}
