package nvml

// This file is a machine for drivers that die: what outlives them is the disk,
// the API server's claims and the boards.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/drivers/cdi"
	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/nvml/edits"
	"gpuladder.dev/ladder/drivers/nvml/sharing"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// muted is a context without a log: nobody reads thousands of lines.
var muted = klog.NewContext(context.Background(), klog.New(nil))

// disk says where everything is; another process works on the same.
type disk struct {
	// Library, and Root of NVIDIA's driver with Boards in it; Nodes says whether
	// that has device nodes. Programs is a root with stand-ins for NVIDIA's.
	Library, Root, Boards, Programs string
	Nodes                           bool
	// Data and CDI are the driver's folders, Boot the file of the boot ID, API that
	// of the claims.
	Data, CDI, Boot, API string
}

// newDisk lays out a machine with two boards, below a folder.
func newDisk(t *testing.T, folder, board, programs string) *disk {
	t.Helper()
	described, err := fakenvml.Tier(board)
	must(t, err)
	d := &disk{Library: library, Root: filepath.Join(folder, "root"), Programs: programs}
	d.Nodes, err = fakenvml.InstallRoot(d.Root, library, described, fakenvml.Machine{Name: "node-1", GPUs: 2})
	must(t, err)
	d.Boards = filepath.Join(d.Root, fakenvml.LibraryFolder())
	t.Setenv(fakenvml.DirVariable, d.Boards)
	d.fresh(t, folder, "0")
	return d
}

// fresh gives the machine other folders, as if no driver had ever run.
func (d *disk) fresh(t *testing.T, folder, name string) {
	t.Helper()
	at := filepath.Join(folder, "of-"+name)
	d.Data, d.CDI, d.Boot, d.API = filepath.Join(at, "data"), filepath.Join(at, "cdi"), filepath.Join(at, "boot"), filepath.Join(at, "claims")
	must(t, errors.Join(os.MkdirAll(d.Data, 0o700), os.MkdirAll(d.CDI, 0o700), os.WriteFile(d.Boot, []byte("boot-1\n"), 0o600)))
}

// claims implements [engine.Claims] with a file.
type claims string

func (c claims) List(context.Context) ([]*resourcev1.ResourceClaim, error) {
	data, err := os.ReadFile(string(c))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var all []*resourcev1.ResourceClaim
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	return all, err
}

func (c claims) Get(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	all, err := c.List(ctx)
	for _, claim := range all {
		if claim.Namespace == namespace && claim.Name == name {
			return claim, err
		}
	}
	return nil, err
}

func (c claims) store(t *testing.T, all []*resourcev1.ResourceClaim) {
	t.Helper()
	data, err := json.Marshal(all)
	must(t, err)
	must(t, os.WriteFile(string(c), data, 0o600))
}

func (c claims) add(t *testing.T, claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	t.Helper()
	all, err := c.List(t.Context())
	must(t, err)
	c.store(t, append(all, claim))
	return claim
}

func (c claims) remove(t *testing.T, uid types.UID) {
	t.Helper()
	all, err := c.List(t.Context())
	must(t, err)
	c.store(t, slices.DeleteFunc(all, func(claim *resourcev1.ResourceClaim) bool { return claim.UID == uid }))
}

// allocated is an allocated claim; sharing is what its parameters say, or "".
func allocated(name, uid, sharing string, devices ...string) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(uid)},
		Status: resourcev1.ResourceClaimStatus{
			Allocation:  &resourcev1.AllocationResult{},
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: "pod"}},
		},
	}
	for _, device := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "accelerator", Driver: v1alpha1.DriverName, Pool: "node-1", Device: device})
	}
	if sharing != "" {
		claim.Status.Allocation.Devices.Config = []resourcev1.DeviceAllocationConfiguration{{
			Source: resourcev1.AllocationConfigSourceClaim,
			DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
				Driver:     v1alpha1.DriverName,
				Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpuladder.dev/v1alpha1","kind":"GPUConfig","sharing":` + sharing + `}`)},
			}},
		}}
	}
	return claim
}

