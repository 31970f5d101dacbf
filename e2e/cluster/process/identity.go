package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// Identity names a process for good: numbers are given again, but not together
// with the same start.
type Identity struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks after boot, from /proc/PID/stat.
	Start uint64 `json:"start"`
}

// Self is the identity of this process.
func Self() Identity {
	pid := os.Getpid()
	start, _ := startOf(pid) // 0 where /proc is missing; Alive then looks at the number alone
	return Identity{PID: pid, Start: start}
}

// Of is the identity of the process that has the number now.
func Of(pid int) (Identity, error) {
	start, state := startOf(pid)
	if state == 0 {
		return Identity{}, fmt.Errorf("looking at process %d, %w", pid, ErrExited)
	}
	return Identity{PID: pid, Start: start}, nil
}

// Alive says whether that very process runs.
func (i Identity) Alive() bool {
	if i.PID <= 0 || errors.Is(syscall.Kill(i.PID, 0), syscall.ESRCH) {
		return false
	}
	start, state := startOf(i.PID)
	return start == i.Start && state != 'Z'
}

// Signal sends a signal to that very process.
func (i Identity) Signal(sig syscall.Signal) error {
	if !i.Alive() {
		return ErrExited
	}
	return syscall.Kill(i.PID, sig)
}

// startOf reads field 22 (starttime) and field 3 (state) of /proc/PID/stat. The
// second field is a name in parentheses that may hold anything.
func startOf(pid int) (start uint64, state byte) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 20 {
		return 0, 0
	}
	start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, 0
	}
	return start, fields[0][0]
}
