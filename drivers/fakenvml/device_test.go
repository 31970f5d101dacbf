package fakenvml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestBoards holds each tier against what real boards report, written down once
// more: captures of nvidia-smi -q -x and its published output.
func TestBoards(t *testing.T) {
	for tier, want := range map[string]string{
		"h100":        "NVIDIA H100 80GB HBM3 | brand 14 arch 9 cc 9.0 | 580.105.08 CUDA 13000 NVML 13.580.105.08 | 85520809984 bytes, 503316480 reserved, BAR1 137438953472 | PCI 0x233010de gen 5 | 700 W | 18 links | MIG off, 0 devices",
		"a100-80":     "NVIDIA A100-SXM4-80GB | brand 14 arch 7 cc 8.0 | 580.126.20 CUDA 13000 NVML 13.580.126.20 | 85899345920 bytes, 633339904 reserved, BAR1 137438953472 | PCI 0x20b210de gen 4 | 400 W | 12 links | MIG off, 0 devices",
		"a100-40":     "NVIDIA A100-SXM4-40GB | brand 14 arch 7 cc 8.0 | 570.148.08 CUDA 12080 NVML 12.570.148.08 | 42949672960 bytes, 543162368 reserved, BAR1 68719476736 | PCI 0x20b010de gen 4 | 400 W | 12 links | MIG off, 0 devices",
		"l40s":        "NVIDIA L40S | brand 14 arch 8 cc 8.9 | 595.91.07 CUDA 13020 NVML 13.595.91.07 | 48305799168 bytes, 638582784 reserved, BAR1 68719476736 | PCI 0x26b910de gen 4 | 350 W | no links | no MIG",
		"l4":          "NVIDIA L4 | brand 14 arch 8 cc 8.9 | 580.126.20 CUDA 13000 NVML 13.580.126.20 | 24152899584 bytes, 480247808 reserved, BAR1 34359738368 | PCI 0x27b810de gen 4 | 72 W | no links | no MIG",
		"a10":         "NVIDIA A10 | brand 14 arch 7 cc 8.6 | 580.126.20 CUDA 13000 NVML 13.580.126.20 | 24146608128 bytes, 329252864 reserved, BAR1 34359738368 | PCI 0x223610de gen 4 | 150 W | no links | no MIG",
		"t4":          "Tesla T4 | brand 14 arch 6 cc 7.5 | 595.91.07 CUDA 13020 NVML 13.595.91.07 | 16106127360 bytes, 469762048 reserved, BAR1 268435456 | PCI 0x1eb810de gen 3 | 70 W | no links | no MIG",
		"h100-mig":    "NVIDIA H100 80GB HBM3 | brand 14 arch 9 cc 9.0 | 580.105.08 CUDA 13000 NVML 13.580.105.08 | 85520809984 bytes, 503316480 reserved, BAR1 137438953472 | PCI 0x233010de gen 5 | 700 W | 18 links | MIG on, 7 devices",
		"a100-80-mig": "NVIDIA A100-SXM4-80GB | brand 14 arch 7 cc 8.0 | 580.126.20 CUDA 13000 NVML 13.580.126.20 | 85899345920 bytes, 633339904 reserved, BAR1 137438953472 | PCI 0x20b210de gen 4 | 400 W | 12 links | MIG on, 7 devices",
		"a100-40-mig": "NVIDIA A100-SXM4-40GB | brand 14 arch 7 cc 8.0 | 570.148.08 CUDA 12080 NVML 12.570.148.08 | 42949672960 bytes, 543162368 reserved, BAR1 68719476736 | PCI 0x20b010de gen 4 | 400 W | 12 links | MIG on, 7 devices",
	} {
		t.Run(tier, func(t *testing.T) {
			m := newMachine(t, tier, 1)
			equal(t, "count", value[int](m)(m.DeviceGetCount()), 1)
			equal(t, "board", m.describe(m.gpu(0)), want)
		})
	}
	equal(t, "tiers", Tiers(), "[a10 a100-40 a100-40-mig a100-80 a100-80-mig h100 h100-mig l4 l40s t4]")
}

func (m *machine) describe(d nvml.Device) string {
	major, minor, ret := d.GetCudaComputeCapability()
	m.ok(ret)
	memory, pci := value[nvml.Memory_v2](m)(d.GetMemoryInfo_v2()), value[nvml.PciInfo](m)(d.GetPciInfo())
	cuda := value[int](m)(m.SystemGetCudaDriverVersion())
	links := "no links"
	if field := m.field(d, nvml.FI_DEV_NVLINK_LINK_COUNT); field != "Not Supported" {
		links = field + " links"
	}
	mig := "no MIG"
	if mode, _, ret := d.GetMigMode(); ret == nvml.SUCCESS {
		mig = fmt.Sprintf("MIG %s, %d devices", map[int]string{0: "off", 1: "on"}[mode], value[int](m)(d.GetMaxMigDeviceCount()))
	} else {
		m.is(ret, nvml.ERROR_NOT_SUPPORTED)
	}
	return fmt.Sprintf("%s | brand %d arch %d cc %d.%d | %s CUDA %d NVML %s | %d bytes, %d reserved, BAR1 %d | PCI %#x gen %d | %d W | %s | %s",
		value[string](m)(d.GetName()), value[nvml.BrandType](m)(d.GetBrand()), value[nvml.DeviceArchitecture](m)(d.GetArchitecture()),
		major, minor, value[string](m)(m.SystemGetDriverVersion()), cuda, value[string](m)(m.SystemGetNVMLVersion()),
		memory.Total, memory.Reserved, value[nvml.BAR1Memory](m)(d.GetBAR1MemoryInfo()).Bar1Total, pci.PciDeviceId,
		value[int](m)(d.GetMaxPcieLinkGeneration()), value[uint32](m)(d.GetPowerManagementLimit())/1000, links, mig)
}

