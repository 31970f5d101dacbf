// Package simulate is the command that plays a trace of jobs on a fleet: what
// each set-up of the queue would have made of it.
package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fleet"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/policies/simulate"
	"gpuladder.dev/ladder/tools/internal/command"
)

// setups in the order in which they are played unless told otherwise.
var setups = []fair.Mode{fair.FIFO, fair.PriorityOnly, fair.LadderWithoutAging, fair.Ladder}

// output is how the result is printed.
type output string

const (
	asText output = "text"
	asJSON output = "json"
	asHTML output = "html"
)

// String, Set and Type make it a flag.
func (o *output) String() string { return string(*o) }

// Set takes one of the formats.
func (o *output) Set(v string) error {
	switch output(v) {
	case asText, asJSON, asHTML:
		*o = output(v)
		return nil
	}
	return errors.New("must be text, json or html")
}

// Type names the flag's values in help texts.
func (o *output) Type() string { return "text|json|html" }

// flags of the command.
type flags struct {
	trace, fleet, policy, quota string
	format                      string
	setups                      []string
	output                      output
	costs                       map[string]int64
	private                     bool
	save                        string
	options                     simulate.Options
}

// NewCommand returns `ladder simulate`.
func NewCommand(s command.Streams) *cobra.Command {
	f := flags{output: asText}
	cmd := &cobra.Command{
		Use:   "simulate --trace FILE --fleet FILE --policy FILE --quota FILE",
		Short: "Play a trace of jobs on a fleet, under quotas and policies",
		Long: `Simulate plays the jobs of a trace on a fleet: the queue opens their gates and
takes devices back, the decision engine places their Pods, as in a cluster. It
compares set-ups of the queue: fifo, priority, no-aging and ladder.

A job's namespace names its tenant, its policy is the first one whose
namespaceSelector takes that namespace, and the policy's count is replaced by the
job's GPUs; a job of more GPUs than a node holds is a gang of Pods. The wait of a
job is all between its creation and its end but its own duration. Each tenant is
also played alone, on the devices that are guaranteed to it, to compare with.

The same input gives the same bytes, in whatever order the rows of the trace
stand. docs/simulate.md has the rules and says what each number means.`,
		Example: `  # What would this fleet have made of that trace?
  {{ladder}} simulate --trace philly.csv.gz --fleet fleet.yaml --policy policy.yaml --quota quota.yaml

  # A page with plots; an H100 counts as ten L4
  {{ladder}} simulate --trace philly.csv.gz --fleet fleet.yaml --policy policy.yaml --quota quota.yaml --cost H100=10,A100=5 -o html > report.html

  # One set-up, for a program
  {{ladder}} simulate --trace pods.csv --format openb --fleet nodes.csv --policy any.yaml --quota quota.yaml --setups ladder -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), s) },
	}
	names := make([]string, len(setups))
	for i, m := range setups {
		names[i] = m.String()
	}
	fs := cmd.Flags()
	fs.StringVar(&f.trace, "trace", "", "trace of jobs: CSV, plain or gzip, or - for stdin")
	fs.StringVar(&f.fleet, "fleet", "", "fleet file, or a node list (.csv)")
	fs.StringVar(&f.policy, "policy", "", "file with AcceleratorPolicies, and Namespaces whose labels they select")
	fs.StringVar(&f.quota, "quota", "", "file with TenantQuotas")
	fs.StringVar(&f.format, "format", "", "format of the trace: philly or openb (default: by its header)")
	fs.StringSliceVar(&f.setups, "setups", names, "set-ups to play")
	fs.VarP(&f.output, "output", "o", "how to print the result")
	fs.StringToInt64Var(&f.costs, "cost", nil, "what a device of a model is worth, such as H100=10,A100=5 (default 1 each)")
	fs.StringVar(&f.save, "save", "", "file for the result as JSON, beside what is printed")
	fs.BoolVar(&f.private, "private", true, "also play each tenant alone on its guarantee, and compare")
	fs.DurationVar(&f.options.Aging, "aging", fair.DefaultAging, "waiting that outweighs the whole fleet")
	fs.DurationVar(&f.options.ReserveAfter, "reserve-after", fair.DefaultReserveAfter, "waiting after which devices are set aside; negative: never")
	fs.DurationVar(&f.options.KeepAfter, "keep-after", fair.DefaultKeepAfter, "waiting after which a job keeps its part of the guarantee from later ones of its tenant; negative: never")
	fs.DurationVar(&f.options.PriorityAging, "priority-aging", fair.DefaultPriorityAging, "waiting after which a job counts as of the highest priority; negative: never")
	fs.DurationVar(&f.options.Notice, "notice", fair.DefaultNotice, "time from the notice of a reclaim to the eviction")
	fs.DurationVar(&f.options.Cooldown, "cooldown", fair.DefaultCooldown, "how long a job does not borrow after it was evicted, doubled each time; negative: none")
	fs.DurationVar(&f.options.LendAfter, "lend-after", 0, "how long guaranteed devices must be unused before they are lent (default at once)")
	fs.DurationVar(&f.options.Release, "release", 0, "time from an eviction until the devices are free")
	fs.DurationVar(&f.options.Checkpoint, "checkpoint", 0, "interval at which running work is saved (default: an eviction loses all)")
	for _, name := range []string{"trace", "fleet", "policy", "quota"} {
		_ = cmd.MarkFlagRequired(name)
	}
	complete := func(flag string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("output", "text", "json", "html")
	complete("format", "philly", "openb")
	complete("setups", names...)
	return cmd
}

func (f *flags) run(ctx context.Context, s command.Streams) error {
	modes, err := f.modes()
	if err != nil {
		return command.BadInput(err)
	}
	input, err := f.read(ctx, s)
	if err != nil {
		return command.BadInput(err)
	}
	bar := newProgress(s)
	report, err := f.play(ctx, input, modes, bar)
	bar.clear()
	var wrong *simulate.Error
	switch {
	case errors.Is(err, context.Canceled):
		return &command.Exit{Code: command.CodeFailed, Err: command.ErrInterrupted}
	case errors.As(err, &wrong):
		return command.BadInput(f.blame(wrong))
	case err != nil:
		return command.Failed(err)
	}
	if err := f.keep(report); err != nil {
		return command.Failed(err)
	}
	var page bytes.Buffer
	if err := f.print(&page, report, s); err != nil {
		return command.Failed(err)
	}
	_, err = page.WriteTo(s.Out)
	return command.Printed(err)
}

// modes are the set-ups that were asked for.
func (f *flags) modes() ([]fair.Mode, error) {
	var modes []fair.Mode
	for _, name := range f.setups {
		i := slices.IndexFunc(setups, func(m fair.Mode) bool { return m.String() == strings.TrimSpace(name) })
		switch {
		case i < 0:
			return nil, fmt.Errorf("--setups: %q is none of fifo, priority, no-aging, ladder", name)
		case slices.Contains(modes, setups[i]):
			return nil, fmt.Errorf("--setups: %s is there twice", setups[i])
		}
		modes = append(modes, setups[i])
	}
	if len(modes) == 0 {
		return nil, errors.New("--setups: name at least one of fifo, priority, no-aging, ladder")
	}
	return modes, nil
}

// read reads the four files. Errors name the file.
func (f *flags) read(ctx context.Context, s command.Streams) (*simulate.Input, error) {
	f.options.Costs = f.costs
	if err := f.options.Validate(); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	zeroes(&f.options)
	if f.format != "" && !slices.Contains(simulate.Formats(), simulate.Format(f.format)) {
		return nil, fmt.Errorf("--format %q is neither philly nor openb", f.format)
	}
	in := &simulate.Input{Options: f.options}
	var err error
	if in.Fleet, err = fleet.ReadFile(f.fleet); err != nil {
		return nil, err
	}
	if err := f.objects(ctx, in, s); err != nil {
		return nil, err
	}
	in.Trace, err = f.jobs(ctx, s)
	return in, err
}

// zeroes has a time of zero that was asked for mean none, or at once: in the
// options it would mean the default.
func zeroes(o *simulate.Options) {
	for d, none := range map[*time.Duration]time.Duration{
		&o.Notice: -time.Millisecond, &o.Cooldown: -time.Millisecond, &o.Aging: time.Millisecond,
		&o.ReserveAfter: time.Millisecond, &o.KeepAfter: time.Millisecond, &o.PriorityAging: time.Millisecond,
	} {
		if *d == 0 {
			*d = none
		}
	}
}

// objects reads the policies and the quotas, which may be in one file.
func (f *flags) objects(ctx context.Context, in *simulate.Input, s command.Streams) error {
	paths := []string{f.policy}
	if filepath.Clean(f.quota) != filepath.Clean(f.policy) {
		paths = append(paths, f.quota)
	}
	set, err := manifest.Read(ctx, paths, manifest.Options{Stdin: s.In})
	if err != nil {
		return err
	}
	for _, w := range set.Warnings() {
		s.Warn("%s", w)
	}
	for p := range manifest.All[*v1alpha1.AcceleratorPolicy](set) {
		in.Policies = append(in.Policies, p)
	}
	for ns := range manifest.All[*corev1.Namespace](set) {
		in.Namespaces = append(in.Namespaces, ns)
	}
	for q := range manifest.All[*v1alpha1.TenantQuota](set) {
		in.Quotas = append(in.Quotas, q)
	}
	switch {
	case len(in.Policies) == 0:
		return fmt.Errorf("%s: there is no AcceleratorPolicy in it", f.policy)
	case len(in.Quotas) == 0:
		return fmt.Errorf("%s: there is no TenantQuota in it", f.quota)
	}
	return nil
}

func (f *flags) jobs(ctx context.Context, s command.Streams) (*simulate.Trace, error) {
	r := s.In
	if f.trace != "-" {
		file, err := os.Open(f.trace)
		if err != nil {
			return nil, fmt.Errorf("opening trace, %w", err)
		}
		defer func() { _ = file.Close() }()
		r = file
	}
	trace, err := simulate.ReadTrace(command.Interruptible(ctx, r), simulate.Format(f.format))
	var wrong *simulate.Error
	if errors.As(err, &wrong) {
		return nil, f.blame(wrong)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.trace, err)
	}
	return trace, nil
}

// blame names the file that an error speaks of.
func (f *flags) blame(e *simulate.Error) error {
	path := map[simulate.Part]string{
		simulate.PartTrace: f.trace, simulate.PartFleet: f.fleet, simulate.PartPolicy: f.policy, simulate.PartQuota: f.quota,
	}[e.Part]
	if path == "-" {
		path = "stdin"
	}
	return fmt.Errorf("%s: %w", path, e)
}

// play runs everything that was asked for.
func (f *flags) play(ctx context.Context, in *simulate.Input, modes []fair.Mode, bar *progress) (*simulate.Report, error) {
	in.Options.Watch = bar.watch()
	sim, err := simulate.New(*in)
	if err != nil {
		return nil, err
	}
	var private *simulate.Private
	if f.private {
		bar.begin("private clusters")
		if private, err = sim.Private(ctx); err != nil {
			return nil, err
		}
	}
	var outcomes []*simulate.Outcome
	for _, mode := range modes {
		bar.begin("set-up " + mode.String())
		o, err := sim.Run(ctx, mode)
		if err != nil {
			return nil, err
		}
		if private != nil {
			if err := sim.Account(ctx, private, o); err != nil {
				return nil, err
			}
		}
		outcomes = append(outcomes, o)
	}
	return sim.Report(private, outcomes...), nil
}

// keep writes the result to the file that was named, if one was.
func (f *flags) keep(r *simulate.Report) error {
	if f.save == "" {
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("saving the result, %w", err)
	}
	if err := os.WriteFile(f.save, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("saving the result, %w", err)
	}
	return nil
}

func (f *flags) print(w io.Writer, r *simulate.Report, s command.Streams) error {
	switch f.output {
	case asJSON:
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case asHTML:
		return writePage(w, r)
	case asText:
		return writeText(w, r, s)
	}
	return fmt.Errorf("no output %q", f.output)
}