// unobserved implements [engine.Observer]; it counts recoveries.
type unobserved struct{ recovered []checkpoint.Origin }

func (*unobserved) Prepared(types.NamespacedName, time.Duration, error)   {}
func (*unobserved) Unprepared(types.NamespacedName, time.Duration, error) {}
func (*unobserved) Holding(int)                                           {}
func (*unobserved) Rebooted(int)                                          {}
func (*unobserved) Collected(types.NamespacedName, types.UID, string)     {}
func (o *unobserved) Recovered(from checkpoint.Origin, _ error, _ int) {
	o.recovered = append(o.recovered, from)
}

// healthyHardware is hardware that nothing is wrong with.
type healthyHardware struct{ inventory.Inventory }

func (healthyHardware) Trouble(string) (inventory.Severity, string) { return inventory.Healthy, "" }

// driver is one driver, as the program of a node puts it together.
type driver struct {
	*engine.Engine
	*unobserved
	gpus inventory.Inventory
	stop context.CancelFunc
}

// newEngine makes an engine on a disk.
func (d *disk) newEngine(gpus inventory.Inventory, hooks engine.Hooks) *driver {
	made := &driver{unobserved: &unobserved{}, gpus: gpus}
	sharer, _ := gpus.(inventory.Sharer)
	made.Engine = engine.New(engine.Config{
		Driver: v1alpha1.DriverName, Pool: "node-1", Store: checkpoint.NewStore(d.Data), CDI: cdi.NewFolder(d.CDI, v1alpha1.DriverName),
		Hardware: healthyHardware{gpus}, Sharer: sharer, Claims: claims(d.API), Observer: made.unobserved, Clock: clock.RealClock{},
		BootIDFile: d.Boot, StaleAfter: time.Hour, Hooks: hooks,
	})
	return made
}

// opened is the library, one for all drivers of a process: go-nvml has a table
// for the whole process, and each of its objects a lock of its own, which is not
// taken when symbols are looked for. No program has two drivers; tests do.
func opened(path string) gonvml.Interface {
	made, _ := libraries.LoadOrStore(path, &oneLibrary{Interface: gonvml.New(gonvml.WithLibraryPath(path))})
	return made.(gonvml.Interface)
}

var libraries sync.Map

// oneLibrary is opened, closed and looked into by one at a time.
type oneLibrary struct {
	gonvml.Interface
	mu sync.Mutex
}

func (l *oneLibrary) Init() gonvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Interface.Init()
}

func (l *oneLibrary) Shutdown() gonvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Interface.Shutdown()
}

func (l *oneLibrary) Extensions() gonvml.ExtendedInterface {
	return oneExtensions{l.Interface.Extensions(), &l.mu}
}

type oneExtensions struct {
	gonvml.ExtendedInterface
	mu *sync.Mutex
}

func (e oneExtensions) LookupSymbol(name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ExtendedInterface.LookupSymbol(name)
}

// drive starts a driver of the boards, until its stop or the end of ctx; ended
// counts what then goes on for a while. NVIDIA's own edits are asked for where
// real is true.
func (d *disk) drive(ctx context.Context, hooks engine.Hooks, real bool, ended *sync.WaitGroup) (*driver, error) {
	calls := opened(d.Library)
	config := Config{
		NVML: calls, Editor: &editor{}, RemoveUnknown: true,
		CallLimit: 20 * time.Second, EditLimit: 20 * time.Second, StartLimit: 20 * time.Second, PollPeriod: 20 * time.Millisecond, RetryLimit: 60 * time.Millisecond,
		MemoryFile: filepath.Join(d.Data, "gpus.json"), BootIDFile: d.Boot,
	}
	if real && d.Nodes {
		config.Editor = edits.New(ctx, calls, edits.Roots{Driver: d.Root, Proc: d.Root, Hook: "/usr/bin/nvidia-cdi-hook"})
	}
	if d.Programs != "" {
		config.Sharing = &sharing.Config{Root: d.Programs, Data: d.Data, BootIDFile: d.Boot}
	}
	gpus, err := New(ctx, config)
	if err != nil {
		return nil, err
	}
	made := d.newEngine(gpus, hooks)
	gpus.SetHeld(func(ctx context.Context) ([]string, error) {
		held, err := made.Held(ctx)
		var devices []string
		for _, claim := range held {
			for _, device := range claim.Devices {
				devices = append(devices, device.Name)
			}
		}
		return devices, err
	})
	ctx, made.stop = context.WithCancel(ctx)
	ended.Go(func() { _ = gpus.Run(ctx) }) // it ends with the context only
	if pool, err := gpus.Pool(ctx); err != nil || len(pool.Devices) == 0 {
		made.stop()
		_, silent := gpus.Health(muted)
		return nil, errors.Join(errors.New("the boards are not found"), err, silent)
	}
	return made, made.Start(ctx)
}

