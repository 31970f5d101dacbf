package fleet

// This file says where in its node each GPU sits.

import "fmt"

// Place is where a GPU sits. Its NUMA node and PCIe root agree: the GPUs of
// one root are always on one NUMA node.
type Place struct {
	NUMANode int64
	// Domain and Bus are the GPU's PCI address, of which device and function are
	// 0, and RootBus is the bus of the root complex that it is below.
	Domain, Bus, RootBus int
}

// PCIeRoot is the root complex as Linux writes it: pci0000:10.
func (p Place) PCIeRoot() string { return fmt.Sprintf("pci%04x:%02x", p.Domain, p.RootBus) }

// BusID is the GPU's address as Linux writes it: 0000:11:00.0.
func (p Place) BusID() string { return fmt.Sprintf("%04x:%02x:00.0", p.Domain, p.Bus) }

// gpusPerRoot is how many GPUs share one PCIe root: two behind one switch, as
// in the common servers of eight boards.
const gpusPerRoot = 2

// rootsPerDomain is how many roots a PCI domain gets before the next one is
// begun: root r has the buses from 0x10*(r+1), and the last bus is 0xff.
const rootsPerDomain = 15

// Places puts GPUs into a node: blocks of consecutive GPUs on each NUMA node
// (the first nodes get one more where it does not divide), and pairs within a
// block on one PCIe root.
func Places(gpus, numaNodes int) []Place {
	numaNodes = max(numaNodes, 1)
	made := make([]Place, 0, gpus)
	root := 0
	for numa := range numaNodes {
		share := gpus / numaNodes
		if numa < gpus%numaNodes {
			share++
		}
		for i := range share {
			slot := i % gpusPerRoot
			if i > 0 && slot == 0 {
				root++
			}
			domain, bus := root/rootsPerDomain, 0x10*(root%rootsPerDomain+1)
			made = append(made, Place{NUMANode: int64(numa), Domain: domain, Bus: bus + 1 + slot, RootBus: bus})
		}
		if share > 0 {
			root++
		}
	}
	return made
}
