// Package process runs the programs of a cluster so that none outlives the
// program that started it: not when it returns, panics, is interrupted or is
// killed.
//
// Each program leads a process group of its own, so that Ctrl-C in a terminal
// reaches only the parent, which then ends its children in order. On Linux the
// kernel kills a child when its parent dies, however it dies.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrExited says that the process had ended before a signal could be sent.
var ErrExited = errors.New("process has exited")

// Spec says how to run a program.
type Spec struct {
	// Name is used in errors.
	Name string
	Path string
	Args []string
	// Env is the whole environment; nil means the parent's own.
	Env []string
	Dir string
	// Log is the file to which both outputs are appended.
	Log string
}

// Process is a program that has been started.
type Process struct {
	spec Spec
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
	err  error // set before done is closed

	mu     sync.Mutex
	reaped bool
}

// Start runs the program. The Process must be ended by Stop or Kill, unless it
// ends by itself.
func Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s, %w", spec.Name, err)
	}
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()
	p := &Process{spec: spec, cmd: cmd, log: log, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		log.Close()
		return nil, fmt.Errorf("starting %s, %w", spec.Name, err)
	}
	return p, nil
}

// run starts the program and waits for it on one locked thread: the kernel
// takes the end of the starting *thread* for the parent's death.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	waitExited(p.cmd.Process.Pid)
	p.mu.Lock()
	// The group's number can't be given to others while its leader is not
	// reaped, so whatever the program left behind is ended now.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	p.err = p.cmd.Wait()
	p.reaped = true
	p.mu.Unlock()
	p.log.Close()
	close(p.done)
}

// Pid is the number of the process, which is also that of its group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the process ended: nil means status 0. It waits for the end.
func (p *Process) Exit() error {
	<-p.done
	return p.err
}

// Signal sends a signal to the whole group.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return ErrExited
	}
	return syscall.Kill(-p.cmd.Process.Pid, sig)
}

// Stop asks the process to end, and kills it when the grace is over or the
// context is done. It returns once the process is gone.
func (p *Process) Stop(ctx context.Context, grace time.Duration) {
	if errors.Is(p.Signal(syscall.SIGTERM), ErrExited) {
		return
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return
	case <-timer.C:
	case <-ctx.Done():
	}
	p.Kill()
}

// Kill ends the process at once and returns when it is gone.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL) // the only error is that it has ended
	<-p.done
}

// tailBytes bounds what Tail reads of a log.
const tailBytes = 64 << 10

// Tail returns the last n lines of a log file; "" if there are none.
func Tail(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tailBytes {
		if _, err := f.Seek(-tailBytes, io.SeekEnd); err != nil {
			return ""
		}
	}
	content, err := io.ReadAll(io.LimitReader(f, 2*tailBytes))
	if err != nil {
		return ""
	}
	all := strings.Split(string(bytes.TrimRight(content, "\n")), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
