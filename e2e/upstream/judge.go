package upstream

// The whole: both clusters, both runs, one judgement.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"gpuladder.dev/ladder/e2e/cluster"
)

// Scheduler is what serves Pods that name no scheduler.
type Scheduler string

// The two that are compared.
const (
	Stock  Scheduler = "kube-scheduler"
	Ladder Scheduler = "ladder-scheduler"
)

// Target brings up a cluster whose default scheduler is the given one.
type Target func(ctx context.Context, s Scheduler) (cluster.Cluster, error)

// Judge says how the suite judges.
type Judge struct {
	Suite  *Suite
	Target Target
	// Specs are the tests that run.
	Specs []Spec
	// Procs, Attempts and Timeout are those of each run.
	Procs, Attempts int
	Timeout         time.Duration
	// Dir gets a folder for each scheduler, with what its run leaves.
	Dir string
	// StockRun is a run with the stock scheduler that was made before; nil makes
	// one.
	StockRun *Run
	Progress io.Writer
}

// runFile holds a Run in the folder of its scheduler.
const runFile = "run.json"

// Compare runs the tests with both schedulers.
func (j *Judge) Compare(ctx context.Context) (*Comparison, error) {
	stock := j.StockRun
	if stock == nil {
		var err error
		if stock, err = j.Run(ctx, Stock); err != nil {
			return nil, err
		}
	}
	ours, err := j.Run(ctx, Ladder)
	if err != nil {
		return nil, err
	}
	return Compare(only(stock, j.Specs), ours), nil
}

// only leaves out what an earlier run did besides these tests.
func only(r *Run, specs []Spec) *Run {
	wanted := map[string]bool{}
	for _, s := range specs {
		wanted[s.Name] = true
	}
	part := *r
	part.Results = nil
	for _, result := range r.Results {
		if wanted[result.Name] {
			part.Results = append(part.Results, result)
		}
	}
	return &part
}

// Run brings up a cluster with the scheduler, runs the tests against it and
// takes it down. Its logs are kept where a test failed.
func (j *Judge) Run(ctx context.Context, s Scheduler) (run *Run, err error) {
	dir := filepath.Join(j.Dir, string(s))
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("removing what an earlier run left, %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making a folder for the results, %w", err)
	}
	fmt.Fprintf(j.Progress, "%s: bringing up a cluster\n", s)
	c, err := j.Target(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("bringing up a cluster with %s, %w", s, err)
	}
	defer func() {
		if err != nil || run.Count(Failed)+run.Count(NotRun) > 0 {
			c.KeepLogs()
		}
		err = errors.Join(err, c.Down(context.WithoutCancel(ctx)))
	}()
	fmt.Fprintf(j.Progress, "%s: running %d tests, output in %s\n", s, len(j.Specs), dir)
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case crash := <-c.Failed():
			cancel(crash)
		case <-ended:
		}
	}()
	run, err = j.Suite.Run(running, RunOptions{
		Scheduler: string(s), Kubeconfig: c.Kubeconfig(), Specs: j.Specs,
		Procs: j.Procs, Attempts: j.Attempts, Timeout: j.Timeout, Dir: dir,
	})
	if err != nil {
		if ctx.Err() == nil && running.Err() != nil {
			err = errors.Join(context.Cause(running), err)
		}
		return nil, err
	}
	fmt.Fprintf(j.Progress, "%s: %d passed, %d failed, %d skipped, %d not run after %.0f minutes\n", s,
		run.Count(Passed), run.Count(Failed), run.Count(Skipped), run.Count(NotRun), run.Took.Minutes())
	return run, writeRun(filepath.Join(dir, runFile), run)
}

func writeRun(path string, r *Run) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(content, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the results, %w", err)
	}
	return nil
}

// ReadRun reads the results of an earlier run.
func ReadRun(path string) (*Run, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading results, %w", err)
	}
	r := &Run{}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("reading results from %s, %w", path, err)
	}
	if r.Scheduler == "" || len(r.Results) == 0 {
		return nil, fmt.Errorf("reading results from %s, they are none of a run", path)
	}
	return r, nil
}
