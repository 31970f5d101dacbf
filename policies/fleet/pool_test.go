package fleet

import (
	"fmt"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
)

// TestParts holds the sizes of slices at their bounds.
func TestParts(t *testing.T) {
	devices := func(n int, change ...func(*resourcev1.Device)) []resourcev1.Device {
		made := make([]resourcev1.Device, n)
		for i := range made {
			made[i].Name = fmt.Sprintf("d-%03d", i)
		}
		for _, c := range change {
			c(&made[n-1])
		}
		return made
	}
	tainted := func(d *resourcev1.Device) { d.Taints = []resourcev1.DeviceTaint{{Key: "x"}} }
	consumes := func(d *resourcev1.Device) { d.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{}} }
	for name, tc := range map[string]struct {
		pool Pool
		want string
	}{
		"nothing":           {Pool{}, "[0+0]"},
		"one slice":         {Pool{Devices: devices(128)}, "[0+128]"},
		"two slices":        {Pool{Devices: devices(129)}, "[0+128 0+1]"},
		"the last tainted":  {Pool{Devices: devices(65, tainted)}, "[0+64 0+1]"},
		"the last consumes": {Pool{SharedCounters: make([]resourcev1.CounterSet, 8), Devices: devices(64, consumes)}, "[8+0 0+64]"},
		"many counters":     {Pool{SharedCounters: make([]resourcev1.CounterSet, 9), Devices: devices(65, consumes)}, "[8+0 1+0 0+64 0+1]"},
	} {
		var sizes []string
		for _, part := range tc.pool.Parts() {
			sizes = append(sizes, fmt.Sprintf("%d+%d", len(part.SharedCounters), len(part.Devices)))
		}
		if got := fmt.Sprint(sizes); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}

// A node of any name can be given the hardware of a group; its devices are its own.
func TestPoolOfAnyNode(t *testing.T) {
	f := New(Group{Name: "g", Nodes: 1, Board: "T4", GPUs: 2})
	uuids := map[string]bool{}
	for _, node := range []string{"worker", "worker2", "g-0000"} {
		pool, err := f.Pool("g", node)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range pool.Devices {
			uuids[*d.Attributes[AttributeUUID].StringValue] = true
		}
	}
	if len(uuids) != 6 {
		t.Errorf("three nodes of two GPUs have %d UUIDs", len(uuids))
	}
	if _, err := f.Pool("h", "worker"); err == nil || err.Error() != `the fleet has no group "h"` {
		t.Errorf("another group: %v", err)
	}
	if _, err := f.PoolOf("worker"); err == nil || err.Error() != `the fleet has no node "worker"` {
		t.Errorf("another node: %v", err)
	}
}

func TestGPUOf(t *testing.T) {
	for device, want := range map[string]string{"gpu-0": "gpu-0", "gpu-12": "gpu-12", "gpu-12-mig-1g10gb-me-20-6": "gpu-12"} {
		if got := GPUOf(device); got != want {
			t.Errorf("%s: got %s, want %s", device, got, want)
		}
	}
}
