package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpuladder.dev/ladder/drivers/inventory"
)

// TestDriverThatIsNotThereYet: the inventory waits for NVIDIA's driver, says so,
// and has its GPUs once it is loaded.
func TestDriverThatIsNotThereYet(t *testing.T) {
	for _, reason := range []nvml.Return{nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH} {
		n := newNode(2)
		n.initErr = reason
		r := run(t, n, "", nil)
		if got := r.names(t); len(got) != 0 {
			t.Errorf("got %v", got)
		}
		_, err := r.Health(t.Context())
		var away *UnavailableError
		if !errors.As(err, &away) || !errors.Is(err, reason) {
			t.Errorf("got %v", err)
		}
		if _, err := r.Edits(t.Context(), "gpu-18-00"); !errors.Is(err, ErrNoDevice) {
			t.Errorf("got %v", err)
		}
		n.change(func() { n.initErr = nvml.SUCCESS })
		eventually(t, "the GPUs are found", func() bool { return len(r.names(t)) == 2 })
		if report, err := r.Health(t.Context()); err != nil || len(report.Troubles) != 0 {
			t.Errorf("got %v, %v", report, err)
		}
	}
}

// TestDriverThatGoesAway: GPUs stay, suspect, and can't be prepared; claims of
// whole GPUs can end.
func TestDriverThatGoesAway(t *testing.T) {
	n := newNode(1)
	r := run(t, n, "", nil)
	if len(r.names(t)) != 1 {
		t.Fatal("there is no GPU")
	}
	n.change(func() { n.failing["count"], n.initErr = nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED })
	eventually(t, "it is told", func() bool { return r.troubles(t, "gpu-18-00")["nvml"].Reason == "NVMLUnavailable" })
	if got := r.names(t); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	_, err := r.Edits(t.Context(), "gpu-18-00")
	var away *UnavailableError
	if !errors.As(err, &away) {
		t.Errorf("got %v", err)
	}
	if err := r.Release(t.Context(), "gpu-18-00"); err != nil {
		t.Errorf("releasing a whole GPU: %v", err)
	}
	n.change(func() { n.failing["count"], n.initErr = nvml.SUCCESS, nvml.SUCCESS })
	eventually(t, "it is back", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 })
	if _, err := r.Edits(t.Context(), "gpu-18-00"); err != nil {
		t.Error(err)
	}
	r.stop()
	n.change(func() {
		if n.opened != 0 {
			t.Errorf("NVML is left open %d times", n.opened)
		}
	})
}

// TestDriverThatWasReplaced ends the inventory: only another process can open
// the new library.
func TestDriverThatWasReplaced(t *testing.T) {
	n := newNode(1)
	config := quick(n, t.TempDir())
	config.Editor, config.MemoryFile = &editor{}, ""
	i, err := New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- i.Run(t.Context()) }()
	if pool, err := i.Pool(t.Context()); err != nil || len(pool.Devices) != 1 {
		t.Fatalf("got %v, %v", pool, err)
	}
	n.change(func() {
		n.failing["count"], n.initErr = nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH
	})
	select {
	case err := <-ended:
		if !errors.Is(err, ErrOutdated) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
}

