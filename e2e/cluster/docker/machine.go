package docker

// What the machine offers: control groups, overlay, an address range.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoCgroups says that no control groups are mounted, so that no container
// engine can work here.
var ErrNoCgroups = errors.New("no control groups are mounted at /sys/fs/cgroup")

// CgroupVersion returns 1 or 2, the version of the control groups that engines
// use on this machine; a v2 hierarchy beside those of v1 counts as 1.
func CgroupVersion() (int, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return 0, fmt.Errorf("reading the mounts, %w", err)
	}
	defer f.Close()
	return cgroupVersion(f)
}

func cgroupVersion(mountinfo io.Reader) (int, error) {
	const root = "/sys/fs/cgroup"
	version := 0
	err := eachMount(mountinfo, func(target, fstype string) {
		switch {
		case fstype == "cgroup2" && target == root:
			version = max(version, 2)
		case fstype == "cgroup" && strings.HasPrefix(target, root+"/"):
			// Docker needs this one at least; named ones such as systemd's don't count.
			if slices.Contains(strings.Split(filepath.Base(target), ","), "devices") {
				version = 1
			}
		}
	})
	if err != nil {
		return 0, err
	}
	if version == 0 {
		return 0, ErrNoCgroups
	}
	return version, nil
}

// eachMount calls back for each line of a mountinfo file.
func eachMount(mountinfo io.Reader, call func(target, fstype string)) error {
	scanner := bufio.NewScanner(mountinfo)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		before, after, found := strings.Cut(scanner.Text(), " - ")
		fields, types := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(types) == 0 {
			continue
		}
		call(unescape.Replace(fields[4]), types[0])
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("reading the mounts, %w", err)
	}
	return nil
}

// unescape turns the kernel's octal escapes in mountinfo back.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountsBelow returns the mount points at or below any of the folders, deepest
// first, as they must be unmounted.
func mountsBelow(dirs ...string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts, %w", err)
	}
	defer f.Close()
	var found []string
	err = eachMount(f, func(target, _ string) {
		for _, dir := range dirs {
			if target == dir || strings.HasPrefix(target, dir+"/") {
				found = append(found, target)
				return
			}
		}
	})
	// Later mounts may lie on earlier ones.
	slices.Reverse(found)
	return found, err
}

// unmountBelow unmounts everything at or below the folders.
func unmountBelow(dirs ...string) error {
	mounts, err := mountsBelow(dirs...)
	if err != nil {
		return err
	}
	var errs []error
	for _, target := range mounts {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmounting %s, %w", target, err))
		}
	}
	return errors.Join(errs...)
}

// groupsGoneWithin is how long the kernel may take until the control groups of
// processes that were killed can be removed: each process has to end and to be
// waited for first, and a node has hundreds.
const groupsGoneWithin = 15 * time.Second

// removeCgroups removes the control groups that containers with these IDs have
// left, where the daemon itself made them; those that systemd made go by
// themselves.
func removeCgroups(ids []string) error {
	groups, err := cgroupsOf(ids)
	if err != nil {
		return err
	}
	return removeGroups(groups, unix.Rmdir, groupsGoneWithin)
}

// removeGroups removes groups with what is below them, and tries again those
// that are still in use.
func removeGroups(groups []string, rmdir func(string) error, within time.Duration) error {
	const pause = 100 * time.Millisecond
	for waited := time.Duration(0); ; waited += pause {
		var errs []error
		for _, group := range groups {
			if err := removeGroup(group, rmdir); err != nil {
				errs = append(errs, err)
			}
		}
		if err := errors.Join(errs...); err == nil || !errors.Is(err, unix.EBUSY) || waited >= within {
			return err
		}
		time.Sleep(pause)
	}
}

// removeGroup removes a group from below, up to the first that can't be.
func removeGroup(group string, rmdir func(string) error) error {
	var dirs []string
	err := filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for control groups, %w", err)
	}
	for _, dir := range slices.Backward(dirs) {
		// The files in it are the kernel's: only the folder itself can be removed.
		if err := rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("removing the control group %s, %w", dir, err)
		}
	}
	_ = rmdir(filepath.Dir(group)) // goes with the last container
	return nil
}

