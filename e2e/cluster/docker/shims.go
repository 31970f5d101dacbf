package docker

// Containers that outlive their daemon: those of one that was killed.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/process"
)

// endShims kills the containers that containerd's shims of this daemon still
// hold, and the shims. Ours are told by the socket on their command line.
func (d *daemon) endShims() error {
	shims, err := processesOf(func(argv [][]byte) bool {
		return len(argv) > 0 && bytes.HasPrefix([]byte(filepath.Base(string(argv[0]))), []byte("containerd-shim")) &&
			containsArg(argv, d.paths.containerdSocket())
	})
	if err != nil {
		return err
	}
	for _, shim := range shims {
		// A container's first process takes all others of its PID namespace along.
		for _, child := range children(shim) {
			_ = child.Signal(syscall.SIGKILL) // the only error is that it has ended
		}
		_ = shim.Signal(syscall.SIGKILL)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		alive := 0
		for _, shim := range shims {
			if shim.Alive() {
				alive++
			}
		}
		if alive == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("ending containers that outlived their daemon, %d shims still run", alive)
		}
	}
}

func containsArg(argv [][]byte, want string) bool {
	for _, arg := range argv {
		if string(arg) == want {
			return true
		}
	}
	return false
}

// processesOf returns the processes whose command line matches.
func processesOf(match func(argv [][]byte) bool) ([]process.Identity, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes, %w", err)
	}
	var found []process.Identity
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// The identity first: the number may be another's by the time it is used.
		id, err := process.Of(pid)
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue // it has ended
		}
		if match(bytes.Split(bytes.TrimRight(cmdline, "\x00"), []byte{0})) {
			found = append(found, id)
		}
	}
	return found, nil
}

// children returns the children of a process, of all its threads.
func children(parent process.Identity) []process.Identity {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent.PID))
	if err != nil {
		return nil
	}
	var found []process.Identity
	for _, list := range lists {
		content, err := os.ReadFile(list)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		for _, field := range bytes.Fields(content) {
			pid, err := strconv.Atoi(string(field))
			if err != nil {
				continue
			}
			if id, err := process.Of(pid); err == nil {
				found = append(found, id)
			}
		}
	}
	return found
}
