package sharing

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestTimeSlicing(t *testing.T) {
	n := newNode(t)
	n.gpus.modes["gpu-0"] = 2 // as someone has set it: prohibited
	edits := n.mustShare("gpu-0", "a", turns)
	if !slices.Equal(edits.Env, []string{"LADDER_SHARING=TimeSlicing"}) || len(edits.Mounts) != 0 {
		t.Errorf("the edits are %+v", edits)
	}
	if got, want := n.calls(), "nvidia-smi compute-policy --set-timeslice=3 -i GPU-of-gpu-0"; got != want {
		t.Errorf("called is %s, want %s", got, want)
	}
	if mode := n.gpus.now()["gpu-0"]; mode != ModeDefault {
		t.Errorf("the compute mode is %d", mode)
	}
	// Two claims can have it set alike, which is undone with the last.
	n.mustShare("gpu-0", "b", turns)
	if _, err := n.share("gpu-0", "b", plain); err == nil || !strings.Contains(err.Error(), "it is still set up for claim a in another way") {
		t.Errorf("another interval: %v", err)
	}
	n.calls()
	n.restart()
	n.ok(n.unshare("gpu-0", "a"))
	if got := n.calls(); got != "" {
		t.Errorf("with a claim left called is %s", got)
	}
	n.ok(n.unshare("gpu-0", "b"))
	n.ok(n.unshare("gpu-0", "b"))
	if got, want := n.calls(), "nvidia-smi compute-policy --set-timeslice=0 -i GPU-of-gpu-0"; got != want {
		t.Errorf("called is %s, want %s", got, want)
	}
	if mode := n.gpus.now()["gpu-0"]; mode != 2 {
		t.Errorf("the compute mode is %d, before it was 2", mode)
	}
	n.gpus.modes["gpu-0"] = ModeDefault
	n.nothing("in the end")
}

func TestPartitionsTakeTurnsAnyway(t *testing.T) {
	n := newNode(t)
	edits := n.mustShare("gpu-2", "a", plain)
	if !slices.Equal(edits.Env, []string{"LADDER_SHARING=TimeSlicing"}) || n.calls() != "" || n.gpus.set != 0 {
		t.Errorf("the edits are %+v, set %d times", edits, n.gpus.set)
	}
	for _, sharing := range []v1alpha1.Sharing{turns, mps} {
		_, err := n.share("gpu-2", "a", sharing)
		var unsupported *inventory.UnsupportedError
		if !errors.As(err, &unsupported) || unsupported.Strategy != sharing.Strategy {
			t.Errorf("got %v", err)
		}
	}
	n.ok(n.unshare("gpu-2", "a"))
	n.nothing("in the end")
}

// TestWhatGoesWrong with nvidia-smi or NVML is told, known, and can be undone.
func TestWhatGoesWrong(t *testing.T) {
	for name, test := range map[string]struct {
		broken func(n *node, is bool)
		want   string
	}{
		"nvidia-smi fails": {func(n *node, is bool) {
			n.breaks("nvidia-smi", map[bool]string{true: "fail"}[is])
		}, "setting the interval of GPU-of-gpu-0, nvidia-smi compute-policy --set-timeslice=3 -i GPU-of-gpu-0: exit status 4: Unable to do it: Insufficient Permissions"},
		"nvidia-smi hangs": {func(n *node, is bool) {
			n.breaks("nvidia-smi", map[bool]string{true: "hang"}[is])
		}, "it has not ended within 3s"},
		"no nvidia-smi": {func(n *node, is bool) {
			from, to := filepath.Join(n.root, "usr/bin/nvidia-smi"), filepath.Join(n.root, "gone")
			if !is {
				from, to = to, from
			}
			n.ok(os.Rename(from, to))
		}, "there is no nvidia-smi below "},
		"no permission": {func(n *node, is bool) {
			n.gpus.err = map[bool]error{true: errors.New("no permission")}[is]
		}, "no permission"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.gpus.modes["gpu-0"] = 2
			test.broken(n, true)
			n.impatient()
			if _, err := n.share("gpu-0", "a", turns); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			test.broken(n, false)
			n.patient()
			n.mustShare("gpu-0", "a", turns)
			test.broken(n, true)
			n.impatient()
			if err := n.unshare("gpu-0", "a"); err == nil || !strings.Contains(err.Error(), strings.Replace(test.want, "=3", "=0", 1)) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if shared, err := n.Shared(t.Context()); err != nil || len(shared) != 1 {
				t.Errorf("it is forgotten: %v, %v", shared, err)
			}
			test.broken(n, false)
			n.patient()
			n.ok(n.unshare("gpu-0", "a"))
			if mode := n.gpus.now()["gpu-0"]; mode != 2 {
				t.Errorf("the compute mode is %d, before it was 2", mode)
			}
		})
	}
}

// TestALostGPU has nothing to be set back.
func TestALostGPU(t *testing.T) {
	n := newNode(t)
	n.mustShare("gpu-0", "a", turns)
	n.gpus.gone = true
	n.calls()
	if _, err := n.share("gpu-1", "b", turns); !errors.Is(err, ErrGone) {
		t.Errorf("got %v", err)
	}
	n.ok(n.unshare("gpu-0", "a"))
	if got := n.calls(); got != "" {
		t.Errorf("called is %s", got)
	}
	n.nothing("in the end")
}

func TestAnotherBoot(t *testing.T) {
	n := newNode(t)
	n.mustShare("gpu-0", "a", turns)
	n.ok(os.WriteFile(n.boot, []byte("boot-2"), 0o600))
	n.calls()
	n.nothing("booted")
	n.ok(n.unshare("gpu-0", "a"))
	if got := n.calls(); got != "" {
		t.Errorf("called is %s", got)
	}
}

func TestADamagedFile(t *testing.T) {
	n := newNode(t)
	n.mustShare("gpu-0", "a", narrow)
	path := filepath.Join(n.data(), FileName)
	n.ok(os.WriteFile(path, []byte("torn"), 0o600))
	if shared, err := n.Shared(t.Context()); err != nil || len(shared) != 0 {
		t.Errorf("shared are %v, %v", shared, err)
	}
	if data, err := os.ReadFile(filepath.Join(n.data(), CorruptFileName)); err != nil || string(data) != "torn" {
		t.Errorf("set aside is %q, %v", data, err)
	}
	// The daemon is found by its folder.
	n.ok(n.unshare("gpu-0", "a"))
	if all := n.daemons("a"); len(all) != 0 {
		t.Errorf("its processes are left: %v", all)
	}
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(c *Config){
		"the GPUs":             func(c *Config) { c.GPUs = nil },
		"the data folder":      func(c *Config) { c.Data = "" },
		"boot ID":              func(c *Config) { c.BootIDFile = "" },
		"must not be negative": func(c *Config) { c.Limit = -1 },
	} {
		config := Config{GPUs: &gpus{}, Data: "/d", BootIDFile: "/b"}
		change(&config)
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	m, err := New(Config{GPUs: &gpus{}, Data: "/d", BootIDFile: "/b"})
	if err != nil || m.config.Root != "/" || m.config.DataOnHost != "/d" || m.config.Limit != DefaultLimit || m.config.Clock == nil {
		t.Errorf("the configuration is %+v, %v", m.config, err)
	}
}
