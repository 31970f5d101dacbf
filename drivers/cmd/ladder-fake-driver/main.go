// Command ladder-fake-driver is Ladder's DRA driver for GPUs that do not exist:
// of a real node with a kubelet, or of all nodes of a fleet file.
package main

import (
	"context"
	"flag"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
)

func main() { exit.Main(run) }

// run is the program: arguments and streams in, exit code out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "ladder-fake-driver",
		Short: "Ladder's DRA driver, with GPUs that do not exist",
		Long: "Ladder's DRA driver, with GPUs that do not exist. `node` is the driver of one real node, which prepares them\n" +
			"for Pods. `publish` writes the ResourceSlices of a fleet file, for nodes that need not be real.\n\n" +
			"A FLEET is a fleet file (YAML, kind Fleet) or, with a name that ends in .csv, one of the node lists of\n" +
			"alibaba/clusterdata: cluster-trace-gpu-v2023 or cluster-trace-v2026-spot-gpu.\n\n" +
			"Exit codes: 0 done, 1 the cluster refused or could not be reached, 2 flags or files can't be used.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(nodeCommand(), publishCommand())
	logging := flag.NewFlagSet("logging", flag.ContinueOnError)
	klog.InitFlags(logging)
	root.PersistentFlags().AddGoFlag(logging.Lookup("v"))
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return exit.Execute(ctx, root, stderr)
}
