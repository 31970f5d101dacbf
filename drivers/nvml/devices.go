package nvml

// This file makes devices of GPUs: the names and types are those of the fake
// driver's tiers, and of NVIDIA's own driver.

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpuladder.dev/ladder/policies/fleet"
)

// maxText is the API's limit for an attribute that is text.
const maxText = resourcev1.DeviceAttributeMaxValueLength

func text(value string) resourcev1.DeviceAttribute {
	if len(value) > maxText {
		value = value[:maxText]
	}
	return resourcev1.DeviceAttribute{StringValue: &value}
}

func quantity(value uint64) resource.Quantity {
	return *resource.NewQuantity(int64(value), resource.BinarySI) //nolint:gosec // bytes and counts of one board
}

// semver makes the three numbers of a semantic version of one to three numbers,
// without leading zeros: 580.105.08 is 580.105.8.
func semver(version string) (string, bool) {
	parts := strings.Split(version, ".")
	if len(parts) > 3 {
		return "", false
	}
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return "", false
		}
		parts[i] = strconv.FormatUint(number, 10)
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	return strings.Join(parts, "."), true
}

// attributes of a whole GPU. What is not known is left out.
func (f *facts) attributes(sysfs []deviceattribute.MachineModifier) (map[resourcev1.QualifiedName]resourcev1.DeviceAttribute, []error) {
	made := map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{fleet.AttributeType: text(fleet.TypeGPU)}
	for name, value := range map[resourcev1.QualifiedName]string{
		fleet.AttributeUUID: f.UUID, fleet.AttributeModel: f.Model, fleet.AttributeProductName: f.Product,
		fleet.AttributeBrand: f.Brand, fleet.AttributeArchitecture: f.Architecture, fleet.AttributePCIBusID: f.Address.String(),
	} {
		if value != "" {
			made[name] = text(value)
		}
	}
	cuda := ""
	if f.CUDA > 0 {
		cuda = fmt.Sprintf("%d.%d", f.CUDA/1000, f.CUDA%1000/10)
	}
	for name, value := range map[resourcev1.QualifiedName]string{
		fleet.AttributeComputeCapability: f.Capability, fleet.AttributeDriverVersion: f.Driver, fleet.AttributeCUDADriverVersion: cuda,
	} {
		if version, is := semver(value); is {
			made[name] = resourcev1.DeviceAttribute{VersionValue: &version}
		}
	}
	var missing []error
	for _, place := range []func() (deviceattribute.DeviceAttribute, error){
		func() (deviceattribute.DeviceAttribute, error) {
			return deviceattribute.GetPCIeRootAttributeByPCIBusID(f.Address.String(), sysfs...)
		},
		func() (deviceattribute.DeviceAttribute, error) {
			return deviceattribute.GetNUMANodeAttributeByPCIBusID(f.Address.String(), deviceattribute.ScalarAttribute, sysfs...)
		},
	} {
		attribute, err := place()
		if err != nil {
			missing = append(missing, err)
			continue
		}
		made[attribute.Name] = attribute.Value
	}
	return made, missing
}

// amount is how much there is of one kind of unit: capacity is what NVIDIA's
// driver calls it in a device, counter in a counter set.
type amount struct {
	capacity resourcev1.QualifiedName
	counter  string
	value    uint64
}

func amountsOf(info *nvml.GpuInstanceProfileInfo) []amount {
	return []amount{
		{fleet.CapacityMemory, "memory", info.MemorySizeMB << 20},
		{fleet.CapacityMultiprocessors, "multiprocessors", uint64(info.MultiprocessorCount)},
		{fleet.CapacityCopyEngines, "copy-engines", uint64(info.CopyEngineCount)},
		{fleet.CapacityDecoders, "decoders", uint64(info.DecoderCount)},
		{fleet.CapacityEncoders, "encoders", uint64(info.EncoderCount)},
		{fleet.CapacityJPEGEngines, "jpeg-engines", uint64(info.JpegCount)},
		{fleet.CapacityOFAEngines, "ofa-engines", uint64(info.OfaCount)},
	}
}

