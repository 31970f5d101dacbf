package perf

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"gpuladder.dev/ladder/e2e/bench"
)

func TestQuantile(t *testing.T) {
	var sample []time.Duration
	for i := range 200 {
		sample = append(sample, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0.5: 100, 0.99: 198, 1: 200, 0: 1} {
		if got := quantile(sample, q); got != want {
			t.Errorf("quantile %v = %d, want %d", q, got, want)
		}
	}
	if got := quantile(sample[:1], 0.99); got != 1 {
		t.Errorf("quantile of one = %d", got)
	}
}

func TestDecisionsReport(t *testing.T) {
	var d decisions
	start := time.Unix(100, 0)
	for i := range 11 {
		at := start.Add(time.Duration(i) * time.Second)
		d.add(at, at.Add(time.Duration(i+1)*10*time.Millisecond), true)
	}
	d.add(start, start.Add(time.Hour), false)
	var r bench.Result
	d.report(&r)
	if r.Decisions != 11 || r.Misses != 1 || r.Decision != (bench.Quantiles{P50: 60, P99: 110}) {
		t.Errorf("%+v", r)
	}
	if want := 11 / 10.11; r.Rate < want-0.001 || r.Rate > want+0.001 {
		t.Errorf("rate %v, want %v", r.Rate, want)
	}
	var none decisions
	none.report(&r)
	if r.Decisions != 0 {
		t.Errorf("%+v", r)
	}
}

// Only the Pods that are measured count, and results pass unchanged.
func TestTimed(t *testing.T) {
	var d decisions
	refused := errors.New("refused")
	schedule := d.timed(func(_ context.Context, _ framework.Framework, _ fwk.CycleState, pod *framework.QueuedPodInfo) (scheduler.ScheduleResult, error) {
		if pod.Pod.Name == "bad" {
			return scheduler.ScheduleResult{}, refused
		}
		return scheduler.ScheduleResult{SuggestedHost: "node"}, nil
	})
	for _, c := range []struct{ namespace, name string }{{measured, "a"}, {measured, "bad"}, {taken, "b"}} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.name}}
		result, err := schedule(t.Context(), nil, nil, &framework.QueuedPodInfo{PodInfo: &framework.PodInfo{Pod: pod}})
		if c.name == "bad" && !errors.Is(err, refused) || c.name != "bad" && (err != nil || result.SuggestedHost != "node") {
			t.Errorf("%s: %v, %v", c.name, result, err)
		}
	}
	if len(d.took) != 1 || d.misses != 1 {
		t.Errorf("%+v", d.took)
	}
}

func TestReadUpstream(t *testing.T) {
	folder := t.TempDir()
	var r bench.Result
	if err := readUpstream(folder, &r); err == nil {
		t.Error("results were read where there are none")
	}
	text := `{"version":"v1","dataItems":[
{"data":{"Average":71.5,"Perc50":70},"unit":"pods/s","labels":{"Metric":"SchedulingThroughput"}},
{"data":{"Perc50":8,"Perc99":30},"unit":"ms","labels":{"Metric":"scheduler_scheduling_attempt_duration_seconds","result":"scheduled"}},
{"data":{"Perc50":1,"Perc99":2},"unit":"ms","labels":{"Metric":"scheduler_scheduling_attempt_duration_seconds","result":"unschedulable"}},
{"data":{"Max":640},"unit":"MB","labels":{"Metric":"heap_memory_usage"}}]}`
	if err := os.WriteFile(filepath.Join(folder, "BenchmarkPerfScheduling_benchmark_dra_2026.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := readUpstream(folder, &r); err != nil {
		t.Fatal(err)
	}
	if r.Throughput != 71.5 || r.Attempt != (bench.Quantiles{P50: 8, P99: 30}) || r.Heap.Peak != 640 {
		t.Errorf("%+v", r)
	}
}

func TestLiveHeapCountsWhatIsHeld(t *testing.T) {
	before := liveHeap()
	held := strings.Repeat("x", 64<<20)
	after := liveHeap()
	if grown := after - before; grown < 60 || grown > 100 {
		t.Errorf("%.1f MiB more with %d bytes held", grown, len(held))
	}
	if held[len(held)-1] != 'x' { // keeps it until here
		t.Fail()
	}
}
