package fakenvml

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// profiles describes what a GPU can be split into, as nvidia-smi mig -lgip and
// -lgipp print it: name, ID, how many, MiB, SMs, CE, DEC, ENC, JPEG, OFA, places.
func (m *machine) profiles(d nvml.Device) []string {
	var all []string
	for index := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		p, ret := d.GetGpuInstanceProfileInfoV(index).V2()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		m.ok(ret)
		first := value[nvml.GpuInstanceProfileInfo](m)(d.GetGpuInstanceProfileInfo(index))
		third, ret := d.GetGpuInstanceProfileInfoV(index).V3()
		m.ok(ret)
		if first.Id != p.Id || third.Id != p.Id || first.MemorySizeMB != p.MemorySizeMB || third.Name != p.Name {
			m.t.Errorf("the versions differ: %+v, %+v, %+v", first, p, third)
		}
		var starts []string
		size := uint32(0)
		for _, place := range value[[]nvml.GpuInstancePlacement](m)(d.GetGpuInstancePossiblePlacements(&first)) {
			starts, size = append(starts, fmt.Sprint(place.Start)), place.Size
		}
		all = append(all, fmt.Sprintf("%s %d x%d %d %d %d %d %d %d %d {%s}:%d", words(p.Name[:]), p.Id, p.InstanceCount, p.MemorySizeMB,
			p.MultiprocessorCount, p.CopyEngineCount, p.DecoderCount, p.EncoderCount, p.JpegCount, p.OfaCount, strings.Join(starts, ","), size))
	}
	slices.Sort(all)
	return all
}

func TestProfiles(t *testing.T) {
	for tier, want := range map[string]string{
		"h100": `MIG 1g.10gb 19 x7 9984 16 1 1 0 1 0 {0,1,2,3,4,5,6}:1
MIG 1g.10gb+me 20 x1 9984 16 1 1 0 1 1 {0,1,2,3,4,5,6}:1
MIG 1g.20gb 15 x4 20096 26 1 1 0 1 0 {0,2,4,6}:2
MIG 2g.20gb 14 x3 20096 32 2 2 0 2 0 {0,2,4}:2
MIG 3g.40gb 9 x2 40448 60 3 3 0 3 0 {0,4}:4
MIG 4g.40gb 5 x1 40448 64 4 4 0 4 0 {0}:4
MIG 7g.80gb 0 x1 81152 132 8 7 0 7 1 {0}:8`,
		"a100-80": `MIG 1g.10gb 19 x7 9728 14 1 0 0 0 0 {0,1,2,3,4,5,6}:1
MIG 1g.10gb+me 20 x1 9728 14 1 1 0 1 1 {0,1,2,3,4,5,6}:1
MIG 1g.20gb 15 x4 19968 14 1 1 0 0 0 {0,2,4,6}:2
MIG 2g.20gb 14 x3 19968 28 2 1 0 0 0 {0,2,4}:2
MIG 3g.40gb 9 x2 40192 42 3 2 0 0 0 {0,4}:4
MIG 4g.40gb 5 x1 40192 56 4 2 0 0 0 {0}:4
MIG 7g.80gb 0 x1 80896 98 7 5 0 1 1 {0}:8`,
		"a100-40": `MIG 1g.10gb 15 x4 9856 14 1 1 0 0 0 {0,2,4,6}:2
MIG 1g.5gb 19 x7 4864 14 1 0 0 0 0 {0,1,2,3,4,5,6}:1
MIG 1g.5gb+me 20 x1 4864 14 1 1 0 1 1 {0,1,2,3,4,5,6}:1
MIG 2g.10gb 14 x3 9856 28 2 1 0 0 0 {0,2,4}:2
MIG 3g.20gb 9 x2 19968 42 3 2 0 0 0 {0,4}:4
MIG 4g.20gb 5 x1 19968 56 4 2 0 0 0 {0}:4
MIG 7g.40gb 0 x1 40192 98 7 5 0 1 1 {0}:8`,
		"l4": "",
	} {
		t.Run(tier, func(t *testing.T) {
			m := newMachine(t, tier, 1)
			equal(t, "profiles", strings.Join(m.profiles(m.gpu(0)), "\n"), want)
			_, ret := m.gpu(0).GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_COUNT)
			m.is(ret, nvml.ERROR_INVALID_ARGUMENT)
		})
	}
}

