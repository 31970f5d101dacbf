package command

// A lab in the background is kept by a second ladder-lab that has no terminal.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/lab"
)

// envDetached marks the process that keeps a lab in the background.
const envDetached = "LADDER_LAB_DETACHED"

const pollInterval = 100 * time.Millisecond

// detach starts the keeper, shows what it says until the lab is up, and leaves
// it. Breaking off ends the keeper.
func detach(ctx context.Context, memory *lab.Memory, o upOptions, stderr, stdout io.Writer) error {
	if old, err := memory.Get(o.name); err == nil && old.Alive() {
		return fmt.Errorf("%w: lab %q is kept by process %d", lab.ErrExists, o.name, old.Holder.PID)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return usage(err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program, %w", err)
	}
	path := memory.LogFile(o.name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("opening the log of the lab, %w", err)
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of the lab, %w", err)
	}
	defer log.Close()
	keeper := exec.Command(self, o.args()...)
	keeper.Env = append(os.Environ(), envDetached+"=1")
	keeper.Stdout, keeper.Stderr = log, log
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := keeper.Start(); err != nil {
		return fmt.Errorf("starting the lab in the background, %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- keeper.Wait() }()

	reader, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading the log of the lab, %w", err)
	}
	defer reader.Close()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		_, _ = io.Copy(stderr, reader)
		state, err := memory.Get(o.name)
		if err == nil && state.Phase == lab.PhaseRunning && state.Holder.PID == keeper.Process.Pid {
			_, _ = io.Copy(stderr, reader)
			tellUse(stdout, *state)
			fmt.Fprintf(stdout, "ladder-lab down --name %s ends the lab.\n", o.name)
			return nil
		}
		select {
		case <-tick.C:
		case err := <-ended:
			_, _ = io.Copy(stderr, reader)
			if state, getErr := memory.Get(o.name); getErr == nil && !state.Alive() {
				if err := memory.Forget(*state); err != nil {
					return err
				}
			}
			return &exitError{code: ExitFailed, err: fmt.Errorf("starting the lab in the background, %w", errOrEnded(err))}
		case <-ctx.Done():
			_ = keeper.Process.Signal(syscall.SIGTERM)
			<-ended
			_, _ = io.Copy(stderr, reader)
			return ctx.Err()
		}
	}
}

var errEnded = errors.New("it ended before the lab was up")

func errOrEnded(err error) error {
	if err == nil {
		return errEnded
	}
	return fmt.Errorf("%w: %w", errEnded, err)
}

// args repeats the flags for the keeper.
func (o *upOptions) args() []string {
	args := []string{"up", "--name=" + o.name, "--scheduler=" + o.scheduler}
	if o.fleet != "" {
		args = append(args, "--fleet="+o.fleet)
	}
	if o.kubeconfig != "" {
		args = append(args, "--kubeconfig="+o.kubeconfig)
	}
	if o.noController {
		args = append(args, "--no-controller")
	}
	return args
}