// prepare and unprepare are kubelet's calls.
func (d *driver) prepare(claim *resourcev1.ResourceClaim) ([]kubeletplugin.Device, error) {
	result := d.Prepare(muted, []*resourcev1.ResourceClaim{claim})[claim.UID]
	return result.Devices, result.Err
}

func (d *driver) unprepare(claim *resourcev1.ResourceClaim) error {
	return d.Unprepare(muted, []kubeletplugin.NamespacedObject{{
		UID: claim.UID, NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name},
	}})[claim.UID]
}

// instances are the MIG instances on the boards, as GPU, profile and place, and
// how many compute instances each has: what is left of the state's lines without
// the numbers that count upwards.
func (d *disk) instances(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(d.Boards, "state"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must(t, err)
	var all []string
	compute := map[string]int{}
	for line := range strings.Lines(string(data)) {
		if words := strings.Fields(line); words[0] == "compute" {
			compute[words[1]+"/"+words[2]]++
		}
	}
	for line := range strings.Lines(string(data)) {
		if words := strings.Fields(line); words[0] == "instance" {
			all = append(all, fmt.Sprintf("GPU %s profile %s at %s with %d", words[1], words[3], words[4], compute[words[1]+"/"+words[2]]))
		}
	}
	slices.Sort(all)
	return all
}

// remains is all that a driver has left: what its successor, kubelet, the
// runtime and the hardware see.
type remains struct {
	Files     map[string]string // CDI, by name
	Claims    map[types.UID]checkpoint.Claim
	Instances []string
	Shared    []inventory.Share
	Modes     []sharing.Mode
	Intervals map[string]string // of a GPU's turns, as they were set last
}

func (d *disk) remains(t *testing.T, by *driver) remains {
	t.Helper()
	left := remains{Files: map[string]string{}, Claims: map[types.UID]checkpoint.Claim{}, Instances: d.instances(t), Intervals: map[string]string{}}
	entries, err := os.ReadDir(d.CDI)
	must(t, err)
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(d.CDI, entry.Name()))
		must(t, err)
		left.Files[entry.Name()] = string(data)
	}
	held, err := by.Held(muted)
	must(t, err)
	for uid, claim := range held {
		claim.Since = time.Time{}
		left.Claims[uid] = *claim
	}
	if left.Shared, err = by.gpus.(inventory.Sharer).Shared(muted); err != nil {
		t.Fatal(err)
	}
	pool, err := by.gpus.Pool(muted)
	must(t, err)
	for i := range pool.Devices {
		if gpus, is := by.gpus.(*Inventory); is && *pool.Devices[i].Attributes["type"].StringValue == "gpu" {
			mode, err := gpusOf{gpus}.ComputeMode(muted, pool.Devices[i].Name)
			must(t, err)
			left.Modes = append(left.Modes, mode)
		}
	}
	called, err := os.ReadFile(filepath.Join(d.Programs, "standin/calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(called)) {
		if words := strings.Fields(line); len(words) == 5 && words[1] == "compute-policy" && words[2] != "--set-timeslice=0" {
			left.Intervals[words[4]] = words[2]
		} else if len(words) == 5 {
			delete(left.Intervals, words[4])
		}
	}
	return left
}
