package capability

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNamesStandAtTheirNumbers(t *testing.T) {
	for name, number := range map[string]int{
		"CAP_CHOWN": unix.CAP_CHOWN, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN,
		"CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "CAP_SETFCAP": unix.CAP_SETFCAP, "CAP_AUDIT_READ": unix.CAP_AUDIT_READ,
		"CAP_CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE,
	} {
		if got := slices.Index(names, name); got != number {
			t.Errorf("%s stands at %d, want %d", name, got, number)
		}
	}
	if len(names) != unix.CAP_LAST_CAP+1 {
		t.Errorf("%d names, want %d", len(names), unix.CAP_LAST_CAP+1)
	}
}

func TestParse(t *testing.T) {
	const status = "Name:\tx\nCapPrm:\t0000000000000001\nCapEff:\t0000000000200000\nCapBnd:\t000001fffeffffff\nSeccomp:\t0\n"
	bounding, err := parse(strings.NewReader(status), "CapBnd:")
	if err != nil {
		t.Fatal(err)
	}
	if bounding.Has("CAP_SYS_RESOURCE") || !bounding.Has("CAP_SYS_ADMIN") || !bounding.Has("CAP_CHECKPOINT_RESTORE") {
		t.Errorf("bounding set = %x", uint64(bounding))
	}
	if !bounding.Has("CAP_FROM_THE_FUTURE") {
		t.Error("a name that is not known is judged")
	}
	if effective, err := parse(strings.NewReader(status), "CapEff:"); err != nil || effective != 1<<unix.CAP_SYS_ADMIN {
		t.Errorf("effective set = %x, %v", uint64(effective), err)
	}
	for name, bad := range map[string]string{"no line": "Name:\tx\n", "not a number": "CapBnd:\txyz\n", "empty": ""} {
		if _, err := parse(strings.NewReader(bad), "CapBnd:"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestMissing(t *testing.T) {
	for name, tc := range map[string]struct {
		bounding Set
		last     int
		want     []string
	}{
		"all there":           {0x1ffffffffff, 40, nil},
		"one lacks":           {0x1fffeffffff, 40, []string{"CAP_SYS_RESOURCE"}},
		"an older kernel":     {0x3fffffffff, 37, nil},
		"older and two lack":  {0x3ffedfffff, 37, []string{"CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"}},
		"a kernel to come":    {0x3ffffffffff, 41, nil},
		"the last one of all": {0x0ffffffffff, 40, []string{"CAP_CHECKPOINT_RESTORE"}},
	} {
		if got := missing(tc.bounding, tc.last); !slices.Equal(got, tc.want) {
			t.Errorf("%s: missing = %v, want %v", name, got, tc.want)
		}
	}
}

func TestMissingOfThisProcessAgreesWithTheKernel(t *testing.T) {
	lacking, err := Missing()
	if err != nil {
		t.Fatal(err)
	}
	for number, name := range names {
		granted, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(number), 0, 0, 0)
		if err != nil {
			continue // the kernel does not know it
		}
		if slices.Contains(lacking, name) == (granted == 1) {
			t.Errorf("%s: missing says %v, the kernel says %d", name, slices.Contains(lacking, name), granted)
		}
	}
}

func TestLastCapability(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cap_last_cap")
	if _, err := lastCapability(path); err == nil {
		t.Error("no error for a file that is not there")
	}
	for content, want := range map[string]int{"40\n": 40, "x\n": -1} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		last, err := lastCapability(path)
		if (err != nil) != (want < 0) || err == nil && last != want {
			t.Errorf("%q: %d, %v", content, last, err)
		}
	}
}
