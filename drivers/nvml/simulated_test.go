package nvml

// This file runs the inventory on a library that is opened as NVIDIA's own is.

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/drivers/fakenvml/fakenvmltest"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/nvml/edits"
)

// library is built once: a process opens only one.
var library string

// TestMain is also another driver's, for the tests that kill it.
func TestMain(m *testing.M) {
	if order := os.Getenv(orderVariable); order != "" {
		os.Exit(carryOut(order))
	}
	os.Exit(fakenvmltest.Main(m, &library))
}

// simulated is an inventory of a machine with boards of a tier.
type simulated struct {
	*rig
	fakenvml.Control
	gpus  []fakenvml.GPU
	nodes bool // whether there are device nodes
}

func simulate(t *testing.T, tier string, gpus int, change func(*Config)) *simulated {
	t.Helper()
	board, err := fakenvml.Tier(tier)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	machine := fakenvml.Machine{Name: "node-1", GPUs: gpus}
	nodes, err := fakenvml.InstallRoot(root, library, board, machine)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(root, fakenvml.LibraryFolder())
	t.Setenv(fakenvml.DirVariable, folder)
	calls := gonvml.New(gonvml.WithLibraryPath(library))
	s := &simulated{Control: fakenvml.Control{Dir: folder}, gpus: machine.Places(), nodes: nodes}
	s.rig = run(t, newNode(0), "", func(c *Config) {
		c.NVML, c.Editor = calls, edits.New(t.Context(), calls, edits.Roots{Driver: root, Proc: root, Hook: "/usr/bin/nvidia-cdi-hook"})
		c.Sysfs = []deviceattribute.MachineModifier{deviceattribute.WithFSFromRoot(filepath.Join(root, "sys"))}
		if change != nil {
			change(c)
		}
	})
	return s
}

