package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/tenants"
)

func newTenants() *cobra.Command {
	var out output
	o := tenants.Options{}
	var report, history string
	cmd := &cobra.Command{
		Use:   "tenants",
		Short: "Hold many tenants to their quotas under kills and changes, and measure their turns",
		Long: `Start a lab with H100, A100 and L4 and tenants with guarantees, limits and
weights. First, without kills: measure how fast gates open when a burst of Pods
finds the fleet free, and how soon a device that was freed is used again. Then
Pods with policies of three tiers come and go while ladder-controller and
ladder-scheduler are killed at random moments and quotas change.

Claims and quotas are watched all the time and judged at every resource version:
no allocation may pass the limit in force, and no device be in two claims. When
all is at rest no Pod may wait that could be served, and in the end every Pod
must have had its devices. Otherwise, or where the watch broke, the command
fails.`,
		Example: `  ladder-lab tenants --report tenants.md
  ladder-lab tenants --tenants 4 --pods 100 --nodes 3 --duration 20s --kills 4 --changes 12 --reactions 10`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return usage(err)
			}
			o.Progress = binaries.SerialWriter(cmd.ErrOrStderr())
			outcome, err := runTenants(ctx, o, history)
			if err != nil {
				return err
			}
			var text bytes.Buffer
			if err := tenants.Report(&text, outcome); err != nil {
				return err
			}
			return errors.Join(tell(cmd, report, &text, outcome, asJSON), outcome.Err())
		},
	}
	out.register(cmd)
	flags := cmd.Flags()
	flags.IntVar(&o.Tenants, "tenants", 20, "tenants, each with a namespace and a quota")
	flags.IntVar(&o.Pods, "pods", 2000, "Pods that come and go under kills and changes")
	flags.IntVar(&o.Nodes, "nodes", 24, "nodes in all, 8 GPUs each: a quarter carries H100, a third A100, the rest L4")
	flags.DurationVar(&o.Duration, "duration", 5*time.Minute, "time in which the Pods come")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of all that is drawn: Pods, kills and changes")
	flags.IntVar(&o.Kills, "kills", 20, "kills of ladder-controller and ladder-scheduler, together")
	flags.IntVar(&o.Changes, "changes", 100, "changes of quotas")
	flags.IntVar(&o.Reactions, "reactions", 200, "how many times a device is freed to see when it is used again")
	flags.DurationVar(&o.Settle, "settle", time.Second, "how long after a limit was lowered an allocation may land that was under way; each is reported")
	flags.StringVar(&report, "report", "", "write the report to this Markdown file, too")
	flags.StringVar(&history, "history", "", "keep the watch log in this file, as JSON lines")
	_ = cmd.MarkFlagFilename("report", "md")
	_ = cmd.MarkFlagFilename("history", "jsonl")
	return cmd
}

// runTenants runs in a lab of its own. A part that ends unasked ends the run.
func runTenants(ctx context.Context, o tenants.Options, history string) (outcome *tenants.Outcome, err error) {
	if history != "" {
		file, err := os.Create(history)
		if err != nil {
			return nil, fmt.Errorf("keeping the watch log, %w", err)
		}
		defer file.Close()
		o.History = io.Writer(file)
	}
	l, err := lab.Up(ctx, lab.Options{Name: "tenants", Fleet: o.Fleet(), Progress: o.Progress})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case crash := <-l.Failed():
			cancel(crash)
		case <-ctx.Done():
		}
	}()
	config := unlimited(l)
	config.WarningHandler = rest.NoWarnings{}
	c, err := newClient(config)
	if err != nil {
		return nil, err
	}
	outcome, err = tenants.Run(ctx, tenants.Setup{
		Client: c, Cluster: l, Controller: lab.LadderController, Scheduler: lab.LadderScheduler,
	}, o)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil || outcome.Err() != nil {
		l.KeepLogs()
	}
	return outcome, err
}
