// Command ladder-bench measures how fast Pods with accelerators are scheduled,
// by Ladder and by the stock scheduler in turn. Run it through
// `go tool mage bench:scheduler`, which brings etcd.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"gpuladder.dev/ladder/e2e/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	workloads, schedulers    string
	repeats, nodes           int
	steady                   time.Duration
	etcd, out, report        string
	list, short              bool
	profile, resume, targets bool
}

// What -short sets where nothing else is said.
const (
	shortNodes  = 20
	shortSteady = 3 * time.Second
)

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("ladder-bench", flag.ContinueOnError)
	flags.StringVar(&o.workloads, "workloads", "", "only workloads whose names this regular expression matches")
	flags.StringVar(&o.schedulers, "schedulers", "stock-default,stock-configured,ladder", "what to measure, of: stock-default, stock-configured, ladder, ladder-bare")
	flags.IntVar(&o.repeats, "repeats", 5, "how often each scheduler meets each workload")
	flags.IntVar(&o.nodes, "nodes", bench.FullNodes, "nodes; what else a workload counts is scaled with them")
	flags.DurationVar(&o.steady, "steady", 0, "how long workloads that keep a level are measured; 0 for as long as upstream says")
	flags.StringVar(&o.etcd, "etcd", "", "folder that holds etcd")
	flags.StringVar(&o.out, "out", filepath.Join(".artifacts", "bench"), "folder for configurations, logs, results and profiles")
	flags.StringVar(&o.report, "report", "", "write the report to this Markdown file, too")
	flags.BoolVar(&o.list, "list", false, "print the names of the workloads and run none")
	flags.BoolVar(&o.short, "short", false, fmt.Sprintf("prove the harness: %d nodes, one run each, %s", shortNodes, shortSteady))
	flags.BoolVar(&o.profile, "profile", false, "write a CPU profile of each run")
	flags.BoolVar(&o.resume, "resume", false, "keep the results that are in -out already")
	flags.BoolVar(&o.targets, "check", false, "fail where a target is missed")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("reading flags, there are arguments: %v", flags.Args())
	}
	if o.short {
		given := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["nodes"] {
			o.nodes = shortNodes
		}
		if !given["repeats"] {
			o.repeats = 1
		}
		if !given["steady"] {
			o.steady = shortSteady
		}
	}
	if o.nodes < 2 || o.repeats < 1 {
		return options{}, errors.New("reading flags, there must be at least two nodes and one run")
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	workloads, err := bench.Select(o.workloads)
	if err != nil {
		return err
	}
	if o.list {
		for _, w := range workloads {
			fmt.Println(w.Name)
		}
		return nil
	}
	schedulers, err := bench.ParseSchedulers(o.schedulers)
	if err != nil {
		return err
	}
	runner, err := o.runner(ctx)
	if err != nil {
		return err
	}
	results, failed := runner.Measure(ctx, bench.Plan(workloads, schedulers, o.repeats, o.nodes, o.steady))
	comparison := bench.Compare(results, schedulers, bench.DefaultTargets)
	if failed != nil {
		comparison.Failed = strings.Split(failed.Error(), "\n")
	}
	if err := o.write(comparison, results); err != nil {
		return errors.Join(failed, err)
	}
	if o.targets && len(comparison.Missed) > 0 {
		return errors.Join(failed, fmt.Errorf("%d targets are missed", len(comparison.Missed)))
	}
	return failed
}

// runner builds the test binary and finds upstream's folder.
func (o options) runner(ctx context.Context) (*bench.Runner, error) {
	upstream, err := bench.UpstreamFolder(ctx)
	if err != nil {
		return nil, err
	}
	out, err := filepath.Abs(o.out)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder for results, %w", err)
	}
	binary := filepath.Join(out, "perf.test")
	// With the flags of this program: GOFLAGS says -trimpath, which shares what was
	// compiled for kube-apiserver.
	build := exec.CommandContext(ctx, "go", "test", "-vet=off", "-c", "-o", binary, "./perf")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("building package perf, %w", err)
	}
	return &bench.Runner{
		Binary: binary, Upstream: upstream, Etcd: o.etcd, Out: out,
		Profile: o.profile, Resume: o.resume, Progress: os.Stderr,
	}, nil
}

// write writes the report and everything that it rests on.
func (o options) write(c bench.Comparison, results []bench.Result) error {
	text := c.Markdown(bench.About{
		Repeats: o.repeats, Nodes: o.nodes,
		Machine: fmt.Sprintf("%d CPUs, %s/%s, %s.", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version()),
	})
	fmt.Print(text)
	all, err := json.MarshalIndent(map[string]any{"comparison": c, "results": results}, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding results, %w", err)
	}
	files := map[string][]byte{
		filepath.Join(o.out, "results.json"): all,
		filepath.Join(o.out, "report.md"):    []byte(text),
	}
	if o.report != "" {
		files[o.report] = []byte(text)
	}
	for path, content := range files {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return fmt.Errorf("writing the report, %w", err)
		}
	}
	return nil
}
