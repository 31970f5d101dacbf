package measure

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// Process is what the kernel tells of a process.
type Process struct {
	PID int
	// CPU is the processor time that it used since its start, in user and
	// kernel mode; the kernel counts in hundredths of a second.
	CPU time.Duration
	// RSS is its memory that is in RAM, in bytes.
	RSS int64
	// start tells two processes of one number apart.
	start uint64
}

// ReadProcess looks at a process.
func ReadProcess(pid int) (Process, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return Process{}, fmt.Errorf("looking at process %d, %w", pid, err)
	}
	stat, err := p.Stat()
	if err != nil {
		return Process{}, fmt.Errorf("looking at process %d, %w", pid, err)
	}
	return Process{
		PID: pid, CPU: time.Duration(stat.CPUTime() * float64(time.Second)),
		RSS: int64(stat.ResidentMemory()), start: stat.Starttime,
	}, nil
}

// since is the processor time after an earlier look. Another process than then
// has used all of its own.
func (p Process) since(before Process) time.Duration {
	if p.PID != before.PID || p.start != before.start {
		return p.CPU
	}
	return p.CPU - before.CPU
}
