package perf

// The entry for the runner, and a proof of the harness on a handful of nodes.

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	benchmark "k8s.io/kubernetes/test/integration/scheduler_perf"

	"gpuladder.dev/ladder/e2e/bench"
)

func TestMain(m *testing.M) {
	if err := benchmark.InitTests(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// BenchmarkPerfScheduling is one measurement, the one that the environment
// names. The name is one that upstream's harness knows.
func BenchmarkPerfScheduling(b *testing.B) {
	spec, told, err := bench.ReadSpec()
	if err != nil {
		b.Fatal(err)
	}
	if !told {
		b.Skipf("%s names no measurement: use `go tool mage bench:scheduler`", bench.EnvSpec)
	}
	result := Measure(b, spec)
	if b.Failed() {
		return
	}
	if err := spec.Write(result); err != nil {
		b.Fatal(err)
	}
}

// With a few nodes, each scheduler serves every Pod, Ladder writes a record for
// each and gives the first tier away first.
func TestHarness(t *testing.T) {
	if testing.Short() {
		t.Skip("runs kube-apiserver and etcd")
	}
	if _, err := exec.LookPath("etcd"); err != nil {
		t.Skip("needs etcd on the PATH")
	}
	upstream, err := bench.UpstreamFolder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	workloads, err := bench.Select("^Tiers/half$|^SchedulingWithResourceClaimTemplate/5000pods_500nodes$")
	if err != nil {
		t.Fatal(err)
	}
	const nodes = 25
	schedulers := []bench.Scheduler{bench.StockDefault, bench.StockConfigured, bench.Ladder, bench.LadderBare}
	runner := bench.Runner{Binary: os.Args[0], Upstream: upstream, Out: t.TempDir(), Progress: t.Output()}
	results, err := runner.Measure(t.Context(), bench.Plan(workloads, schedulers, 1, nodes, 0))
	if err != nil {
		t.Fatal(err)
	}
	if want := len(workloads) * len(schedulers); len(results) != want {
		t.Fatalf("%d results, want %d", len(results), want)
	}
	for _, r := range results {
		t.Run(r.Name(), func(t *testing.T) { checkHarness(t, r) })
	}
}

func checkHarness(t *testing.T, r bench.Result) {
	pods := r.Nodes * podsPerNode
	if !r.Workload.Ours() {
		pods = r.Nodes * devicesPerNode / 2
	}
	if r.Decisions < pods || r.Rate <= 0 || r.Decision.P50 <= 0 || r.Decision.P99 < r.Decision.P50 || r.Attempt.P50 <= 0 {
		t.Errorf("%d decisions on %d Pods, %.1f per second, %+v, %+v", r.Decisions, pods, r.Rate, r.Decision, r.Attempt)
	}
	if r.Heap.LiveBefore <= 0 || r.Heap.LiveAfter <= r.Heap.LiveBefore || r.Heap.Peak <= 0 {
		t.Errorf("heap %+v", r.Heap)
	}
	if !r.Scheduler.IsLadder() && r.Records != 0 {
		t.Errorf("%d records of the stock scheduler", r.Records)
	}
	if r.Scheduler.IsLadder() && r.Records < pods {
		t.Errorf("%d records of %d Pods", r.Records, pods)
	}
	if !r.Workload.Ours() {
		return
	}
	total := 0
	for _, n := range r.Boards {
		total += n
	}
	if total != pods {
		t.Errorf("%d devices for %d Pods: %v", total, pods, r.Boards)
	}
	// One node carries H100, and half of its devices are taken.
	if r.Scheduler == bench.Ladder && r.Boards["h100"] != gpusPerNode/2 {
		t.Errorf("the first tier was not given away first: %v", r.Boards)
	}
}
