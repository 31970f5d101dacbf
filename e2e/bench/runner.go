package bench

// Runs as processes.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// EnvSpec is the variable with which the test binary is told what to measure:
// the name of a file with a [Spec].
const EnvSpec = "LADDER_BENCH_SPEC"

// Spec is what the test binary is told.
type Spec struct {
	Run
	// Upstream is the folder scheduler_perf of Kubernetes' source.
	Upstream string `json:"upstream"`
	// Out is the folder for everything that the run writes.
	Out string `json:"out"`
}

// Names of the files in a run's folder.
const (
	specFile   = "spec.json"
	resultFile = "result.json"
	logFile    = "run.log"
)

// ReadSpec reads the spec that the environment names.
func ReadSpec() (spec Spec, told bool, err error) {
	path := os.Getenv(EnvSpec)
	if path == "" {
		return Spec{}, false, nil
	}
	return spec, true, readJSON(path, &spec)
}

// Write writes the result where the runner looks for it.
func (s Spec) Write(r *Result) error { return writeJSON(filepath.Join(s.Out, resultFile), r) }

// limit bounds a run.
const limit = 45 * time.Minute

// Runner runs measurements.
type Runner struct {
	// Binary is package perf as a test binary, Upstream the folder
	// scheduler_perf, Etcd the folder that holds etcd.
	Binary, Upstream, Etcd string
	// Out is the folder for the runs' folders.
	Out string
	// Profile has each run write a CPU profile of the measured part.
	Profile bool
	// Resume leaves out runs whose results are there already.
	Resume bool
	// Progress gets a line for each run.
	Progress io.Writer
}

// Measure runs all, one after another. A run that fails ends none but itself:
// the results of the others come with the errors.
func (r *Runner) Measure(ctx context.Context, runs []Run) ([]Result, error) {
	var results []Result
	var errs []error
	for i, run := range runs {
		if ctx.Err() != nil {
			return results, errors.Join(append(errs, ctx.Err())...)
		}
		result, err := r.one(ctx, run)
		if err != nil {
			fmt.Fprintf(r.Progress, "%3d/%d %s FAILED: %v\n", i+1, len(runs), run.Name(), err)
			errs = append(errs, fmt.Errorf("run %s, %w", run.Name(), err))
			continue
		}
		fmt.Fprintf(r.Progress, "%3d/%d %-60s %7.1f Pods/s  p50 %.1f ms  p99 %.1f ms  heap %.0f MiB  (%.0f s)\n",
			i+1, len(runs), run.Name(), result.PodsPerSecond(), result.Attempt.P50, result.Attempt.P99, result.Heap.LiveAfter, result.Seconds)
		results = append(results, *result)
	}
	return results, errors.Join(errs...)
}

func (r *Runner) one(ctx context.Context, run Run) (*Result, error) {
	out, err := filepath.Abs(filepath.Join(r.Out, run.Name()))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(out, resultFile)
	if r.Resume {
		var earlier Result
		if err := readJSON(path, &earlier); err == nil && earlier.Run == run {
			return &earlier, nil
		}
	}
	if err := os.RemoveAll(out); err != nil {
		return nil, fmt.Errorf("emptying the run's folder, %w", err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("making the run's folder, %w", err)
	}
	if err := writeJSON(filepath.Join(out, specFile), Spec{Run: run, Upstream: r.Upstream, Out: out}); err != nil {
		return nil, err
	}
	if err := r.execute(ctx, out); err != nil {
		return nil, err
	}
	var result Result
	return &result, readJSON(path, &result)
}

func (r *Runner) execute(ctx context.Context, out string) (err error) {
	log, err := os.Create(filepath.Join(out, logFile))
	if err != nil {
		return fmt.Errorf("opening the run's log, %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, limit+time.Minute)
	defer cancel()
	args := []string{"-test.run=^$", "-test.bench=^BenchmarkPerfScheduling$", "-test.benchtime=1x", "-test.timeout=" + limit.String()}
	if r.Profile {
		args = append(args, "-perf-cpuprofile")
	}
	cmd := exec.CommandContext(ctx, r.Binary, args...)
	cmd.Dir = out
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(),
		EnvSpec+"="+filepath.Join(out, specFile),
		"ARTIFACTS="+out, // the harness logs to a file there, and keeps it where it fails
		"PATH="+r.Etcd+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("measuring, %w; see %s: %s", err, log.Name(), reason(log.Name()))
	}
	return nil
}

// reason is what a log says first about a failure, and the line after, where
// the harness begins a new one.
func reason(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, sign := range []string{"FATAL ERROR", "ERROR:", "panic:", ".go:"} {
		for i, line := range lines {
			if strings.Contains(line, sign) {
				return strings.Join(strings.Fields(strings.Join(lines[i:min(i+2, len(lines))], " ")), " ")
			}
		}
	}
	return lines[len(lines)-1]
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading, %w", err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("reading %s, %w", path, err)
	}
	return nil
}

func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s, %w", path, err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing, %w", err)
	}
	return nil
}

// UpstreamFolder is the folder scheduler_perf of the Kubernetes that this module
// builds on.
func UpstreamFolder(ctx context.Context) (string, error) {
	said, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return "", fmt.Errorf("finding the source of Kubernetes, %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(said)), "test", "integration", "scheduler_perf"), nil
}
