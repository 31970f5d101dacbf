package nvml

// This file is a node with GPUs that a test breaks: NVML's interface on maps.

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	resourcev1 "k8s.io/api/resource/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/inventory"
)

// node is a machine with NVIDIA GPUs.
type node struct {
	mock.Interface
	mock.ExtendedInterface
	events chan nvml.EventData

	mu      sync.Mutex
	gpus    []*testGPU
	initErr nvml.Return
	opened  int
	lacks   map[string]bool
	// failing has the return value of calls of the library that fail.
	failing map[string]nvml.Return
}

// testGPU is one GPU.
type testGPU struct {
	mock.Device
	node *node

	uuid, product string
	pci           nvml.PciInfo
	memory        uint64
	arch          nvml.DeviceArchitecture
	links         map[int]nvml.EnableState
	fields        map[uint32]uint64
	mig           bool
	profiles      map[int]nvml.GpuInstanceProfileInfo
	placements    map[uint32][]nvml.GpuInstancePlacement
	instances     []*testInstance
	nextID        uint32
	// failing has what calls return that fail; hanging those that wait until the
	// channel is closed.
	failing map[string]nvml.Return
	hanging map[string]chan struct{}
	calls   []string
	events  uint64
}

type testInstance struct {
	mock.GpuInstance
	gpu     *testGPU
	info    nvml.GpuInstanceInfo
	compute []*testCompute
}

type testCompute struct {
	mock.ComputeInstance
	owner *testInstance
	info  nvml.ComputeInstanceInfo
}

// newNode has GPUs of 80 GB at the buses 0x18, 0x28, …
func newNode(gpus int) *node {
	n := &node{events: make(chan nvml.EventData, 16), lacks: map[string]bool{}, failing: map[string]nvml.Return{}}
	for index := range gpus {
		n.gpus = append(n.gpus, n.newGPU(index))
	}
	n.ExtensionsFunc = func() nvml.ExtendedInterface { return n }
	n.LookupSymbolFunc = func(name string) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.lacks[name] {
			return fmt.Errorf("no symbol %s", name)
		}
		return nil
	}
	n.InitFunc = func() nvml.Return {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.initErr == nvml.SUCCESS {
			n.opened++
		}
		return n.initErr
	}
	n.ShutdownFunc = func() nvml.Return {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.opened--
		return nvml.SUCCESS
	}
	n.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "580.105.08", n.ret("driver") }
	n.SystemGetCudaDriverVersionFunc = func() (int, nvml.Return) { return 13000, n.ret("cuda") }
	n.DeviceGetCountFunc = func() (int, nvml.Return) {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.gpus), n.failing["count"]
	}
	n.DeviceGetHandleByIndexFunc = func(index int) (nvml.Device, nvml.Return) {
		n.mu.Lock()
		if index >= len(n.gpus) {
			n.mu.Unlock()
			return nil, nvml.ERROR_INVALID_ARGUMENT
		}
		g := n.gpus[index]
		n.mu.Unlock()
		return g, g.ret("handle")
	}
	n.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(timeout uint32) (nvml.EventData, nvml.Return) {
				if ret := n.ret("wait"); ret != nvml.SUCCESS {
					return nvml.EventData{}, ret
				}
				select {
				case e := <-n.events:
					return e, nvml.SUCCESS
				case <-time.After(min(20*time.Millisecond, time.Duration(timeout)*time.Millisecond)):
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
		}, nvml.SUCCESS
	}
	return n
}

func (n *node) ret(call string) nvml.Return {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failing[call]
}

