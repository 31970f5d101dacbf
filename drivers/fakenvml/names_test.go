package fakenvml

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestNamesAreThoseOfTheSources: nothing that the header or a stub has is missed,
// and a line's end or a macro's own parameter is no name.
func TestNamesAreThoseOfTheSources(t *testing.T) {
	for _, name := range []string{"lost", "mig_pending", "links_down", "power", "temperature", "power_limit", "fabric_unhealthy"} {
		if !slices.Contains(states(), name) {
			t.Errorf("%s is missing in %v", name, states())
		}
	}
	if slices.Contains(states(), "name") || len(states()) != 35 {
		t.Errorf("there are %d: %v", len(states()), states())
	}
	for name, want := range map[string]bool{
		"nvmlInit": true, "nvmlInit_v2": true, "nvmlDeviceGetCount": true, "nvmlDeviceGetClock": true, "nvmlDeviceGetMaxPcieLinkWidth": true, "nvmlDeviceGetComputeRunningProcesses_v3": true, "nvmlEventSetWait": true, "*": true,
		"nvmlDeviceGetAccountingStats_v2": true, "nvmlDevice_t": false, "nvmlNosuch": false, "nosuchFunc": false, "": false, "nvmlInit v2": false,
	} {
		if err := checkFunction(name); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestUnknownNamesChangeNothing: the library could not read the state any more.
func TestUnknownNamesChangeNothing(t *testing.T) {
	dir := t.TempDir()
	board, err := Tier("h100")
	if err != nil {
		t.Fatal(err)
	}
	if err := Install(dir, board, Machine{Name: "m", GPUs: 1}); err != nil {
		t.Fatal(err)
	}
	c := Control{Dir: dir}
	before, _ := os.ReadFile(filepath.Join(dir, stateName))
	for what, do := range map[string]func() error{
		"foo":        func() error { return c.Set(0, "foo", 3) },
		"nosuchFunc": func() error { return c.Fail("nosuchFunc", AllGPUs, 3) },
		"nvmlNosuch": func() error { return c.Hang("nvmlNosuch", 0, 3) },
		"5":          func() error { return c.RecoveryAction(0, 5) },
		"-1":         func() error { return c.NVLink(0, -1, false) },
	} {
		unknown := new(UnknownNameError)
		if err := do(); !errors.As(err, &unknown) || unknown.Name != what || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if after, _ := os.ReadFile(filepath.Join(dir, stateName)); string(after) != string(before) {
		t.Errorf("the state is %q, was %q", after, before)
	}
	if err := c.Set(0, "temperature", 91); err != nil {
		t.Error(err)
	}
}
