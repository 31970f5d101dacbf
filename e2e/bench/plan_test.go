package bench

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWorkloads(t *testing.T) {
	all := Workloads()
	ours, names := 0, map[string]bool{}
	for _, w := range all {
		if names[w.Name] {
			t.Errorf("%s is there twice", w.Name)
		}
		names[w.Name] = true
		if w.Ours() {
			ours++
		}
		if w.Ours() == (w.Folder != "") {
			t.Errorf("%s is of upstream and of ours, or of neither: %+v", w.Name, w)
		}
	}
	if len(all) != 13 || ours != 3 {
		t.Errorf("%d workloads, %d of ours", len(all), ours)
	}
}

func TestSelect(t *testing.T) {
	for expression, want := range map[string]int{"": 13, "^Tiers/": 3, "ExtendedResource": 4, "half": 2} {
		got, err := Select(expression)
		if err != nil || len(got) != want {
			t.Errorf("Select(%q) = %d workloads, %v; want %d", expression, len(got), err, want)
		}
	}
	for _, expression := range []string{"(", "nothing is called so"} {
		if got, err := Select(expression); err == nil {
			t.Errorf("Select(%q) = %v", expression, got)
		}
	}
}

func TestParseSchedulers(t *testing.T) {
	got, err := ParseSchedulers("ladder, stock-default")
	if err != nil || !slices.Equal(got, []Scheduler{Ladder, StockDefault}) {
		t.Errorf("ParseSchedulers = %v, %v", got, err)
	}
	for _, list := range []string{"", "volcano", "ladder,ladder"} {
		if got, err := ParseSchedulers(list); err == nil {
			t.Errorf("ParseSchedulers(%q) = %v", list, got)
		}
	}
}

// Every scheduler meets every workload as often, and none is always first.
func TestPlanTakesTurns(t *testing.T) {
	workloads, err := Select("^Tiers/")
	if err != nil {
		t.Fatal(err)
	}
	schedulers := []Scheduler{StockDefault, StockConfigured, Ladder}
	runs := Plan(workloads, schedulers, 3, 40, time.Second)
	if len(runs) != 27 {
		t.Fatalf("%d runs", len(runs))
	}
	first, names := map[Scheduler]int{}, map[string]bool{}
	for i, run := range runs {
		if i%3 == 0 {
			first[run.Scheduler]++
			turn := []Scheduler{runs[i].Scheduler, runs[i+1].Scheduler, runs[i+2].Scheduler}
			slices.Sort(turn)
			if len(slices.Compact(turn)) != 3 {
				t.Errorf("turn %d: %v", i/3, turn)
			}
		}
		if run.Nodes != 40 || run.Steady != time.Second || run.Repeat < 1 || run.Repeat > 3 {
			t.Errorf("run %+v", run)
		}
		names[run.Name()] = true
		if strings.ContainsAny(run.Name(), "/ ") {
			t.Errorf("%q is no name for a folder", run.Name())
		}
	}
	if len(names) != len(runs) {
		t.Errorf("%d names for %d runs", len(names), len(runs))
	}
	for _, s := range schedulers {
		if first[s] != 3 {
			t.Errorf("%s was first %d times: %v", s, first[s], first)
		}
	}
}
