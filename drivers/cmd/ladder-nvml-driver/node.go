package main

// This file holds the command that is the driver of a node.

import (
	"context"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/fault"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/node"
	"gpuladder.dev/ladder/drivers/nvml"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// nodeOptions is what the command was asked to do.
type nodeOptions struct {
	node.Options
	hardware hardwareOptions
	client   func(kubeconfig string) (kubernetes.Interface, error)
}

func nodeCommand() *cobra.Command {
	o := &nodeOptions{client: node.Connect}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Be the DRA driver of this node, with its NVIDIA GPUs",
		Long: "Be the DRA driver " + v1alpha1.DriverName + " of this node, until ended: register with its kubelet, publish the GPUs that\n" +
			"NVML lists, prepare them for the claims of Pods, and say how they are.\n\n" +
			"It may start before NVIDIA's driver, and outlives it: what can't be reached is looked for again.\n" +
			"Slices stay when it ends, for the driver that comes next; if none comes, kubelet removes them after 30 seconds.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.AddFlags(cmd)
	o.AddFaultFlags(cmd)
	o.hardware.addFlags(cmd)
	return cmd
}

func (o *nodeOptions) run(ctx context.Context) error {
	if err := o.Check(); err != nil {
		return err
	}
	policy, err := o.hardware.policy()
	if err != nil {
		return err
	}
	client, err := o.client(o.Kubeconfig)
	if err != nil {
		return err
	}
	if err := o.Run(ctx, client, func(ctx context.Context, on *node.Node) (node.Hardware, error) {
		return o.find(ctx, on, policy)
	}); err != nil {
		return &exit.Error{Err: err}
	}
	return nil
}

// find is the hardware of the node. It is followed from the start: the driver
// asks for devices before it runs.
func (o *nodeOptions) find(ctx context.Context, on *node.Node, policy nvml.Policy) (node.Hardware, error) {
	gpus, err := o.hardware.open(ctx, policy, place{memoryIn(on.DataFolder), on.BootIDFile, on.Registry})
	if err != nil {
		return node.Hardware{}, err
	}
	var following errgroup.Group
	following.Go(func() error { return gpus.Run(ctx) })
	made := node.Hardware{
		Inventory: gpus,
		Run: func(_ context.Context, engine *engine.Engine) error {
			gpus.SetHeld(func(ctx context.Context) ([]string, error) { return held(ctx, engine) })
			return following.Wait()
		},
	}
	if on.Faults != nil {
		made.Inventory = newFaulty(ctx, gpus, on.Faults)
	}
	return made, nil
}

// held are the devices that claims have prepared.
func held(ctx context.Context, engine *engine.Engine) ([]string, error) {
	claims, err := engine.Held(ctx)
	if err != nil {
		return nil, err
	}
	var devices []string
	for _, claim := range claims {
		for _, device := range claim.Devices {
			devices = append(devices, device.Name)
		}
	}
	return sortedUnique(devices), nil
}

// faulty is hardware with troubles by request beside its own.
type faulty struct {
	*nvml.Inventory
	faults  *fault.Set
	changed chan struct{}
}

var _ inventory.Inventory = &faulty{}

func newFaulty(ctx context.Context, gpus *nvml.Inventory, faults *fault.Set) *faulty {
	f := &faulty{Inventory: gpus, faults: faults, changed: make(chan struct{}, 1)}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-gpus.Changed():
			case <-faults.Changed():
			}
			select {
			case f.changed <- struct{}{}:
			default: // one signal is waiting already and will see this change too
			}
		}
	}()
	return f
}

// Changed implements [inventory.Source].
func (f *faulty) Changed() <-chan struct{} { return f.changed }

// Health implements [inventory.Inventory]: of one source of one device, the
// worse of what is and what was asked for.
func (f *faulty) Health(ctx context.Context) (inventory.Report, error) {
	report, err := f.Inventory.Health(ctx)
	if err != nil {
		return report, err
	}
	pool, err := f.Pool(ctx)
	if err != nil {
		return report, err
	}
	var names []string
	for i := range pool.Devices {
		names = append(names, pool.Devices[i].Name)
	}
	at := map[inventory.Origin]int{}
	for n, trouble := range report.Troubles {
		at[trouble.Origin] = n
	}
	for _, asked := range f.faults.Troubles(names) {
		if n, is := at[asked.Origin]; !is {
			report.Troubles = append(report.Troubles, asked)
		} else if report.Troubles[n].Severity < asked.Severity {
			report.Troubles[n] = asked
		}
	}
	return report, nil
}
