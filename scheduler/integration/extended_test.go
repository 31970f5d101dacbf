package integration_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

// gpuResource is the extended resource that the tests' class serves.
const gpuResource = "nvidia.com/gpu"

// serveByClass makes a DeviceClass whose devices are had by an extended
// resource: all of Ladder's, or those of one model.
func (c *cluster) serveByClass(name, resource, model string) {
	c.t.Helper()
	expression := fmt.Sprintf("device.driver == %q", v1alpha1.DriverName)
	if model != "" {
		expression += fmt.Sprintf(" && device.attributes[%q].model == %q", v1alpha1.DriverName, model)
	}
	c.create(&resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{
			ExtendedResourceName: ptr.To(resource),
			Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
		},
	})
}

// withResource asks for devices by an extended resource.
func withResource(name string, n int64) podOption {
	return func(p *corev1.Pod) {
		r := &p.Spec.Containers[0].Resources
		if r.Limits == nil {
			r.Limits = corev1.ResourceList{}
		}
		r.Limits[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
}

// following names the policy for an extended resource.
func following(value string) podOption {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationExtendedResourcePolicy: value}
	}
}

// specialClaim is the claim that the scheduler made for the Pod's extended
// resources, or nil.
func (c *cluster) specialClaim(pod *corev1.Pod) *resourceapi.ResourceClaim {
	c.t.Helper()
	if pod.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	claim := &resourceapi.ResourceClaim{}
	key := types.NamespacedName{Namespace: namespace, Name: pod.Status.ExtendedResourceClaimStatus.ResourceClaimName}
	require.NoError(c.t, c.Get(c.t.Context(), key, claim))
	return claim
}

// servedAt waits until the Pod is bound and returns its node and the devices of
// its extended resources.
func (c *cluster) servedAt(name string) string {
	c.t.Helper()
	c.placed(name)
	pod := c.pod(name)
	claim := c.specialClaim(pod)
	if claim == nil {
		return pod.Spec.NodeName
	}
	require.NotNil(c.t, claim.Status.Allocation)
	var devices []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, r.Device)
	}
	return pod.Spec.NodeName + "/" + strings.Join(devices, "+")
}

