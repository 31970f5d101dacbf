package command

import (
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/kind"
	"gpuladder.dev/ladder/e2e/cluster/nodeimage"
	"gpuladder.dev/ladder/e2e/harness"
)

func newE2E() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "e2e",
		Short: "Bring up what the end-to-end suites test",
		Long: `Bring up a kind cluster with the images of this tree in its nodes and Ladder
installed from the chart. "go tool mage e2e" does that, runs the suites and
takes it down again.`,
	}
	cmd.AddCommand(newE2EUp(), newE2EEnv(), newE2EDown())
	return cmd
}

func newE2EUp() *cobra.Command {
	var name, source, driver string
	var bare bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring up the cluster, or what of it is missing",
		Long: `Bring up the cluster, or what of it is missing: a container engine, the node
image, the nodes, Ladder's images and the chart. What is there is used again.
With --bare the chart is left out, and uninstalled where it is installed.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			s, err := nodeimage.ParseSource(source)
			if err != nil {
				return usage(err)
			}
			d, err := harness.ParseDriver(driver)
			if err != nil {
				return usage(err)
			}
			return harness.Up(ctx, harness.Options{Name: name, Driver: d, Bare: bare, Source: s, Progress: cmd.ErrOrStderr()})
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVar(&driver, "driver", string(harness.FakeDriver), "what drives the GPUs: fake, or nvml over a simulated libnvidia-ml")
	cmd.Flags().StringVar(&source, "source", string(nodeimage.Auto), "where the node image comes from: auto, pull or build")
	cmd.Flags().BoolVar(&bare, "bare", false, "leave the chart out, for tests that install it themselves")
	return cmd
}

func newE2EEnv() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print the variables by which tests reach the cluster",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			lines, err := harness.Env(harness.Options{Name: name})
			if err != nil {
				return err
			}
			for _, line := range lines {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

func newE2EDown() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove the cluster and stop the container engine that was started for it",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return harness.Down(ctx, harness.Options{Name: name, Progress: cmd.ErrOrStderr()})
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

// clusterName is a flag's value that can only be the name of a cluster.
type clusterName struct{ name *string }

func (c clusterName) String() string {
	if c.name == nil { // pflag asks the zero value
		return ""
	}
	return *c.name
}

func (clusterName) Type() string { return "string" }

func (c clusterName) Set(name string) error {
	if err := kind.CheckName(name); err != nil {
		return err
	}
	*c.name = name
	return nil
}

// nameFlag adds --name to a command about one cluster.
func nameFlag(cmd *cobra.Command, name *string) {
	*name = kind.DefaultName
	cmd.Flags().Var(clusterName{name}, "name", "name of the cluster")
}