// wholeBoard is what the partitions of a board share: of each kind the most
// that one of them has, which is how NVIDIA's driver counts, and all the memory
// slices that one of them can take.
func wholeBoard(profiles []profile) (nvml.GpuInstanceProfileInfo, nvml.GpuInstancePlacement) {
	var whole nvml.GpuInstanceProfileInfo
	var slots nvml.GpuInstancePlacement
	for i := range profiles {
		info := &profiles[i].Info
		whole.MemorySizeMB = max(whole.MemorySizeMB, info.MemorySizeMB)
		whole.MultiprocessorCount = max(whole.MultiprocessorCount, info.MultiprocessorCount)
		whole.CopyEngineCount = max(whole.CopyEngineCount, info.CopyEngineCount)
		whole.DecoderCount = max(whole.DecoderCount, info.DecoderCount)
		whole.EncoderCount = max(whole.EncoderCount, info.EncoderCount)
		whole.JpegCount = max(whole.JpegCount, info.JpegCount)
		whole.OfaCount = max(whole.OfaCount, info.OfaCount)
		for _, placement := range profiles[i].Placements {
			slots.Size = max(slots.Size, placement.Start+placement.Size)
		}
	}
	return whole, slots
}

func capacityOf(info *nvml.GpuInstanceProfileInfo) map[resourcev1.QualifiedName]resourcev1.DeviceCapacity {
	made := map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{}
	for _, a := range amountsOf(info) {
		made[a.capacity] = resourcev1.DeviceCapacity{Value: quantity(a.value)}
	}
	return made
}

func countersOf(info *nvml.GpuInstanceProfileInfo, slots nvml.GpuInstancePlacement) map[string]resourcev1.Counter {
	made := map[string]resourcev1.Counter{}
	for _, a := range amountsOf(info) {
		made[a.counter] = resourcev1.Counter{Value: quantity(a.value)}
	}
	for slot := slots.Start; slot < slots.Start+slots.Size; slot++ {
		made[fmt.Sprintf("memory-slice-%d", slot)] = resourcev1.Counter{Value: quantity(1)}
	}
	return made
}

// published is what one GPU is in the pool.
type published struct {
	Devices []resourcev1.Device `json:"devices"`
	// Counters are there if the board can be split.
	Counters *resourcev1.CounterSet `json:"counters,omitempty"`
}

// publish makes the devices of a GPU, without those for which instances that are
// none of them have taken the place.
func (f *facts) publish(policy *Publish, sysfs []deviceattribute.MachineModifier, taken []partition) (published, []error) {
	name := f.Address.name()
	attributes, missing := f.attributes(sysfs)
	whole := resourcev1.Device{
		Name: name, Attributes: attributes,
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{fleet.CapacityMemory: {Value: quantity(f.Memory)}},
	}
	if len(f.Profiles) == 0 {
		return published{Devices: []resourcev1.Device{whole}}, missing
	}
	total, slots := wholeBoard(f.Profiles)
	set := &resourcev1.CounterSet{Name: name + "-counter-set", Counters: countersOf(&total, slots)}
	consume := func(info *nvml.GpuInstanceProfileInfo, slots nvml.GpuInstancePlacement) []resourcev1.DeviceCounterConsumption {
		return []resourcev1.DeviceCounterConsumption{{CounterSet: set.Name, Counters: countersOf(info, slots)}}
	}
	made := published{Counters: set}
	if policy.wholeMIG() && len(taken) == 0 {
		whole.Capacity, whole.ConsumesCounters = capacityOf(&total), consume(&total, slots)
		made.Devices = append(made.Devices, whole)
	}
	for _, p := range partitions(f.Profiles) {
		gone := slices.ContainsFunc(taken, func(t partition) bool { return overlaps(t.placement, p.placement) })
		if gone || !policy.partitions() || !policy.profile(p.Name) {
			continue
		}
		device := resourcev1.Device{
			Name: p.name(name), Attributes: maps.Clone(attributes),
			Capacity: capacityOf(&p.Info), ConsumesCounters: consume(&p.Info, p.placement),
		}
		device.Attributes[fleet.AttributeType] = text(fleet.TypeMIG)
		device.Attributes[fleet.AttributeProfile] = text(p.Name)
		device.Attributes[fleet.AttributeParentUUID] = attributes[fleet.AttributeUUID]
		delete(device.Attributes, fleet.AttributeUUID)
		made.Devices = append(made.Devices, device)
	}
	for _, t := range taken {
		for name, used := range countersOf(&t.Info, t.placement) {
			if left, is := set.Counters[name]; is {
				left.Value.Sub(used.Value)
				if left.Value.Sign() < 0 {
					left.Value = quantity(0)
				}
				set.Counters[name] = left
			}
		}
	}
	return made, missing
}
