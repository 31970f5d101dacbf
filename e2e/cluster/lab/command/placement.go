package command

import (
	"bytes"
	"context"
	"fmt"
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
DynamicResources the weight 100. Each has a lab of its own.`,
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
			o.Progress = cmd.ErrOrStderr()
			runs, err := measureAll(ctx, o)
			if err != nil {
				return err
			}
			var text bytes.Buffer
			if err := placement.Report(&text, o, runs); err != nil {
				return err
			}
			if err := tell(cmd, report, &text, map[string]any{"runs": runs}, asJSON); err != nil || !check {
				return err
			}
			return placement.Check(o, runs)
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
	flags.BoolVar(&check, "check", true, "fail unless every run of Ladder gave every Pod its first choice and the same device")
	_ = cmd.MarkFlagFilename("report", "md")
	return cmd
}

func measureAll(ctx context.Context, o placement.Options) ([]placement.Run, error) {
	setups := []struct {
		scheduler lab.Scheduler
		placement.Setup
	}{
		{lab.SchedulerLadder, placement.Setup{Name: "Ladder", Labelled: true, Runs: o.LadderRuns}},
		{lab.SchedulerStock, placement.Setup{Name: "stock, defaults", Scheduler: "default-scheduler", Runs: o.StockRuns}},
		{lab.SchedulerStockConfigured, placement.Setup{Name: "stock, weight 100, percentage 100", Scheduler: "default-scheduler", Runs: o.StockRuns}},
	}
	var all []placement.Run
	for _, s := range setups {
		if s.Runs == 0 {
			continue
		}
		runs, err := measureOne(ctx, s.scheduler, s.Setup, o)
		if err != nil {
			return all, fmt.Errorf("measuring %s, %w", s.Name, err)
		}
		all = append(all, runs...)
	}
	return all, nil
}

func measureOne(ctx context.Context, scheduler lab.Scheduler, s placement.Setup, o placement.Options) (runs []placement.Run, err error) {
	l, c, err := upWithClient(ctx, lab.Options{
		Name: "placement-" + string(scheduler), Fleet: o.Fleet(), Scheduler: scheduler, Progress: o.Progress,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = endLab(ctx, l, err) }()
	return placement.Measure(ctx, c, s, o, time.Now)
}
