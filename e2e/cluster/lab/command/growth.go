package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/growth"
)

func newGrowth() *cobra.Command {
	var p proof
	var idle time.Duration
	o := growth.Options{}
	cmd := &cobra.Command{
		Use:   "growth",
		Short: "Measure how the time and the cost of placing a Pod grow with the fleet",
		Long: `Place Pods on fleets of growing size, one after another and at once, while
the first tier has room, and count what a Pod takes: time, processor time and
requests to the API server. Each fleet has a lab of its own, one after another. What the schedulers decided
is decided again: by the engine that looks at every node each time, and by a
naive twin of it.`,
		Example: `  ladder-lab growth --report docs/reports/growth.md
  ladder-lab growth --nodes 4,12 --pods 8 --single 5 --runs 1 --idle 2s --check=false`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usage(err)
			}
			o.Progress = cmd.ErrOrStderr()
			return p.run(cmd, func(ctx context.Context) (*result, error) {
				r, err := measureGrowth(ctx, o, idle)
				if err != nil {
					return nil, err
				}
				return &result{value: r, err: growth.Check(o, r), report: func(w io.Writer) error { return growth.Report(w, o, r, p.beside) }}, nil
			})
		},
	}
	p.register(cmd, "fail where a Pod misses its first choice, or the scheduler's time for it grows faster than log(nodes)")
	flags := cmd.Flags()
	flags.IntSliceVar(&o.Nodes, "nodes", []int{100, 300, 1000}, "sizes of the fleets, 8 GPUs a node; half of the nodes carry H100")
	flags.IntVar(&o.Pods, "pods", 200, "Pods of one GPU each that are created at once")
	flags.IntVar(&o.Single, "single", 50, "Pods of one GPU each that are created one after another")
	flags.IntVar(&o.Runs, "runs", 3, "runs on each fleet")
	flags.DurationVar(&idle, "idle", 20*time.Second, "how long each fleet is watched doing nothing, to tell that apart from what Pods cost")
	return cmd
}

func measureGrowth(ctx context.Context, o growth.Options, idle time.Duration) (*growth.Result, error) {
	r := &growth.Result{}
	for _, nodes := range o.Nodes {
		err := inLab(ctx, lab.Options{Name: fmt.Sprintf("growth-%d", nodes), Fleet: growth.Fleet(nodes), KeepJournals: true, Progress: o.Progress},
			func(ctx context.Context, l *lab.Lab, c client.Client, kube kubernetes.Interface) error {
				if err := growth.Measure(ctx, growth.Bench{Cluster: l, Client: c, Kube: kube, Now: time.Now, Nodes: nodes, Idle: idle}, o, r); err != nil {
					return err
				}
				again, err := decideAgain(ctx, l, o.Progress)
				if err != nil {
					return err
				}
				r.Replay.Add(again)
				return nil
			})
		if err != nil {
			return r, fmt.Errorf("measuring %d nodes, %w", nodes, err)
		}
	}
	return r, nil
}
