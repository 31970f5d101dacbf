package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/placement"
)

func newPlacement() *cobra.Command {
	var out output
	o := placement.Options{}
	var report, layout string
	var check bool
	cmd := &cobra.Command{
		Use:   "placement",
		Short: "Count first choices and compare runs: Ladder beside the stock scheduler",
		Long: `Place Pods one after another on a fleet of which a few neighbouring nodes
carry H100, several times, and with other Pods on those nodes: with ladder-scheduler, with the stock scheduler as
it comes, and with the stock scheduler told to look at every node and to give
DynamicResources the weight 100. Each has a lab of its own. At the end what
ladder-scheduler decided is decided again: by the engine that looks at every
node each time, and by a naive twin of it.

With --shuffle two runs of Ladder share a lab, whose nodes and slices were
created in an order of its own, and between the two the scheduler is restarted.
The devices must be the same all the same.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			switch layout {
			case "contiguous", "spread":
				o.Spread = layout == "spread"
			default:
				return fmt.Errorf("--layout %s: want contiguous or spread", layout)
			}
			for _, load := range o.Loads {
				if load < 0 || load > 90 {
					return fmt.Errorf("--load %d: want 0 to 90 percent", load)
				}
			}
			if !o.Shuffle && o.Seed != 0 {
				return usage(errors.New("--seed is what --shuffle draws from, which is not given"))
			}
			for o.Shuffle && o.Seed == 0 {
				o.Seed = rand.Uint64()
			}
			o.Progress = cmd.ErrOrStderr()
			r, err := measureAll(ctx, o)
			if err != nil {
				return err
			}
			var text bytes.Buffer
			if err := placement.Report(&text, o, r); err != nil {
				return err
			}
			if err := tell(cmd, report, &text, r, asJSON); err != nil || !check {
				return err
			}
			return placement.Check(o, r)
		},
	}
	out.register(cmd)
	flags := cmd.Flags()
	flags.IntVar(&o.Nodes, "nodes", 500, "nodes in all, 8 GPUs each")
	flags.IntVar(&o.H100Nodes, "h100-nodes", 20, "nodes that carry H100")
	flags.StringVar(&layout, "layout", "contiguous", "where the nodes with H100 stand: contiguous or spread")
	flags.IntSliceVar(&o.Loads, "load", []int{0}, "how much of the nodes with H100 other Pods ask for, in percent of CPU and memory; several make the runs with each")
	flags.IntVar(&o.Pods, "pods", 160, "Pods of one GPU each")
	flags.IntVar(&o.LadderRuns, "runs", 10, "runs with ladder-scheduler")
	flags.IntVar(&o.StockRuns, "stock-runs", 3, "runs with each stock set-up; 0 leaves them out")
	flags.StringVar(&report, "report", "", "write the report to this Markdown file, too")
	flags.BoolVar(&check, "check", true, "fail unless every run of Ladder gave every Pod its first choice and the same device, and every decision comes out the same again")
	flags.BoolVar(&o.Shuffle, "shuffle", false, "create nodes and slices in a random order, another one for each two runs of Ladder, and restart the scheduler between these")
	flags.Uint64Var(&o.Seed, "seed", 0, "what --shuffle draws from; 0 draws the seed, too")
	_ = cmd.MarkFlagFilename("report", "md")
	return cmd
}

func measureAll(ctx context.Context, o placement.Options) (*placement.Result, error) {
	setups := []struct {
		scheduler lab.Scheduler
		placement.Setup
	}{
		{lab.SchedulerLadder, placement.Setup{Name: placement.Ladder, Labelled: true, Runs: o.LadderRuns}},
		{lab.SchedulerStock, placement.Setup{Name: "stock, defaults", Scheduler: "default-scheduler", Runs: o.StockRuns}},
		{lab.SchedulerStockConfigured, placement.Setup{Name: "stock, weight 100, percentage 100", Scheduler: "default-scheduler", Runs: o.StockRuns}},
	}
	r := &placement.Result{Seed: o.Seed}
	orders := rand.New(rand.NewPCG(o.Seed, o.Seed))
	for _, s := range setups {
		part := s.Setup
		for part.First < s.Runs {
			part.Runs = s.Runs - part.First
			order := uint64(0)
			if o.Shuffle && s.scheduler == lab.SchedulerLadder {
				part.Runs = min(part.Runs, placement.RunsInOrder)
				order = orders.Uint64() | 1 // 0 would be the order of the fleet
				fmt.Fprintf(o.Progress, "the order of nodes and slices is drawn from %d\n", order)
			}
			if err := measureOne(ctx, s.scheduler, part, order, o, r); err != nil {
				return r, fmt.Errorf("measuring %s, %w", s.Name, err)
			}
			part.First += part.Runs
		}
	}
	return r, nil
}

// measureOne makes runs of one set-up in a lab of their own.
func measureOne(ctx context.Context, scheduler lab.Scheduler, s placement.Setup, order uint64, o placement.Options, r *placement.Result) (err error) {
	l, c, err := upWithClient(ctx, lab.Options{
		Name: "placement-" + string(scheduler), Fleet: o.Fleet(), Scheduler: scheduler, Shuffle: order, KeepJournals: true, Progress: o.Progress,
	})
	if err != nil {
		return err
	}
	defer func() { err = endLab(ctx, l, err) }()
	if order != 0 {
		s.Between = func(ctx context.Context) error { return l.Restart(ctx, lab.LadderScheduler) }
	}
	runs, err := placement.Measure(ctx, c, s, o, time.Now)
	r.Runs = append(r.Runs, runs...)
	if err != nil || scheduler != lab.SchedulerLadder {
		return err
	}
	again, err := decideAgain(ctx, l, o.Progress)
	if err != nil {
		return err
	}
	r.Replay.Add(again)
	return nil
}
