package sharing

// This file finds the processes of a daemon: also those of which no driver
// that runs now is the parent.

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// processesOf are those that have a variable: a claim's daemon, the servers that
// this has started, and commands to it. Containers do not have it.
func processesOf(variable string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("looking for a daemon's processes, %w", err)
	}
	var all []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// One that has ended meanwhile, or is dead and not waited for, has none.
		environ, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil {
			continue
		}
		for _, v := range bytes.Split(environ, []byte{0}) {
			if string(v) == variable {
				all = append(all, pid)
				break
			}
		}
	}
	return all, nil
}

func kill(all []int) {
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
	}
}

// reap waits for processes that are children of this one, as a daemon's are
// where the driver is the first process of a container, and are dead.
func reap(all []int) {
	for _, pid := range all {
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // it may be someone else's
	}
}
