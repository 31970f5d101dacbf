package sharing

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestMPS(t *testing.T) {
	n := newNode(t)
	n.gpus.modes["gpu-0"] = ModeDefault
	edits := n.mustShare("gpu-0", "a", narrow)
	folder := n.folderOf("a")
	if !slices.Equal(edits.Env, []string{"LADDER_SHARING=MPS", "CUDA_MPS_PIPE_DIRECTORY=/dev/shm/nvidia-mps"}) {
		t.Errorf("the variables are %v", edits.Env)
	}
	if len(edits.Mounts) != 1 || edits.Mounts[0].HostPath != "/on/host/mps/"+filepath.Base(folder) || edits.Mounts[0].ContainerPath != "/dev/shm" {
		t.Errorf("the mounts are %+v", edits.Mounts)
	}
	want := "nvidia-cuda-mps-control -d; nvidia-cuda-mps-control daemon; gpus GPU-of-gpu-0; " +
		"told set_default_active_thread_percentage 30; told set_default_device_pinned_mem_limit 0 2048M"
	if got := n.calls(); got != want {
		t.Errorf("called is %s, want %s", got, want)
	}
	if mode := n.gpus.now()["gpu-0"]; mode != ModeExclusiveProcess {
		t.Errorf("the compute mode is %d", mode)
	}
	// The daemon's /dev/shm is the claim's, and nobody else's.
	if _, err := os.Stat(filepath.Join(folder, "standin")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(n.root, "dev/shm")); err != nil || len(left) != 0 {
		t.Errorf("the node's /dev/shm has %v, %v", left, err)
	}
	// Other users' programs reach it.
	for part, mode := range map[string]os.FileMode{"": os.ModeSticky | 0o777, "nvidia-mps": 0o777, "nvidia-mps-log": 0o700} {
		if info, err := os.Stat(filepath.Join(folder, part)); err != nil || info.Mode() != mode|os.ModeDir {
			t.Errorf("%s: %v, %v", part, info.Mode(), err)
		}
	}
	before := n.daemons("a")
	n.restart()
	n.mustShare("gpu-0", "a", narrow)
	if after := n.daemons("a"); !slices.Equal(before, after) || n.calls() != "" {
		t.Errorf("the daemon %v became %v", before, after)
	}
	n.ok(n.unshare("gpu-0", "a"))
	n.ok(n.unshare("gpu-0", "a"))
	if got := n.calls(); got != "told quit" {
		t.Errorf("called is %s", got)
	}
	n.nothing("in the end")
}

// TestOneDaemonForAClaim, with all of its GPUs and each one's limit.
func TestOneDaemonForAClaim(t *testing.T) {
	n := newNode(t)
	n.gpus.modes["gpu-0"], n.gpus.modes["gpu-1"] = ModeDefault, ModeDefault
	n.mustShare("gpu-0", "a", mps)
	if got, want := n.calls(), "nvidia-cuda-mps-control -d; nvidia-cuda-mps-control daemon; gpus GPU-of-gpu-0"; got != want {
		t.Errorf("called is %s, want %s", got, want)
	}
	limited := v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS, MPS: &v1alpha1.MPS{PinnedDeviceMemoryLimit: narrow.MPS.PinnedDeviceMemoryLimit}}
	n.mustShare("gpu-1", "a", limited)
	want := "told quit; nvidia-cuda-mps-control -d; nvidia-cuda-mps-control daemon; gpus GPU-of-gpu-0,GPU-of-gpu-1; told set_default_device_pinned_mem_limit 1 2048M"
	if got := n.calls(); got != want {
		t.Errorf("called is %s, want %s", got, want)
	}
	if all := n.daemons("a"); len(all) != 1 {
		t.Errorf("its processes are %v", all)
	}
	n.mustShare("gpu-0", "a", mps)
	if got := n.calls(); got != "" {
		t.Errorf("asked again, called is %s", got)
	}
	// Of one GPU there is one daemon.
	if _, err := n.share("gpu-1", "b", mps); err == nil || !strings.Contains(err.Error(), "still set up for claim a") {
		t.Errorf("another claim: %v", err)
	}
	other := v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS, MPS: &v1alpha1.MPS{ActiveThreadPercentage: ptr.To[int32](5)}}
	if _, err := n.share("gpu-0", "a", other); err == nil || !strings.Contains(err.Error(), "several activeThreadPercentages") {
		t.Errorf("two percentages: %v", err)
	}
	// The first device ends it; nobody starts it for the other.
	n.ok(n.unshare("gpu-0", "a"))
	n.ok(n.mend(t.Context()))
	if all := n.daemons("a"); len(all) != 0 {
		t.Errorf("its processes are %v", all)
	}
	n.ok(n.unshare("gpu-1", "a"))
	n.nothing("in the end")
}

