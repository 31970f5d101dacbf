package upstream

// The suite as programs on this machine.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// Suite is the suite as programs on this machine.
type Suite struct {
	// Test is the suite's test binary, Ginkgo what runs it in several
	// processes, Kubectl what some of its tests call.
	Test, Ginkgo, Kubectl string
	// Progress is told what happens, line by line.
	Progress io.Writer
}

// Provide builds the suite's programs where they are missing.
func Provide(ctx context.Context, progress io.Writer) (*Suite, error) {
	set, err := binaries.Ensure(ctx, progress, binaries.E2ETest, binaries.Ginkgo, binaries.Kubectl)
	if err != nil {
		return nil, err
	}
	return &Suite{
		Test: set.Path(binaries.E2ETest), Ginkgo: set.Path(binaries.Ginkgo), Kubectl: set.Path(binaries.Kubectl),
		Progress: progress,
	}, nil
}

// Images returns the names of the images that tests of the suite use, as they
// will ask for them: those that the suite lists, and those with one of the base
// names that its manifests name besides. The list lags behind the manifests.
func (s *Suite) Images(ctx context.Context, bases ...string) ([]string, error) {
	said, err := exec.CommandContext(ctx, s.Test, "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("asking the suite for its images, %w", explained(err))
	}
	images := strings.Fields(string(said))
	program, err := os.ReadFile(s.Test)
	if err != nil {
		return nil, fmt.Errorf("reading the suite's manifests, %w", err)
	}
	for _, base := range bases {
		images = append(images, mentioned(program, base)...)
	}
	slices.Sort(images)
	return slices.Compact(images), nil
}

// mentioned returns the full names of images called base in a program, which
// holds its manifests as they are.
func mentioned(program []byte, base string) []string {
	part := func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._/", c) >= 0
	}
	var names []string
	middle := []byte("/" + base + ":")
	for from := 0; ; {
		at := bytes.Index(program[from:], middle)
		if at < 0 {
			return names
		}
		start, end := from+at, from+at+len(middle)
		tag := end
		for start > 0 && (part(program[start-1]) || program[start-1] == ':') {
			start--
		}
		for end < len(program) && part(program[end]) && program[end] != '/' {
			end++
		}
		// A tag that begins with a digit or v is a version; others are
		// replaced before they are used.
		if end > tag && strings.IndexByte("0123456789v", program[tag]) >= 0 {
			names = append(names, string(program[start:end]))
		}
		from = end
	}
}

// List returns the tests of a selection, sorted by name.
func (s *Suite) List(ctx context.Context, selection Selection) ([]Spec, error) {
	all, err := s.dryRun(ctx, selection)
	if err != nil {
		return nil, err
	}
	var part []Spec
	for i, spec := range all {
		if selection.Shard.Has(i) {
			part = append(part, spec)
		}
	}
	return part, nil
}

// LeftOut returns the tests of the area that the label filter leaves out.
func (s *Suite) LeftOut(ctx context.Context, labelFilter string) ([]Spec, error) {
	all, err := s.dryRun(ctx, Selection{LabelFilter: filterArea})
	if err != nil {
		return nil, err
	}
	chosen, err := s.dryRun(ctx, Selection{LabelFilter: labelFilter})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(spec Spec) bool {
		_, found := slices.BinarySearchFunc(chosen, spec, byName)
		return found
	}), nil
}

func (s *Suite) dryRun(ctx context.Context, selection Selection) ([]Spec, error) {
	dir, err := os.MkdirTemp("", "ladder-upstream-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the list of tests, %w", err)
	}
	defer os.RemoveAll(dir)
	report := filepath.Join(dir, "report.json")
	// A dry run asks no cluster anything, so any address will do.
	args := append(selection.args("ginkgo."), "--ginkgo.dry-run", "--ginkgo.succinct", "--ginkgo.json-report="+report,
		"--host=https://127.0.0.1:1", "--provider=skeleton")
	cmd := exec.CommandContext(ctx, s.Test, args...)
	cmd.Dir = dir
	said, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("listing the tests, %w\n%s", err, lastLines(said, 10))
	}
	reports, err := readReports(report)
	if err != nil {
		return nil, err
	}
	return selected(reports), nil
}

