package deviceplugin

// This file chooses devices by NUMA node.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Prefer chooses size of the available devices, with those that must be among
// them, on as few NUMA nodes as can be: the nodes of the devices that must be
// there first; then the node that has just enough, so that the others stay whole
// for who needs more; then the node that has most. It is in order of name, and
// the same for the same input.
func Prefer(available, must []Device, size int) ([]Device, error) {
	if size < len(must) || size > len(available) {
		return nil, fmt.Errorf("choosing %d devices, %d must be among them and %d are available", size, len(must), len(available))
	}
	chosen := slices.Clone(must)
	free := map[int64][]Device{}
	for _, d := range slices.SortedFunc(slices.Values(available), byName) {
		if !slices.Contains(must, d) {
			free[d.NUMANode] = append(free[d.NUMANode], d)
		}
	}
	started := map[int64]bool{}
	for _, d := range must {
		started[d.NUMANode] = true
	}
	for len(chosen) < size {
		missing := size - len(chosen)
		node := slices.MinFunc(slices.Sorted(maps.Keys(free)), func(a, b int64) int {
			rank := func(node int64) int {
				switch has := len(free[node]); {
				case started[node] && has >= missing:
					return -3 << 20
				case started[node]:
					return -2<<20 - has
				case has >= missing:
					return -1<<20 + has
				default:
					return -has
				}
			}
			return cmp.Compare(rank(a), rank(b))
		})
		take := min(missing, len(free[node]))
		chosen = append(chosen, free[node][:take]...)
		delete(free, node)
	}
	slices.SortFunc(chosen, byName)
	return chosen, nil
}
