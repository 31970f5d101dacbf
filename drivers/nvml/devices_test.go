package nvml

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/tiers"
)

// sysfsOf is a machine whose GPU 0000:18:00.0 is below a PCIe root of NUMA node 1.
func sysfsOf() deviceattribute.MachineModifier {
	return deviceattribute.WithFS(fstest.MapFS{
		"bus/pci/devices/0000:18:00.0":                           {Data: []byte("../../../devices/pci0000:10/0000:10:01.0/0000:18:00.0"), Mode: 0o777 | fs.ModeSymlink},
		"devices/pci0000:10/0000:10:01.0/0000:18:00.0/numa_node": {Data: []byte("1\n")},
	})
}

// kinds are the names of a device's attributes and capacity with their types.
func kinds(device resourcev1.Device) []string {
	var all []string
	for name, value := range device.Attributes {
		kind := "?"
		switch {
		case value.StringValue != nil:
			kind = "text"
		case value.VersionValue != nil:
			kind = "version"
		case value.IntValue != nil:
			kind = "number"
		case value.BoolValue != nil:
			kind = "bool"
		}
		all = append(all, fmt.Sprintf("%s %s", name, kind))
	}
	for name := range device.Capacity {
		all = append(all, fmt.Sprintf("%s quantity", name))
	}
	for _, consumed := range device.ConsumesCounters {
		for name := range consumed.Counters {
			all = append(all, fmt.Sprintf("%s counter", name))
		}
	}
	slices.Sort(all)
	return all
}

func say(value any) string {
	switch v := value.(type) {
	case resourcev1.DeviceAttribute:
		switch {
		case v.StringValue != nil:
			return *v.StringValue
		case v.VersionValue != nil:
			return *v.VersionValue
		case v.IntValue != nil:
			return fmt.Sprint(*v.IntValue)
		}
	case resourcev1.DeviceCapacity:
		return fmt.Sprint(v.Value.Value())
	}
	return "?"
}

// TestGPUIsPublishedAsTheFakeDoes compares with the fake driver's tier of the
// same board: policies and tests must not see which driver it is.
func TestGPUIsPublishedAsTheFakeDoes(t *testing.T) {
	r := run(t, newNode(2), "", func(c *Config) { c.Sysfs = []deviceattribute.MachineModifier{sysfsOf()} })
	if got := r.names(t); !slices.Equal(got, []string{"gpu-18-00", "gpu-28-00"}) {
		t.Fatalf("got devices %v", got)
	}
	got := r.device(t, "gpu-18-00")
	fake := tier(t, "h100")
	if g, w := kinds(got), kinds(fake.Devices[0]); !slices.Equal(g, w) {
		t.Errorf("got  %v\nwant %v", g, w)
	}
	for name, want := range map[resourcev1.QualifiedName]string{
		"type": "gpu", "uuid": "GPU-00000000-0000-0000-0000-000000000000", "model": "H100", "productName": "NVIDIA H100 80GB HBM3",
		"brand": "Nvidia", "architecture": "Hopper", "cudaComputeCapability": "9.0.0", "driverVersion": "580.105.8", "cudaDriverVersion": "13.0.0",
		"resource.kubernetes.io/pciBusID": "0000:18:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:10", "resource.kubernetes.io/numaNode": "1",
	} {
		if g := say(got.Attributes[name]); g != want {
			t.Errorf("%s is %q, want %q", name, g, want)
		}
		switch name { // what the board itself says is the same
		case "type", "model", "productName", "brand", "architecture", "cudaComputeCapability", "driverVersion", "cudaDriverVersion":
			if g := say(fake.Devices[0].Attributes[name]); g != want {
				t.Errorf("the fake's %s is %q, want %q", name, g, want)
			}
		}
	}
	if g := say(got.Capacity["memory"]); g != "85520809984" {
		t.Errorf("memory is %s", g)
	}
	// Where sysfs says nothing the attributes are not there.
	other := r.device(t, "gpu-28-00")
	for _, name := range []resourcev1.QualifiedName{"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"} {
		if _, is := other.Attributes[name]; is {
			t.Errorf("%s is made up", name)
		}
	}
}

