// Package capability tells which Linux capabilities this machine grants: in a
// container or a small virtual machine, root's bounding set may lack some, and
// no process below can have them.
package capability

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// names is in the order of the numbers in linux/capability.h.
var names = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN",
	"CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT",
	"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL",
	"CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
	"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// Set is a set of capabilities, one bit for each.
type Set uint64

// Has says whether the named capability (CAP_SYS_ADMIN) is in the set. Of a
// name that is not known it says yes: the kernel is the judge of those.
func (s Set) Has(name string) bool {
	for i, n := range names {
		if n == name {
			return s&(1<<i) != 0
		}
	}
	return true
}

// Bounding returns the bounding set of this process: what it and everything
// below it can have at most.
func Bounding() (Set, error) { return ofThisProcess("CapBnd:") }

// Effective returns what this process may do now.
func Effective() (Set, error) { return ofThisProcess("CapEff:") }

// Missing returns the names of those capabilities that the kernel has and that
// the bounding set of this process lacks, in the order of their numbers.
func Missing() ([]string, error) {
	bounding, err := Bounding()
	if err != nil {
		return nil, err
	}
	last, err := lastCapability("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return nil, err
	}
	return missing(bounding, last), nil
}

func missing(bounding Set, last int) []string {
	var lacking []string
	for i, name := range names {
		if i <= last && bounding&(1<<i) == 0 {
			lacking = append(lacking, name)
		}
	}
	return lacking
}

func lastCapability(path string) (int, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading the last capability of the kernel, %w", err)
	}
	last, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("reading the last capability of the kernel, %w", err)
	}
	return last, nil
}

func ofThisProcess(field string) (Set, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("reading the capabilities of this process, %w", err)
	}
	defer f.Close()
	return parse(f, field)
}

// parse reads one of the sets from a file like /proc/self/status.
func parse(status io.Reader, field string) (Set, error) {
	scanner := bufio.NewScanner(status)
	for scanner.Scan() {
		value, found := strings.CutPrefix(scanner.Text(), field)
		if !found {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return 0, fmt.Errorf("reading the capabilities of this process, %w", err)
		}
		return Set(bits), nil
	}
	if err := scanner.Err(); err != nil {
		return 0, fmt.Errorf("reading the capabilities of this process, %w", err)
	}
	return 0, fmt.Errorf("reading the capabilities of this process, no line %s", field)
}
