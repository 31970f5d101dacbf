package command

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/storm"
)

func newStorm() *cobra.Command {
	var p proof
	o := storm.Options{}
	cmd := &cobra.Command{
		Use:   "storm",
		Short: "Measure what Pods that can never be served cost those that can",
		Long: `Place Pods that can be served, several times, alone and beside thousands of
others that can never be: some ask for what no node has, some wait for devices
that others hold for good. Then do nothing for some minutes, in which Pods that
wait are tried again, and count what the scheduler does all the same. What it
decided is decided again: by the engine that looks at every node each time, and
by a naive twin of it. The lab is the command's own.`,
		Example: `  ladder-lab storm --report docs/reports/storm.md
  ladder-lab storm --nodes 4 --pods 8 --storm 40 --rounds 1 --runs 1 --idle 5s --check=false`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usage(err)
			}
			if err := o.ValidateIdle(); err != nil && p.check {
				return usage(err)
			}
			o.Progress = cmd.ErrOrStderr()
			return p.run(cmd, func(ctx context.Context) (*result, error) {
				r, err := measureStorm(ctx, o)
				if err != nil {
					return nil, err
				}
				return &result{value: r, err: o.Limits.Check(r), report: func(w io.Writer) error { return storm.Report(w, o, r, p.beside) }}, nil
			})
		},
	}
	p.register(cmd, "fail where the Pods take longer beside the storm, or the scheduler is busy under it, than the limits allow")
	flags := cmd.Flags()
	flags.IntVar(&o.Nodes, "nodes", 60, "nodes in all, 8 GPUs each; half of them carry H100")
	flags.IntVar(&o.Served, "pods", 200, "Pods of one GPU each that can be served")
	flags.IntVar(&o.Storm, "storm", 2000, "Pods that can never be served")
	flags.IntVar(&o.Waiting, "waiting", 50, "how much of the storm waits for devices that others hold for good, in percent; the rest asks for what no node has")
	flags.IntVar(&o.Rounds, "rounds", 2, "rounds: runs alone, then runs beside the storm")
	flags.IntVar(&o.Runs, "runs", 3, "runs of each kind in a round")
	flags.DurationVar(&o.Idle, "idle", 11*time.Minute, "how long nothing is done under the storm, so that Pods which wait in vain are tried again twice; with --check 6m or more")
	flags.StringVar(&o.Profiles, "profiles", "", "folder for CPU profiles of the scheduler and the API server in the first seconds of each run")
	flags.Float64Var(&o.Limits.Ratio, "max-ratio", 1.2, "how much longer the Pods may take beside the storm")
	flags.DurationVar(&o.Limits.IdleCPU, "max-idle-cpu", time.Second, "processor time that the scheduler may use in an idle minute under the storm")
	flags.Float64Var(&o.Limits.IdleWrites, "max-idle-writes", 6, "writes to the API server that the scheduler may send in an idle minute under the storm")
	return cmd
}

func measureStorm(ctx context.Context, o storm.Options) (r *storm.Result, err error) {
	err = inLab(ctx, lab.Options{Name: "storm", Fleet: o.Fleet(), KeepJournals: true, Progress: o.Progress},
		func(ctx context.Context, l *lab.Lab, c client.Client, kube kubernetes.Interface) error {
			var err error
			r, err = storm.Measure(ctx, storm.Bench{Cluster: l, Client: c, Kube: kube, Now: time.Now}, o)
			if err != nil {
				return err
			}
			r.Replay, err = decideAgain(ctx, l, o.Progress)
			return err
		})
	return r, err
}
