package perf

// What is measured beside what upstream's harness measures.

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	benchmark "k8s.io/kubernetes/test/integration/scheduler_perf"

	"gpuladder.dev/ladder/e2e/bench"
)

// Names of upstream's results.
const (
	attemptMetric    = "scheduler_scheduling_attempt_duration_seconds"
	throughputMetric = "SchedulingThroughput"
	heapMetric       = "heap_memory_usage"
)

type schedulePod = func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (scheduler.ScheduleResult, error)

// decisions times the calls of SchedulePod for the Pods that are measured.
type decisions struct {
	mu          sync.Mutex
	took        []time.Duration // of those that found a node
	misses      int
	first, last time.Time
}

// timed wraps SchedulePod.
func (d *decisions) timed(next schedulePod) schedulePod {
	return func(ctx context.Context, f framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo) (scheduler.ScheduleResult, error) {
		start := time.Now()
		result, err := next(ctx, f, state, pod)
		if pod.Pod.Namespace == measured {
			d.add(start, time.Now(), err == nil)
		}
		return result, err
	}
}

func (d *decisions) add(start, end time.Time, found bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !found {
		d.misses++
		return
	}
	if d.first.IsZero() {
		d.first = start
	}
	d.last = end
	d.took = append(d.took, end.Sub(start))
}

// report fills in what was counted.
func (d *decisions) report(r *bench.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.Decisions, r.Misses = len(d.took), d.misses
	if len(d.took) == 0 {
		return
	}
	r.Rate = float64(len(d.took)) / d.last.Sub(d.first).Seconds()
	slices.Sort(d.took)
	r.Decision = bench.Quantiles{P50: milliseconds(quantile(d.took, 0.50)), P99: milliseconds(quantile(d.took, 0.99))}
}

// quantile is the smallest value that at least the share q are not above.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(int(math.Ceil(q*float64(len(sorted)))), 1)-1]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// liveHeap is what a collection leaves on the heap, in MiB. The second
// collection takes what finalizers of the first let go.
func liveHeap() float64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc) / (1 << 20)
}

// readUpstream fills in what upstream's harness wrote into a folder.
func readUpstream(folder string, r *bench.Result) error {
	files, err := filepath.Glob(filepath.Join(folder, "*_benchmark_"+topic+"_*.json"))
	if err != nil {
		return fmt.Errorf("looking for the results of scheduler_perf, %w", err)
	}
	if len(files) != 1 {
		return fmt.Errorf("looking for the results of scheduler_perf, there are %d in %s", len(files), folder)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return fmt.Errorf("reading the results of scheduler_perf, %w", err)
	}
	var all benchmark.DataItems
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("reading the results of scheduler_perf, %w", err)
	}
	for _, item := range all.DataItems {
		switch item.Labels["Metric"] {
		case throughputMetric:
			r.Throughput = item.Data["Average"]
		case heapMetric:
			r.Heap.Peak = item.Data["Max"]
		case attemptMetric:
			if item.Labels["result"] == "scheduled" {
				r.Attempt = bench.Quantiles{P50: item.Data["Perc50"], P99: item.Data["Perc99"]}
			}
		}
	}
	return nil
}
