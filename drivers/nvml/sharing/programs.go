package sharing

// This file runs NVIDIA's programs, none of which is trusted to end.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// folders are where programs are in a driver root.
var folders = []string{"usr/bin", "usr/local/bin", "usr/sbin", "bin", "sbin", "usr/local/sbin", "opt/bin", "opt/nvidia/bin"}

// programs are those of a driver root.
type programs struct {
	root  string
	limit time.Duration
}

// call is one run of a program.
type call struct {
	program string
	args    []string
	env     []string
	stdin   string
	// shm is put in the place of /dev/shm, for the program and all that it
	// starts. Such a program's output goes to log: it may leave behind others that
	// never close it.
	shm, log string
	// limit replaces the usual one.
	limit time.Duration
}

// errLeftBehind: the program could not even be killed.
var errLeftBehind = errors.New("it can't be killed, and is left behind")

// ProgramError occurs when a program has failed, or has not ended in time.
type ProgramError struct {
	// Program and its arguments.
	Program string
	// Output is what it said last, on one line.
	Output string
	Err    error
}

// Error says which program, why, and what it said.
func (e *ProgramError) Error() string {
	said := ""
	if e.Output != "" {
		said = ": " + e.Output
	}
	return fmt.Sprintf("%s: %v%s", e.Program, e.Err, said)
}

// Unwrap returns the reason.
func (e *ProgramError) Unwrap() error { return e.Err }

// find returns a program's path below the root.
func (p *programs) find(name string) (string, error) {
	for _, folder := range folders {
		path := filepath.Join("/", folder, name)
		if info, err := os.Stat(filepath.Join(p.root, path)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no %s below %s", name, p.root)
}

// run runs a program to its end and returns what it wrote.
func (p *programs) run(ctx context.Context, c call) (string, error) {
	described := strings.Join(append([]string{c.program}, c.args...), " ")
	path, err := p.find(c.program)
	if err != nil {
		return "", &ProgramError{Program: described, Err: err}
	}
	limit := p.limit
	if c.limit > 0 {
		limit = c.limit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it has not ended within %v", limit))
	defer cancel()
	cmd := exec.Command(path, c.args...) //nolint:gosec,noctx // a fixed name; killed below with all that it started
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, c.env...)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.root != "/" {
		cmd.SysProcAttr.Chroot = p.root
	}
	var output bytes.Buffer
	if c.log != "" {
		log, err := os.OpenFile(c.log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return "", &ProgramError{Program: described, Err: err}
		}
		defer func() { _ = log.Close() }()
		cmd.Stdout, cmd.Stderr = log, log
	} else {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), &output, &output
	}
	if err := p.start(cmd, c.shm); err != nil {
		return "", &ProgramError{Program: described, Err: err}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended just now
		select {
		case <-ended:
			err = context.Cause(ctx)
		case <-time.After(2 * time.Second):
			// The buffer still belongs to it.
			return "", &ProgramError{Program: described, Err: errors.Join(context.Cause(ctx), errLeftBehind)}
		}
	}
	said := output.String()
	if c.log != "" {
		if data, failed := os.ReadFile(c.log); failed == nil {
			said = string(data)
		}
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return "", &ProgramError{Program: described, Output: brief(said), Err: err}
	}
	return said, nil
}

// maxBrief is how much of an output an error quotes, in bytes.
const maxBrief = 300

// brief is the end of an output, on one line.
func brief(output string) string {
	line := strings.Join(strings.Fields(output), " ")
	if len(line) > maxBrief {
		line = "…" + strings.ToValidUTF8(line[len(line)-maxBrief:], "")
	}
	return line
}

// start starts a program, with a folder in the place of /dev/shm if one is given.
// A mount namespace belongs to a thread: this one is never given back to Go, so
// it ends with the goroutine.
func (p *programs) start(cmd *exec.Cmd, shm string) error {
	if shm == "" {
		return cmd.Start()
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		started <- func() error {
			if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
				return fmt.Errorf("making a mount namespace, %w", err)
			}
			if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SLAVE, ""); err != nil {
				return fmt.Errorf("keeping mounts from the node, %w", err)
			}
			at := filepath.Join(p.root, "dev/shm")
			if err := syscall.Mount(shm, at, "", syscall.MS_BIND, ""); err != nil {
				return fmt.Errorf("mounting %s at %s, %w", shm, at, err)
			}
			return cmd.Start()
		}()
	}()
	return <-started
}
