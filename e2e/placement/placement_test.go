package placement

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/e2e/workload"
)

var options = Options{Nodes: 50, H100Nodes: 2, Pods: 20}

func TestFleet(t *testing.T) {
	f := options.Fleet()
	if got := f.NodeCount(); got != 50 {
		t.Errorf("%d nodes, want 50", got)
	}
	if got := f.DeviceCount(); got != 400 {
		t.Errorf("%d devices, want 400", got)
	}
	h100 := 0
	for _, n := range f.NodeNames() {
		if strings.HasPrefix(n, "h100-") {
			h100++
		}
	}
	if h100 != 2 {
		t.Errorf("%d nodes carry H100, want 2", h100)
	}
}

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name string
		runs []Run
		want string // part of the error; empty: none
	}{
		// 16 H100 for 20 Pods: 16 first choices is all that can be had.
		{"as promised", []Run{{Setup: "Ladder", FirstChoice: 16, Map: "a"}, {Setup: "Ladder", FirstChoice: 16, Map: "a"}}, ""},
		{"a first choice missed", []Run{{Setup: "Ladder", Number: 1, FirstChoice: 15, Pods: 20, Map: "a"}}, "15 of 20"},
		{"another map", []Run{{Setup: "Ladder", FirstChoice: 16, Map: "a"}, {Setup: "Ladder", Number: 2, FirstChoice: 16, Map: "b"}}, "run 2"},
		{"others promise nothing", []Run{{Setup: "stock, defaults", FirstChoice: 3, Map: "x"}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Check(options, tc.runs)
			if tc.want == "" && err != nil {
				t.Fatal(err)
			}
			if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("got %v, want something about %q", err, tc.want)
			}
		})
	}
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	err := Report(&out, options, []Run{
		{Setup: "Ladder", Number: 1, Pods: 20, FirstChoice: 16, Map: "a"},
		{Setup: "Ladder", Number: 2, Pods: 20, FirstChoice: 16, Map: "a"},
		{Setup: "stock, defaults", Number: 1, Pods: 20, FirstChoice: 7, Map: "b"},
		{Setup: "stock, defaults", Number: 2, Pods: 20, FirstChoice: 9, Map: "c"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| Ladder | 2 | 16 – 16 of 20 | 1 |", "| stock, defaults | 2 | 7 – 9 of 20 | 2 |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

func TestMapHashTellsDevicesApart(t *testing.T) {
	one := []workload.Placement{{Pod: "p", Node: "n", Devices: []string{"n/gpu-0"}}}
	two := []workload.Placement{{Pod: "p", Node: "n", Devices: []string{"n/gpu-1"}}}
	if mapHash(one) == mapHash(two) || mapHash(one) != mapHash(slices.Clone(one)) {
		t.Error("the hash does not identify the map")
	}
}
