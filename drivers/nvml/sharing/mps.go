package sharing

// This file runs the daemons of NVIDIA's Multi-Process Service.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	control = "nvidia-cuda-mps-control"
	// pipeVariable tells programs and daemon where they meet.
	pipeVariable = "CUDA_MPS_PIPE_DIRECTORY"
	// containerPipe is where containers have it, which is CUDA's default.
	containerPipe = "/tmp/nvidia-mps"
	// longestSocket is the longest name of a socket in that folder.
	longestSocket = "/control_privileged"
	maxSocketPath = 107 // unix(7): sun_path, without its end
	mib           = 1 << 20
)

// folderOf a claim's daemon, in the driver root. Its name is short, since the
// paths of sockets are limited.
func (m *Manager) folderOf(claim types.UID) string {
	sum := sha256.Sum256([]byte(claim))
	return filepath.Join(m.config.Data, "mps", hex.EncodeToString(sum[:8]))
}

// here is a path of the driver root as this process sees it.
func (m *Manager) here(path string) string { return filepath.Join(m.config.Root, path) }

// addMPS adds what a container needs to reach the claim's daemon.
func (m *Manager) addMPS(edits *specs.ContainerEdits, claim types.UID) {
	folder := filepath.Join(m.config.RootOnHost, m.folderOf(claim))
	edits.Env = append(edits.Env, pipeVariable+"="+containerPipe)
	edits.Mounts = append(edits.Mounts,
		&specs.Mount{HostPath: filepath.Join(folder, "pipe"), ContainerPath: containerPipe, Options: []string{"rw", "nosuid", "nodev", "bind"}},
		&specs.Mount{HostPath: filepath.Join(folder, "shm"), ContainerPath: "/dev/shm", Options: []string{"rw", "nosuid", "nodev", "bind"}},
	)
}

// wanted is the daemon that a claim's devices call for.
func (m *Manager) wanted(ctx context.Context, s *state, claim types.UID) (*daemon, error) {
	d := &daemon{Folder: m.folderOf(claim)}
	if pipe := filepath.Join(d.Folder, "pipe"); len(pipe)+len(longestSocket) > maxSocketPath {
		return nil, fmt.Errorf("the path of the data folder is too long for sockets: %s%s", pipe, longestSocket)
	}
	for n, name := range s.devicesOf(claim) {
		gpu, err := m.config.GPUs.GPU(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("finding the GPU of device %s, %w", name, err)
		}
		sharing := s.Devices[name].Claims[claim]
		percentage, memory := limits(&sharing)
		if n > 0 && percentage != d.Percentage {
			return nil, errors.New("its requests ask for several activeThreadPercentages, and a claim has one daemon")
		}
		d.Percentage = percentage
		d.UUIDs, d.MiB = append(d.UUIDs, gpu.UUID), append(d.MiB, memory)
	}
	return d, nil
}

func limits(sharing *v1alpha1.Sharing) (percentage int32, memory int64) {
	if sharing.MPS == nil {
		return 0, 0
	}
	if p := sharing.MPS.ActiveThreadPercentage; p != nil {
		percentage = *p
	}
	if limit := sharing.MPS.PinnedDeviceMemoryLimit; limit != nil {
		memory = limit.Value() / mib
	}
	return percentage, memory
}

// serve has a daemon run for a claim: the one that runs, if it is what is
// wanted and answers, else a new one.
func (m *Manager) serve(ctx context.Context, s *state, claim types.UID) error {
	d, err := m.wanted(ctx, s, claim)
	if err != nil {
		return err
	}
	if known := s.Daemons[claim]; known != nil {
		if err = m.answers(ctx, d); known.equal(d) && known.Ready && !known.Ending && err == nil {
			return nil
		}
		klog.FromContext(ctx).Info("Starting an MPS daemon anew", "claimUID", claim, "gpus", d.UUIDs, "answer", fmt.Sprint(err))
	}
	// Before it runs: one that a crash leaves behind is found.
	s.Daemons[claim] = d
	if err := m.save(s); err != nil {
		return err
	}
	if err := m.stop(ctx, d); err != nil {
		return err
	}
	if err := m.begin(ctx, d); err != nil {
		return errors.Join(err, m.stop(context.WithoutCancel(ctx), d))
	}
	d.Ready = true
	if err := m.save(s); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("An MPS daemon serves a claim", "claimUID", claim, "gpus", d.UUIDs, "percentage", d.Percentage, "memoryMiB", d.MiB)
	return nil
}

