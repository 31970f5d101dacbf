package deviceplugin

import (
	"strings"
	"testing"
)

// gpus are devices by their names, gpu-0 to gpu-3 on NUMA node 0, gpu-4 to
// gpu-7 on 1, gpu-8 and gpu-9 on 2.
func gpus(names string) []Device {
	var devices []Device
	for _, n := range strings.Fields(names) {
		devices = append(devices, Device{ID: "GPU-" + n, Name: "gpu-" + n, Model: "H100", NUMANode: int64(n[0]-'0') / 4})
	}
	return devices
}

func TestPrefer(t *testing.T) {
	for name, tc := range map[string]struct {
		available, must string
		size            int
		want            string
	}{
		"one, of the node with fewest":         {"0 1 4 5 6", "", 1, "0"},
		"a tie goes to the lower node":         {"0 1 4 5", "", 1, "0"},
		"a pair, not one of each":              {"0 4 5", "", 2, "4 5"},
		"just enough":                          {"0 1 2 3 4 5", "", 2, "4 5"},
		"all of one, some of another":          {"0 1 2 3 4 5 6 7", "", 5, "0 1 2 3 4"},
		"most first, then just enough":         {"0 4 5 6 8 9", "", 5, "4 5 6 8 9"},
		"must decides":                         {"0 1 4 5 6 7", "5", 2, "4 5"},
		"must is too little for one":           {"0 1 4 5 6 7", "0", 4, "0 1 4 5"},
		"must on two nodes, one of which does": {"0 1 4 5 6 7", "0 4", 4, "0 4 5 6"},
		"must is all":                          {"0 1", "0 1", 2, "0 1"},
		"everything":                           {"9 0 4", "", 3, "0 4 9"},
		"nothing":                              {"0 1", "", 0, ""},
	} {
		chosen, err := Prefer(gpus(tc.available), gpus(tc.must), tc.size)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var names []string
		for _, d := range chosen {
			names = append(names, strings.TrimPrefix(d.Name, "gpu-"))
		}
		if got := strings.Join(names, " "); got != tc.want {
			t.Errorf("%s: chose %s, want %s", name, got, tc.want)
		}
	}
	for name, tc := range map[string]struct {
		available, must string
		size            int
	}{
		"too many":          {"0 1", "", 3},
		"less than it must": {"0 1 2", "0 1", 1},
	} {
		if chosen, err := Prefer(gpus(tc.available), gpus(tc.must), tc.size); err == nil {
			t.Errorf("%s: chose %v", name, chosen)
		}
	}
}
