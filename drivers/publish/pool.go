// Package publish writes the devices of nodes into ResourceSlices, one pool
// for each node.
//
// There are two ways to the same result. [Node] is what a driver on a real
// node does: the kubelet plugin library keeps the pool as it should be, for as
// long as the driver runs. It costs an informer for each node. [Direct] writes
// the slices of many nodes in one go, for fleets of hundreds of nodes that do
// not exist.
package publish

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Resources are the devices of one pool in the form that the kubelet plugin
// library takes, in the order given. A pool without devices still has a slice:
// it says that the driver runs and found nothing.
func Resources(pool string, devices []resourcev1.Device) resourceslice.DriverResources {
	parts := []resourceslice.Slice{}
	for part := range slices.Chunk(devices, sliceSize(devices)) {
		parts = append(parts, resourceslice.Slice{Devices: part})
	}
	if len(parts) == 0 {
		parts = append(parts, resourceslice.Slice{})
	}
	return resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{pool: {Slices: parts}},
	}
}

// sliceSize is how many devices one slice can hold: less if one is tainted.
func sliceSize(devices []resourcev1.Device) int {
	for i := range devices {
		if len(devices[i].Taints) > 0 {
			return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
	}
	return resourcev1.ResourceSliceMaxDevices
}
