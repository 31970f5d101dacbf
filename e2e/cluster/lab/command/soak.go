package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/soak"
)

// soakOptions are the flags of soak.
type soakOptions struct {
	seed     uint64
	duration time.Duration
	pace     soak.Pace
	limits   soak.Limits
	// every is the time between samples, late what is written late has until all
	// Pods are removed at the end.
	every, late time.Duration
	// history is a file for all that was observed.
	history  string
	progress io.Writer
}

func newSoak() *cobra.Command {
	var p proof
	var o soakOptions
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Keep a lab busy and broken for a long time, and judge what happened",
		Long: `Pods arrive and go, device taint rules come and go, nodes are deleted or
drained and come back, the scheduler is killed, all drawn from a seed. Every
change is recorded by watching. At the end the record is judged: no device in
two claims (I1), hard constraints (I2), first choices (I4), records (I6), healthy
devices (I8), attempts and events (I11); and the memory of ladder-scheduler and
ladder-controller must not have grown. What the schedulers decided is decided
again: by the engine that looks at every node each time, and by a naive twin of
it. The lab is the command's own.`,
		Example: `  ladder-lab soak --report docs/reports/soak.md
  ladder-lab soak --duration 5m --seed 7 --history history.jsonl`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return usage(err)
			}
			if o.seed == 0 {
				o.seed = rand.Uint64()
			}
			o.progress = cmd.ErrOrStderr()
			return p.run(cmd, func(ctx context.Context) (*result, error) {
				r, err := runSoak(ctx, o)
				if err != nil {
					return nil, err
				}
				about := soak.About{Pace: o.pace, Duration: o.duration, Every: o.every, Beside: p.beside}
				return &result{value: r, err: o.limits.Check(r), report: func(w io.Writer) error { return soak.Report(w, about, o.limits, r) }}, nil
			})
		},
	}
	p.register(cmd, "fail where an invariant does not hold, a process grows or a decision comes out otherwise when it is decided again")
	flags := cmd.Flags()
	flags.Uint64Var(&o.seed, "seed", 0, "what is drawn from; 0 draws the seed, too")
	flags.DurationVar(&o.duration, "duration", 30*time.Minute, "how long things happen")
	flags.DurationVar(&o.pace.Arrival, "arrival", 1500*time.Millisecond, "mean time between two Pods")
	flags.DurationVar(&o.pace.Life, "life", time.Minute, "mean time that a Pod stays")
	flags.DurationVar(&o.pace.Taint, "taint", 20*time.Second, "mean time between two device taint rules")
	flags.DurationVar(&o.pace.Tainted, "tainted", 30*time.Second, "mean time that a rule stays")
	flags.DurationVar(&o.pace.Loss, "loss", 45*time.Second, "mean time between two nodes that are lost")
	flags.DurationVar(&o.pace.Lost, "lost", 30*time.Second, "mean time that a node is lost")
	flags.DurationVar(&o.pace.Kill, "kill", 45*time.Second, "mean time between two kills of the scheduler, in the first third")
	flags.DurationVar(&o.every, "sample", 5*time.Second, "time between two looks at the memory")
	flags.DurationVar(&o.late, "late", 20*time.Second, "how long what is written late has at the end")
	flags.DurationVar(&o.limits.Slack, "slack", 3*time.Second, "how long before a decision a change must have been there to count as known to it")
	flags.DurationVar(&o.limits.RecordWithin, "record-within", 90*time.Second, "how late a record may be: ladder-controller rebuilds one that is a minute late")
	flags.Float64Var(&o.limits.Growth, "max-growth", 1.2, "how many times as much memory a process may have in the last third as in the second, and how much its heap may grow in that time by its slope")
	flags.StringVar(&o.history, "history", "", "write all that was observed to this file, as JSON lines")
	_ = cmd.MarkFlagFilename("history", "jsonl")
	return cmd
}

func (o *soakOptions) validate() error {
	var errs []error
	for name, d := range map[string]time.Duration{"duration": o.duration, "arrival": o.pace.Arrival, "life": o.pace.Life, "sample": o.every} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("--%s %s: must be above 0", name, d))
		}
	}
	o.limits.Processes = []string{lab.LadderScheduler, lab.LadderController}
	return errors.Join(errs...)
}

// runSoak soaks a lab and judges what was recorded.
func runSoak(ctx context.Context, o soakOptions) (*soak.Result, error) {
	r := &soak.Result{Seed: o.seed}
	fleet := soak.Fleet()
	var history invariants.History
	err := inLab(ctx, lab.Options{Name: "soak", Fleet: fleet, KeepJournals: true, Progress: o.progress},
		func(ctx context.Context, l *lab.Lab, _ client.Client, kube kubernetes.Interface) error {
			c, err := newClient(unlimited(l))
			if err != nil {
				return err
			}
			w, err := soak.NewLab(ctx, l, c, kube)
			if err != nil {
				return err
			}
			defer w.Stop()
			err = soakLab(ctx, l, w, o, r)
			history = w.History()
			if err != nil {
				return err
			}
			r.Replay, err = decideAgain(ctx, l, o.progress)
			return err
		})
	if writeErr := writeHistory(o.history, history); writeErr != nil {
		return nil, errors.Join(err, writeErr)
	}
	if err != nil {
		return nil, fmt.Errorf("soaking with seed %d, %w", o.seed, err)
	}
	r.Seen, r.Verdicts = soak.See(history), o.limits.Judge(history)
	return r, nil
}

func soakLab(ctx context.Context, l *lab.Lab, w *soak.Lab, o soakOptions, r *soak.Result) error {
	plan := soak.Plan(o.seed, o.duration, o.pace, soak.Policies(), soak.Places(soak.Fleet()))
	fmt.Fprintf(o.progress, "soaking for %s with seed %d: %d actions\n", o.duration, o.seed, len(plan))
	sampler := soak.NewSampler(l, clock.RealClock{}, o.limits.Processes...)
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		sampler.Run(sampling, o.every)
	}()
	var err error
	r.Done, err = soak.Run(ctx, clock.RealClock{}, plan, o.duration, w, o.progress)
	stop()
	<-sampled
	r.Samples, r.Missed = sampler.Samples()
	if err != nil {
		return err
	}
	fmt.Fprintf(o.progress, "soaked: %s; putting all back\n", r.Done)
	return w.End(ctx, o.late)
}

func writeHistory(file string, h invariants.History) error {
	if file == "" {
		return nil
	}
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("keeping the history, %w", err)
	}
	return errors.Join(h.Write(f), f.Close())
}
