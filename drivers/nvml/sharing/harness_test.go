package sharing

// This file is a node to test on: a driver root with stand-ins for NVIDIA's
// programs, and GPUs with a compute mode.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

var (
	turns  = v1alpha1.Sharing{Strategy: v1alpha1.SharingTimeSlicing, TimeSlicing: &v1alpha1.TimeSlicing{Interval: v1alpha1.IntervalLong}}
	plain  = v1alpha1.Sharing{Strategy: v1alpha1.SharingTimeSlicing}
	mps    = v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS}
	narrow = v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS, MPS: &v1alpha1.MPS{
		ActiveThreadPercentage: ptr.To[int32](30), PinnedDeviceMemoryLimit: ptr.To(resource.MustParse("2Gi")),
	}}
)

// standin is built once.
var standin = sync.OnceValues(func() ([]byte, error) {
	folder, err := os.MkdirTemp("", "standin")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(folder, "standin"), "./testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the stand-in, %w: %s", err, said)
	}
	return os.ReadFile(filepath.Join(folder, "standin"))
})

// node has GPUs gpu-0 and gpu-1, and gpu-2 in MIG mode.
type node struct {
	limit, daemonLimit time.Duration
	*testing.T
	root, boot, folder string
	gpus               *gpus
	*Manager
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a driver root needs root")
	}
	program, err := standin()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	n := &node{T: t, root: root, boot: filepath.Join(root, "boot"), folder: t.TempDir(), gpus: &gpus{modes: map[string]Mode{}}}
	for _, folder := range []string{"usr/bin", "dev/shm", "standin"} {
		n.ok(os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	for _, name := range []string{"nvidia-smi", "nvidia-cuda-mps-control"} {
		n.ok(os.WriteFile(filepath.Join(root, "usr/bin", name), program, 0o755))
	}
	n.ok(os.WriteFile(n.boot, []byte("boot-1\n"), 0o600))
	n.patient()
	if _, err := n.programs.run(t.Context(), call{program: "nvidia-smi", shm: n.folder}); errors.Is(err, syscall.EPERM) {
		t.Skip("a driver root needs the right to mount and to change the root folder")
	}
	n.calls()
	t.Cleanup(func() {
		for _, claim := range []types.UID{"a", "b"} {
			all, _ := processesOf("LADDER_MPS_FOLDER=" + n.folderOf(claim))
			kill(all)
			reap(all)
		}
	})
	return n
}

// patient is another driver that waits for as long as a busy machine needs;
// impatient is one that soon finds that a program hangs.
func (n *node) patient() {
	n.Helper()
	n.limit, n.daemonLimit = time.Minute, time.Minute
	n.restart()
}

func (n *node) impatient() {
	n.Helper()
	n.limit, n.daemonLimit = 3*time.Second, 4*time.Second
	n.restart()
}

// restart is another driver on the node.
func (n *node) restart() {
	n.Helper()
	made, err := New(Config{
		GPUs: n.gpus, Root: n.root, Data: n.data(), DataOnHost: "/on/host", BootIDFile: n.boot,
		Limit: n.limit, DaemonLimit: n.daemonLimit, Period: 20 * time.Millisecond,
	})
	n.ok(err)
	n.Manager = made
}

// data is the data folder, which is not in the driver root.
func (n *node) data() string { return n.folder }

func (n *node) ok(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// breaks gives a program a trouble, or with "" takes it away.
func (n *node) breaks(program, trouble string) {
	n.Helper()
	n.ok(os.WriteFile(filepath.Join(n.root, "standin", program), []byte(trouble), 0o600))
}

// calls are what the programs were called with since the last look, but for
// questions whether a daemon is there.
func (n *node) calls() string {
	n.Helper()
	path := filepath.Join(n.root, "standin/calls")
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	n.ok(err)
	n.ok(os.Remove(path))
	var lines []string
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if line != "nvidia-cuda-mps-control" && !strings.Contains(line, "get_default") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

func (n *node) share(device string, claim types.UID, sharing v1alpha1.Sharing) (specs.ContainerEdits, error) {
	return n.Share(n.Context(), device, claim, sharing)
}

func (n *node) mustShare(device string, claim types.UID, sharing v1alpha1.Sharing) specs.ContainerEdits {
	n.Helper()
	edits, err := n.share(device, claim, sharing)
	n.ok(err)
	return edits
}

func (n *node) unshare(device string, claim types.UID) error {
	return n.Unshare(n.Context(), device, claim)
}

// daemons are the processes of a claim's daemon.
func (n *node) daemons(claim types.UID) []int {
	n.Helper()
	all, err := processesOf("LADDER_MPS_FOLDER=" + n.folderOf(claim))
	n.ok(err)
	return all
}

// ready says whether a claim's daemon is known to be.
func (n *node) ready(claim types.UID) (is bool) {
	n.Helper()
	n.ok(n.locked(n.Context(), func(s *state) error {
		is = s.Daemons[claim] != nil && s.Daemons[claim].Ready
		return nil
	}))
	return is
}

// nothing says what is left of what was shared.
func (n *node) nothing(when string) {
	n.Helper()
	shared, err := n.Shared(n.Context())
	if err != nil || len(shared) != 0 {
		n.Errorf("%s: shared are %v, %v", when, shared, err)
	}
	for device, mode := range n.gpus.now() {
		if mode != ModeDefault {
			n.Errorf("%s: %s has compute mode %d", when, device, mode)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(n.data(), "mps", "*")); len(left) != 0 {
		n.Errorf("%s: folders are left: %v", when, left)
	}
	for _, claim := range []types.UID{"a", "b"} {
		if all := n.daemons(claim); len(all) != 0 {
			n.Errorf("%s: processes of claim %s are left: %v", when, claim, all)
		}
	}
}

// gpus are what NVML says and does.
type gpus struct {
	mu    sync.Mutex
	modes map[string]Mode
	gone  bool
	err   error
	set   int
}

func (g *gpus) now() map[string]Mode {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]Mode{}
	for device, mode := range g.modes {
		all[device] = mode
	}
	return all
}

func (g *gpus) GPU(_ context.Context, device string) (GPU, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return GPU{}, fmt.Errorf("device %s, %w", device, ErrGone)
	}
	return GPU{UUID: "GPU-of-" + device, Partitioned: device == "gpu-2"}, nil
}

func (g *gpus) ComputeMode(_ context.Context, device string) (Mode, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.modes[device], g.err
}

func (g *gpus) SetComputeMode(_ context.Context, device string, mode Mode) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	g.set++
	g.modes[device] = mode
	return nil
}
