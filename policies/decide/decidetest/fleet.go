package decidetest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Load says how much of a large fleet is taken.
type Load string

const (
	// Empty: every device is free.
	Empty Load = "empty"
	// HalfFull: every second device of every node is taken.
	HalfFull Load = "half"
	// H100Full: every H100 is taken and nothing else.
	H100Full Load = "h100full"
	// Full: every device is taken.
	Full Load = "full"
)

// FleetPolicy is the policy of large fleets: H100, then A100, then anything
// with 16 GiB.
const FleetPolicy = "h100-first"

// FleetPod is the Pod that waits in a large fleet.
var FleetPod = types.NamespacedName{Namespace: "team-a", Name: "p"}

// Fleet builds a large fleet of nodes with 8 devices each: one node in 50
// carries H100, and of the rest half A100 and half L4, in runs.
func Fleet(nodes int, load Load) *Cluster {
	c := &Cluster{Now: Epoch}
	h100 := max(nodes/50, 1)
	for i := range nodes {
		board := Boards[3] // L4
		switch {
		case i < h100:
			board = Boards[0]
		case i < h100+(nodes-h100)/2:
			board = Boards[1]
		}
		name := fmt.Sprintf("node-%04d", i)
		c.Nodes = append(c.Nodes, fleetNode(name))
		c.Slices = append(c.Slices, fleetSlice(name, board))
		for j := range 8 {
			if load == Full || load == HalfFull && j%2 == 0 || load == H100Full && board.Model == "H100" {
				c.Claims = append(c.Claims, fleetClaim(name, j))
			}
		}
	}
	c.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: FleetPod.Namespace}}}
	c.Classes = []*resourceapi.DeviceClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec:       resourceapi.DeviceClassSpec{Selectors: celSelectors(`device.driver == "gpu.gpuladder.dev"`)},
	}}
	c.Policies = []*v1alpha1.AcceleratorPolicy{{
		ObjectMeta: metav1.ObjectMeta{Name: FleetPolicy},
		Spec: v1alpha1.AcceleratorPolicySpec{
			Driver:      v1alpha1.DriverName,
			Constraints: v1alpha1.Constraints{MinMemory: ptr.To(resource.MustParse("16Gi")), MinDriverVersion: "550.54"},
			Tiers: []v1alpha1.Tier{
				{Name: "h100", Models: []string{"H100"}}, {Name: "a100", Models: []string{"A100"}}, {Name: "any"},
			},
		},
	}}
	c.Quotas = []*v1alpha1.TenantQuota{{
		ObjectMeta: metav1.ObjectMeta{Name: FleetPod.Namespace},
		Spec: v1alpha1.TenantQuotaSpec{
			Namespaces: []string{FleetPod.Namespace},
			Models:     []v1alpha1.ModelQuota{{Model: "H100", Guaranteed: 4, Limit: ptr.To(int32(8))}, {Model: "A100"}, {Model: "L4"}},
		},
	}}
	p := newPod(FleetPod.Namespace, FleetPod.Name, "1")
	p.Labels[v1alpha1.LabelPolicy] = FleetPolicy
	c.Pods = []*corev1.Pod{p}
	return c
}

func fleetNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("128"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func fleetSlice(node string, b Board) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: ptr.To(node),
			Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	text := func(v string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &v} }
	for j := range 8 {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", j),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": text("gpu"), "uuid": text(fmt.Sprintf("GPU-%s-%d", node, j)), "brand": text("Nvidia"),
				"model": text(b.Model), "productName": text(b.Product), "architecture": text(b.Architecture),
				"cudaComputeCapability": {VersionValue: ptr.To(b.Capability)}, "driverVersion": {VersionValue: ptr.To("570.148.8")},
				numaNode: {IntValue: ptr.To(int64(j / 4))}, pcieRoot: text(fmt.Sprintf("pci0000:%d0", j/2)),
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(b.Memory)}},
		})
	}
	return s
}

// fleetClaim is another tenant's claim that holds the device.
func fleetClaim(node string, device int) *resourceapi.ResourceClaim {
	name := fmt.Sprintf("held-%s-%d", node, device)
	c := newClaim(metav1.ObjectMeta{Namespace: "team-b", Name: name, UID: uid("claim", name)}, resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "main", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			},
		}}},
	})
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "main", Driver: v1alpha1.DriverName, Pool: node, Device: fmt.Sprintf("gpu-%d", device),
		}},
	}}
	return c
}