// removeServed deletes a Pod with the claim for its extended resources, as the
// claim controller would.
func (c *cluster) removeServed(name string) {
	c.t.Helper()
	ctx := c.t.Context()
	claim := c.specialClaim(c.pod(name))
	require.NotNil(c.t, claim)
	require.NoError(c.t, c.Delete(ctx, plainPod(name), client.GracePeriodSeconds(0)))
	claim.Status = resourceapi.ResourceClaimStatus{}
	require.NoError(c.t, c.Status().Update(ctx, claim))
	require.NoError(c.t, c.Patch(ctx, claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	require.NoError(c.t, client.IgnoreNotFound(c.Delete(ctx, claim)))
}

// offerByPlugin has a node offer the resource by a device plugin.
func (c *cluster) offerByPlugin(name string, offered corev1.ResourceName, n int64) {
	c.t.Helper()
	node := &corev1.Node{}
	require.NoError(c.t, c.Get(c.t.Context(), clusterKey(name), node))
	node.Status.Capacity[offered] = *resource.NewQuantity(n, resource.DecimalSI)
	node.Status.Allocatable[offered] = *resource.NewQuantity(n, resource.DecimalSI)
	require.NoError(c.t, c.Status().Update(c.t.Context(), node))
}

// onePerNode is a node with two A100, two with an H100 and one with an L4.
func onePerNode() []fleet.Group {
	return []fleet.Group{
		{Name: "a100", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 2},
		{Name: "h100", Nodes: 2, Board: "H100-SXM5-80GB", GPUs: 1},
		{Name: "l4", Nodes: 1, Board: "L4", GPUs: 1},
	}
}

// Pods without a claim of their own get the tiers in order, by the claim that
// upstream's plugin makes; what no tier names is not used, and what comes free
// goes to the one that waits.
func TestExtendedResourceFollowsTheTiers(t *testing.T) {
	c := newCluster(t)
	c.addFleet(onePerNode()...)
	c.serveByClass("gpu", gpuResource, "")
	c.addPolicy("h100-first", ladderOf("H100", "A100"))
	c.startScheduler()
	var got []string
	for i := range 4 {
		name := fmt.Sprintf("pod-%d", i)
		c.create(plainPod(name, withResource(gpuResource, 1), following("h100-first")))
		got = append(got, c.servedAt(name))
	}
	assert.Equal(t, []string{"h100-0000/gpu-0", "h100-0001/gpu-0", "a100-0000/gpu-0", "a100-0000/gpu-1"}, got)
	assert.Equal(t, "A100 (tier t1, revision 1): a100-0000/a100-0000/gpu-0", c.condition("pod-2", "Allocated"))
	record := c.record("pod-2", v1alpha1.OutcomeAllocated)
	assert.Equal(t, "h100-first", record.Spec.Policy)
	assert.Equal(t, "t1", record.Spec.Tier)
	assert.Equal(t, int32(2), count(record, "t0", v1alpha1.ReasonInUse)+count(record, "t0", v1alpha1.ReasonReserved))
	bound := c.pod("pod-2")
	assert.Equal(t, "t1", bound.Annotations[v1alpha1.AnnotationTier])
	assert.Equal(t, "A100", bound.Annotations[v1alpha1.AnnotationModel])
	assert.Equal(t, record.Name, bound.Annotations[v1alpha1.AnnotationRecord])

	c.create(plainPod("waits", withResource(gpuResource, 1), following("h100-first")))
	assert.Contains(t, c.condition("waits", "Pending"), "no tier of policy h100-first for 1 nvidia.com/gpu revision 1 can be met now")
	c.removeServed("pod-1")
	assert.Equal(t, "h100-0001/gpu-0", c.servedAt("waits"))
	assert.Zero(t, gather(t)["ladder_decider_mismatches_total"])
}

// The Pod says how many devices it wants; a node has to have them all, of one
// model. The label names the policy as well.
func TestExtendedResourceForSeveralDevices(t *testing.T) {
	c := newCluster(t)
	c.addFleet(onePerNode()...)
	c.serveByClass("gpu", gpuResource, "")
	c.addPolicy("h100-first", ladderOf("H100", "A100"))
	c.startScheduler()
	label := func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelPolicy: "h100-first"} }
	c.create(plainPod("two", withResource(gpuResource, 2), label))
	assert.Equal(t, "a100-0000/gpu-0+gpu-1", c.servedAt("two"))
	c.create(plainPod("many", withResource(gpuResource, 3), label))
	assert.Contains(t, c.condition("many", "Unsatisfiable"), "h100-first for 3 nvidia.com/gpu")
	implicit := "deviceclass.resource.kubernetes.io/gpu"
	c.create(plainPod("implicit", withResource(implicit, 1), label))
	assert.Equal(t, "h100-0000/gpu-0", c.servedAt("implicit"))
}

// Without a policy the Pod is placed as kube-scheduler would, and nothing is
// told of it. The engine knows of what it has.
func TestExtendedResourceWithoutPolicy(t *testing.T) {
	c := newCluster(t)
	c.addFleet(onePerNode()...)
	c.serveByClass("gpu", gpuResource, "H100")
	c.addPolicy("h100", ladderOf("H100"))
	c.startScheduler()
	for i := range 2 {
		name := fmt.Sprintf("pod-%d", i)
		c.create(plainPod(name, withResource(gpuResource, 1)))
		assert.Contains(t, c.servedAt(name), "h100-000")
		assert.Nil(t, conditionOf(c.pod(name)))
		assert.Empty(t, c.pod(name).Annotations)
	}
	records := &v1alpha1.AllocationDecisionList{}
	require.NoError(t, c.List(t.Context(), records))
	assert.Empty(t, records.Items)
	c.create(plainPod("waits", withResource(gpuResource, 1), following("h100")))
	assert.Contains(t, c.condition("waits", "Pending"), "InUse")
	c.removeServed("pod-0")
	assert.Contains(t, c.servedAt("waits"), "h100-000")
}