// begin starts a daemon and sets its limits.
func (m *Manager) begin(ctx context.Context, d *daemon) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.config.DaemonLimit, fmt.Errorf("the MPS daemon was not ready within %v", m.config.DaemonLimit))
	defer cancel()
	// Programs of any user use the folders.
	for folder, mode := range map[string]os.FileMode{"": 0o755, "pipe": 0o777, "log": 0o755, "shm": os.ModeSticky | 0o777} {
		path := filepath.Join(m.here(d.Folder), folder)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("making a daemon's folder, %w", err)
		}
		if err := os.Chmod(path, mode); err != nil {
			return fmt.Errorf("making a daemon's folder, %w", err)
		}
	}
	if _, err := m.programs.run(ctx, call{
		program: control, args: []string{"-d"},
		env: []string{
			"CUDA_VISIBLE_DEVICES=" + strings.Join(d.UUIDs, ","), d.pipe(), "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(d.Folder, "log"),
		},
		shm: m.here(filepath.Join(d.Folder, "shm")), log: m.here(filepath.Join(d.Folder, "log", "start.log")),
	}); err != nil {
		return fmt.Errorf("starting an MPS daemon, %w", err)
	}
	var err error
	for err = m.answers(ctx, d); err != nil; err = m.answers(ctx, d) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("starting an MPS daemon, %w: %w", context.Cause(ctx), err)
		case <-m.config.Clock.After(50 * time.Millisecond):
		}
	}
	return m.limit(ctx, d)
}

func (d *daemon) pipe() string { return pipeVariable + "=" + filepath.Join(d.Folder, "pipe") }

// limit sets the limits, and reads back what can be.
func (m *Manager) limit(ctx context.Context, d *daemon) error {
	if d.Percentage > 0 {
		if _, err := m.ask(ctx, d, fmt.Sprintf("set_default_active_thread_percentage %d", d.Percentage)); err != nil {
			return err
		}
		is, err := m.percentage(ctx, d)
		if err != nil {
			return err
		}
		// It rounds to what the GPU can do.
		if math.Abs(is-float64(d.Percentage)) > 5 {
			return fmt.Errorf("limiting an MPS daemon, the percentage of threads is %v after %d was set", is, d.Percentage)
		}
	}
	for n, limit := range d.MiB {
		if limit == 0 {
			continue
		}
		if _, err := m.ask(ctx, d, fmt.Sprintf("set_default_device_pinned_mem_limit %d %dM", n, limit)); err != nil {
			return err
		}
	}
	return nil
}

// answers asks a daemon whether it is ready.
func (m *Manager) answers(ctx context.Context, d *daemon) error {
	_, err := m.percentage(ctx, d)
	return err
}

func (m *Manager) percentage(ctx context.Context, d *daemon) (float64, error) {
	said, err := m.ask(ctx, d, "get_default_active_thread_percentage")
	if err != nil {
		return 0, err
	}
	value, err := strconv.ParseFloat(strings.TrimSpace(said), 64)
	if err != nil {
		return 0, fmt.Errorf("asking an MPS daemon, it says %q", brief(said))
	}
	return value, nil
}

// ask gives a daemon one command.
func (m *Manager) ask(ctx context.Context, d *daemon, command string) (string, error) {
	said, err := m.programs.run(ctx, call{program: control, env: []string{d.pipe()}, stdin: command + "\n", limit: m.config.Limit / 2})
	if err != nil {
		return "", fmt.Errorf("asking an MPS daemon to %s, %w", command, err)
	}
	return said, nil
}

// end ends the daemon of a claim, if it has one, and removes its folder.
func (m *Manager) end(ctx context.Context, s *state, claim types.UID) error {
	d := s.Daemons[claim]
	folder := m.folderOf(claim)
	if d == nil {
		if _, err := os.Stat(m.here(folder)); err != nil {
			return nil // it never had one, or that has ended
		}
		d = &daemon{Folder: folder} // not remembered
	}
	if s.Daemons[claim] != nil && !d.Ending {
		d.Ending = true
		if err := m.save(s); err != nil {
			return err
		}
	}
	if err := m.stop(ctx, d); err != nil {
		return err
	}
	if err := os.RemoveAll(m.here(folder)); err != nil {
		return fmt.Errorf("removing a daemon's folder, %w", err)
	}
	delete(s.Daemons, claim)
	return m.save(s)
}

// stop ends the processes of a daemon: it is asked to, and then killed.
func (m *Manager) stop(ctx context.Context, d *daemon) error {
	all, err := processesOf(d.pipe())
	if err != nil || len(all) == 0 {
		return err
	}
	if _, err := m.ask(ctx, d, "quit"); err != nil {
		klog.FromContext(ctx).Info("Killing an MPS daemon that does not quit", "reason", err.Error(), "processes", all)
		kill(all)
	}
	ended := all
	deadline := m.config.Clock.Now().Add(m.config.DaemonLimit / 2)
	for killed := false; ; {
		if all, err = processesOf(d.pipe()); err != nil || len(all) == 0 {
			reap(ended)
			return err
		}
		ended = append(ended, all...)
		late := m.config.Clock.Now().After(deadline)
		if late && killed {
			return fmt.Errorf("ending an MPS daemon, the processes %v can't be killed", all)
		}
		if late {
			kill(all)
			killed, deadline = true, m.config.Clock.Now().Add(2*time.Second)
		}
		m.config.Clock.Sleep(20 * time.Millisecond)
	}
}