// RunOptions say how a selection runs against one cluster.
type RunOptions struct {
	// Scheduler is the name of the cluster's default scheduler, for the report.
	Scheduler string
	// Kubeconfig is an administrator's.
	Kubeconfig string
	// Specs are the tests.
	Specs []Spec
	// Procs is how many tests run at once; most of them wait most of the time.
	Procs int
	// Attempts is how often a test may run until it passes.
	Attempts int
	// Timeout ends the whole run.
	Timeout time.Duration
	// Dir is an empty folder for the reports and the output.
	Dir string
}

// Names of what a run leaves in its folder.
const (
	reportFile = "ginkgo.json"
	outputFile = "output.log"
)

// stopGrace is how long the suite may take to clean up after Ctrl-C.
const stopGrace = time.Minute

// Run runs tests against a cluster. Tests that fail are no error.
func (s *Suite) Run(ctx context.Context, o RunOptions) (*Run, error) {
	if len(o.Specs) == 0 {
		return nil, errors.New("running the suite, no test is selected")
	}
	output, err := os.Create(filepath.Join(o.Dir, outputFile))
	if err != nil {
		return nil, fmt.Errorf("writing the suite's output, %w", err)
	}
	defer output.Close()
	cmd := exec.CommandContext(ctx, s.Ginkgo, s.args(o)...)
	watched := newWatched(output, s.Progress, o.Scheduler, len(o.Specs))
	cmd.Stdout, cmd.Stderr = watched, watched
	cmd.Dir = o.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Ginkgo passes one interrupt on; the tests under way clean up.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopGrace
	start := time.Now()
	stop := watched.tell()
	runErr := cmd.Run()
	stop()
	if cmd.Process != nil {
		// Nothing of the suite may go on against a cluster that others use.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("running the suite, %w", ctx.Err())
	}
	reports, err := readReports(filepath.Join(o.Dir, reportFile))
	if err != nil {
		return nil, errors.Join(err, runErr, fmt.Errorf("the suite said (%s):\n%s", output.Name(), watched.last(20)))
	}
	run := &Run{Scheduler: o.Scheduler, Took: time.Since(start).Round(time.Second), Dir: o.Dir}
	run.Results, run.Trouble = results(o.Specs, reports)
	if runErr != nil && run.Count(Failed) == 0 && len(run.Trouble) == 0 {
		run.Trouble = append(run.Trouble, runErr.Error())
	}
	return run, nil
}

func (s *Suite) args(o RunOptions) []string {
	names := make([]string, 0, len(o.Specs))
	for _, spec := range o.Specs {
		names = append(names, spec.Name)
	}
	args := []string{
		"run", "--procs=" + strconv.Itoa(max(1, o.Procs)), "--flake-attempts=" + strconv.Itoa(max(1, o.Attempts)),
		"--timeout=" + o.Timeout.String(), "--no-color", "--silence-skips", "--json-report=" + reportFile, "--output-dir=" + o.Dir,
	}
	args = append(args, exactly(names).args("")[1:]...)
	return append(args, s.Test, "--",
		"--kubeconfig="+o.Kubeconfig, "--provider=skeleton", "--kubectl-path="+s.Kubectl, "--report-dir="+o.Dir,
		// Logs of nodes are fetched by ssh, which nodes in containers lack.
		"--disable-log-dump",
	)
}

// explained adds what a program said on standard error.
func explained(err error) error {
	exit := new(exec.ExitError)
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, lastLines(exit.Stderr, 5))
	}
	return err
}

func lastLines(text []byte, n int) string {
	all := strings.Split(string(bytes.TrimRight(text, "\n")), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