// change changes the node under its lock.
func (n *node) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *node) newGPU(index int) *testGPU {
	g := &testGPU{
		node: n, uuid: fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", index), product: "NVIDIA H100 80GB HBM3", memory: 85520809984,
		arch: nvml.DEVICE_ARCH_HOPPER, pci: nvml.PciInfo{Bus: uint32(0x18 + 0x10*index)}, links: map[int]nvml.EnableState{},
		fields: map[uint32]uint64{
			nvml.FI_DEV_GET_GPU_RECOVERY_ACTION: 0, nvml.FI_DEV_ECC_DBE_VOL_TOTAL: 0, nvml.FI_DEV_REMAPPED_PENDING: 0, nvml.FI_DEV_REMAPPED_FAILURE: 0,
		},
		failing: map[string]nvml.Return{}, hanging: map[string]chan struct{}{}, events: wanted,
	}
	for link := range 18 {
		g.links[link] = nvml.FEATURE_ENABLED
	}
	g.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return g.pci, g.ret("pci") }
	g.GetUUIDFunc = func() (string, nvml.Return) { return g.uuid, g.ret("uuid") }
	g.GetNameFunc = func() (string, nvml.Return) { return g.product, g.ret("name") }
	g.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: g.memory}, g.ret("memory") }
	g.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) { return 9, 0, g.ret("capability") }
	g.GetArchitectureFunc = func() (nvml.DeviceArchitecture, nvml.Return) { return g.arch, g.ret("architecture") }
	g.GetBrandFunc = func() (nvml.BrandType, nvml.Return) { return nvml.BRAND_NVIDIA, g.ret("brand") }
	g.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		if ret := g.ret("link"); ret != nvml.SUCCESS {
			return 0, ret
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		state, is := g.links[link]
		if !is {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return state, nvml.SUCCESS
	}
	g.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		ret := g.ret("fields")
		n.mu.Lock()
		defer n.mu.Unlock()
		for i := range values {
			value, is := g.fields[values[i].FieldId]
			if !is {
				values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
				continue
			}
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			binary.LittleEndian.PutUint64(values[i].Value[:], value|0xdead<<32) // what is beside it does not count
		}
		return ret
	}
	g.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) {
		if ret := g.ret("remapped"); ret != nvml.SUCCESS {
			return 0, 0, false, false, ret
		}
		return 0, 0, false, false, nvml.ERROR_NOT_SUPPORTED
	}
	g.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	g.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	g.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return g.events, g.ret("supported") }
	g.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return g.ret("register") }
	g.GetMigModeFunc = func() (int, int, nvml.Return) {
		if !g.mig {
			return 0, 0, g.ret("mig")
		}
		return 1, 1, g.ret("mig")
	}
	g.GetGpuInstanceProfileInfoFunc = func(index int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
		info, is := g.profiles[index]
		if !is {
			return info, nvml.ERROR_NOT_SUPPORTED
		}
		return info, g.ret("profile")
	}
	g.GetGpuInstancePossiblePlacementsFunc = func(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
		return slices.Clone(g.placements[info.Id]), g.ret("placements")
	}
	g.GetGpuInstancesFunc = func(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
		ret := g.ret("instances")
		n.mu.Lock()
		defer n.mu.Unlock()
		var all []nvml.GpuInstance
		for _, gi := range g.instances {
			if gi.info.ProfileId == info.Id {
				all = append(all, gi)
			}
		}
		return all, ret
	}
	g.CreateGpuInstanceWithPlacementFunc = func(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
		if ret := g.ret("create"); ret != nvml.SUCCESS {
			return nil, ret
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		return g.create(info.Id, *at)
	}
	g.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, g.ret("migcount") }
	g.GetMigDeviceHandleByIndexFunc = func(index int) (nvml.Device, nvml.Return) {
		if ret := g.ret("mighandle"); ret != nvml.SUCCESS {
			return nil, ret
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		// The first place is never filled, as on boards from which it was freed.
		if index == 0 || index > len(g.instances) || len(g.instances[index-1].compute) == 0 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		gi := g.instances[index-1]
		uuid := fmt.Sprintf("MIG-%s-%d", g.uuid, gi.info.Id)
		return &mock.Device{
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return int(gi.info.Id), nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return int(gi.compute[0].info.Id), nvml.SUCCESS },
			GetUUIDFunc:              func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	return g
}

// ret waits as long as a call hangs, and says what it returns.
func (g *testGPU) ret(call string) nvml.Return {
	g.node.mu.Lock()
	g.calls = append(g.calls, call)
	hangs, ret := g.hanging[call], g.failing[call]
	if ret == nvml.SUCCESS {
		ret = g.failing["*"]
	}
	g.node.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	return ret
}

// create makes an instance if its place is free.
func (g *testGPU) create(profile uint32, at nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	for _, gi := range g.instances {
		if overlaps(gi.info.Placement, at) {
			return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
		}
	}
	g.nextID++
	gi := &testInstance{gpu: g, info: nvml.GpuInstanceInfo{Device: g, Id: g.nextID, ProfileId: profile, Placement: at}}
	gi.GetInfoFunc = func() (nvml.GpuInstanceInfo, nvml.Return) { return gi.info, g.ret("giinfo") }
	gi.GetComputeInstanceProfileInfoFunc = func(index, _ int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
		if index > 1 {
			return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.ComputeInstanceProfileInfo{Id: uint32(index), SliceCount: uint32(index + 1), InstanceCount: 1}, nvml.SUCCESS
	}
	gi.GetComputeInstancesFunc = func(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
		g.node.mu.Lock()
		defer g.node.mu.Unlock()
		var all []nvml.ComputeInstance
		for _, ci := range gi.compute {
			if ci.info.ProfileId == info.Id {
				all = append(all, ci)
			}
		}
		return all, nvml.SUCCESS
	}
	gi.CreateComputeInstanceFunc = func(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
		if ret := g.ret("compute"); ret != nvml.SUCCESS {
			return nil, ret
		}
		g.node.mu.Lock()
		defer g.node.mu.Unlock()
		ci := &testCompute{owner: gi, info: nvml.ComputeInstanceInfo{Id: 3, ProfileId: info.Id}}
		ci.GetInfoFunc = func() (nvml.ComputeInstanceInfo, nvml.Return) { return ci.info, nvml.SUCCESS }
		ci.DestroyFunc = func() nvml.Return {
			if ret := g.ret("destroycompute"); ret != nvml.SUCCESS {
				return ret
			}
			g.node.mu.Lock()
			defer g.node.mu.Unlock()
			gi.compute = nil
			return nvml.SUCCESS
		}
		gi.compute = append(gi.compute, ci)
		return ci, nvml.SUCCESS
	}
	gi.DestroyFunc = func() nvml.Return {
		if ret := g.ret("destroy"); ret != nvml.SUCCESS {
			return ret
		}
		g.node.mu.Lock()
		defer g.node.mu.Unlock()
		if len(gi.compute) > 0 {
			return nvml.ERROR_IN_USE
		}
		g.instances = slices.DeleteFunc(g.instances, func(other *testInstance) bool { return other == gi })
		return nvml.SUCCESS
	}
	g.instances = append(g.instances, gi)
	return gi, nvml.SUCCESS
}

// split puts the GPU into MIG mode, with the profiles of an H100 of 80 GB as
// nvidia-smi prints them.
func (g *testGPU) split() {
	g.mig = true
	g.profiles = map[int]nvml.GpuInstanceProfileInfo{}
	g.placements = map[uint32][]nvml.GpuInstancePlacement{}
	for index, p := range map[int]struct {
		id, slices, count, sms, ce, media, ofa uint32
		memory                                 uint64
		size                                   uint32
		starts                                 []uint32
	}{
		nvml.GPU_INSTANCE_PROFILE_1_SLICE:      {19, 1, 7, 16, 1, 1, 0, 9984, 1, []uint32{6, 0, 1, 2, 3, 4, 5}},
		nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1: {20, 1, 1, 16, 1, 1, 1, 9984, 1, []uint32{0, 1, 2, 3, 4, 5, 6}},
		nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2: {15, 1, 4, 26, 1, 1, 0, 20096, 2, []uint32{0, 2, 4, 6}},
		nvml.GPU_INSTANCE_PROFILE_2_SLICE:      {14, 2, 3, 32, 2, 2, 0, 20096, 2, []uint32{0, 2, 4}},
		nvml.GPU_INSTANCE_PROFILE_3_SLICE:      {9, 3, 2, 60, 3, 3, 0, 40448, 4, []uint32{0, 4}},
		nvml.GPU_INSTANCE_PROFILE_4_SLICE:      {5, 4, 1, 64, 4, 4, 0, 40448, 4, []uint32{0}},
		nvml.GPU_INSTANCE_PROFILE_7_SLICE:      {0, 7, 1, 132, 8, 7, 1, 81152, 8, []uint32{0}},
	} {
		g.profiles[index] = nvml.GpuInstanceProfileInfo{
			Id: p.id, SliceCount: p.slices, InstanceCount: p.count, MultiprocessorCount: p.sms, CopyEngineCount: p.ce,
			DecoderCount: p.media, JpegCount: p.media, OfaCount: p.ofa, MemorySizeMB: p.memory,
		}
		for _, start := range p.starts {
			g.placements[p.id] = append(g.placements[p.id], nvml.GpuInstancePlacement{Start: start, Size: p.size})
		}
	}
}

// xid tells of an error of the GPU, or of one of its instances.
func (g *testGPU) xid(code uint64, instance uint32) {
	g.node.events <- nvml.EventData{Device: g, EventType: nvml.EventTypeXidCriticalError, EventData: code, GpuInstanceId: instance, ComputeInstanceId: instance}
}

// editor writes down whose edits were asked for.
type editor struct {
	mu    sync.Mutex
	asked []string
	err   error
}

func (e *editor) Edits(uuid string) (specs.ContainerEdits, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, uuid)
	return specs.ContainerEdits{Env: []string{"UUID=" + uuid}}, e.err
}

// rig is an inventory that runs.
type rig struct {
	*Inventory
	*node
	editor *editor
	folder string
	stop   func()
}

// quick makes an inventory quick enough for tests.
func quick(n *node, folder string) Config {
	return Config{
		NVML: n, CallLimit: 3 * time.Second, EditLimit: 3 * time.Second, StartLimit: 10 * time.Second, PollPeriod: 10 * time.Millisecond,
		RetryLimit: 60 * time.Millisecond, Settle: 100 * time.Millisecond,
		MemoryFile: filepath.Join(folder, "gpus.json"), BootIDFile: filepath.Join(folder, "boot_id"),
	}
}

// run runs an inventory until the test is over, or it is stopped.
func run(t *testing.T, n *node, folder string, change func(*Config)) *rig {
	t.Helper()
	if folder == "" {
		folder = t.TempDir()
	}
	config := quick(n, folder)
	if _, err := os.Stat(config.BootIDFile); err != nil {
		if err := os.WriteFile(config.BootIDFile, []byte("boot-1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{node: n, editor: &editor{}, folder: folder}
	config.Editor = r.editor
	if change != nil {
		change(&config)
	}
	ctx, cancel := context.WithCancel(t.Context())
	made, err := New(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	r.Inventory = made
	ended := make(chan error, 1)
	go func() { ended <- made.Run(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("Run ended with %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("Run does not end")
			}
		})
	}
	t.Cleanup(r.stop)
	return r
}

func (r *rig) pool(t *testing.T) inventory.Pool {
	t.Helper()
	pool, err := r.Pool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func (r *rig) names(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, device := range r.pool(t).Devices {
		names = append(names, device.Name)
	}
	return names
}

func (r *rig) device(t *testing.T, name string) resourcev1.Device {
	t.Helper()
	for _, device := range r.pool(t).Devices {
		if device.Name == name {
			return device
		}
	}
	t.Fatalf("there is no device %s", name)
	return resourcev1.Device{}
}

// troubles of a device: source and severity, and the reason.
func (r *rig) troubles(t *testing.T, device string) map[string]inventory.Trouble {
	t.Helper()
	report, err := r.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]inventory.Trouble{}
	for _, trouble := range report.Troubles {
		if trouble.Device == device {
			if _, twice := all[trouble.Source]; twice {
				t.Errorf("%s has two troubles from %s", device, trouble.Source)
			}
			all[trouble.Source] = trouble
		}
	}
	return all
}

// eventually waits for something to become true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(3 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("in vain waited until %s", what)
}
