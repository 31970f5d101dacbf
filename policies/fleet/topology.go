package fleet

// This file says where in its node each GPU sits.

import "fmt"

// place is where a GPU sits. Its NUMA node and PCIe root agree: the GPUs of
// one root are always on one NUMA node.
type place struct {
	numaNode int64
	pcieRoot string
	busID    string
}

// gpusPerRoot is how many GPUs share one PCIe root: two behind one switch, as
// in the common servers of eight boards.
const gpusPerRoot = 2

// rootsPerDomain is how many roots a PCI domain gets before the next one is
// begun: root r has the buses from 0x10*(r+1), and the last bus is 0xff.
const rootsPerDomain = 15

// places puts GPUs into a node: blocks of consecutive GPUs on each NUMA node
// (the first nodes get one more where it does not divide), and pairs within a
// block on one PCIe root.
func places(gpus, numaNodes int) []place {
	numaNodes = max(numaNodes, 1)
	made := make([]place, 0, gpus)
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
			made = append(made, place{
				numaNode: int64(numa),
				pcieRoot: fmt.Sprintf("pci%04x:%02x", domain, bus),
				busID:    fmt.Sprintf("%04x:%02x:00.0", domain, bus+1+slot),
			})
		}
		if share > 0 {
			root++
		}
	}
	return made
}
