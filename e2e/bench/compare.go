package bench

// Medians of runs, and what they have to be.

import (
	"fmt"
	"slices"
)

// Targets are what Ladder is held to.
type Targets struct {
	// OverDefault and OverConfigured are how many times the stock scheduler's
	// Pods a second Ladder makes on workloads of ours, at least.
	OverDefault, OverConfigured float64
	// Upstream is the same over the stock default on upstream's workloads.
	Upstream float64
	// Heap is how many times the stock default's live heap Ladder's is, at most.
	Heap float64
}

// DefaultTargets are those of the project.
var DefaultTargets = Targets{OverDefault: 4, OverConfigured: 10, Upstream: 0.9, Heap: 1.5}

// Cell is what one scheduler did on one workload: medians over its runs.
type Cell struct {
	Runs int `json:"runs"`
	// PodsPerSecond with the least and the most of the runs.
	PodsPerSecond float64   `json:"podsPerSecond"`
	Least         float64   `json:"least"`
	Most          float64   `json:"most"`
	Attempt       Quantiles `json:"attempt"`
	Decision      Quantiles `json:"decision"`
	Heap          Heap      `json:"heap"`
	Records       float64   `json:"records"`
	RecordsLag    float64   `json:"recordsLag"`
	Decisions     float64   `json:"decisions"`
	Misses        float64   `json:"misses"`
	// Boards are the devices that Pods got, by board, in each run.
	Boards []map[string]int `json:"boards,omitempty"`
}

// Row is one workload.
type Row struct {
	Workload  Workload           `json:"workload"`
	Nodes     int                `json:"nodes"`
	Threshold float64            `json:"threshold,omitempty"`
	Cells     map[Scheduler]Cell `json:"cells"`
}

// Comparison is the outcome of many runs.
type Comparison struct {
	Schedulers []Scheduler `json:"schedulers"`
	Rows       []Row       `json:"rows"`
	// Missed are the targets that were missed, in words.
	Missed []string `json:"missed"`
	// Failed are runs that gave no result, in words.
	Failed []string `json:"failed"`
}

// Compare summarises results, in the order in which workloads came first, and
// holds them to targets.
func Compare(results []Result, schedulers []Scheduler, targets Targets) Comparison {
	c := Comparison{Schedulers: schedulers}
	groups := map[string]map[Scheduler][]Result{}
	for _, r := range results {
		if groups[r.Workload.Name] == nil {
			groups[r.Workload.Name] = map[Scheduler][]Result{}
			c.Rows = append(c.Rows, Row{Workload: r.Workload, Nodes: r.Nodes, Threshold: r.Threshold, Cells: map[Scheduler]Cell{}})
		}
		groups[r.Workload.Name][r.Scheduler] = append(groups[r.Workload.Name][r.Scheduler], r)
	}
	for _, row := range c.Rows {
		for scheduler, runs := range groups[row.Workload.Name] {
			row.Cells[scheduler] = summarise(runs)
		}
		c.Missed = append(c.Missed, row.missed(targets)...)
	}
	return c
}

func summarise(runs []Result) Cell {
	over := func(f func(*Result) float64) float64 {
		values := make([]float64, 0, len(runs))
		for i := range runs {
			values = append(values, f(&runs[i]))
		}
		return Median(values)
	}
	cell := Cell{
		Runs:          len(runs),
		PodsPerSecond: over((*Result).PodsPerSecond),
		Least:         runs[0].PodsPerSecond(),
		Most:          runs[0].PodsPerSecond(),
		Attempt:       Quantiles{P50: over(func(r *Result) float64 { return r.Attempt.P50 }), P99: over(func(r *Result) float64 { return r.Attempt.P99 })},
		Decision:      Quantiles{P50: over(func(r *Result) float64 { return r.Decision.P50 }), P99: over(func(r *Result) float64 { return r.Decision.P99 })},
		Heap: Heap{
			LiveBefore: over(func(r *Result) float64 { return r.Heap.LiveBefore }),
			LiveAfter:  over(func(r *Result) float64 { return r.Heap.LiveAfter }),
			Peak:       over(func(r *Result) float64 { return r.Heap.Peak }),
		},
		Records:    over(func(r *Result) float64 { return float64(r.Records) }),
		RecordsLag: over(func(r *Result) float64 { return r.RecordsLag }),
		Decisions:  over(func(r *Result) float64 { return float64(r.Decisions) }),
		Misses:     over(func(r *Result) float64 { return float64(r.Misses) }),
	}
	for i := range runs {
		cell.Least, cell.Most = min(cell.Least, runs[i].PodsPerSecond()), max(cell.Most, runs[i].PodsPerSecond())
		if len(runs[i].Boards) > 0 {
			cell.Boards = append(cell.Boards, runs[i].Boards)
		}
	}
	return cell
}

// Median is the middle value, or the mean of the two in the middle; 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Ratio is Ladder's Pods a second over those of another scheduler.
func (r Row) Ratio(other Scheduler) (ratio float64, known bool) {
	return r.ratio(other, func(c Cell) float64 { return c.PodsPerSecond })
}

// HeapRatio is Ladder's live heap over that of another scheduler.
func (r Row) HeapRatio(other Scheduler) (ratio float64, known bool) {
	return r.ratio(other, func(c Cell) float64 { return c.Heap.LiveAfter })
}

func (r Row) ratio(other Scheduler, of func(Cell) float64) (float64, bool) {
	ours, measured := r.Cells[Ladder]
	theirs, alsoMeasured := r.Cells[other]
	if !measured || !alsoMeasured || of(theirs) == 0 {
		return 0, false
	}
	return of(ours) / of(theirs), true
}

func (r Row) missed(t Targets) []string {
	var missed []string
	atLeast := func(other Scheduler, want float64) {
		if got, known := r.Ratio(other); known && got < want {
			missed = append(missed, fmt.Sprintf("%s: %.2f times the Pods a second of %s, at least %g wanted", r.Workload.Name, got, other, want))
		}
	}
	if r.Workload.Ours() {
		atLeast(StockDefault, t.OverDefault)
		atLeast(StockConfigured, t.OverConfigured)
	} else {
		atLeast(StockDefault, t.Upstream)
	}
	if got, known := r.HeapRatio(StockDefault); known && got > t.Heap {
		missed = append(missed, fmt.Sprintf("%s: %.2f times the live heap of %s, at most %g wanted", r.Workload.Name, got, StockDefault, t.Heap))
	}
	return missed
}
