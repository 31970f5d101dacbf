package bench

import (
	"strings"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.values); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestMedianLeavesItsArgument(t *testing.T) {
	values := []float64{3, 1, 2}
	Median(values)
	if values[0] != 3 || values[2] != 2 {
		t.Errorf("%v", values)
	}
}

// made are results of two workloads: as many runs of each as there are speeds.
func made(workload Workload, scheduler Scheduler, heap float64, speeds ...float64) []Result {
	var results []Result
	for i, speed := range speeds {
		r := Result{Run: Run{Workload: workload, Scheduler: scheduler, Repeat: i + 1, Nodes: 50}, Throughput: speed}
		r.Heap.LiveAfter = heap
		if workload.Ours() {
			r.Boards = map[string]int{"l4": 1, "h100": int(speed)}
		} else {
			r.Threshold = 60
		}
		results = append(results, r)
	}
	return results
}

var (
	tiers   = Workload{Name: "Tiers/empty", Scene: SceneEmpty}
	foreign = Workload{Name: "Case/large", Folder: "dra"}
)

func compared(ladderTiers, ladderForeign, heap float64) Comparison {
	var all []Result
	for _, part := range [][]Result{
		made(tiers, StockDefault, 100, 20, 30, 25), made(tiers, StockConfigured, 100, 10, 10, 11), made(tiers, Ladder, heap, ladderTiers, ladderTiers+50, ladderTiers-50),
		made(foreign, StockDefault, 100, 70), made(foreign, Ladder, heap, ladderForeign),
	} {
		all = append(all, part...)
	}
	return Compare(all, []Scheduler{StockDefault, StockConfigured, Ladder}, DefaultTargets)
}

func TestCompare(t *testing.T) {
	c := compared(110, 66, 120)
	if len(c.Rows) != 2 || c.Rows[0].Workload != tiers || c.Rows[1].Threshold != 60 {
		t.Fatalf("rows %+v", c.Rows)
	}
	cell := c.Rows[0].Cells[Ladder]
	if cell.Runs != 3 || cell.PodsPerSecond != 110 || cell.Least != 60 || cell.Most != 160 || len(cell.Boards) != 3 {
		t.Errorf("cell %+v", cell)
	}
	if ratio, known := c.Rows[0].Ratio(StockDefault); !known || ratio != 110.0/25 {
		t.Errorf("ratio %v, %v", ratio, known)
	}
	if ratio, known := c.Rows[1].Ratio(StockConfigured); known {
		t.Errorf("a ratio to what was not measured: %v", ratio)
	}
	if len(c.Missed) != 0 {
		t.Errorf("missed %v", c.Missed)
	}
}

func TestTargets(t *testing.T) {
	for name, c := range map[string]struct {
		comparison Comparison
		want       []string
	}{
		"slower than four times": {compared(90, 66, 120), []string{"3.60", "stock-default", "at least 4", "9.00", "stock-configured", "at least 10"}},
		"slower on upstream's":   {compared(110, 60, 120), []string{"Case/large", "0.86", "at least 0.9"}},
		"heap":                   {compared(110, 66, 151), []string{"1.51 times the live heap"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(c.comparison.Missed, "\n")
			for _, part := range c.want {
				if !strings.Contains(got, part) {
					t.Errorf("%q does not say %q", got, part)
				}
			}
		})
	}
}

// A run that was too short for upstream's samples is compared by its rate.
func TestShortRuns(t *testing.T) {
	r := Result{Rate: 7}
	if r.PodsPerSecond() != 7 {
		t.Errorf("%v", r.PodsPerSecond())
	}
	r.Throughput = 5
	if r.PodsPerSecond() != 5 {
		t.Errorf("%v", r.PodsPerSecond())
	}
}

func TestMarkdown(t *testing.T) {
	c := compared(90, 66, 120)
	c.Failed = []string{"run x, out of luck"}
	text := c.Markdown(About{Repeats: 3, Nodes: 50, Machine: "2 CPUs."})
	for _, part := range []string{
		"50 nodes", "2 CPUs.",
		"| Tiers/empty | 25.0 (20.0 – 30.0) | 10.0 (10.0 – 11.0) | 90.0 (40.0 – 140.0) | 3.60 | 9.00 |  |",
		"| Case/large | 70.0 (70.0 – 70.0) | – | 66.0 (66.0 – 66.0) | 0.94 | – | 60 |",
		"h100 10, l4 1; h100 11, l4 1",
		"- missed: Tiers/empty: 3.60 times", "- no result: run x, out of luck",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the report does not say %q:\n%s", part, text)
		}
	}
	columns := -1
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			columns = -1
			continue
		}
		if n := strings.Count(line, "|"); columns >= 0 && n != columns {
			t.Errorf("a line with %d bars in a table with %d: %s", n, columns, line)
		} else {
			columns = n
		}
	}
}

func TestDescribe(t *testing.T) {
	if got := describe(map[string]int{"l4": 2, "t4": 1, "h100": 3, "a100": 0}); got != "h100 3, l4 2, t4 1" {
		t.Errorf("describe = %q", got)
	}
}