// TestLostGPUIsKept over restarts of the driver, until the node boots.
func TestLostGPUIsKept(t *testing.T) {
	n := newNode(2)
	folder := t.TempDir()
	r := run(t, n, folder, nil)
	before := r.device(t, "gpu-18-00")
	n.change(func() { n.gpus = n.gpus[1:] })
	eventually(t, "it is missed", func() bool { return r.troubles(t, "gpu-18-00")["bus"].Reason == "GPULost" })
	if got := r.troubles(t, "gpu-18-00")["bus"]; got.Severity != inventory.Failed || got.Latched {
		t.Errorf("got %+v", got)
	}
	if got := r.troubles(t, "gpu-28-00"); len(got) != 0 {
		t.Errorf("the other one has %v", got)
	}
	if _, err := r.Edits(t.Context(), "gpu-18-00"); !errors.Is(err, ErrGPUAbsent) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("got %v", err)
	}
	if err := r.Release(t.Context(), "gpu-18-00"); err != nil {
		t.Errorf("got %v", err)
	}
	r.stop()

	r = run(t, n, folder, nil)
	if got := r.names(t); !slices.Equal(got, []string{"gpu-18-00", "gpu-28-00"}) {
		t.Fatalf("after a restart there are %v", got)
	}
	if after := r.device(t, "gpu-18-00"); say(after.Attributes["uuid"]) != say(before.Attributes["uuid"]) || say(after.Capacity["memory"]) != say(before.Capacity["memory"]) {
		t.Errorf("it is another one: %v", after)
	}
	if got := r.troubles(t, "gpu-18-00")["bus"].Reason; got != "GPULost" {
		t.Errorf("after a restart it has %q", got)
	}
	// It comes back.
	n.change(func() { n.gpus = append(n.gpus, n.newGPU(0)) })
	eventually(t, "it is found", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 })
	n.change(func() { n.gpus = n.gpus[:1] })
	eventually(t, "it is missed again", func() bool { return len(r.troubles(t, "gpu-18-00")) > 0 })
	r.stop()

	if err := os.WriteFile(filepath.Join(folder, "boot_id"), []byte("boot-2"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = run(t, n, folder, nil)
	if got := r.names(t); !slices.Equal(got, []string{"gpu-28-00"}) {
		t.Errorf("after a boot there are %v", got)
	}
}

// TestMemoryThatIsDamaged is no reason not to start.
func TestMemoryThatIsDamaged(t *testing.T) {
	for name, content := range map[string]string{"torn": `{"schema":1,"boo`, "newer": `{"schema":9,"bootID":"boot-1","gpus":[{"uuid":"GPU-x"}]}`, "empty": ""} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.WriteFile(filepath.Join(folder, "gpus.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			r := run(t, newNode(1), folder, nil)
			if got := r.names(t); !slices.Equal(got, []string{"gpu-18-00"}) {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestGPUThatHangs: its calls do not stop the driver, nor what the other GPU is
// asked and used for; a partition, a poll and the end of the driver are not
// held up either.
func TestGPUThatHangs(t *testing.T) {
	n := newNode(2)
	r := run(t, n, "", func(c *Config) { c.CallLimit, c.EditLimit = patience, patience })
	r.pool(t)
	hang := make(chan struct{})
	n.change(func() { n.gpus[0].hanging["fields"] = hang })
	eventually(t, "it is told", func() bool { return r.troubles(t, "gpu-18-00")["nvml"].Reason == "NVMLTimeout" })
	if got := r.troubles(t, "gpu-18-00")["nvml"]; !strings.Contains(got.Message, "nvmlDeviceGetFieldValues has not returned since 20") {
		t.Errorf("got %+v", got)
	}
	if !n.gpus[1].asked("fields", 3) {
		t.Error("the other GPU is not asked any more")
	}
	begun := time.Now()
	_, err := r.Edits(t.Context(), "gpu-18-00")
	var hangs *TimeoutError
	if !errors.As(err, &hangs) || hangs.Call != "nvmlDeviceGetFieldValues" {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begun); took > patience {
		t.Errorf("the answer took %v", took)
	}
	if _, err := r.Edits(t.Context(), "gpu-28-00"); err != nil {
		t.Errorf("the other GPU: %v", err)
	}
	n.gpus[1].xid(48, noInstance)
	eventually(t, "the other GPU is heard", func() bool { return r.troubles(t, "gpu-28-00")["xid"].Reason == "Xid48" })
	if got := r.troubles(t, "gpu-28-00"); len(got) != 1 {
		t.Errorf("the other GPU has %v", got)
	}
	n.change(func() { delete(n.gpus[0].hanging, "fields") })
	close(hang)
	eventually(t, "it is over", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 })
	if _, err := r.Edits(t.Context(), "gpu-18-00"); err != nil {
		t.Error(err)
	}
}

// TestEndWhileACallHangs: the driver ends, and leaves NVML as it is.
func TestEndWhileACallHangs(t *testing.T) {
	n := newNode(1)
	r := run(t, n, "", func(c *Config) { c.CallLimit = patience })
	r.pool(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	n.change(func() { n.gpus[0].hanging["fields"] = hang })
	eventually(t, "it is told", func() bool { return len(r.troubles(t, "gpu-18-00")) > 0 })
	r.stop()
	n.change(func() {
		if n.opened == 0 {
			t.Error("NVML was closed under a call")
		}
	})
}

// TestGPUThatHangsFromTheStart: what can't be asked at all is told by what was
// known of it.
func TestGPUThatHangsFromTheStart(t *testing.T) {
	folder := t.TempDir()
	n := newNode(2)
	r := run(t, n, folder, nil)
	r.pool(t)
	r.stop()
	hang := make(chan struct{})
	n.gpus[0].hanging["handle"] = hang
	r = run(t, n, folder, func(c *Config) { c.CallLimit = patience })
	if got := r.names(t); len(got) != 2 {
		t.Errorf("got %v", got)
	}
	if got := r.troubles(t, "gpu-18-00")["nvml"]; got.Reason != "NVMLTimeout" {
		t.Errorf("got %+v", got)
	}
	if got := r.troubles(t, "gpu-28-00"); len(got) != 0 {
		t.Errorf("the other one has %v", got)
	}
	n.change(func() { delete(n.gpus[0].hanging, "handle") })
	close(hang)
	eventually(t, "it is over", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 })
	if _, err := r.Edits(t.Context(), "gpu-18-00"); err != nil {
		t.Error(err)
	}
}

// TestLibraryThatHangs while it is opened: the first answer comes all the same.
func TestLibraryThatHangs(t *testing.T) {
	n := newNode(1)
	open, hang := n.InitFunc, make(chan struct{})
	n.InitFunc = func() nvml.Return { <-hang; return open() }
	r := run(t, n, "", func(c *Config) { c.CallLimit, c.StartLimit = patience, 2*time.Second })
	if got := r.names(t); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	_, err := r.Health(t.Context())
	var hangs *TimeoutError
	if !errors.As(err, &hangs) || hangs.Call != "nvmlInit" {
		t.Errorf("got %v", err)
	}
	close(hang)
	eventually(t, "the GPU is found", func() bool { return len(r.names(t)) == 1 })
}

// TestChangesAreTold: after each change of pool or health there is a signal.
func TestChangesAreTold(t *testing.T) {
	n := newNode(1)
	r := run(t, n, "", func(c *Config) { c.Settle = 50 * time.Millisecond })
	told := func(what string) {
		t.Helper()
		select {
		case <-r.Changed():
		case <-time.After(10 * time.Second):
			t.Fatalf("%s was not told", what)
		}
	}
	told("the first look")
	eventually(t, "it is quiet", func() bool { // the start is over when all events are
		report, err := r.Health(t.Context())
		return err == nil && len(report.Recovered) > 0
	})
	for len(r.Changed()) > 0 {
		<-r.Changed()
	}
	if n.gpus[0].asked("fields", 5); len(r.Changed()) > 0 {
		t.Error("there is a signal without a change")
	}
	n.change(func() { n.gpus[0].fields[nvml.FI_DEV_REMAPPED_PENDING] = 1 })
	told("a trouble")
	if len(r.troubles(t, "gpu-18-00")) != 1 {
		t.Error("the signal came before the trouble")
	}
	n.change(func() { n.gpus[0].fields[nvml.FI_DEV_REMAPPED_PENDING] = 0 })
	told("its end")
	n.change(func() { n.gpus = append(n.gpus, n.newGPU(1)) })
	told("another GPU")
	eventually(t, "it is found", func() bool { return len(r.names(t)) == 2 })
}

// TestAnswersBeforeTheFirstLook wait for it, but not for ever.
func TestAnswersBeforeTheFirstLook(t *testing.T) {
	config := quick(newNode(1), t.TempDir())
	config.Editor, config.MemoryFile, config.StartLimit = &editor{}, "", 20*time.Millisecond
	i, err := New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if pool, err := i.Pool(t.Context()); err != nil || len(pool.Devices) != 0 {
		t.Errorf("got %v, %v", pool, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.Health(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestAGPUOnceUnreadable is not a trouble yet; twice is.
func TestAGPUOnceUnreadable(t *testing.T) {
	g := &gpu{identity: identity{}}
	i := &Inventory{config: Config{}}
	err := &CallError{Call: "nvmlDeviceGetFieldValues", Return: nvml.ERROR_UNKNOWN}
	i.take(t.Context(), g, time.Time{}, &reading{}, err)
	if len(g.signals) != 0 {
		t.Errorf("got %v", g.signals)
	}
	i.take(t.Context(), g, time.Time{}, &reading{}, err)
	if g.signals["nvml-error"] != "nvmlDeviceGetFieldValues: unknown error" {
		t.Errorf("got %v", g.signals)
	}
	// One that is lost is so at once.
	i.take(t.Context(), g, time.Time{}, &reading{}, &CallError{Call: "nvmlDeviceGetFieldValues", Return: nvml.ERROR_GPU_IS_LOST})
	if _, is := g.signals["gpu-lost"]; !is || len(g.signals) != 1 {
		t.Errorf("got %v", g.signals)
	}
}
