package nvml

// This file shares GPUs of a simulated NVML by stand-ins for NVIDIA's programs.

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/nvml/sharing"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// standIn makes a driver root that has nothing but the programs.
func standIn(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a driver root needs root")
	}
	root := t.TempDir()
	for _, folder := range []string{"usr/bin", "dev/shm", "standin"} {
		must(t, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	smi := filepath.Join(root, "usr/bin/nvidia-smi")
	cmd := exec.Command("go", "build", "-trimpath", "-o", smi, "./sharing/testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the stand-in: %v, %s", err, said)
	}
	must(t, os.Link(smi, filepath.Join(root, "usr/bin/nvidia-cuda-mps-control")))
	return root
}

func TestSimulatedSharing(t *testing.T) {
	root := standIn(t)
	data := t.TempDir()
	s := simulate(t, "t4", 2, func(c *Config) {
		c.Sharing = &sharing.Config{Root: root, Data: data, BootIDFile: c.BootIDFile}
	})
	all := gpusOf{s.Inventory}
	mode := func(gpu int) sharing.Mode {
		t.Helper()
		is, err := all.ComputeMode(t.Context(), s.name(gpu))
		must(t, err)
		return is
	}
	must(t, all.SetComputeMode(t.Context(), s.name(0), 2))
	for _, strategy := range []v1alpha1.SharingStrategy{v1alpha1.SharingTimeSlicing, v1alpha1.SharingMPS} {
		edits, err := s.Share(t.Context(), s.name(0), "uid", v1alpha1.Sharing{Strategy: strategy})
		if errors.Is(err, syscall.EPERM) {
			t.Skip("a driver root needs the right to mount and to change the root folder")
		}
		must(t, err)
		if len(edits.Env) == 0 || edits.Env[0] != "LADDER_SHARING="+string(strategy) {
			t.Errorf("the edits are %+v", edits)
		}
		want := map[bool]sharing.Mode{true: sharing.ModeExclusiveProcess, false: sharing.ModeDefault}[strategy == v1alpha1.SharingMPS]
		if got := mode(0); got != want {
			t.Errorf("%s: the compute mode is %d, want %d", strategy, got, want)
		}
		if shared, err := s.Shared(t.Context()); err != nil || len(shared) != 1 || shared[0].Device != s.name(0) {
			t.Errorf("shared are %v, %v", shared, err)
		}
		must(t, s.Unshare(t.Context(), s.name(0), "uid"))
		if got := mode(0); got != 2 {
			t.Errorf("%s: the compute mode is %d, before it was 2", strategy, got)
		}
	}
	if got := mode(1); got != sharing.ModeDefault {
		t.Errorf("the other GPU has compute mode %d", got)
	}
	// What is set on a GPU is lost with it.
	_, err := s.Share(t.Context(), s.name(1), "uid", v1alpha1.Sharing{Strategy: v1alpha1.SharingTimeSlicing})
	must(t, err)
	must(t, s.Control.Lost(1))
	must(t, s.Unshare(t.Context(), s.name(1), "uid"))
	if shared, err := s.Shared(t.Context()); err != nil || len(shared) != 0 {
		t.Errorf("shared are %v, %v", shared, err)
	}
	if _, err := s.Share(t.Context(), "gpu-ff-00", "uid", v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS}); !errors.Is(err, ErrNoDevice) {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestSimulatedPartitionsAreNotShared(t *testing.T) {
	root := standIn(t)
	s := simulate(t, "a100-40-mig", 1, func(c *Config) {
		c.Sharing = &sharing.Config{Root: root, Data: root, BootIDFile: c.BootIDFile}
	})
	for _, device := range []string{s.name(0), partitionOf(t, s)} {
		_, err := s.Share(t.Context(), device, "uid", v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS})
		var unsupported *inventory.UnsupportedError
		if !errors.As(err, &unsupported) || unsupported.Device != device {
			t.Errorf("%s: got %v", device, err)
		}
	}
}

// partitionOf is one of them.
func partitionOf(t *testing.T, s *simulated) string {
	t.Helper()
	for _, name := range s.names(t) {
		if strings.Contains(name, "-mig-1g") {
			return name
		}
	}
	t.Fatal("there is none")
	return ""
}

func TestSharingThatIsNotConfigured(t *testing.T) {
	r := run(t, newNode(1), "", nil)
	_, err := r.Share(t.Context(), "gpu-18-00", "uid", v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS})
	var unsupported *inventory.UnsupportedError
	if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), "configured without it") {
		t.Errorf("got %v", err)
	}
	must(t, r.Unshare(t.Context(), "gpu-18-00", "uid"))
	if shared, err := r.Shared(t.Context()); err != nil || len(shared) != 0 {
		t.Errorf("shared are %v, %v", shared, err)
	}
	for _, config := range []sharing.Config{{}, {Data: "/d", BootIDFile: "/b", Limit: -1}} {
		c := quick(newNode(1), t.TempDir())
		c.Editor, c.Sharing = &editor{}, &config
		if _, err := New(t.Context(), c); err == nil || !strings.Contains(err.Error(), "configuring sharing") {
			t.Errorf("%+v: got %v", config, err)
		}
	}
}

// TestSharingWhileNVMLIsAway: what is set on a GPU is not forgotten for it.
func TestSharingWhileNVMLIsAway(t *testing.T) {
	n := newNode(1)
	n.initErr = nvml.ERROR_DRIVER_NOT_LOADED
	r := run(t, n, "", nil)
	_, err := (gpusOf{r.Inventory}).GPU(t.Context(), "gpu-18-00")
	var away *UnavailableError
	if errors.Is(err, sharing.ErrGone) || !errors.As(err, &away) {
		t.Errorf("got %v", err)
	}
	n.change(func() { n.initErr = nvml.SUCCESS })
	eventually(t, "the GPU is found", func() bool { return len(r.names(t)) == 1 })
	if gpu, err := (gpusOf{r.Inventory}).GPU(t.Context(), "gpu-18-00"); err != nil || gpu.UUID != n.gpus[0].uuid || gpu.Partitioned {
		t.Errorf("got %+v, %v", gpu, err)
	}
	if _, err := (gpusOf{r.Inventory}).GPU(t.Context(), "gpu-ff-00"); !errors.Is(err, sharing.ErrGone) {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestSharingWithALibraryThatLacksIt(t *testing.T) {
	n := newNode(1)
	n.lacks = map[string]bool{"nvmlDeviceGetComputeMode": true, "nvmlDeviceSetComputeMode": true}
	r := run(t, n, "", nil)
	eventually(t, "the GPU is found", func() bool { return len(r.names(t)) == 1 })
	if _, err := (gpusOf{r.Inventory}).ComputeMode(t.Context(), "gpu-18-00"); err == nil || !strings.Contains(err.Error(), "this version of NVML does not have the function") {
		t.Errorf("got %v", err)
	}
	if err := (gpusOf{r.Inventory}).SetComputeMode(t.Context(), "gpu-18-00", 0); err == nil || !strings.Contains(err.Error(), "does not have the function") {
		t.Errorf("got %v", err)
	}
}
