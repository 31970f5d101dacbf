package main

// This file holds the command that is the driver of a node.

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/fake"
	"gpuladder.dev/ladder/drivers/node"
	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// nodeOptions is what the command was asked to do.
type nodeOptions struct {
	node.Options
	catalog string
	client  func(kubeconfig string) (kubernetes.Interface, error)
}

func nodeCommand() *cobra.Command {
	o := &nodeOptions{client: node.Connect}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Be the DRA driver of a node, with fake GPUs by the node's label",
		Long: "Be the DRA driver " + v1alpha1.DriverName + " of a node, until ended: register with its kubelet, publish the GPUs that\n" +
			"the node's label " + tiers.LabelTier + " names, and prepare them for the claims of Pods.\n\n" +
			"Slices stay when it ends, for the driver that comes next; if none comes, kubelet removes them after 30 seconds.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.AddFlags(cmd)
	o.AddFaultFlags(cmd)
	cmd.Flags().StringVar(&o.catalog, "catalog", "", "a catalog of tiers in the place of the built-in one")
	return cmd
}

func (o *nodeOptions) run(ctx context.Context) error {
	if err := o.Check(); err != nil {
		return err
	}
	catalog, err := tiers.Load(o.catalog)
	if err != nil {
		return err
	}
	client, err := o.client(o.Kubeconfig)
	if err != nil {
		return err
	}
	if err := o.drive(ctx, client, catalog); err != nil {
		return &exit.Error{Err: err}
	}
	return nil
}

// drive drives the node until ctx is done.
func (o *nodeOptions) drive(ctx context.Context, client kubernetes.Interface, catalog *tiers.Catalog) error {
	return o.Run(ctx, client, func(ctx context.Context, on *node.Node) (node.Hardware, error) {
		return hardware(ctx, on, catalog)
	})
}

// hardware is what the node's labels say.
func hardware(ctx context.Context, on *node.Node, catalog *tiers.Catalog) (node.Hardware, error) {
	tier := &tierWatch{
		client: on.Client, catalog: catalog, node: on.Object, path: filepath.Join(on.DataFolder, tierFileName), recorder: on.Recorder,
	}
	pool, err := tier.begin(ctx)
	if err != nil {
		return node.Hardware{}, err
	}
	var troubles fake.Troubles
	if on.Faults != nil {
		troubles = on.Faults
	}
	tier.hardware = fake.NewHardware(ctx, pool, troubles)
	return node.Hardware{
		Inventory: tier.hardware,
		Settled:   tier.settled,
		Run: func(ctx context.Context, engine *engine.Engine) error {
			tier.exclusively = engine.Exclusively
			return tier.run(ctx)
		},
	}, nil
}
