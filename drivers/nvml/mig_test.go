package nvml

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// made are the instances of a GPU: profile and first slice.
func (g *testGPU) made() [][2]uint32 {
	g.node.mu.Lock()
	defer g.node.mu.Unlock()
	all := [][2]uint32{}
	for _, gi := range g.instances {
		all = append(all, [2]uint32{gi.info.ProfileId, gi.info.Placement.Start})
	}
	slices.SortFunc(all, func(a, b [2]uint32) int { return slices.Compare(a[:], b[:]) })
	return all
}

func splitNode() *node {
	n := newNode(1)
	n.gpus[0].split()
	return n
}

// TestPartitionIsMadeAndDestroyed at its place, with one compute instance that
// takes all of it.
func TestPartitionIsMadeAndDestroyed(t *testing.T) {
	n := splitNode()
	r := run(t, n, "", nil)
	r.pool(t)
	edits, err := r.Edits(t.Context(), "gpu-18-00-mig-2g20gb-14-4")
	if err != nil {
		t.Fatal(err)
	}
	if got := n.gpus[0].made(); !slices.Equal(got, [][2]uint32{{14, 4}}) {
		t.Fatalf("made %v", got)
	}
	if want := "UUID=MIG-" + n.gpus[0].uuid + "-1"; !slices.Equal(edits.Env, []string{want}) {
		t.Errorf("got %v, want %s", edits.Env, want)
	}
	if compute := n.gpus[0].instances[0].compute; len(compute) != 1 || compute[0].info.ProfileId != 1 {
		t.Errorf("compute instances are %v", compute)
	}
	// Again, as after a restart: it is found made.
	if again, err := r.Edits(t.Context(), "gpu-18-00-mig-2g20gb-14-4"); err != nil || !slices.Equal(again.Env, edits.Env) {
		t.Errorf("got %v, %v", again, err)
	}
	// What does not fit beside it is refused, and leaves nothing.
	if _, err := r.Edits(t.Context(), "gpu-18-00"); !errors.Is(err, nvml.ERROR_INSUFFICIENT_RESOURCES) {
		t.Errorf("got %v", err)
	}
	if err := r.Release(t.Context(), "gpu-18-00-mig-2g20gb-14-4"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // there is nothing to undo any more, which is no error
		if err := r.Release(t.Context(), "gpu-18-00-mig-2g20gb-14-4"); err != nil {
			t.Error(err)
		}
	}
	if got := n.gpus[0].made(); len(got) != 0 {
		t.Errorf("left %v", got)
	}
}

// TestWholeOfABoardInMIGMode is its biggest partition.
func TestWholeOfABoardInMIGMode(t *testing.T) {
	n := splitNode()
	r := run(t, n, "", nil)
	r.pool(t)
	if _, err := r.Edits(t.Context(), "gpu-18-00"); err != nil {
		t.Fatal(err)
	}
	if got := n.gpus[0].made(); !slices.Equal(got, [][2]uint32{{0, 0}}) {
		t.Errorf("made %v", got)
	}
	if err := r.Release(t.Context(), "gpu-18-00"); err != nil || len(n.gpus[0].made()) != 0 {
		t.Errorf("got %v, left %v", err, n.gpus[0].made())
	}
}

