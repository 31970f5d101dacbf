// Command ladder-fake-driver publishes the GPUs of fleets that do not exist,
// and prints what it would publish.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the cluster refused, or went away
	exitUsage  = 2 // flags or files that can't be used
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program: arguments and streams in, exit code out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "ladder-fake-driver",
		Short: "Publish the GPUs of a fleet file as ResourceSlices",
		Long: "Publish the GPUs of a fleet file as ResourceSlices, as Ladder's DRA driver would on real nodes.\n\n" +
			"A FLEET is a fleet file (YAML, kind Fleet) or, with a name that ends in .csv, one of the node lists of\n" +
			"alibaba/clusterdata: cluster-trace-gpu-v2023 or cluster-trace-v2026-spot-gpu.\n\n" +
			"Exit codes: 0 done, 1 the cluster refused or could not be reached, 2 flags or files can't be used.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(publishCommand(), fleetCommand(), manifestsCommand(), workloadCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "ladder-fake-driver: %v\n", err)
	var failed *runtimeError
	if errors.As(err, &failed) {
		return exitFailed
	}
	// What comes from cobra itself is about flags and arguments.
	return exitUsage
}

// runtimeError is an error that other flags or files would not avoid.
type runtimeError struct{ err error }

func (e *runtimeError) Error() string { return e.err.Error() }
func (e *runtimeError) Unwrap() error { return e.err }
