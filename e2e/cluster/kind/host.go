package kind

// What the machine is like, as far as clusters depend on it.

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// thisMachine looks at the machine that this process runs on.
func thisMachine() (machine, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return machine{}, fmt.Errorf("reading this process's capabilities, %w", err)
	}
	bounding, err := boundingSet(status)
	if err != nil {
		return machine{}, err
	}
	const sysResource = 24
	_, err = os.Stat("/sys/fs/cgroup/cgroup.controllers")
	// An ordinary user's process may be bounded while the engine's is not; what
	// matters is whether the engine, too, is likely to be: when root is.
	return machine{
		cgroupV1:   err != nil,
		noResource: os.Geteuid() == 0 && bounding&(1<<sysResource) == 0,
	}, nil
}

// boundingSet reads CapBnd of /proc/<pid>/status.
func boundingSet(status []byte) (uint64, error) {
	scanner := bufio.NewScanner(bytes.NewReader(status))
	for scanner.Scan() {
		if value, found := strings.CutPrefix(scanner.Text(), "CapBnd:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("reading the bounding set, %w", err)
			}
			return set, nil
		}
	}
	return 0, fmt.Errorf("reading the bounding set, it is not in /proc/self/status")
}

// Limits of inotify that each node takes its part of: systemd, containerd,
// kubelet and kube-proxy watch files.
const (
	instancesPerNode = 25
	watchesPerNode   = 5000
)

// limit is a setting of the kernel that all containers of a user share.
type limit struct {
	name string
	have int
	// used is what others on the machine take of it, as far as can be seen.
	used int
	want int
}

// CheckLimits returns advice where the machine's limits are likely to be too
// low for so many nodes more. With too few, kubelet and containerd fail with
// "too many open files".
func CheckLimits(nodes int) []string {
	return advice([]limit{
		{
			name: "fs.inotify.max_user_instances", have: readNumber("/proc/sys/fs/inotify/max_user_instances"),
			used: inotifyInstances("/proc"), want: nodes * instancesPerNode,
		},
		{name: "fs.inotify.max_user_watches", have: readNumber("/proc/sys/fs/inotify/max_user_watches"), want: nodes * watchesPerNode},
	})
}

func advice(limits []limit) []string {
	var words []string
	for _, l := range limits {
		if l.have == 0 || l.have >= l.used+l.want {
			continue
		}
		words = append(words, fmt.Sprintf("%s is %d, of which %d are in use; the nodes may need %d more, else kubelet or containerd fails with \"too many open files\": raise it with sysctl -w %s=%d",
			l.name, l.have, l.used, l.want, l.name, max(512, 2*(l.used+l.want))))
	}
	return words
}

// inotifyInstances counts the instances that the processes below a /proc hold.
// Those of other users can be seen only by root.
func inotifyInstances(proc string) int {
	open, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return 0
	}
	count := 0
	for _, fd := range open {
		if target, err := os.Readlink(fd); err == nil && target == "anon_inode:inotify" {
			count++
		}
	}
	return count
}

// readNumber returns 0 for what can't be read.
func readNumber(path string) int {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0
	}
	return n
}