// TestWholeGPU: nothing is made, and nothing released.
func TestWholeGPU(t *testing.T) {
	n := newNode(1)
	r := run(t, n, "", nil)
	r.pool(t)
	edits, err := r.Edits(t.Context(), "gpu-18-00")
	if err != nil || !slices.Equal(edits.Env, []string{"UUID=" + n.gpus[0].uuid}) {
		t.Errorf("got %v, %v", edits, err)
	}
	if err := r.Release(t.Context(), "gpu-18-00"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"gpu-99-00", "gpu-18-00-mig-1g10gb-19-0", ""} {
		if _, err := r.Edits(t.Context(), name); !errors.Is(err, ErrNoDevice) {
			t.Errorf("%q: %v", name, err)
		}
		if err := r.Release(t.Context(), name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	r.editor.err = errors.New("no such library")
	_, err = r.Edits(t.Context(), "gpu-18-00")
	var of *GPUError
	if !errors.As(err, &of) || of.Device != "gpu-18-00" || !errors.Is(err, r.editor.err) {
		t.Errorf("got %v", err)
	}
}

// TestPartitionMadeInPart is taken back.
func TestPartitionMadeInPart(t *testing.T) {
	for _, call := range []string{"giinfo", "compute", "migcount", "mighandle"} {
		t.Run(call, func(t *testing.T) {
			n := splitNode()
			r := run(t, n, "", nil)
			r.pool(t)
			n.change(func() { n.gpus[0].failing[call] = nvml.ERROR_UNKNOWN })
			_, err := r.Edits(t.Context(), "gpu-18-00-mig-1g10gb-19-2")
			if !errors.Is(err, nvml.ERROR_UNKNOWN) {
				t.Errorf("got %v", err)
			}
			if got := n.gpus[0].made(); len(got) != 0 {
				t.Errorf("left %v", got)
			}
			n.change(func() { delete(n.gpus[0].failing, call) })
			if _, err := r.Edits(t.Context(), "gpu-18-00-mig-1g10gb-19-2"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPartitionInUse: it can't be destroyed while something runs on it, and is
// when that has ended.
func TestPartitionInUse(t *testing.T) {
	n := splitNode()
	r := run(t, n, "", nil)
	r.pool(t)
	const device = "gpu-18-00-mig-1g10gb-19-6"
	if _, err := r.Edits(t.Context(), device); err != nil {
		t.Fatal(err)
	}
	n.change(func() { n.gpus[0].failing["destroycompute"] = nvml.ERROR_IN_USE })
	if err := r.Release(t.Context(), device); !errors.Is(err, nvml.ERROR_IN_USE) {
		t.Errorf("got %v", err)
	}
	n.change(func() { delete(n.gpus[0].failing, "destroycompute") })
	if err := r.Release(t.Context(), device); err != nil || len(n.gpus[0].made()) != 0 {
		t.Errorf("got %v, left %v", err, n.gpus[0].made())
	}
}

// TestPartitionOfAGPUThatIsAway: those of a lost GPU are lost with it; while
// NVIDIA's driver is away they may be there still.
func TestPartitionOfAGPUThatIsAway(t *testing.T) {
	n := splitNode()
	r := run(t, n, "", nil)
	r.pool(t)
	const device = "gpu-18-00-mig-1g10gb-19-6"
	if _, err := r.Edits(t.Context(), device); err != nil {
		t.Fatal(err)
	}
	n.change(func() { n.failing["count"], n.initErr = nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED })
	eventually(t, "it is away", func() bool { return r.troubles(t, device)["nvml"].Reason == "NVMLUnavailable" })
	var away *UnavailableError
	if err := r.Release(t.Context(), device); !errors.As(err, &away) {
		t.Errorf("got %v", err)
	}
	n.change(func() { n.failing["count"], n.initErr = nvml.SUCCESS, nvml.SUCCESS })
	eventually(t, "it is back", func() bool { return len(r.troubles(t, device)) == 0 })
	n.change(func() { n.gpus[0].failing["*"] = nvml.ERROR_GPU_IS_LOST })
	eventually(t, "it is lost", func() bool { return r.troubles(t, device)["bus"].Reason == "GPULost" })
	if err := r.Release(t.Context(), device); err != nil {
		t.Errorf("got %v", err)
	}
}

// TestOnePartitionForTwoCalls: both make it, and there is one.
func TestOnePartitionForTwoCalls(t *testing.T) {
	n := splitNode()
	r := run(t, n, "", nil)
	r.pool(t)
	var parts sync.WaitGroup
	for range 8 {
		parts.Go(func() {
			if _, err := r.Edits(t.Context(), "gpu-18-00-mig-3g40gb-9-0"); err != nil {
				t.Error(err)
			}
		})
	}
	parts.Wait()
	if got := n.gpus[0].made(); !slices.Equal(got, [][2]uint32{{9, 0}}) {
		t.Errorf("made %v", got)
	}
}

// TestInstanceOfNobody takes its place: nothing that does not fit beside it is
// published, until it is gone.
func TestInstanceOfNobody(t *testing.T) {
	n := splitNode()
	n.gpus[0].create(9, nvml.GpuInstancePlacement{Start: 4, Size: 4}) // by someone else
	n.gpus[0].create(14, nvml.GpuInstancePlacement{Start: 0, Size: 2})
	r := run(t, n, "", nil)
	held := atomic.Pointer[[]string]{}
	held.Store(&[]string{"gpu-18-00-mig-2g20gb-14-0"})
	r.SetHeld(func(context.Context) ([]string, error) { return *held.Load(), nil })
	eventually(t, "it is seen", func() bool { return !slices.Contains(r.names(t), "gpu-18-00") })
	names := r.names(t)
	for name, want := range map[string]bool{
		"gpu-18-00-mig-3g40gb-9-0": true, "gpu-18-00-mig-3g40gb-9-4": false, "gpu-18-00-mig-1g10gb-19-3": true, "gpu-18-00-mig-1g10gb-19-4": false,
		"gpu-18-00-mig-7g80gb-0-0": false, "gpu-18-00-mig-2g20gb-14-0": true, "gpu-18-00-mig-1g20gb-15-6": false,
	} {
		if got := slices.Contains(names, name); got != want {
			t.Errorf("%s is published: %v, want %v", name, got, want)
		}
	}
	counters := r.pool(t).SharedCounters[0].Counters
	for name, want := range map[string]int64{"multiprocessors": 132 - 60, "memory-slice-3": 1, "memory-slice-4": 0, "copy-engines": 8 - 3} {
		if got := counters[name]; got.Value.Value() != want {
			t.Errorf("%s is %v, want %d", name, got.Value.Value(), want)
		}
	}
	if got := n.gpus[0].made(); len(got) != 2 {
		t.Errorf("left %v", got)
	}
	n.change(func() { n.gpus[0].instances = nil })
	eventually(t, "its place is free", func() bool { return len(r.names(t)) == 26 })
}

// TestInstanceThatIsNotPublished: a claim has it from before the configuration
// was changed, and nothing is published in its place until the claim has ended.
func TestInstanceThatIsNotPublished(t *testing.T) {
	for name, test := range map[string]struct {
		publish Publish
		held    string
		kept    []string
		all     int // once it is gone
	}{
		"another profile": {
			Publish{Profiles: []string{"1g.10gb"}, WholeMIG: new(bool)},
			"gpu-18-00-mig-3g40gb-9-0",
			[]string{"gpu-18-00-mig-1g10gb-19-4", "gpu-18-00-mig-1g10gb-19-5", "gpu-18-00-mig-1g10gb-19-6"},
			7,
		},
		"no partitions": {Publish{Partitions: new(bool)}, "gpu-18-00-mig-3g40gb-9-0", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := splitNode()
			n.gpus[0].create(9, nvml.GpuInstancePlacement{Start: 0, Size: 4})
			r := run(t, n, "", func(c *Config) { c.Policy.Publish, c.RemoveUnknown = test.publish, true })
			held := atomic.Pointer[[]string]{}
			held.Store(&[]string{test.held})
			r.SetHeld(func(context.Context) ([]string, error) { return *held.Load(), nil })
			eventually(t, "its place is hidden", func() bool { return len(r.names(t)) == len(test.kept) })
			if got := r.names(t); !slices.Equal(got, test.kept) {
				t.Errorf("there are %v", got)
			}
			if len(test.kept) > 0 {
				counters := r.pool(t).SharedCounters[0].Counters
				for name, want := range map[string]int64{"multiprocessors": 132 - 60, "memory-slice-3": 0, "memory-slice-4": 1} {
					if got := counters[name]; got.Value.Value() != want {
						t.Errorf("%s is %v, want %d", name, got.Value.Value(), want)
					}
				}
			}
			n.gpus[0].asked("instances", 40)
			if got := n.gpus[0].made(); len(got) != 1 {
				t.Errorf("left %v", got)
			}
			n.change(func() { n.gpus[0].instances = nil })
			held.Store(&[]string{})
			eventually(t, "its place is free", func() bool { return len(r.names(t)) == test.all })
		})
	}
}

// TestInstanceOfNobodyIsDestroyed where that is asked for; those of claims stay,
// also where it can't be known whose they are.
func TestInstanceOfNobodyIsDestroyed(t *testing.T) {
	n := splitNode()
	n.gpus[0].create(9, nvml.GpuInstancePlacement{Start: 4, Size: 4})
	n.gpus[0].create(14, nvml.GpuInstancePlacement{Start: 0, Size: 2})
	r := run(t, n, "", func(c *Config) { c.RemoveUnknown = true })
	var ready atomic.Bool
	r.SetHeld(func(context.Context) ([]string, error) {
		if !ready.Load() {
			return nil, errors.New("the checkpoint can't be read")
		}
		return []string{"gpu-18-00-mig-2g20gb-14-0"}, nil
	})
	n.gpus[0].asked("instances", 40)
	if got := n.gpus[0].made(); len(got) != 2 {
		t.Fatalf("left %v", got)
	}
	ready.Store(true)
	eventually(t, "it is destroyed", func() bool { return slices.Equal(n.gpus[0].made(), [][2]uint32{{14, 0}}) })
	n.gpus[0].asked("instances", 40)
	if got := len(r.names(t)); got != 26 {
		t.Errorf("there are %d devices", got)
	}
	// One that comes later is someone's who is at work now.
	n.change(func() { n.gpus[0].create(9, nvml.GpuInstancePlacement{Start: 4, Size: 4}) })
	eventually(t, "it is seen", func() bool { return !slices.Contains(r.names(t), "gpu-18-00") })
	if got := n.gpus[0].made(); len(got) != 2 {
		t.Errorf("left %v", got)
	}
}

// TestWholeBoardOfAClaim: its instance is the claim's, under the board's name.
func TestWholeBoardOfAClaim(t *testing.T) {
	n := splitNode()
	r := run(t, n, "", func(c *Config) { c.RemoveUnknown = true })
	r.SetHeld(func(context.Context) ([]string, error) { return []string{"gpu-18-00"}, nil })
	r.pool(t)
	if _, err := r.Edits(t.Context(), "gpu-18-00"); err != nil {
		t.Fatal(err)
	}
	n.gpus[0].asked("instances", 60)
	if got := n.gpus[0].made(); len(got) != 1 {
		t.Errorf("left %v", got)
	}
	if got := len(r.names(t)); got != 26 {
		t.Errorf("there are %d devices", got)
	}
}
