package main

// This file shows what there is, without a cluster.

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/nvml"
)

// listing is what is shown.
type listing struct {
	Devices        []resourcev1.Device     `json:"devices"`
	SharedCounters []resourcev1.CounterSet `json:"sharedCounters,omitempty"`
	// Troubles is what is wrong with the devices.
	Troubles []trouble `json:"troubles,omitempty"`
	// unmatched: the lists of the policy leave no GPU.
	unmatched bool
}

type trouble struct {
	Device   string `json:"device"`
	Source   string `json:"source"`
	Severity string `json:"severity"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
}

func listCommand() *cobra.Command {
	o := &hardwareOptions{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show what the driver would publish of this machine, and how its GPUs are",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			policy, err := o.policy()
			if err != nil {
				return err
			}
			shown, err := o.list(cmd.Context(), policy)
			if err != nil {
				return &exit.Error{Err: err}
			}
			if shown.unmatched {
				cmd.PrintErrln("warning: no GPU matches gpus.allow, or --allow, that is not denied")
			}
			text, err := yaml.Marshal(shown)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s", text)
			return err
		},
	}
	o.addFlags(cmd)
	return cmd
}

// settling is how long the GPUs are given to be asked how they are.
const settling = 200 * time.Millisecond

func (o *hardwareOptions) list(ctx context.Context, policy nvml.Policy) (*listing, error) {
	o.removeUnknown = false
	gpus, err := o.open(ctx, policy, place{})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	var following errgroup.Group
	following.Go(func() error { return gpus.Run(ctx) })
	pool, report, err := look(ctx, gpus)
	stop()
	if failed := following.Wait(); err == nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	made := &listing{
		Devices: append([]resourcev1.Device{}, pool.Devices...), SharedCounters: pool.SharedCounters, unmatched: gpus.NoneAllowed(),
	}
	for _, t := range report.Troubles {
		made.Troubles = append(made.Troubles, trouble{t.Device, t.Source, t.Severity.String(), t.Reason, t.Message})
	}
	return made, nil
}

func look(ctx context.Context, gpus *nvml.Inventory) (inventory.Pool, inventory.Report, error) {
	pool, err := gpus.Pool(ctx)
	if err != nil {
		return pool, inventory.Report{}, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(settling):
	}
	report, err := gpus.Health(ctx)
	return pool, report, err
}