func tier(t *testing.T, name string) inventory.Pool {
	t.Helper()
	pool, err := tiers.Default().Pool("node", tiers.Choice{Tier: name, GPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// TestPartitionsArePublishedAsTheFakeDoes: the same profiles, read from NVML
// here and from a table there, are the same devices and counters.
func TestPartitionsArePublishedAsTheFakeDoes(t *testing.T) {
	n := newNode(1)
	n.gpus[0].split()
	r := run(t, n, "", func(c *Config) { c.Sysfs = []deviceattribute.MachineModifier{sysfsOf()} })
	got, fake := r.pool(t), tier(t, "h100-mig")
	if len(got.Devices) != len(fake.Devices) || len(got.Devices) != 26 {
		t.Fatalf("got %d devices, the fake has %d", len(got.Devices), len(fake.Devices))
	}
	for i := range fake.Devices {
		want := fake.Devices[i]
		name := strings.Replace(want.Name, "gpu-0", "gpu-18-00", 1)
		device := r.device(t, name)
		if g, w := kinds(device), kinds(want); !slices.Equal(g, w) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, g, w)
		}
		for key, value := range want.Capacity {
			if g := say(device.Capacity[key]); g != say(value) {
				t.Errorf("%s: %s is %s, want %s", name, key, g, say(value))
			}
		}
		for key, value := range want.ConsumesCounters[0].Counters {
			if g := device.ConsumesCounters[0].Counters[key]; g.Value.Cmp(value.Value) != 0 {
				t.Errorf("%s consumes %v of %s, want %v", name, g.Value.Value(), key, value.Value.Value())
			}
		}
		if g := device.ConsumesCounters[0].CounterSet; g != "gpu-18-00-counter-set" {
			t.Errorf("%s consumes of %s", name, g)
		}
	}
	partition := r.device(t, "gpu-18-00-mig-1g10gb-me-20-3")
	for name, want := range map[resourcev1.QualifiedName]string{"type": "mig", "profile": "1g.10gb+me", "parentUUID": n.gpus[0].uuid, "model": "H100"} {
		if g := say(partition.Attributes[name]); g != want {
			t.Errorf("%s is %q, want %q", name, g, want)
		}
	}
	if _, is := partition.Attributes["uuid"]; is {
		t.Error("a partition that does not exist has a UUID")
	}
	if len(got.SharedCounters) != 1 || len(got.SharedCounters[0].Counters) != len(fake.SharedCounters[0].Counters) {
		t.Fatalf("got %d counter sets", len(got.SharedCounters))
	}
	for key, value := range fake.SharedCounters[0].Counters {
		if g := got.SharedCounters[0].Counters[key]; g.Value.Cmp(value.Value) != 0 {
			t.Errorf("%s is %v, want %v", key, g.Value.Value(), value.Value.Value())
		}
	}
}

// TestMocks enumerates the machines that go-nvml describes. Their PCI
// addresses are all the same and they know neither events nor fields: that is
// added. What they get wrong of real boards is written down here.
func TestMocks(t *testing.T) {
	for name, test := range map[string]struct {
		server *server.Server
		model  string
		memory string
		arch   string
		mig    []string // profiles of one board
	}{
		// Real: "NVIDIA A100-SXM4-40GB".
		"dgxa100": {dgxa100.New(), "A100", "42949672960", "Ampere", []string{"1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}},
		// Real: 85520809984 bytes.
		"dgxh100": {dgxh100.New(), "H100", "85899345920", "Hopper", []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}},
		"dgxh200": {dgxh200.New(), "H200", "151397597184", "Hopper", nil},
		// Real: "NVIDIA B200", 183359 MiB.
		"dgxb200": {dgxb200.New(), "B200", "193273528320", "Blackwell", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for split, kind := range []string{"gpu", "mig"} {
				n := newNode(len(test.server.Devices))
				for i, d := range test.server.Devices {
					adapt(n.gpus[i], d.(*server.Device), split == 1)
				}
				r := run(t, n, "", nil)
				pool := r.pool(t)
				profiles := map[string]bool{}
				for _, device := range pool.Devices {
					if got := say(device.Attributes["model"]); got != test.model {
						t.Fatalf("%s is a %q", device.Name, got)
					}
					if got := say(device.Attributes["architecture"]); got != test.arch {
						t.Errorf("%s is %q", device.Name, got)
					}
					if got := say(device.Attributes["type"]); got == "mig" {
						profiles[say(device.Attributes["profile"])] = true
					} else if kind == "gpu" && test.memory != "" && say(device.Capacity["memory"]) != test.memory {
						t.Errorf("%s has %s bytes", device.Name, say(device.Capacity["memory"]))
					}
				}
				if kind == "gpu" && (len(pool.Devices) != len(n.gpus) || len(pool.SharedCounters) != 0) {
					t.Errorf("got %d devices and %d counter sets of %d boards", len(pool.Devices), len(pool.SharedCounters), len(n.gpus))
				}
				if kind == "mig" {
					if len(pool.SharedCounters) != len(n.gpus) || len(profiles) < 6 {
						t.Errorf("got %d counter sets, profiles %v", len(pool.SharedCounters), profiles)
					}
					for _, want := range test.mig {
						if !profiles[want] {
							t.Errorf("there is no %s", want)
						}
					}
				}
				checkNames(t, pool)
			}
		})
	}
}

// adapt makes a GPU say what one of go-nvml's says.
func adapt(g *testGPU, from *server.Device, split bool) {
	g.product, g.memory, g.arch, g.mig, g.uuid = from.Config.Name, from.MemoryInfo.Total, from.Config.Architecture, split, from.UUID
	g.GetBrandFunc, g.GetCudaComputeCapabilityFunc = from.GetBrandFunc, from.GetCudaComputeCapabilityFunc
	g.GetGpuInstanceProfileInfoFunc = from.GetGpuInstanceProfileInfoFunc
	g.GetGpuInstancePossiblePlacementsFunc = from.GetGpuInstancePossiblePlacementsFunc
}

// checkNames: names are DNS labels, each once, and in order.
func checkNames(t *testing.T, pool inventory.Pool) {
	t.Helper()
	for i, device := range pool.Devices {
		if i > 0 && pool.Devices[i-1].Name >= device.Name {
			t.Errorf("%s comes after %s", device.Name, pool.Devices[i-1].Name)
		}
		if len(device.Name) > 63 || strings.Trim(device.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.HasSuffix(device.Name, "-") {
			t.Errorf("%q is no DNS label", device.Name)
		}
	}
}

// TestGPUsAtOneAddress: go-nvml's mocks say so. One of them is published.
func TestGPUsAtOneAddress(t *testing.T) {
	n := newNode(2)
	n.gpus[1].pci = n.gpus[0].pci
	r := run(t, n, "", nil)
	if got := r.names(t); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"0000:3b:00.0": "gpu-3b-00", "00000000:3B:00.0": "gpu-3b-00", "3b:00": "gpu-3b-00", "3B:1f.0": "gpu-3b-1f",
		"0001:3b:00.0": "gpu-0001-3b-00", "00010000:3b:00.0": "gpu-10000-3b-00",
	} {
		at, err := parseAddress(text)
		if err != nil || at.name() != want {
			t.Errorf("%s is %s (%v), want %s", text, at.name(), err, want)
		}
	}
	for _, text := range []string{"", "3b", "3b:00.1", "0000:3b:00:00.0", "xx:00", "100:00", "3b:20"} {
		if at, err := parseAddress(text); err == nil {
			t.Errorf("%q is taken for %v", text, at)
		}
	}
	if got := addressOf(&nvml.PciInfo{Domain: 1, Bus: 0x3b, Device: 2}).String(); got != "0001:3b:02.0" {
		t.Errorf("got %s", got)
	}
}

func TestModels(t *testing.T) {
	for product, want := range map[string]string{
		"NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 PCIe": "H100", "NVIDIA H100 NVL": "H100", "NVIDIA A100-SXM4-40GB": "A100",
		"Tesla T4": "T4", "Tesla V100-SXM2-16GB": "V100", "NVIDIA L40S": "L40S", "NVIDIA A10G": "A10G", "NVIDIA A30": "A30",
		"NVIDIA B200": "B200", "NVIDIA GB200": "GB200", "NVIDIA GH200 480GB": "GH200", "NVIDIA H200": "H200",
		"NVIDIA GeForce RTX 4090": "RTX4090", "NVIDIA RTX 6000 Ada Generation": "RTX6000Ada", "Quadro RTX 6000": "RTX6000",
		"NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTXPRO6000", "NVIDIA TITAN RTX": "NVIDIA TITAN RTX", "NVIDIA Z900-SXM9": "Z900",
		"Mock NVIDIA A100-SXM4-40GB": "A100",
	} {
		if got := modelOf(product); got != want {
			t.Errorf("%s is a %q, want %q", product, got, want)
		}
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]string{"580.105.08": "580.105.8", "9.0": "9.0.0", "535": "535.0.0", "": "", "1.2.3.4": "", "a.b": ""} {
		if got, _ := semver(version); got != want {
			t.Errorf("%q is %q, want %q", version, got, want)
		}
	}
}

// TestLongNamesAreCut: the API refuses longer ones, and with them the slice.
func TestLongNamesAreCut(t *testing.T) {
	n := newNode(1)
	n.gpus[0].product = "NVIDIA " + strings.Repeat("X", 100)
	r := run(t, n, "", nil)
	for name, value := range r.device(t, "gpu-18-00").Attributes {
		if value.StringValue != nil && len(*value.StringValue) > 64 {
			t.Errorf("%s has %d letters", name, len(*value.StringValue))
		}
	}
}

// TestWhatIsPublished by the configuration.
func TestWhatIsPublished(t *testing.T) {
	no := false
	for name, test := range map[string]struct {
		publish Publish
		devices int
		whole   bool
	}{
		"all":                {Publish{}, 26, true},
		"no whole":           {Publish{WholeMIG: &no}, 25, false},
		"no partitions":      {Publish{Partitions: &no}, 1, true},
		"one profile":        {Publish{Profiles: []string{"3g.40gb"}}, 3, true},
		"only this profile":  {Publish{Profiles: []string{"3g.40gb"}, WholeMIG: &no}, 2, false},
		"a profile it lacks": {Publish{Profiles: []string{"9g.1gb"}}, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(1)
			n.gpus[0].split()
			r := run(t, n, "", func(c *Config) { c.Policy.Publish = test.publish })
			names := r.names(t)
			if len(names) != test.devices || slices.Contains(names, "gpu-18-00") != test.whole {
				t.Errorf("got %v", names)
			}
		})
	}
}