// cgroupsOf returns the control groups of the containers that there are.
func cgroupsOf(ids []string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts, %w", err)
	}
	defer f.Close()
	var found []string
	err = eachMount(f, func(target, fstype string) {
		if fstype != "cgroup" && fstype != "cgroup2" {
			return
		}
		for _, id := range ids {
			group := filepath.Join(target, "docker", id)
			if _, err := os.Stat(group); err == nil {
				found = append(found, group)
			}
		}
	})
	return found, err
}

// overlayWorks tries an overlay in the folder and leaves nothing behind.
func overlayWorks(dir string) error {
	made, err := makeDirs(dir)
	defer func() {
		for _, d := range slices.Backward(made) {
			_ = os.Remove(d) // goes if it is still empty
		}
	}()
	if err != nil {
		return err
	}
	return tryOverlay(dir)
}

// makeDirs is os.MkdirAll that tells which folders it has made, the outermost
// first.
func makeDirs(dir string) (made []string, err error) {
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil || d == filepath.Dir(d) {
			break
		}
		made = append([]string{d}, made...)
	}
	return made, os.MkdirAll(dir, 0o711)
}

func tryOverlay(dir string) (err error) {
	work, err := os.MkdirTemp(dir, ".overlay-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	parts := map[string]string{}
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		parts[name] = filepath.Join(work, name)
		if err := os.Mkdir(parts[name], 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(parts["lower"], "file"), nil, 0o600); err != nil {
		return err
	}
	options := "lowerdir=" + parts["lower"] + ",upperdir=" + parts["upper"] + ",workdir=" + parts["work"]
	if err := unix.Mount("overlay", parts["merged"], "overlay", 0, options); err != nil {
		return fmt.Errorf("mounting an overlay, %w", err)
	}
	// Taking a lower file away needs a device node in the upper folder: the
	// thing that fails first on file systems that do not suit.
	err = os.Remove(filepath.Join(parts["merged"], "file"))
	return errors.Join(err, unix.Unmount(parts["merged"], unix.MNT_DETACH))
}

// freeRange returns an address for a bridge, with the length of its prefix,
// that overlaps with no address of this machine and no route.
func freeRange() (netip.Prefix, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("listing addresses, %w", err)
	}
	var taken []netip.Prefix
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			taken = append(taken, p.Masked())
		}
	}
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("listing routes, %w", err)
	}
	return firstFree(append(taken, parseRoutes(string(routes))...))
}

// firstFree chooses from the private ranges, first the end of those from which
// Docker serves the networks that users make, beginning at the other end.
func firstFree(taken []netip.Prefix) (netip.Prefix, error) {
	for second := 31; second >= 16; second-- {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(second), 255, 1}), 24)
		if !slices.ContainsFunc(taken, p.Masked().Overlaps) {
			return p, nil
		}
	}
	for third := 255; third >= 0; third-- {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 255, byte(third), 1}), 24)
		if !slices.ContainsFunc(taken, p.Masked().Overlaps) {
			return p, nil
		}
	}
	return netip.Prefix{}, errors.New("every private address range is in use")
}

// parseRoutes reads /proc/net/route without the default route: addresses are
// hexadecimal in the machine's byte order, which is little-endian wherever Go's
// Docker runs.
func parseRoutes(content string) []netip.Prefix {
	var found []netip.Prefix
	for line := range strings.Lines(content) {
		var name string
		var destination, gateway, mask uint32
		var flags, refs, use, metric int
		n, _ := fmt.Sscanf(line, "%s %x %x %x %d %d %d %x", &name, &destination, &gateway, &flags, &refs, &use, &metric, &mask)
		if n < 8 || mask == 0 {
			continue
		}
		ones, _ := net.IPMask(bytesOf(mask)).Size()
		address, _ := netip.AddrFromSlice(bytesOf(destination))
		found = append(found, netip.PrefixFrom(address, ones))
	}
	return found
}

func bytesOf(v uint32) []byte { return []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)} }