// TestNamesOfProfiles: NVIDIA's go-nvlib finds the names by arithmetic on memory,
// and comes to the ones that the board has.
func TestNamesOfProfiles(t *testing.T) {
	for _, tier := range []string{"h100-mig", "a100-80-mig", "a100-40-mig"} {
		t.Run(tier, func(t *testing.T) {
			m := newMachine(t, tier, 1)
			var want, got []string
			for _, line := range m.profiles(m.gpu(0)) {
				want = append(want, strings.Fields(line)[1])
			}
			profiles, err := device.New(m).GetMigProfiles()
			m.must(err)
			for _, p := range profiles {
				if info := p.GetInfo(); info.C == info.G && !slices.Contains(got, p.String()) {
					got = append(got, p.String())
				}
			}
			slices.Sort(got)
			equal(t, "names", got, want)
		})
	}
}

// split makes a GPU instance, in a place or wherever it fits.
func (m *machine) split(d nvml.Device, profile uint32, start int) (nvml.GpuInstance, nvml.Return) {
	m.t.Helper()
	for index := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(index)
		if ret != nvml.SUCCESS || info.Id != profile {
			continue
		}
		if start < 0 {
			return d.CreateGpuInstance(&info)
		}
		place := value[[]nvml.GpuInstancePlacement](m)(d.GetGpuInstancePossiblePlacements(&info))[0]
		place.Start = uint32(start)
		return d.CreateGpuInstanceWithPlacement(&info, &place)
	}
	m.t.Fatalf("there is no profile %d", profile)
	return nil, 0
}

// whole makes the compute instance that takes all of a GPU instance.
func (m *machine) whole(gi nvml.GpuInstance) nvml.ComputeInstance {
	m.t.Helper()
	var largest *nvml.ComputeInstanceProfileInfo
	for index := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(index, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.SUCCESS && (largest == nil || info.SliceCount > largest.SliceCount) {
			largest = &info
		}
	}
	return value[nvml.ComputeInstance](m)(gi.CreateComputeInstance(largest))
}

// TestPlacements: instances never overlap, and the engines limit them.
func TestPlacements(t *testing.T) {
	for name, test := range map[string]struct {
		tier  string
		steps string // profile@start
		want  string // of the last
	}{
		"overlap":           {"h100-mig", "9@0 19@3", "Insufficient Resources"},
		"side by side":      {"h100-mig", "9@0 19@4", "Success"},
		"all of it":         {"h100-mig", "0@0 19@6", "Insufficient Resources"},
		"no such place":     {"h100-mig", "14@1", "Invalid Argument"},
		"3g beside 4g":      {"a100-40-mig", "5@0 9@4", "Success"},
		"4g after 3g":       {"a100-40-mig", "9@0 5@0", "Insufficient Resources"},
		"4g where 3g is at": {"a100-40-mig", "9@4 5@0", "Success"},
		"two with media":    {"a100-80-mig", "20@0 20@1", "Insufficient Resources"},
		"seven small":       {"a100-80-mig", "19@0 19@1 19@2 19@3 19@4 19@5 19@6", "Success"},
		"mode off":          {"h100", "19@0", "Not Supported"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, test.tier, 1)
			var ret nvml.Return
			for i, step := range strings.Fields(test.steps) {
				if i > 0 {
					m.ok(ret)
				}
				var profile uint32
				var start int
				if _, err := fmt.Sscanf(step, "%d@%d", &profile, &start); err != nil {
					t.Fatal(err)
				}
				_, ret = m.split(m.gpu(0), profile, start)
			}
			equal(t, test.steps, ret.Error(), test.want)
		})
	}
}

