package nvml

// This file measures what the engine adds to preparing and unpreparing a claim,
// over the simulated library, beside what can't be saved: NVIDIA's own work on
// the CDI edits, and writing the same bytes so that they last.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/cdi"
	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/durable"
	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/nvml/edits"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// benchPool is the node's pool.
const benchPool = "node-1"

// unwatched is an observer that nobody asks.
type unwatched struct{}

func (unwatched) Prepared(types.NamespacedName, time.Duration, error)   {}
func (unwatched) Unprepared(types.NamespacedName, time.Duration, error) {}
func (unwatched) Holding(int)                                           {}
func (unwatched) Recovered(checkpoint.Origin, error, int)               {}
func (unwatched) Rebooted(int)                                          {}
func (unwatched) Collected(types.NamespacedName, types.UID, string)     {}

// noClaims is an API server that has no claims; a whole checkpoint asks for none.
type noClaims struct{}

func (noClaims) Get(context.Context, string, string) (*resourcev1.ResourceClaim, error) {
	return nil, nil
}
func (noClaims) List(context.Context) ([]*resourcev1.ResourceClaim, error) { return nil, nil }

// timedHardware is an inventory in good health that says how long its edits took.
type timedHardware struct {
	*Inventory
	edits time.Duration
}

func (timedHardware) Trouble(string) (inventory.Severity, string) { return inventory.Healthy, "" }

func (h *timedHardware) Edits(ctx context.Context, device string) (specs.ContainerEdits, error) {
	begun := time.Now()
	made, err := h.Inventory.Edits(ctx, device)
	h.edits += time.Since(begun)
	return made, err
}

// benchNode is a node with eight simulated boards and an engine.
type benchNode struct {
	hardware          *timedHardware
	engine            *engine.Engine
	store             *checkpoint.Store
	cdi               *cdi.Folder
	data, cdi2, data2 string
}

func newBenchNode(b *testing.B) *benchNode {
	b.Helper()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	board, err := fakenvml.Tier("h100")
	check(err)
	folder := b.TempDir()
	n := &benchNode{data: filepath.Join(folder, "data"), data2: filepath.Join(folder, "data-peer"), cdi2: filepath.Join(folder, "cdi-peer")}
	root, specsFolder := filepath.Join(folder, "root"), filepath.Join(folder, "cdi")
	for _, made := range []string{n.data, n.data2, n.cdi2, specsFolder} {
		check(os.Mkdir(made, 0o700))
	}
	_, err = fakenvml.InstallRoot(root, library, board, fakenvml.Machine{Name: benchPool, GPUs: 8})
	check(err)
	b.Setenv(fakenvml.DirVariable, filepath.Join(root, fakenvml.LibraryFolder()))
	config := quick(nil, folder)
	check(os.WriteFile(config.BootIDFile, []byte("boot-1\n"), 0o600))
	calls := gonvml.New(gonvml.WithLibraryPath(library))
	config.NVML = calls
	config.Editor = edits.New(b.Context(), calls, edits.Roots{Driver: root, Proc: root, Hook: "/usr/bin/nvidia-cdi-hook"})
	config.Sysfs = []deviceattribute.MachineModifier{deviceattribute.WithFSFromRoot(filepath.Join(root, "sys"))}
	config.PollPeriod = time.Minute // what a driver does beside is none of a round's time
	ctx, cancel := context.WithCancel(klog.NewContext(b.Context(), klog.New(nil)))
	gpus, err := New(ctx, config)
	check(err)
	ended := make(chan error, 1)
	go func() { ended <- gpus.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		check(<-ended)
	})
	n.hardware = &timedHardware{Inventory: gpus}
	n.store, n.cdi = checkpoint.NewStore(n.data), cdi.NewFolder(specsFolder, v1alpha1.DriverName)
	n.engine = engine.New(engine.Config{
		Driver: v1alpha1.DriverName, Pool: benchPool, Store: n.store, CDI: n.cdi, Hardware: n.hardware, Sharer: gpus,
		Claims: noClaims{}, Observer: unwatched{}, Clock: clock.RealClock{}, BootIDFile: config.BootIDFile, StaleAfter: time.Hour,
	})
	check(n.engine.Start(ctx))
	return n
}

// claimOf is a claim that has a device of the node.
func claimOf(round int, device string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: fmt.Sprintf("claim-%d", round), UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", round))},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Request: "gpu", Driver: v1alpha1.DriverName, Pool: benchPool, Device: device}},
		}}},
	}
}

// written is what the files of the engine held after each of its steps.
type written struct{ begun, spec, completed, ended []byte }

