package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake writes a script in place of the test binary. It is told its spec and
// writes what it is called with beside the result.
func fake(t *testing.T, script string) *Runner {
	t.Helper()
	path := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Runner{Binary: path, Upstream: "/upstream", Etcd: "/etcd", Out: t.TempDir(), Progress: t.Output()}
}

func someRun(t *testing.T) Run {
	t.Helper()
	return Run{Workload: tiers, Scheduler: Ladder, Repeat: 1, Nodes: 4}
}

const writesResult = `echo "$@" > args
echo "$PATH" > path
sed -e 's/^{/{"throughput": 12.5, "boards": {"h100": 1},/' "$LADDER_BENCH_SPEC" > result.json
`

func TestRunnerReadsTheResult(t *testing.T) {
	r := fake(t, writesResult)
	r.Profile = true
	run := someRun(t)
	results, err := r.Measure(t.Context(), []Run{run})
	if err != nil || len(results) != 1 {
		t.Fatalf("%v, %v", results, err)
	}
	if got := results[0]; got.Run != run || got.Throughput != 12.5 || got.Boards["h100"] != 1 {
		t.Errorf("%+v", got)
	}
	args, err := os.ReadFile(filepath.Join(r.Out, run.Name(), "args"))
	if err != nil || !strings.Contains(string(args), "-test.benchtime=1x") || !strings.Contains(string(args), "-perf-cpuprofile") {
		t.Errorf("called with %q, %v", args, err)
	}
	path, err := os.ReadFile(filepath.Join(r.Out, run.Name(), "path"))
	if err != nil || !strings.HasPrefix(string(path), "/etcd:") {
		t.Errorf("PATH %q, %v", path, err)
	}
	var spec Spec
	if err := readJSON(filepath.Join(r.Out, run.Name(), specFile), &spec); err != nil || spec.Upstream != "/upstream" || spec.Run != run {
		t.Errorf("%+v, %v", spec, err)
	}
}

// A run that fails says why and ends no other.
func TestRunnerGoesOnAfterAFailure(t *testing.T) {
	r := fake(t, `if grep -q stock-default "$LADDER_BENCH_SPEC"; then
  echo 'starting'; echo '    run.go:12: FATAL ERROR:'; echo '        no   etcd'; exit 1
fi
`+writesResult)
	failing := someRun(t)
	failing.Scheduler = StockDefault
	results, err := r.Measure(t.Context(), []Run{failing, someRun(t)})
	if len(results) != 1 || results[0].Scheduler != Ladder {
		t.Errorf("%v", results)
	}
	if err == nil || !strings.Contains(err.Error(), "FATAL ERROR: no etcd") || !strings.Contains(err.Error(), failing.Name()) {
		t.Errorf("%v", err)
	}
}

func TestRunnerWithoutAResult(t *testing.T) {
	if results, err := fake(t, "exit 0").Measure(t.Context(), []Run{someRun(t)}); err == nil {
		t.Errorf("%v", results)
	}
}

// Resuming keeps results of the same run and of no other.
func TestRunnerResumes(t *testing.T) {
	r := fake(t, writesResult)
	if _, err := r.Measure(t.Context(), []Run{someRun(t)}); err != nil {
		t.Fatal(err)
	}
	r.Binary, r.Resume = "/there/is/none", true
	if results, err := r.Measure(t.Context(), []Run{someRun(t)}); err != nil || len(results) != 1 {
		t.Errorf("%v, %v", results, err)
	}
	longer := someRun(t)
	longer.Steady = 1 // same name, other measurement
	if results, err := r.Measure(t.Context(), []Run{longer}); err == nil {
		t.Errorf("%v", results)
	}
}

func TestSpecOfTheEnvironment(t *testing.T) {
	t.Setenv(EnvSpec, "")
	if _, told, err := ReadSpec(); told || err != nil {
		t.Errorf("%v, %v", told, err)
	}
	out := t.TempDir()
	want := Spec{Run: someRun(t), Upstream: "u", Out: out}
	path := filepath.Join(out, specFile)
	if err := writeJSON(path, want); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvSpec, path)
	if got, told, err := ReadSpec(); !told || err != nil || got != want {
		t.Errorf("%+v, %v, %v", got, told, err)
	}
	t.Setenv(EnvSpec, filepath.Join(out, "none"))
	if _, _, err := ReadSpec(); err == nil {
		t.Error("a spec that is not there was read")
	}
}