// TestPlacesThatNobodyNames: as many as the profile says fit, and none is in
// the way of what could still be had.
func TestPlacesThatNobodyNames(t *testing.T) {
	m := newMachine(t, "h100-mig", 1)
	for profile, want := range map[uint32]string{19: "6 5 4 3 2 1 0", 15: "6 4 2 0", 14: "4 2 0", 9: "0 4", 5: "0", 0: "0", 20: "6"} {
		m.must(m.Reset(0))
		var starts []string
		ids := map[uint32]bool{}
		for {
			gi, ret := m.split(m.gpu(0), profile, -1)
			if ret != nvml.SUCCESS {
				m.is(ret, nvml.ERROR_INSUFFICIENT_RESOURCES)
				break
			}
			info := value[nvml.GpuInstanceInfo](m)(gi.GetInfo())
			starts = append(starts, fmt.Sprint(info.Placement.Start))
			if ids[info.Id] {
				t.Errorf("two instances are number %d", info.Id)
			}
			ids[info.Id] = true
		}
		equal(t, fmt.Sprint("profile ", profile), strings.Join(starts, " "), want)
	}
	m.must(m.Reset(0))
	info := value[nvml.GpuInstanceProfileInfo](m)(m.gpu(0).GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE))
	equal(t, "at first", value[int](m)(m.gpu(0).GetGpuInstanceRemainingCapacity(&info)), 7)
	m.ok(second(m.split(m.gpu(0), 9, 4)))
	equal(t, "beside 3g", value[int](m)(m.gpu(0).GetGpuInstanceRemainingCapacity(&info)), 4)
}

// TestLife goes through the life of a MIG device.
func TestLife(t *testing.T) {
	m := newMachine(t, "h100-mig", 2)
	parent := m.gpu(1)
	gi := value[nvml.GpuInstance](m)(m.split(parent, 15, 2))
	ci := m.whole(gi)
	mig := value[nvml.Device](m)(parent.GetMigDeviceHandleByIndex(0))
	equal(t, "is MIG", value[bool](m)(mig.IsMigDeviceHandle()), true)
	equal(t, "GPU is MIG", value[bool](m)(parent.IsMigDeviceHandle()), false)
	equal(t, "name", value[string](m)(mig.GetName()), "NVIDIA H100 80GB HBM3 MIG 1g.20gb")
	uuid := value[string](m)(mig.GetUUID())
	if !strings.HasPrefix(uuid, "MIG-") || len(uuid) != 40 {
		t.Errorf("the UUID is %s", uuid)
	}
	equal(t, "by UUID", value[nvml.Device](m)(m.DeviceGetHandleByUUID(uuid)), mig)
	equal(t, "parent", value[int](m)(value[nvml.Device](m)(mig.GetDeviceHandleFromMigDeviceHandle()).GetIndex()), 1)
	equal(t, "memory", value[nvml.Memory](m)(mig.GetMemoryInfo()).Total, 20096<<20)
	attributes := value[nvml.DeviceAttributes](m)(mig.GetAttributes())
	equal(t, "attributes", attributes, "{MultiprocessorCount:26 SharedCopyEngineCount:1 SharedDecoderCount:1 SharedEncoderCount:0 SharedJpegCount:1 SharedOfaCount:0 GpuInstanceSliceCount:1 ComputeInstanceSliceCount:1 MemorySizeMB:20096}")
	giInfo, ciInfo := value[nvml.GpuInstanceInfo](m)(gi.GetInfo()), value[nvml.ComputeInstanceInfo](m)(ci.GetInfo())
	equal(t, "placement", giInfo.Placement, "{Start:2 Size:2}")
	equal(t, "IDs", []int{value[int](m)(mig.GetGpuInstanceId()), value[int](m)(mig.GetComputeInstanceId())}, []uint32{giInfo.Id, ciInfo.Id})
	wrapped, err := device.New(m).NewMigDevice(mig)
	m.must(err)
	profile, err := wrapped.GetProfile()
	m.must(err)
	equal(t, "profile by go-nvlib", profile, "1g.20gb")

	// A process in it, then none; the compute instance goes first.
	id, compute := int(giInfo.Id), int(ciInfo.Id)
	m.must(m.StartProcess(Process{GPU: 1, PID: 4711, Memory: 1 << 30, GPUInstance: &id, ComputeInstance: &compute}))
	equal(t, "processes", len(value[[]nvml.ProcessInfo](m)(mig.GetComputeRunningProcesses())), 1)
	equal(t, "used", value[nvml.Memory](m)(mig.GetMemoryInfo()).Used, 1<<30)
	m.is(ci.Destroy(), nvml.ERROR_IN_USE)
	m.must(m.EndProcess(4711))
	m.is(gi.Destroy(), nvml.ERROR_IN_USE)
	m.is(second(parent.SetMigMode(0)), nvml.ERROR_IN_USE)
	m.ok(ci.Destroy())
	m.ok(gi.Destroy())
	m.is(gi.Destroy(), nvml.ERROR_INVALID_ARGUMENT)
	m.is(second(mig.GetUUID()), nvml.ERROR_INVALID_ARGUMENT)
	m.is(second(parent.GetMigDeviceHandleByIndex(0)), nvml.ERROR_NOT_FOUND)

	// Made anew it has the UUID again, and the old handle stays dead.
	m.whole(value[nvml.GpuInstance](m)(m.split(parent, 15, 2)))
	again := value[nvml.Device](m)(parent.GetMigDeviceHandleByIndex(0))
	equal(t, "UUID again", value[string](m)(again.GetUUID()), uuid)
	m.is(second(mig.GetUUID()), nvml.ERROR_INVALID_ARGUMENT)
}