// Without a policy the tenant's limit counts all the same. What a device plugin
// serves it does not count, and is had when nothing else is.
func TestExtendedResourceWithoutPolicyHasALimit(t *testing.T) {
	c := newCluster(t)
	c.addFleet(onePerNode()...)
	c.serveByClass("gpu", gpuResource, "H100")
	c.create(&v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: v1alpha1.TenantQuotaSpec{
		Namespaces: []string{namespace}, Models: []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](1)}},
	}})
	c.startScheduler()
	c.create(plainPod("first", withResource(gpuResource, 1)))
	assert.Equal(t, "h100-0000/gpu-0", c.servedAt("first"))
	c.create(plainPod("second", withResource(gpuResource, 1)))
	assert.Contains(t, c.condition("second", "Pending"), "QuotaExceeded")
	implicit := "deviceclass.resource.kubernetes.io/gpu"
	c.create(plainPod("third", withResource(implicit, 1)))
	assert.Contains(t, c.condition("third", "Pending"), "QuotaExceeded")
	c.removeServed("first")
	assert.Equal(t, "h100-0000/gpu-0", c.servedAt("second"))
	assert.Contains(t, c.condition("third", "Pending"), "QuotaExceeded")
	c.offerByPlugin("a100-0000", gpuResource, 1)
	c.create(plainPod("fourth", withResource(gpuResource, 1)))
	assert.Equal(t, "a100-0000", c.servedAt("fourth"))
	assert.Contains(t, c.condition("fourth", "DevicePlugin"), "no device could be had elsewhere")
}

// A node that offers the resource by a device plugin stays with the device
// plugin, and comes after every tier.
func TestNodesOfTheDevicePluginComeLast(t *testing.T) {
	c := newCluster(t)
	c.addFleet(onePerNode()...)
	c.offerByPlugin("h100-0000", gpuResource, 1)
	c.serveByClass("gpu", gpuResource, "")
	c.addPolicy("h100-first", ladderOf("H100", "A100"))
	c.startScheduler()
	var got []string
	for i := range 4 {
		name := fmt.Sprintf("pod-%d", i)
		c.create(plainPod(name, withResource(gpuResource, 1), following("h100-first")))
		got = append(got, c.servedAt(name))
	}
	assert.Equal(t, []string{"h100-0001/gpu-0", "a100-0000/gpu-0", "a100-0000/gpu-1", "h100-0000"}, got)
	assert.Equal(t, "node h100-0000: a device plugin serves nvidia.com/gpu there; no tier of policy h100-first could be met elsewhere",
		c.condition("pod-3", "DevicePlugin"))
	record := c.record("pod-1", v1alpha1.OutcomeAllocated)
	assert.Contains(t, details(record, "t0", v1alpha1.ReasonNodeUnsuitable)["h100-0000"], "a device plugin serves")
	c.create(plainPod("waits", withResource(gpuResource, 1), following("h100-first")))
	c.condition("waits", "Pending")
	waits := c.record("waits", v1alpha1.OutcomePending)
	assert.Contains(t, details(waits, "t0", v1alpha1.ReasonNodeUnsuitable)["h100-0000"], "Insufficient nvidia.com/gpu")
}

// A device plugin that serves another resource of the Pod is no way past the
// policy.
func TestDevicePluginOfAnotherResource(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "a100", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 1})
	c.offerByPlugin("a100-0000", "example.com/l4", 1)
	c.serveByClass("gpu", gpuResource, "")
	c.serveByClass("l4", "example.com/l4", "L4")
	c.addPolicy("h100-only", ladderOf("H100"))
	c.startScheduler()
	c.create(plainPod("waits", withResource(gpuResource, 1), withResource("example.com/l4", 1), following(gpuResource+"=h100-only")))
	c.condition("waits", string(v1alpha1.FailureUnsatisfiable))
	assert.Empty(t, c.pod("waits").Spec.NodeName)
}

