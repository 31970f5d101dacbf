package process

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes puts the child into its own group and has the kernel kill it when
// the thread that started it is gone.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitExited returns when the process has ended, and leaves it to be reaped.
func waitExited(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
