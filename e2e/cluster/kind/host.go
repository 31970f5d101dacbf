package kind

// What the machine is like, as far as clusters depend on it.

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
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
	want int
}

// CheckLimits returns advice where the machine's limits are likely to be too
// low for so many nodes. With too few, kubelet ends with "too many open files".
func CheckLimits(nodes int) []string {
	return advice([]limit{
		{"fs.inotify.max_user_instances", readNumber("/proc/sys/fs/inotify/max_user_instances"), nodes * instancesPerNode},
		{"fs.inotify.max_user_watches", readNumber("/proc/sys/fs/inotify/max_user_watches"), nodes * watchesPerNode},
	})
}

func advice(limits []limit) []string {
	var words []string
	for _, l := range limits {
		if l.have > 0 && l.have < l.want {
			words = append(words, fmt.Sprintf("%s is %d; the nodes may need %d, else kubelet fails with \"too many open files\": raise it with sysctl -w %s=%d",
				l.name, l.have, l.want, l.name, max(512, l.want)))
		}
	}
	return words
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
