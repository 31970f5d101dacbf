package placement

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/e2e/replay"
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

func TestSpreadFleet(t *testing.T) {
	f := Options{Nodes: 50, H100Nodes: 4, Spread: true}.Fleet()
	if errs := f.Validate(); len(errs) > 0 {
		t.Fatal(errs)
	}
	if got := f.NodeCount(); got != 50 {
		t.Errorf("%d nodes, want 50", got)
	}
	var at []int
	names := f.NodeNames()
	if !slices.IsSorted(names) {
		t.Error("the nodes are not made in the order of their names")
	}
	for i, n := range names {
		if strings.Contains(n, "-h100-") {
			at = append(at, i)
		}
	}
	if len(at) != 4 {
		t.Fatalf("%d nodes carry H100, want 4", len(at))
	}
	for i := 1; i < len(at); i++ {
		if gap := at[i] - at[i-1]; gap < 12 || gap > 13 {
			t.Errorf("nodes %d and %d carry H100, which is not spread evenly over 50", at[i-1], at[i])
		}
	}
}

// same is a replay in which all came out the same.
var same = replay.Result{Journals: 1, Decisions: 40, Twin: replay.Twin{Asked: 40}}

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name   string
		runs   []Run
		replay replay.Result
		want   string // part of the error; empty: none
	}{
		// 16 H100 for 20 Pods: 16 first choices is all that can be had.
		{"as promised", []Run{{Setup: "Ladder", FirstChoice: 16, Map: "a"}, {Setup: "Ladder", FirstChoice: 16, Map: "a"}}, same, ""},
		{"a first choice missed", []Run{{Setup: "Ladder", Number: 1, FirstChoice: 15, Pods: 20, Map: "a"}}, same, "15 of 20"},
		{"another map under load", []Run{{Setup: "Ladder", FirstChoice: 16, Map: "a"}, {Setup: "Ladder", Load: 30, Number: 1, FirstChoice: 16, Map: "b"}}, same, "load 30 %"},
		{"another map", []Run{{Setup: "Ladder", FirstChoice: 16, Map: "a"}, {Setup: "Ladder", Number: 2, FirstChoice: 16, Map: "b"}}, same, "run 2"},
		{"others promise nothing", []Run{{Setup: "stock, defaults", FirstChoice: 3, Map: "x"}}, replay.Result{}, ""},
		{"decided otherwise", []Run{{Setup: "Ladder", FirstChoice: 16, Map: "a"}}, replay.Result{Decisions: 40, Differ: 1}, "40 decisions replayed, 1 differ"},
		{"nothing replayed", []Run{{Setup: "Ladder", FirstChoice: 16, Map: "a"}}, replay.Result{}, "no decision was replayed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Check(options, &Result{Runs: tc.runs, Replay: tc.replay})
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
	shuffled := options
	shuffled.Shuffle, shuffled.Seed, shuffled.LadderRuns = true, 7, 2
	err := Report(&out, shuffled, &Result{Replay: same, Runs: []Run{
		{Setup: "Ladder", Number: 1, Pods: 20, FirstChoice: 16, Map: "a"},
		{Setup: "Ladder", Number: 2, Pods: 20, FirstChoice: 16, Map: "a"},
		{Setup: "stock, defaults", Number: 1, Pods: 20, FirstChoice: 7, Map: "b"},
		{Setup: "stock, defaults", Number: 2, Pods: 20, FirstChoice: 9, Map: "c"},
		{Setup: "stock, defaults", Load: 30, Number: 1, Pods: 20, FirstChoice: 0, Map: "d"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| Ladder | 0 % | 2 | 16 – 16 of 20 | 1 |", "| stock, defaults | 0 % | 2 | 7 – 9 of 20 | 2 |", "| stock, defaults | 30 % | 1 | 0 – 0 of 20 | 1 |",
		"in an order drawn from seed 7, and between the two the scheduler was restarted", "40 decisions replayed, 0 differ; 40 put to the twin, 0 differ",
	} {
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
