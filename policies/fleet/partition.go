package fleet

// This file makes devices of partitions.

import (
	"fmt"
	"maps"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Names of attributes and capacity of partitions, as NVIDIA's DRA driver
// publishes them. Values of AttributeType are TypeGPU and TypeMIG.
const (
	TypeGPU = "gpu"
	TypeMIG = "mig"

	AttributeProfile    = "profile"
	AttributeParentUUID = "parentUUID"

	CapacityMultiprocessors = "multiprocessors"
	CapacityCopyEngines     = "copyEngines"
	CapacityDecoders        = "decoders"
	CapacityEncoders        = "encoders"
	CapacityJPEGEngines     = "jpegEngines"
	CapacityOFAEngines      = "ofaEngines"
)

// GPUOf is the board that a device is, or is part of, by its name: gpu-0 for
// gpu-0-mig-3g40gb-9-4 and for itself.
func GPUOf(device string) string {
	gpu, _, _ := strings.Cut(device, "-mig-")
	return gpu
}

// onDemand makes a board and all its possible partitions, and the counters that
// they share. The board takes all of them, so it goes only while it is whole,
// and while it is taken no partition is free.
func onDemand(gpu resourcev1.Device, index int, profiles []MIGProfile) ([]resourcev1.Device, resourcev1.CounterSet) {
	whole := partition{wholeBoard(profiles), 0}
	set := resourcev1.CounterSet{
		Name:     fmt.Sprintf("gpu-%d-counter-set", index),
		Counters: whole.counters(),
	}
	parent := *gpu.DeepCopy()
	parent.Capacity = whole.capacity()
	parent.ConsumesCounters = whole.consumes(set.Name)
	devices := []resourcev1.Device{parent}
	for _, p := range partitions(profiles) {
		device := p.device(&gpu, index)
		device.ConsumesCounters = p.consumes(set.Name)
		devices = append(devices, device)
	}
	return devices, set
}

// forGood makes the partitions that a board has been split into. They exist, so
// they have UUIDs, and their memory slices are told as capacity.
func forGood(gpu resourcev1.Device, index int, node string, layout []partition) []resourcev1.Device {
	var devices []resourcev1.Device
	for _, p := range layout {
		device := p.device(&gpu, index)
		device.Attributes[AttributeUUID] = text(nodeUUID("MIG", node, device.Name))
		for slice := p.start; slice < p.start+p.Size; slice++ {
			device.Capacity[resourcev1.QualifiedName(fmt.Sprintf("memorySlice%d", slice))] = quantity(1)
		}
		devices = append(devices, device)
	}
	return devices
}

// device is a partition of a board. It has what the board tells of itself, and
// is at the board's place.
func (p *partition) device(gpu *resourcev1.Device, index int) resourcev1.Device {
	attributes := maps.Clone(gpu.DeepCopy().Attributes)
	attributes[AttributeType] = text(TypeMIG)
	attributes[AttributeProfile] = text(p.Name)
	attributes[AttributeParentUUID] = attributes[AttributeUUID]
	delete(attributes, AttributeUUID)
	return resourcev1.Device{Name: p.name(index), Attributes: attributes, Capacity: p.capacity()}
}

func (p *partition) capacity() map[resourcev1.QualifiedName]resourcev1.DeviceCapacity {
	capacity := map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{}
	for _, a := range p.amounts() {
		capacity[resourcev1.QualifiedName(a.capacity)] = quantity(a.value)
	}
	return capacity
}

func (p *partition) counters() map[string]resourcev1.Counter {
	counters := map[string]resourcev1.Counter{}
	for _, a := range p.amounts() {
		counters[a.counter] = resourcev1.Counter{Value: quantity(a.value).Value}
	}
	for slice := p.start; slice < p.start+p.Size; slice++ {
		counters[fmt.Sprintf("memory-slice-%d", slice)] = resourcev1.Counter{Value: quantity(1).Value}
	}
	return counters
}

func (p *partition) consumes(set string) []resourcev1.DeviceCounterConsumption {
	return []resourcev1.DeviceCounterConsumption{{CounterSet: set, Counters: p.counters()}}
}

func quantity(value int64) resourcev1.DeviceCapacity {
	return resourcev1.DeviceCapacity{Value: *resource.NewQuantity(value, resource.BinarySI)}
}