func (s *simulated) name(gpu int) string {
	return address{Domain: uint32(s.gpus[gpu].Domain), Bus: uint32(s.gpus[gpu].Bus), Device: uint32(s.gpus[gpu].Device)}.name()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestSimulatedTiers: the driver of real GPUs, which are simulated, publishes
// what the driver of fake ones does for the same tier.
func TestSimulatedTiers(t *testing.T) {
	for _, name := range []string{"h100", "a100-80", "a100-40", "l40s", "l4", "a10", "t4", "h100-mig", "a100-80-mig", "a100-40-mig"} {
		t.Run(name, func(t *testing.T) {
			s := simulate(t, name, 1, nil)
			got, want := s.pool(t), tier(t, name)
			if len(got.Devices) != len(want.Devices) || len(got.SharedCounters) != len(want.SharedCounters) {
				t.Fatalf("got %d devices, %d counter sets; the fake has %d and %d", len(got.Devices), len(got.SharedCounters), len(want.Devices), len(want.SharedCounters))
			}
			for _, fake := range want.Devices {
				device := s.device(t, strings.Replace(fake.Name, "gpu-0", s.name(0), 1))
				if g, w := kinds(device), kinds(fake); !slices.Equal(g, w) {
					t.Errorf("%s:\ngot  %v\nwant %v", fake.Name, g, w)
				}
				for key, value := range fake.Attributes {
					switch key {
					case "uuid", "parentUUID", "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode":
						continue // of the machine
					}
					if g, w := say(device.Attributes[key]), say(value); g != w {
						t.Errorf("%s: %s is %q, the fake's is %q", fake.Name, key, g, w)
					}
				}
				for key, value := range fake.Capacity {
					if g, w := say(device.Capacity[key]), say(value); g != w {
						t.Errorf("%s: %s is %s, the fake's is %s", fake.Name, key, g, w)
					}
				}
			}
		})
	}
}

// TestSimulatedHealth has things happen to boards.
func TestSimulatedHealth(t *testing.T) {
	s := simulate(t, "h100", 3, func(c *Config) { c.Settle = time.Hour })
	if got := s.names(t); len(got) != 3 {
		t.Fatalf("got %v", got)
	}
	first := s.name(0)
	source := func(source string) func() inventory.Trouble {
		return func() inventory.Trouble { return s.troubles(t, first)[source] }
	}
	for _, test := range []struct {
		what   string
		do     func() error
		seen   func() inventory.Trouble
		reason string
		undo   func() error
	}{
		{"an XID", func() error { return s.XID(0, 95) }, source("xid"), "Xid95", func() error {
			must(t, s.RecoveryAction(0, 1))
			eventually(t, "what is asked for is seen", func() bool { return source("recovery-action")().Reason == "GPUReset" })
			return s.Reset(0)
		}},
		{"a recovery action", func() error { return s.RecoveryAction(0, 2) }, source("recovery-action"), "NodeReboot", func() error { return s.RecoveryAction(0, 0) }},
		{"a row remap", func() error { return s.Control.Remap(0, fakenvml.Remap{Pending: true}) }, source("row-remap"), "RowRemapPending", func() error { return s.Reset(0) }},
		{"a failed one", func() error { return s.Control.Remap(0, fakenvml.Remap{Failure: true}) }, source("row-remap"), "RowRemapFailure", func() error { return s.Control.Remap(0, fakenvml.Remap{}) }},
		{"a link", func() error { return s.NVLink(0, 5, false) }, source("nvlink"), "NVLinkDown", func() error { return s.NVLink(0, 5, true) }},
		{"a lost GPU", func() error { return s.Lost(0) }, source("bus"), "GPULost", func() error { return s.Restored(0) }},
		{"one that is gone", func() error { return s.Vanish(0) }, source("bus"), "GPULost", func() error { return s.Reappear(0) }},
		{"an error", func() error { return s.Fail("nvmlDeviceGetFieldValues", 0, uint64(gonvml.ERROR_UNKNOWN)) }, source("nvml"), "NVMLError", s.ClearFaults},
		{"no driver", s.UnloadDriver, source("nvml"), "NVMLUnavailable", s.LoadDriver},
	} {
		t.Log(test.what)
		must(t, test.do())
		eventually(t, test.what+" is seen", func() bool { return test.seen().Reason == test.reason })
		if got := s.names(t); len(got) != 3 {
			t.Errorf("%s: there are %v", test.what, got)
		}
		if got := s.troubles(t, s.name(1)); len(got) > 0 && test.reason != "NVMLUnavailable" {
			t.Errorf("%s: the next GPU has %v", test.what, got)
		}
		must(t, test.undo())
		eventually(t, test.what+" is over", func() bool { return len(s.troubles(t, first)) == 0 })
	}
	// An application's error is none of the device, nor are those that it makes.
	// NVML was opened anew, and events are heard some time after that.
	eventually(t, "events are heard", func() bool { must(t, s.XID(2, 119)); return s.troubles(t, s.name(2))["xid"].Reason == "Xid119" })
	must(t, errors.Join(s.XID(0, 13), s.XID(0, 94), s.XID(0, 31), s.ECC(0, fakenvml.Errors{SingleBit: 7}), s.XID(1, 48)))
	eventually(t, "the last one is heard", func() bool { return s.troubles(t, s.name(1))["xid"].Reason == "Xid48" })
	if got := s.troubles(t, first); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// TestSimulatedHang: one GPU hangs in C, where nothing can stop it.
func TestSimulatedHang(t *testing.T) {
	s := simulate(t, "h100", 2, func(c *Config) { c.CallLimit, c.EditLimit = patience, patience })
	s.pool(t)
	must(t, s.Hang("nvmlDeviceGetFieldValues", 0, time.Minute))
	eventually(t, "it is told", func() bool { return s.troubles(t, s.name(0))["nvml"].Reason == "NVMLTimeout" })
	must(t, s.XID(1, 119))
	eventually(t, "the other one is heard", func() bool { return s.troubles(t, s.name(1))["xid"].Reason == "Xid119" })
	must(t, s.ClearFaults())
	eventually(t, "it is over", func() bool { return len(s.troubles(t, s.name(0))) == 0 })
}

// TestSimulatedPartition is made, used and destroyed; what a container gets for
// it is NVIDIA's.
func TestSimulatedPartition(t *testing.T) {
	s := simulate(t, "h100-mig", 2, func(c *Config) { c.Settle = time.Hour })
	s.pool(t)
	device := s.name(1) + "-mig-3g40gb-9-4"
	made, err := s.Edits(t.Context(), device)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for _, n := range made.DeviceNodes {
		nodes = append(nodes, n.Path)
	}
	if s.nodes && (!slices.Contains(nodes, "/dev/nvidia1") || !slices.ContainsFunc(nodes, func(n string) bool { return strings.HasPrefix(n, "/dev/nvidia-caps/nvidia-cap") })) {
		t.Errorf("a container gets %v", nodes)
	}
	if slices.Contains(nodes, "/dev/nvidia0") {
		t.Error("a container gets the other GPU")
	}
	if len(made.Mounts) == 0 || len(made.Hooks) == 0 {
		t.Errorf("a container gets %d mounts and %d hooks", len(made.Mounts), len(made.Hooks))
	}
	if _, err := s.Edits(t.Context(), s.name(1)+"-mig-1g10gb-19-5"); err == nil {
		t.Error("two partitions are on the same memory")
	}
	if _, err := s.Edits(t.Context(), s.name(1)+"-mig-1g10gb-me-20-0"); err != nil {
		t.Error(err)
	}
	id := -1
	eventually(t, "the instance is read", func() bool {
		s.Inventory.mu.Lock()
		defer s.Inventory.mu.Unlock()
		for _, i := range s.Inventory.gpus[s.name(1)].instances {
			if i.placement.Start == 4 {
				id = int(i.id)
			}
		}
		return id >= 0
	})
	compute := 0
	must(t, s.Event(fakenvml.Event{GPU: 1, Type: fakenvml.EventXID, Data: 109, GPUInstance: &id, ComputeInstance: &compute}))
	eventually(t, "its XID is heard", func() bool { return s.troubles(t, device)["xid"].Reason == "Xid109" })
	if got := s.troubles(t, s.name(1)+"-mig-1g10gb-me-20-0"); len(got) != 0 {
		t.Errorf("the other partition has %v", got)
	}
	for _, name := range []string{device, s.name(1) + "-mig-1g10gb-me-20-0"} {
		if err := s.Release(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Edits(t.Context(), s.name(1)); err != nil {
		t.Errorf("the whole board: %v", err)
	}
	if err := s.Release(t.Context(), s.name(1)); err != nil {
		t.Error(err)
	}
}

// TestSimulatedAttributes: where the boards are is read from the machine.
func TestSimulatedAttributes(t *testing.T) {
	s := simulate(t, "l40s", 4, nil)
	numa := map[string]int{}
	for _, device := range s.pool(t).Devices {
		numa[say(device.Attributes["resource.kubernetes.io/numaNode"])]++
		if got := say(device.Attributes[resourcev1.QualifiedName("resource.kubernetes.io/pcieRoot")]); !strings.HasPrefix(got, "pci0000:") {
			t.Errorf("%s is below %q", device.Name, got)
		}
	}
	if numa["0"] != 2 || numa["1"] != 2 {
		t.Errorf("NUMA nodes are %v", numa)
	}
}
