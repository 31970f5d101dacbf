package docker

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestCgroupVersion(t *testing.T) {
	const (
		rootFS  = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
		unified = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
		tmpfs   = "30 22 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
		devices = "31 30 0:27 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
		joined  = "31 30 0:27 / /sys/fs/cgroup/cpu,devices rw - cgroup cgroup rw\n"
		systemd = "32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
		beside  = "33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	)
	for name, tc := range map[string]struct {
		mounts string
		want   int
	}{
		"v2":                   {rootFS + unified, 2},
		"v1":                   {rootFS + tmpfs + devices + systemd, 1},
		"v1 joined":            {rootFS + tmpfs + joined, 1},
		"both":                 {rootFS + tmpfs + devices + beside, 1},
		"only systemd's":       {rootFS + tmpfs + systemd + beside, 0},
		"none":                 {rootFS, 0},
		"lines that are short": {"x\n - \n1 2 3 4 5\n", 0},
	} {
		got, err := cgroupVersion(strings.NewReader(tc.mounts))
		if got != tc.want || (tc.want == 0) != errors.Is(err, ErrNoCgroups) {
			t.Errorf("%s: %d, %v, want %d", name, got, err, tc.want)
		}
	}
}

func TestEachMountUnescapes(t *testing.T) {
	var got []string
	err := eachMount(strings.NewReader(`1 2 0:1 / /a\040b\134c rw - tmpfs x rw`+"\n"), func(target, fstype string) {
		got = append(got, target, fstype)
	})
	if err != nil || !slices.Equal(got, []string{`/a b\c`, "tmpfs"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestUnmountBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	ours, beside := filepath.Join(dir, "ours"), filepath.Join(dir, "ours-not")
	inner := filepath.Join(ours, "in ner")
	mount := func(target string) {
		t.Helper()
		if err := os.MkdirAll(target, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", target, "tmpfs", 0, ""); err != nil {
			t.Skipf("mounting: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) }) // most are unmounted by then
	}
	mount(ours)
	mount(inner)
	mount(inner) // one over the other
	mount(beside)
	if mounts, err := mountsBelow(ours); err != nil || !slices.Equal(mounts, []string{inner, inner, ours}) {
		t.Errorf("mountsBelow = %q, %v", mounts, err)
	}
	if err := unmountBelow(ours); err != nil {
		t.Fatal(err)
	}
	if mounts, err := mountsBelow(dir); err != nil || !slices.Equal(mounts, []string{beside}) {
		t.Errorf("mounted are %q, %v", mounts, err)
	}
}

func TestFirstFree(t *testing.T) {
	prefixes := func(all ...string) []netip.Prefix {
		var parsed []netip.Prefix
		for _, s := range all {
			parsed = append(parsed, netip.MustParsePrefix(s))
		}
		return parsed
	}
	for name, tc := range map[string]struct {
		taken []netip.Prefix
		want  string
	}{
		"an empty machine":            {nil, "172.31.255.1/24"},
		"others elsewhere":            {prefixes("192.168.1.0/24", "10.0.0.0/8", "fd00::/8"), "172.31.255.1/24"},
		"the first is taken":          {prefixes("172.31.255.128/25"), "172.30.255.1/24"},
		"a wide route over several":   {prefixes("172.24.0.0/13"), "172.23.255.1/24"},
		"the whole of 172":            {prefixes("172.16.0.0/12"), "10.255.255.1/24"},
		"the whole of 172 and a part": {prefixes("172.16.0.0/12", "10.255.128.0/17"), "10.255.127.1/24"},
	} {
		got, err := firstFree(tc.taken)
		if err != nil || got.String() != tc.want {
			t.Errorf("%s: %v, %v, want %s", name, got, err, tc.want)
		}
	}
	if got, err := firstFree(prefixes("172.0.0.0/8", "10.0.0.0/8")); err == nil {
		t.Errorf("a full machine: %v", got)
	}
}

func TestParseRoutes(t *testing.T) {
	const table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n" +
		"wg0\t00001FAC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n" +
		"broken\n"
	want := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("172.31.0.0/16")}
	if got := parseRoutes(table); !slices.Equal(got, want) {
		t.Errorf("parseRoutes = %v, want %v", got, want)
	}
}

func TestFreeRangeOverlapsNothingHere(t *testing.T) {
	p, err := freeRange()
	if err != nil {
		t.Fatal(err)
	}
	if !p.Addr().IsPrivate() || p.Bits() != 24 {
		t.Errorf("freeRange = %v", p)
	}
}

// Processes that were killed keep their control groups for a moment.
func TestControlGroupsThatAreStillInUse(t *testing.T) {
	root := t.TempDir()
	group := filepath.Join(root, "docker", "container")
	deep := filepath.Join(group, "kubelet.slice", "pod")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	busy := 3
	rmdir := func(dir string) error {
		if dir == deep && busy > 0 {
			busy--
			return unix.EBUSY
		}
		return unix.Rmdir(dir)
	}
	if err := removeGroups([]string{group}, rmdir, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "docker")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the group of all containers is left: %v", err)
	}

	// What stays in use is told once, not for everything above it.
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	busy = 1 << 30
	err := removeGroups([]string{group}, rmdir, 0)
	if !errors.Is(err, unix.EBUSY) || strings.Count(err.Error(), "removing") != 1 || !strings.Contains(err.Error(), deep) {
		t.Errorf("got %v", err)
	}
}