// TestIdentity: GPUs differ in what tells them apart, and are found by it.
func TestIdentity(t *testing.T) {
	m := newMachine(t, "h100", MaxGPUs)
	places := Machine{Name: "node-1", GPUs: MaxGPUs}.Places()
	seen := map[string]bool{}
	for i := range MaxGPUs {
		d := m.gpu(i)
		uuid, serial := value[string](m)(d.GetUUID()), value[string](m)(d.GetSerial())
		pci := value[nvml.PciInfo](m)(d.GetPciInfo())
		bus := words(pci.BusId[:])
		for _, name := range []string{uuid, serial, bus, fmt.Sprint("minor ", value[int](m)(d.GetMinorNumber()))} {
			if seen[name] {
				t.Errorf("two GPUs have %s", name)
			}
			seen[name] = true
		}
		if uuid != places[i].UUID || !strings.HasPrefix(uuid, "GPU-") || len(uuid) != 40 {
			t.Errorf("GPU %d has UUID %s, installed was %s", i, uuid, places[i].UUID)
		}
		if bus != strings.ToUpper("0000"+places[i].BusID()) || words(pci.BusIdLegacy[:]) != strings.ToUpper(places[i].BusID()) {
			t.Errorf("GPU %d is at %s, installed at %s", i, bus, places[i].BusID())
		}
		for how, found := range map[string]nvml.Device{
			"UUID":           value[nvml.Device](m)(m.DeviceGetHandleByUUID(uuid)),
			"serial":         value[nvml.Device](m)(m.DeviceGetHandleBySerial(serial)),
			"PCI address":    value[nvml.Device](m)(m.DeviceGetHandleByPciBusId(bus)),
			"address, short": value[nvml.Device](m)(m.DeviceGetHandleByPciBusId(strings.ToLower(places[i].BusID()))),
		} {
			equal(t, "index by "+how, value[int](m)(found.GetIndex()), i)
		}
	}
	for _, test := range []struct {
		what string
		ret  nvml.Return
		want nvml.Return
	}{
		{"index", second(m.DeviceGetHandleByIndex(MaxGPUs)), nvml.ERROR_INVALID_ARGUMENT},
		{"other UUID", second(m.DeviceGetHandleByUUID("GPU-" + strings.Repeat("0", 36))), nvml.ERROR_NOT_FOUND},
		{"no UUID", second(m.DeviceGetHandleByUUID("x")), nvml.ERROR_INVALID_ARGUMENT},
		{"no instance", second(m.DeviceGetHandleByUUID("MIG-" + strings.Repeat("0", 36))), nvml.ERROR_NOT_FOUND},
		{"address", second(m.DeviceGetHandleByPciBusId("0000:01:00.0")), nvml.ERROR_NOT_FOUND},
		{"no address", second(m.DeviceGetHandleByPciBusId("x")), nvml.ERROR_INVALID_ARGUMENT},
		{"serial", second(m.DeviceGetHandleBySerial("1")), nvml.ERROR_NOT_FOUND},
	} {
		if test.ret != test.want {
			t.Errorf("%s: got %v, want %v", test.what, test.ret, test.want)
		}
	}
}

func second[T any](_ T, ret nvml.Return) nvml.Return { return ret }

// TestTopology: GPUs behind one switch, on one CPU, and across.
func TestTopology(t *testing.T) {
	m := newMachine(t, "h100", 8)
	for other, want := range map[int]nvml.GpuTopologyLevel{
		0: nvml.TOPOLOGY_INTERNAL, 1: nvml.TOPOLOGY_SINGLE, 2: nvml.TOPOLOGY_NODE, 7: nvml.TOPOLOGY_SYSTEM,
	} {
		got := value[nvml.GpuTopologyLevel](m)(m.gpu(0).GetTopologyCommonAncestor(m.gpu(other)))
		equal(t, fmt.Sprint("GPU 0 and ", other), got, want)
	}
	equal(t, "near GPU 0", len(value[[]nvml.Device](m)(m.gpu(0).GetTopologyNearestGpus(nvml.TOPOLOGY_NODE))), 2)
	equal(t, "over NVLink", value[nvml.GpuP2PStatus](m)(m.gpu(0).GetP2PStatus(m.gpu(7), nvml.P2P_CAPS_INDEX_NVLINK)), nvml.P2P_STATUS_OK)
	equal(t, "CPUs of GPU 7", value[[]uint](m)(m.gpu(7).GetCpuAffinity(64))[0], uint64(0xFFFFFFFF00000000))
	equal(t, "memory of GPU 7", value[[]uint](m)(m.gpu(7).GetMemoryAffinity(64, nvml.AFFINITY_SCOPE_NODE))[0], 0b10)
}

// field is a field's value in words, or its error.
func (m *machine) field(d nvml.Device, id uint32, scope ...uint32) string {
	m.t.Helper()
	fields := []nvml.FieldValue{{FieldId: id}}
	if len(scope) > 0 {
		fields[0].ScopeId = scope[0]
	}
	m.ok(d.GetFieldValues(fields))
	if ret := nvml.Return(fields[0].NvmlReturn); ret != nvml.SUCCESS {
		return ret.Error()
	}
	var number uint64
	size := 8
	if fields[0].ValueType == uint32(nvml.VALUE_TYPE_UNSIGNED_INT) {
		size = 4
	}
	for i := range size {
		number |= uint64(fields[0].Value[i]) << (8 * i)
	}
	return fmt.Sprint(number)
}