// TestDaemonsThatMisbehave: it is told what they do, nothing is left, and
// nobody waits for longer than the limits.
func TestDaemonsThatMisbehave(t *testing.T) {
	for trouble, want := range map[string]string{
		"fail": "starting an MPS daemon, nvidia-cuda-mps-control -d: exit status 4: Unable to do it",
		"hang": "starting an MPS daemon, nvidia-cuda-mps-control -d: it has not ended within",
		"die":  "the MPS daemon was not ready within 4s: asking an MPS daemon to get_default_active_thread_percentage",
		"mute": "the MPS daemon was not ready within 4s",
		"deaf": "the percentage of threads is 100 after 30 was set",
	} {
		t.Run(trouble, func(t *testing.T) {
			n := newNode(t)
			n.breaks(control, trouble)
			n.impatient()
			if _, err := n.share("gpu-0", "a", narrow); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
			if all := n.daemons("a"); len(all) != 0 {
				t.Errorf("its processes are left: %v", all)
			}
			if shared, err := n.Shared(t.Context()); err != nil || len(shared) != 1 {
				t.Errorf("shared are %v, %v", shared, err)
			}
			n.patient()
			n.ok(n.unshare("gpu-0", "a"))
			n.nothing("in the end")
		})
	}
}

// TestADaemonThatDoesNotQuit is killed.
func TestADaemonThatDoesNotQuit(t *testing.T) {
	for _, trouble := range []string{"fail", "hang"} {
		n := newNode(t)
		n.mustShare("gpu-0", "a", mps)
		n.breaks(control, trouble)
		n.impatient()
		n.ok(n.unshare("gpu-0", "a"))
		n.nothing(trouble)
	}
}

// TestADaemonThatDies, or stops, is started again, also by the next driver.
func TestADaemonThatDies(t *testing.T) {
	n := newNode(t)
	n.mustShare("gpu-0", "a", narrow)
	for how, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		before := n.daemons("a")
		for _, pid := range before {
			n.ok(syscall.Kill(pid, signal))
		}
		n.calls()
		n.impatient()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Manager.Run(ctx) }()
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			after := n.daemons("a")
			if len(after) > 0 && !slices.ContainsFunc(after, func(pid int) bool { return slices.Contains(before, pid) }) && n.ready("a") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the daemon %v became %v", how, before, after)
			}
		}
		cancel()
		n.ok(<-ended)
		if got := n.calls(); !strings.Contains(got, "told set_default_active_thread_percentage 30") {
			t.Errorf("%s: its limits are lost, called is %s", how, got)
		}
		if all := n.daemons("a"); len(all) != 1 {
			t.Errorf("%s: when the driver has ended, its processes are %v", how, all)
		}
	}
	n.patient()
	n.ok(n.unshare("gpu-0", "a"))
	n.nothing("in the end")
}

// TestAskingBrokenOff: a driver that ends while it asks a daemon lets it run.
func TestAskingBrokenOff(t *testing.T) {
	n := newNode(t)
	n.mustShare("gpu-0", "a", mps)
	before := n.daemons("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := n.locked(t.Context(), func(s *state) error { return n.serve(ctx, s, "a") })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if after := n.daemons("a"); !slices.Equal(after, before) {
		t.Errorf("the daemon %v became %v", before, after)
	}
	n.ok(n.unshare("gpu-0", "a"))
	n.nothing("in the end")
}

// TestACrashBeforeAnythingRuns: what was only written down is undone.
func TestACrashBeforeAnythingRuns(t *testing.T) {
	n := newNode(t)
	n.ok(n.locked(t.Context(), func(s *state) error {
		s.Devices["gpu-0"] = &device{Claims: map[types.UID]v1alpha1.Sharing{"a": narrow}}
		s.Daemons["a"] = &daemon{Folder: n.folderOf("a"), UUIDs: []string{"GPU-of-gpu-0"}}
		return n.save(s)
	}))
	n.gpus.modes["gpu-0"] = ModeExclusiveProcess
	n.restart()
	n.ok(n.unshare("gpu-0", "a"))
	n.nothing("in the end")
}

// TestACrashBeforeTheLimits: a daemon that runs without them is not taken for
// one that is ready.
func TestACrashBeforeTheLimits(t *testing.T) {
	n := newNode(t)
	n.mustShare("gpu-0", "a", narrow)
	before := n.daemons("a")
	n.ok(n.locked(t.Context(), func(s *state) error {
		s.Daemons["a"].Ready = false
		return n.save(s)
	}))
	n.calls()
	n.restart()
	n.mustShare("gpu-0", "a", narrow)
	if got := n.calls(); !strings.Contains(got, "told set_default_active_thread_percentage 30; told set_default_device_pinned_mem_limit 0 2048M") {
		t.Errorf("called is %s", got)
	}
	if after := n.daemons("a"); len(after) != 1 || slices.Equal(before, after) {
		t.Errorf("the daemon %v became %v", before, after)
	}
	n.ok(n.unshare("gpu-0", "a"))
	n.nothing("in the end")
}