// TestComputeInstances: one GPU instance is shared by several, whose slices
// don't overlap.
func TestComputeInstances(t *testing.T) {
	m := newMachine(t, "h100-mig", 1)
	gi := value[nvml.GpuInstance](m)(m.split(m.gpu(0), 9, 0))
	var profiles []string
	infos := map[uint32]nvml.ComputeInstanceProfileInfo{}
	for index := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(index, 0)
		if ret == nvml.SUCCESS {
			named, ret := gi.GetComputeInstanceProfileInfoV(index, 0).V2()
			m.ok(ret)
			profiles = append(profiles, fmt.Sprintf("%s: %d x%d %d", words(named.Name[:]), info.Id, info.InstanceCount, info.MultiprocessorCount))
			infos[info.SliceCount] = info
		}
	}
	equal(t, "profiles", profiles, "[MIG 1c.3g.40gb: 0 x3 16 MIG 2c.3g.40gb: 1 x1 32 MIG 3g.40gb: 2 x1 60]")
	one, two, three := infos[1], infos[2], infos[3]
	m.ok(second(gi.CreateComputeInstance(&two)))
	equal(t, "room for 1c", value[int](m)(gi.GetComputeInstanceRemainingCapacity(&one)), 1)
	m.is(second(gi.CreateComputeInstance(&three)), nvml.ERROR_INSUFFICIENT_RESOURCES)
	last := value[nvml.ComputeInstance](m)(gi.CreateComputeInstance(&one))
	info := value[nvml.ComputeInstanceInfo](m)(last.GetInfo())
	equal(t, "the last", fmt.Sprintf("%d %v", info.Id, info.Placement), "1 {2 1}")
	m.is(second(gi.CreateComputeInstance(&one)), nvml.ERROR_INSUFFICIENT_RESOURCES)
	equal(t, "of 1c", len(value[[]nvml.ComputeInstance](m)(gi.GetComputeInstances(&one))), 1)
	second := value[nvml.Device](m)(m.gpu(0).GetMigDeviceHandleByIndex(1))
	equal(t, "index", value[int](m)(second.GetIndex()), 1)
	m.ok(second.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	equal(t, "mode", value[nvml.ComputeMode](m)(second.GetComputeMode()), nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
	m.is(m.gpu(0).SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS), nvml.ERROR_NOT_SUPPORTED)
}

// TestMIGMode: a GPU that is used changes with the next reset.
func TestMIGMode(t *testing.T) {
	m := newMachine(t, "a100-40", 1)
	mode := func() string {
		current, pending, ret := m.gpu(0).GetMigMode()
		m.ok(ret)
		return fmt.Sprint(current, pending)
	}
	m.must(m.StartProcess(Process{PID: 1}))
	activation, ret := m.gpu(0).SetMigMode(1)
	m.ok(ret)
	m.is(activation, nvml.ERROR_IN_USE)
	equal(t, "pending", mode(), "0 1")
	m.must(m.Reset(0))
	equal(t, "after a reset", mode(), "1 1")
	m.ok(second(m.split(m.gpu(0), 0, 0)))
	m.must(m.Reset(0))
	m.is(second(m.gpu(0).GetGpuInstanceById(0)), nvml.ERROR_NOT_FOUND)
	activation, ret = m.gpu(0).SetMigMode(0)
	m.ok(ret)
	m.ok(activation)
	equal(t, "off", mode(), "0 0")
	equal(t, "devices", value[int](m)(m.gpu(0).GetMaxMigDeviceCount()), 0)
}

func TestMIGModeOfOtherBoards(t *testing.T) {
	m := newMachine(t, "t4", 1)
	m.is(second(m.gpu(0).SetMigMode(1)), nvml.ERROR_NOT_SUPPORTED)
}
