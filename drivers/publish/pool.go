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

	"gpuladder.dev/ladder/drivers/inventory"
)

// Resources are one pool in the form that the kubelet plugin library takes, in
// the order given: slices with shared counters, which hold no devices, and then
// those with devices. A pool without devices still has a slice: it says that
// the driver runs and found nothing.
func Resources(name string, pool inventory.Pool) resourceslice.DriverResources {
	parts := []resourceslice.Slice{}
	for part := range slices.Chunk(pool.SharedCounters, resourcev1.ResourceSliceMaxCounterSets) {
		parts = append(parts, resourceslice.Slice{SharedCounters: part})
	}
	for part := range slices.Chunk(pool.Devices, sliceSize(pool.Devices)) {
		parts = append(parts, resourceslice.Slice{Devices: part})
	}
	if len(parts) == 0 {
		parts = append(parts, resourceslice.Slice{})
	}
	return resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{name: {Slices: parts}},
	}
}

// sliceSize is how many devices one slice can hold: less if one is tainted or
// consumes counters.
func sliceSize(devices []resourcev1.Device) int {
	for i := range devices {
		if len(devices[i].Taints) > 0 || len(devices[i].ConsumesCounters) > 0 {
			return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
	}
	return resourcev1.ResourceSliceMaxDevices
}
