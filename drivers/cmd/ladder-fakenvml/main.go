// Command ladder-fakenvml gives a machine NVIDIA GPUs that do not exist: a driver
// root with a libnvidia-ml.so.1 that tells of them, and what happens to them.
package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/fakenvml"
)

func main() { exit.Main(run) }

// run is the program: arguments and streams in, exit code out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "ladder-fakenvml",
		Short: "NVIDIA GPUs that do not exist, for programs that load libnvidia-ml",
		Long: "NVIDIA GPUs that do not exist, for programs that load libnvidia-ml. `install` lays out a driver root as NVIDIA's\n" +
			"installers do, with a library that tells of the GPUs of a tier; `fault` has things happen to them, `serve` takes\n" +
			"the faults of `ladder fault`, and `smi` prints what nvidia-smi would.\n\n" +
			"Exit codes: 0 done, 1 the machine or the cluster refused, 2 flags or files can't be used.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(buildCommand(), installCommand(), faultCommand(), serveCommand(), smiCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return exit.Execute(ctx, root, stderr)
}

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build FILE",
		Short: "Compile the library, with gcc or what CC names",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := fakenvml.Build(cmd.Context(), args[0]); err != nil {
				return &exit.Error{Err: err}
			}
			return nil
		},
	}
}
