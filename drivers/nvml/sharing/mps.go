package sharing

// This file runs the daemons of NVIDIA's Multi-Process Service.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
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
	// shm is where a claim's folder is, in its containers and for its daemon.
	shm = "/dev/shm"
	// pipes and logs are in it. That programs and daemon meet in the one is told
	// to both by the same variable.
	pipes        = "nvidia-mps"
	logs         = "nvidia-mps-log"
	pipeVariable = "CUDA_MPS_PIPE_DIRECTORY=" + shm + "/" + pipes
	// folderVariable tells the processes of one claim's daemon from others.
	folderVariable = "LADDER_MPS_FOLDER="
	mib            = 1 << 20
)

// folder of a claim's daemon, in the data folder.
func folder(claim types.UID) string {
	sum := sha256.Sum256([]byte(claim))
	return filepath.Join("mps", hex.EncodeToString(sum[:8]))
}

// folderOf is its path.
func (m *Manager) folderOf(claim types.UID) string {
	return filepath.Join(m.config.Data, folder(claim))
}

// addMPS adds what a container needs to reach the claim's daemon.
func (m *Manager) addMPS(edits *specs.ContainerEdits, claim types.UID) {
	edits.Env = append(edits.Env, pipeVariable)
	edits.Mounts = append(edits.Mounts, &specs.Mount{
		HostPath: filepath.Join(m.config.DataOnHost, folder(claim)), ContainerPath: shm, Options: []string{"rw", "nosuid", "nodev", "bind"},
	})
}

// wanted is the daemon that a claim's devices call for.
func (m *Manager) wanted(ctx context.Context, s *state, claim types.UID) (*daemon, error) {
	d := &daemon{Folder: m.folderOf(claim)}
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
		if ctx.Err() != nil {
			// Asking was broken off: that says nothing of the daemon, which goes on
			// when the driver ends.
			return fmt.Errorf("asking an MPS daemon, %w", context.Cause(ctx))
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
	// Programs of any user use what is not the logs.
	for _, made := range []struct {
		path string
		mode os.FileMode
	}{
		{filepath.Dir(d.Folder), 0o711},
		{d.Folder, os.ModeSticky | 0o777},
		{filepath.Join(d.Folder, pipes), 0o777},
		{filepath.Join(d.Folder, logs), 0o700},
	} {
		if err := os.MkdirAll(made.path, 0o700); err != nil {
			return fmt.Errorf("making a daemon's folder, %w", err)
		}
		if err := os.Chmod(made.path, made.mode); err != nil {
			return fmt.Errorf("making a daemon's folder, %w", err)
		}
	}
	if _, err := m.programs.run(ctx, call{
		program: control, args: []string{"-d"},
		env: append(d.env(), "CUDA_VISIBLE_DEVICES="+strings.Join(d.UUIDs, ","), "CUDA_MPS_LOG_DIRECTORY="+shm+"/"+logs),
		shm: d.Folder, log: filepath.Join(d.Folder, logs, "start.log"),
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

// mark is a variable that the daemon's processes have, and no others.
func (d *daemon) mark() string { return folderVariable + d.Folder }

func (d *daemon) env() []string { return []string{pipeVariable, d.mark()} }

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
	said, err := m.programs.run(ctx, call{program: control, env: d.env(), stdin: command + "\n", shm: d.Folder, limit: m.config.Limit / 2})
	if err != nil {
		return "", fmt.Errorf("asking an MPS daemon to %s, %w", command, err)
	}
	return said, nil
}

// end ends the daemon of a claim, if it has one, and removes its folder.
func (m *Manager) end(ctx context.Context, s *state, claim types.UID) error {
	d := s.Daemons[claim]
	path := m.folderOf(claim)
	if d == nil {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil // it never had one, or that has ended
		} else if err != nil {
			return fmt.Errorf("looking for the folder of an MPS daemon, %w", err)
		}
		d = &daemon{Folder: path} // not remembered
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
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("removing a daemon's folder, %w", err)
	}
	delete(s.Daemons, claim)
	return m.save(s)
}

// stop ends the processes of a daemon: it is asked to, and then killed.
func (m *Manager) stop(ctx context.Context, d *daemon) error {
	all, err := processesOf(d.mark())
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
		if all, err = processesOf(d.mark()); err != nil || len(all) == 0 {
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
