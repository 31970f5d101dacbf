package fleet

// This file makes the devices of a fleet and the ResourceSlices that hold them.

import (
	"crypto/sha256"
	"fmt"
	"strconv"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Names of attributes and capacity, as NVIDIA's DRA driver publishes them, and
// `model`, which Ladder's own driver adds.
const (
	AttributeType              = "type"
	AttributeUUID              = "uuid"
	AttributeModel             = "model"
	AttributeProductName       = "productName"
	AttributeBrand             = "brand"
	AttributeArchitecture      = "architecture"
	AttributeComputeCapability = "cudaComputeCapability"
	AttributeDriverVersion     = "driverVersion"
	AttributeCUDADriverVersion = "cudaDriverVersion"
	AttributePCIBusID          = "resource.kubernetes.io/pciBusID"
	AttributePCIeRoot          = "resource.kubernetes.io/pcieRoot"
	AttributeNUMANode          = "resource.kubernetes.io/numaNode"
	CapacityMemory             = "memory"
)

// Slices returns new ResourceSlices for all nodes with GPUs: one pool for each
// node, in the order of the file. They are named <index>-<driver>-<node>, the
// index as five hexadecimal digits, which is how the kubelet plugin library
// starts the names of its slices. Call it on a valid fleet.
func (f *Fleet) Slices() []*resourcev1.ResourceSlice {
	var all []*resourcev1.ResourceSlice
	for i := range f.Groups {
		group := &f.Groups[i]
		for n := range group.Nodes {
			name := group.NodeName(n)
			pool := f.pool(group, name)
			if len(pool.Devices) > 0 {
				all = append(all, poolSlices(name, pool.Parts())...)
			}
		}
	}
	return all
}

// Devices returns the devices of one node, as they are listed in its pool. It
// fails if the fleet has no such node.
func (f *Fleet) Devices(node string) ([]resourcev1.Device, error) {
	pool, err := f.PoolOf(node)
	return pool.Devices, err
}

func poolSlices(node string, parts []Part) []*resourcev1.ResourceSlice {
	made := make([]*resourcev1.ResourceSlice, len(parts))
	for i, part := range parts {
		made[i] = &resourcev1.ResourceSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%05x-%s-%s", i, v1alpha1.DriverName, node),
			},
			Spec: resourcev1.ResourceSliceSpec{
				Driver:   v1alpha1.DriverName,
				NodeName: &node,
				Pool: resourcev1.ResourcePool{
					Name:               node,
					Generation:         1,
					ResourceSliceCount: int64(len(parts)),
				},
				Devices:        part.Devices,
				SharedCounters: part.SharedCounters,
			},
		}
	}
	return made
}

func (b *Board) device(node string, index int, at Place) resourcev1.Device {
	attributes := map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
		AttributeType:              text(TypeGPU),
		AttributeUUID:              text(nodeUUID("GPU", node, strconv.Itoa(index))),
		AttributeModel:             text(b.Model),
		AttributeProductName:       text(b.ProductName),
		AttributeBrand:             text(b.Brand),
		AttributeArchitecture:      text(b.Architecture),
		AttributeComputeCapability: version(b.ComputeCapability),
		AttributeDriverVersion:     version(b.DriverVersion),
		AttributePCIBusID:          text(at.BusID()),
		AttributePCIeRoot:          text(at.PCIeRoot()),
		AttributeNUMANode:          {IntValue: &at.NUMANode},
	}
	if cuda, known := cudaVersion(b.DriverVersion); known {
		attributes[AttributeCUDADriverVersion] = version(cuda)
	}
	return resourcev1.Device{
		Name:       fmt.Sprintf("gpu-%d", index),
		Attributes: attributes,
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
			CapacityMemory: {Value: *resource.NewQuantity(b.Memory.Value(), resource.BinarySI)},
		},
	}
}

func text(value string) resourcev1.DeviceAttribute {
	return resourcev1.DeviceAttribute{StringValue: &value}
}

// version is the attribute of a version that Validate has accepted; any other
// one is published as NVIDIA prints it, for the API server to refuse.
func version(value string) resourcev1.DeviceAttribute {
	if canonical, err := semver(value); err == nil {
		value = canonical
	}
	return resourcev1.DeviceAttribute{VersionValue: &value}
}

// nodeUUID is a name-based UUID (RFC 9562, version 8, of SHA-256) of something
// in a node, in the form in which NVML prints UUIDs.
func nodeUUID(prefix, node, name string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s", v1alpha1.DriverName, node, name))
	id := sum[:16]
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
}
