package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/cluster/nodeimage"
	"gpuladder.dev/ladder/e2e/upstream"
	"gpuladder.dev/ladder/policies/fleet"
)

// upstreamOptions are the flags of upstream.
type upstreamOptions struct {
	selection       upstream.Selection
	shard, provider string
	source          string
	only, stock     string
	dir, report     string
	procs, attempts int
	timeout         time.Duration
	list            bool
	out             output
}

func newUpstream() *cobra.Command {
	o := upstreamOptions{source: string(nodeimage.Auto)}
	cmd := &cobra.Command{
		Use:   "upstream",
		Short: "Judge ladder-scheduler by Kubernetes' own e2e suite for DRA",
		Long: `Run Kubernetes' own e2e suite for dynamic resource allocation twice: against a
cluster with the stock kube-scheduler and against one in which ladder-scheduler
is the default scheduler. Every test that passes with the first must pass with
the second, or the command fails.

With --provider kind both are clusters with real kubelets. With --provider lab
they are control planes with simulated nodes, and only the tests run that need
no kubelet; that takes a few minutes and no container engine.`,
		Example: `  ladder-lab upstream
  ladder-lab upstream --provider lab
  ladder-lab upstream --focus 'prioritized list|partitionable' --procs 2
  ladder-lab upstream --stock .artifacts/upstream/kube-scheduler/run.json --shard 1/3`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return o.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.out.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.provider, "provider", providerKind, "kind or lab")
	flags.StringVar(&o.selection.LabelFilter, "label-filter", "", "tests by label, in Ginkgo's language (default: all of DRA that the provider can run)")
	flags.StringVar(&o.selection.Focus, "focus", "", "only tests whose full name this regular expression matches")
	flags.StringVar(&o.selection.Skip, "skip", "", "no tests whose full name this regular expression matches")
	flags.StringVar(&o.shard, "shard", "", "only a part of the tests: 2/4 is the second of four")
	flags.StringVar(&o.only, "only", "", "run with one scheduler and compare nothing: stock or ladder")
	flags.StringVar(&o.stock, "stock", "", "compare with this earlier run (its run.json) in place of a new one with the stock scheduler")
	flags.IntVar(&o.procs, "procs", 4, "tests that run at once; they wait most of the time")
	flags.IntVar(&o.attempts, "attempts", 2, "how often a test may run until it passes; the report tells where it took more than one")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Hour, "end a run after this time")
	flags.StringVar(&o.dir, "artifacts", filepath.Join(".artifacts", "upstream"), "folder for each run's output, JUnit and results")
	flags.StringVar(&o.report, "report", "", "write the report to this Markdown file, too")
	registerSource(cmd, &o.source)
	flags.BoolVar(&o.list, "list", false, "print the names of the tests and run none")
	_ = cmd.MarkFlagFilename("report", "md")
	_ = cmd.MarkFlagFilename("stock", "json")
	_ = cmd.RegisterFlagCompletionFunc("provider", cobra.FixedCompletions([]string{providerKind, providerLab}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions([]string{"stock", "ladder"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// Names of the providers.
const (
	providerKind = "kind"
	providerLab  = "lab"
)

// complete fills in what depends on other flags and refuses what can't work.
func (o *upstreamOptions) complete() error {
	var err error
	if o.selection.Shard, err = upstream.ParseShard(o.shard); err != nil {
		return err
	}
	if err := o.selection.Validate(); err != nil {
		return err
	}
	switch o.provider {
	case providerKind:
		o.defaultFilter(upstream.FilterAll)
	case providerLab:
		o.defaultFilter(upstream.FilterControlPlane)
	default:
		return fmt.Errorf("provider %q is not known; kind and lab are", o.provider)
	}
	switch o.only {
	case "", "stock", "ladder":
	default:
		return fmt.Errorf("scheduler %q is not known; stock and ladder are", o.only)
	}
	if o.procs < 1 || o.attempts < 1 || o.timeout <= 0 {
		return errors.New("--procs, --attempts and --timeout must be positive")
	}
	return nil
}

func (o *upstreamOptions) defaultFilter(filter string) {
	if o.selection.LabelFilter == "" {
		o.selection.LabelFilter = filter
	}
}

func (o *upstreamOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	asJSON, err := o.out.json()
	if err != nil {
		return err
	}
	if err := o.complete(); err != nil {
		return usage(err)
	}
	var stock *upstream.Run
	if o.stock != "" {
		if stock, err = upstream.ReadRun(o.stock); err != nil {
			return usage(err)
		}
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	suite, err := upstream.Provide(ctx, stderr)
	if err != nil {
		return err
	}
	specs, err := suite.List(ctx, o.selection)
	if err != nil {
		return err
	}
	if o.list {
		for _, s := range specs {
			fmt.Fprintln(stdout, s.Name)
		}
		return nil
	}
	about := upstream.About{Version: binaries.KubernetesVersion, Filter: o.selection.LabelFilter, Narrowed: o.narrowed()}
	target, done, err := o.target(ctx, suite, &about, stderr)
	if err != nil {
		return err
	}
	judge := &upstream.Judge{
		Suite: suite, Target: target, Specs: specs, Procs: o.procs, Attempts: o.attempts, Timeout: o.timeout,
		Dir: o.dir, StockRun: stock, Progress: stderr,
	}
	err = o.judge(ctx, judge, about, asJSON, stdout)
	return errors.Join(err, done(context.WithoutCancel(ctx)))
}

// judge runs with one scheduler, or with both and reports.
func (o *upstreamOptions) judge(ctx context.Context, judge *upstream.Judge, about upstream.About, asJSON bool, stdout io.Writer) error {
	if o.only != "" {
		s := upstream.Stock
		if o.only == "ladder" {
			s = upstream.Ladder
		}
		run, err := judge.Run(ctx, s)
		if err != nil {
			return err
		}
		return encode(stdout, run)
	}
	c, err := judge.Compare(ctx)
	if err != nil {
		return err
	}
	if about.LeftOut, err = judge.Suite.LeftOut(ctx, o.selection.LabelFilter); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := upstream.Report(&text, c, about); err != nil {
		return err
	}
	for _, path := range []string{filepath.Join(o.dir, "report.md"), o.report} {
		if path == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if asJSON {
		err = encode(stdout, c)
	} else {
		_, err = text.WriteTo(stdout)
	}
	return errors.Join(err, c.Err())
}

// narrowed says in the report that not all was run.
func (o *upstreamOptions) narrowed() string {
	var words []string
	for _, w := range [][2]string{{"focus", o.selection.Focus}, {"skip", o.selection.Skip}, {"shard", o.shard}} {
		if w[1] != "" {
			words = append(words, w[0]+" `"+w[1]+"`")
		}
	}
	return strings.Join(words, ", ")
}

func encode(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// target returns how clusters are brought up, and what is to be done when the
// last one is down.
func (o *upstreamOptions) target(ctx context.Context, suite *upstream.Suite, about *upstream.About, stderr io.Writer) (upstream.Target, func(context.Context) error, error) {
	if o.provider == providerLab {
		about.Cluster = "a lab (control plane of processes, simulated nodes)"
		return labTarget(stderr), func(context.Context) error { return nil }, nil
	}
	source, err := nodeimage.ParseSource(o.source)
	if err != nil {
		return nil, nil, usage(err)
	}
	t, made, err := newKindTarget(ctx, suite, source, o.dir, stderr)
	if err != nil {
		return nil, nil, err
	}
	about.Cluster = fmt.Sprintf("kind, one control plane and %d workers, feature gates as they come", len(upstreamNodes())-1)
	for _, m := range made {
		about.Substitutes = append(about.Substitutes, m.String())
	}
	return t.up, t.close, nil
}

// labTarget brings up labs whose nodes have room for every test at once.
func labTarget(progress io.Writer) upstream.Target {
	return func(ctx context.Context, s upstream.Scheduler) (cluster.Cluster, error) {
		scheduler := lab.SchedulerStock
		if s == upstream.Ladder {
			scheduler = lab.SchedulerLadderDefault
		}
		l, err := lab.Up(ctx, lab.Options{
			Name: "upstream-" + string(scheduler), Scheduler: scheduler, WithoutController: true, Progress: progress,
			Fleet: fleet.New(fleet.Group{Name: "node", Nodes: 6, Board: "H100-SXM5-80GB", GPUs: 8}),
		})
		if err != nil {
			return nil, err
		}
		return l, nil
	}
}
