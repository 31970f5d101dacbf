package fleet

// This file puts the devices of a node into a pool, and a pool into slices.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
)

// Pool is what one node publishes.
type Pool struct {
	// Devices are listed byte-wise by name, whatever their place on the bus.
	Devices []resourcev1.Device
	// SharedCounters are what partitions share, byte-wise by name; empty where
	// no board is partitioned on demand.
	SharedCounters []resourcev1.CounterSet
}

// Part is what one slice of a pool holds: devices or counters, never both,
// which the API does not allow.
type Part struct {
	Devices        []resourcev1.Device
	SharedCounters []resourcev1.CounterSet
}

// Parts splits the pool over as many slices as the API asks for: counters
// first, then devices as listed. A pool without anything has one empty part: it
// says that the driver runs and found nothing.
func (p *Pool) Parts() []Part {
	var parts []Part
	for counters := range slices.Chunk(p.SharedCounters, resourcev1.ResourceSliceMaxCounterSets) {
		parts = append(parts, Part{SharedCounters: counters})
	}
	size := resourcev1.ResourceSliceMaxDevices
	for i := range p.Devices {
		if len(p.Devices[i].Taints)+len(p.Devices[i].ConsumesCounters) > 0 {
			size = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
			break
		}
	}
	for devices := range slices.Chunk(p.Devices, size) {
		parts = append(parts, Part{Devices: devices})
	}
	if len(parts) == 0 {
		parts = append(parts, Part{})
	}
	return parts
}

// Pool returns what a node of a group publishes. The node may have any name,
// also one that is not of the fleet: its devices' UUIDs are made from it. It
// fails if the fleet has no such group.
func (f *Fleet) Pool(group, node string) (Pool, error) {
	at := slices.IndexFunc(f.Groups, func(g Group) bool { return g.Name == group })
	if at < 0 {
		return Pool{}, fmt.Errorf("the fleet has no group %q", group)
	}
	return f.pool(&f.Groups[at], node), nil
}

// PoolOf returns what one node of the fleet publishes. It fails if the fleet
// has no such node.
func (f *Fleet) PoolOf(node string) (Pool, error) {
	for i := range f.Groups {
		group := &f.Groups[i]
		if !strings.HasPrefix(node, group.Name+"-") {
			continue
		}
		for n := range group.Nodes {
			if group.NodeName(n) == node {
				return f.pool(group, node), nil
			}
		}
	}
	return Pool{}, fmt.Errorf("the fleet has no node %q", node)
}

func (f *Fleet) pool(group *Group, node string) Pool {
	board, known := f.board(group.Board)
	if !known {
		return Pool{}
	}
	if group.DriverVersion != "" {
		board.DriverVersion = group.DriverVersion
	}
	var pool Pool
	for i, at := range Places(group.GPUs, group.NUMANodes) {
		gpu := board.device(node, i, at)
		switch {
		case group.MIG == nil:
			pool.Devices = append(pool.Devices, gpu)
		case len(group.MIG.Layout) > 0:
			// Validate has seen to it that the layout fits.
			layout, _ := arrange(migProfiles[group.Board], group.MIG.Layout)
			pool.Devices = append(pool.Devices, forGood(gpu, i, node, layout)...)
		default:
			devices, counters := onDemand(gpu, i, migProfiles[group.Board])
			pool.Devices = append(pool.Devices, devices...)
			pool.SharedCounters = append(pool.SharedCounters, counters)
		}
	}
	slices.SortFunc(pool.Devices, func(a, b resourcev1.Device) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(pool.SharedCounters, func(a, b resourcev1.CounterSet) int { return cmp.Compare(a.Name, b.Name) })
	return pool
}
