package hardware

// This file compares what was published with what nvidia-smi says.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/fleet"
)

// Comparison is one thing that both tell.
type Comparison struct {
	// GPU is the PCI address, or empty for the machine.
	GPU  string `json:"gpu,omitempty"`
	What string `json:"what"`
	// Driver is what Ladder's driver has published, from NVML; SMI what nvidia-smi
	// says.
	Driver string `json:"driver"`
	SMI    string `json:"nvidiaSMI"`
	Same   bool   `json:"same"`
}

// compared makes a Comparison of two texts that must be the same.
func compared(gpu, what, driver, smi string) Comparison {
	return Comparison{GPU: gpu, What: what, Driver: driver, SMI: smi, Same: driver == smi}
}

// attribute of a device as text.
func attribute(device *resourcev1.Device, name resourcev1.QualifiedName) string {
	switch value := device.Attributes[name]; {
	case value.StringValue != nil:
		return *value.StringValue
	case value.VersionValue != nil:
		return *value.VersionValue
	case value.IntValue != nil:
		return strconv.FormatInt(*value.IntValue, 10)
	}
	return ""
}

// board is the devices of one GPU.
type board struct {
	address    string
	whole      *resourcev1.Device
	partitions []resourcev1.Device
}

// boards are the published devices by GPU, in order of address.
func boards(devices []resourcev1.Device) []*board {
	by := map[string]*board{}
	for i := range devices {
		device := &devices[i]
		address := attribute(device, fleet.AttributePCIBusID)
		b := by[address]
		if b == nil {
			b = &board{address: address}
			by[address] = b
		}
		if attribute(device, fleet.AttributeType) == fleet.TypeMIG {
			b.partitions = append(b.partitions, *device)
		} else {
			b.whole = device
		}
	}
	var all []*board
	for _, b := range by {
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b *board) int { return strings.Compare(a.address, b.address) })
	return all
}

// uuid of the GPU, which partitions name as well.
func (b *board) uuid() string {
	if b.whole != nil {
		return attribute(b.whole, fleet.AttributeUUID)
	}
	return attribute(&b.partitions[0], fleet.AttributeParentUUID)
}

// any is a device that has what is of the board: product, versions.
func (b *board) any() *resourcev1.Device {
	if b.whole != nil {
		return b.whole
	}
	return &b.partitions[0]
}

// Compare compares all that both tell of the machine and of each GPU. A GPU that
// only one of them has is a difference.
func Compare(devices []resourcev1.Device, smi *SMI) []Comparison {
	published := boards(devices)
	all := []Comparison{compared("", "number of GPUs", strconv.Itoa(len(published)), strconv.Itoa(len(smi.GPUs)))}
	seen := map[string]bool{}
	for _, b := range published {
		g := smi.of(b.uuid())
		if g == nil {
			all = append(all, compared(b.address, "UUID", b.uuid(), ""))
			continue
		}
		seen[g.UUID] = true
		device := b.any()
		all = append(
			all,
			compared(b.address, "UUID", b.uuid(), g.UUID),
			compared(b.address, "PCI address", b.address, g.address()),
			compared(b.address, "name", attribute(device, fleet.AttributeProductName), g.Product),
			compared(b.address, "driver version", attribute(device, fleet.AttributeDriverVersion), threeNumbers(smi.Driver)),
			compared(b.address, "CUDA version", attribute(device, fleet.AttributeCUDADriverVersion), threeNumbers(smi.CUDA)),
			compared(b.address, "MIG mode", b.mode(), modeOf(g.MIG)),
		)
		if g.Architecture != "" { // new in version 520 or so
			all = append(all, compared(b.address, "architecture", attribute(device, fleet.AttributeArchitecture), g.Architecture))
		}
		if b.whole != nil && len(b.partitions) == 0 { // of others it is that of the biggest partition
			memory := b.whole.Capacity[fleet.CapacityMemory]
			all = append(all, compared(b.address, "memory", fmt.Sprintf("%d MiB", memory.Value.Value()>>20), g.Memory))
		}
	}
	for i := range smi.GPUs {
		if g := &smi.GPUs[i]; !seen[g.UUID] {
			all = append(all, compared(g.address(), "UUID", "", g.UUID))
		}
	}
	return all
}

// Words for the mode of MIG; nvidia-smi says N/A of boards that have none.
const (
	on  = "on"
	off = "off"
)

func (b *board) mode() string {
	if len(b.partitions) > 0 {
		return on
	}
	return off
}

func modeOf(said string) string {
	if said == "Enabled" {
		return on
	}
	return off
}

// threeNumbers is a version as attributes have it: 580.105.08 is 580.105.8.
func threeNumbers(version string) string {
	parts := strings.Split(version, ".")
	for i, part := range parts {
		if number, err := strconv.Atoi(part); err == nil {
			parts[i] = strconv.Itoa(number)
		}
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	return strings.Join(parts, ".")
}

// differences are those that are not the same.
func differences(all []Comparison) []Comparison {
	return slices.DeleteFunc(slices.Clone(all), func(c Comparison) bool { return c.Same })
}