// A class that changes is followed as it is then.
func TestExtendedResourceOfAClassThatChanges(t *testing.T) {
	c := newCluster(t)
	c.addFleet(onePerNode()...)
	c.serveByClass("gpu", gpuResource, "")
	c.addPolicy("h100-first", ladderOf("H100", "A100"))
	c.startScheduler()
	c.create(plainPod("before", withResource(gpuResource, 1), following("h100-first")))
	assert.Equal(t, "h100-0000/gpu-0", c.servedAt("before"))
	class := &resourceapi.DeviceClass{}
	require.NoError(t, c.Get(t.Context(), clusterKey("gpu"), class))
	class.Spec.Selectors[0].CEL.Expression += fmt.Sprintf(" && device.attributes[%q].model == %q", v1alpha1.DriverName, "A100")
	require.NoError(t, c.Update(t.Context(), class))
	c.create(plainPod("after", withResource(gpuResource, 1), following("h100-first")))
	assert.Equal(t, "a100-0000/gpu-0", c.servedAt("after"))
}

// A Pod with a claim of its policy that also asks for an extended resource gets
// both on one node, whichever node the claim alone would have taken.
func TestClaimsBesideAnExtendedResource(t *testing.T) {
	c := newCluster(t)
	c.addFleet(
		fleet.Group{Name: "a100", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 3},
		fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 1},
	)
	c.serveByClass("gpu", gpuResource, "")
	c.addPolicy("h100-first", ladderOf("H100", "A100"))
	c.startScheduler()
	c.addPod("both", "h100-first", withResource(gpuResource, 1))
	assert.Equal(t, "a100-0000/gpu-0", c.placed("both"))
	assert.Equal(t, "a100-0000/gpu-1", c.servedAt("both"))
	assert.Equal(t, "t1", c.pod("both").Annotations[v1alpha1.AnnotationTier])

	c.addPlain("plain", "true", withResource(gpuResource, 1))
	c.condition("plain", "Pending")
	c.addPlain("alone", "true")
	assert.Contains(t, []string{"a100-0000/gpu-2", "h100-0000/gpu-0"}, c.placed("alone"))
	assert.Zero(t, gather(t)["ladder_decider_mismatches_total"])
}

// What can't be followed is told on the Pod, with what to do.
func TestExtendedResourceThatCantFollow(t *testing.T) {
	c := newCluster(t)
	c.addFleet(onePerNode()...)
	c.serveByClass("gpu", gpuResource, "")
	c.serveByClass("l4", "example.com/l4", "L4")
	c.addPolicy("h100-first", ladderOf("H100", "A100"))
	c.startScheduler()
	c.create(plainPod("nobody", withResource(gpuResource, 1), following("none")))
	assert.Contains(t, c.condition("nobody", "Pending"), `PolicyInvalid: Pod default/nobody: AcceleratorPolicy "none"`)
	c.create(plainPod("several", withResource(gpuResource, 1), withResource("example.com/l4", 1), following("h100-first")))
	assert.Contains(t, c.condition("several", "Pending"), "say which by the annotation "+v1alpha1.AnnotationExtendedResourcePolicy)
	c.addPod("twice", "h100-first", withResource(gpuResource, 1), following("h100-first"))
	assert.Contains(t, c.condition("twice", "Pending"), "leave out the annotation")
	// A policy that comes later wakes the Pod.
	c.addPolicy("none", ladderOf("L4"))
	assert.Equal(t, "l4-0000/gpu-0", c.servedAt("nobody"))
}

// A claim that an earlier scheduler left behind is removed first.
func TestClaimLeftOfAnEarlierAttempt(t *testing.T) {
	c := newCluster(t)
	c.addFleet(onePerNode()...)
	c.serveByClass("gpu", gpuResource, "")
	c.addPolicy("h100-first", ladderOf("H100", "A100"))
	pod := plainPod("pod", withResource(gpuResource, 1), following("h100-first"))
	c.create(pod)
	c.create(&resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "pod-extended-resources-left",
			Annotations: map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true),
			}},
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "container-0-request-0", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu"},
		}}}},
	})
	c.startScheduler()
	assert.Equal(t, "h100-0000/gpu-0", c.servedAt("pod"))
	claims := &resourceapi.ResourceClaimList{}
	require.NoError(t, c.List(t.Context(), claims))
	assert.Len(t, claims.Items, 1, "the one that is used")
}
