// Command ladder-nvml-driver is Ladder's DRA driver for NVIDIA GPUs, which it
// finds by NVML. It needs glibc: NVML is a library of NVIDIA's driver, which is
// opened on the node.
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
		Use:   "ladder-nvml-driver",
		Short: "Ladder's DRA driver for NVIDIA GPUs",
		Long: "Ladder's DRA driver for NVIDIA GPUs. `node` is the driver of the node that it runs on. `list` shows what it\n" +
			"would publish, and how the GPUs are, and changes nothing.\n\n" +
			"Exit codes: 0 done, 1 the cluster or the node refused or could not be reached, 2 flags or files can't be used.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(nodeCommand(), listCommand())
	logging := flag.NewFlagSet("logging", flag.ContinueOnError)
	klog.InitFlags(logging)
	root.PersistentFlags().AddGoFlag(logging.Lookup("v"))
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return exit.Execute(ctx, root, stderr)
}