// peer writes what the engine has written, as lastingly, and nothing else.
func (n *benchNode) peer(round int, w written) (prepare, unprepare time.Duration, err error) {
	save := func(data []byte) error {
		return durable.ReplaceFile(filepath.Join(n.data2, checkpoint.FileName), filepath.Join(n.data2, checkpoint.PreviousFileName), data, 0o600)
	}
	spec := filepath.Join(n.cdi2, fmt.Sprintf("%d.json", round))
	begun := time.Now()
	for _, step := range []func() error{
		func() error { return save(w.begun) },
		func() error { return durable.WriteFile(spec, w.spec, 0o644) },
		func() error { return save(w.completed) },
		func() error { prepare = time.Since(begun); begun = time.Now(); return nil },
		func() error { return os.Remove(spec) },
		func() error { return save(w.ended) },
	} {
		if err := step(); err != nil {
			return 0, 0, err
		}
	}
	return prepare, time.Since(begun), nil
}

// quantile of durations, which it sorts.
func quantile(all []time.Duration, q float64) time.Duration {
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// BenchmarkPrepare is to be run with -benchtime=1000x: each round prepares and
// unprepares a claim of one of eight GPUs, of which six others are held, and has
// the peer write the same beside it. "added" is the engine's time less that of
// the peer and of NVIDIA's nvcdi, as a part of these two together.
func BenchmarkPrepare(b *testing.B) {
	n := newBenchNode(b)
	ctx := klog.NewContext(b.Context(), klog.New(nil))
	pool, err := n.hardware.Pool(ctx)
	if err != nil || len(pool.Devices) != 8 {
		b.Fatalf("there are %d devices, %v", len(pool.Devices), err)
	}
	for held := range 6 { // a node that is in use
		claim := claimOf(100000+held, pool.Devices[held+2].Name)
		if result := n.engine.Prepare(ctx, []*resourcev1.ResourceClaim{claim})[claim.UID]; result.Err != nil {
			b.Fatal(result.Err)
		}
	}
	current := filepath.Join(n.data, checkpoint.FileName)
	reads := func(path string) []byte {
		data, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		return data
	}
	if err := os.WriteFile(filepath.Join(n.data2, checkpoint.FileName), reads(current), 0o600); err != nil {
		b.Fatal(err)
	}
	of := map[string][]time.Duration{}
	var last *written
	for round := 0; b.Loop(); round++ {
		var prepare, unprepare time.Duration
		peerFirst := round%2 == 1 // whoever comes second finds the disk awake
		if peerFirst {
			if prepare, unprepare, err = n.peer(round, *last); err != nil {
				b.Fatal(err)
			}
		}
		claim := claimOf(round, pool.Devices[round/2%2].Name)
		n.hardware.edits = 0
		begun := time.Now()
		result := n.engine.Prepare(ctx, []*resourcev1.ResourceClaim{claim})[claim.UID]
		took := time.Since(begun)
		if result.Err != nil {
			b.Fatal(result.Err)
		}
		w := written{begun: reads(filepath.Join(n.data, checkpoint.PreviousFileName)), spec: reads(n.cdi.Path(claim.UID)), completed: reads(current)}
		named := kubeletplugin.NamespacedObject{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, UID: claim.UID}
		begun = time.Now()
		failed := n.engine.Unprepare(ctx, []kubeletplugin.NamespacedObject{named})[claim.UID]
		ended := time.Since(begun)
		if failed != nil {
			b.Fatal(failed)
		}
		if w.ended = reads(current); bytes.Contains(w.ended, []byte(claim.UID)) || !bytes.Contains(w.completed, []byte(claim.UID)) {
			b.Fatal("the checkpoint is not what it should be")
		}
		if last = &w; !peerFirst {
			if prepare, unprepare, err = n.peer(round, w); err != nil {
				b.Fatal(err)
			}
		}
		for what, value := range map[string]time.Duration{
			"prepare": took, "unprepare": ended, "nvcdi": n.hardware.edits, "files-prepare": prepare, "files-unprepare": unprepare,
			"both": took + ended, "alone": prepare + unprepare + n.hardware.edits,
		} {
			of[what] = append(of[what], value)
		}
	}
	b.ReportMetric(0, "ns/op") // of a round with its peer: nobody's
	for _, what := range []string{"prepare", "unprepare", "nvcdi", "files-prepare", "files-unprepare"} {
		for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99} {
			b.ReportMetric(float64(quantile(of[what], q).Nanoseconds())/1e6, what+"-"+name+"-ms")
		}
	}
	for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99} {
		alone := quantile(of["alone"], q)
		b.ReportMetric(float64(quantile(of["both"], q)-alone)/float64(alone), "added-"+name)
	}
}
