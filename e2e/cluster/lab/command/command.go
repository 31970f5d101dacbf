// Package command is the program ladder-lab: it starts and ends labs, builds
// the programs that they are made of, and converts descriptions of fleets.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"gpuladder.dev/ladder/drivers/subcommand"
)

// Exit codes.
const (
	ExitOK = 0
	// ExitFailed: the work could not be done.
	ExitFailed = 1
	// ExitUsage: the command line or an input file is wrong.
	ExitUsage = 2
	// ExitNotRunning: status found no lab, or one that is not well.
	ExitNotRunning = 3
)

// exitError carries an exit code other than ExitFailed. A nil err means that
// everything was said already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usage(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: ExitUsage, err: err}
}

// Report tells an error to the person and returns the exit code for it.
func Report(err error, stderr io.Writer) int {
	if err == nil {
		return ExitOK
	}
	code := ExitFailed
	exit := new(exitError)
	if errors.As(err, &exit) {
		code = exit.code
		err = exit.err
	}
	if err != nil {
		fmt.Fprintf(stderr, "ladder-lab: %v\n", err)
	}
	return code
}

// New returns the root command.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:   "ladder-lab",
		Short: "Run a Kubernetes control plane with simulated GPU nodes on this machine",
		Long: `ladder-lab runs a real Kubernetes control plane as plain processes on
loopback, with Ladder's scheduler and controller, and nodes and GPUs from a
fleet file. No container runtime and no root are needed.

Exit codes: 0 done; 1 failed; 2 wrong use or input; 3 (status) no running lab.

Variables: LADDER_CACHE is the folder for built programs and the memory of
running labs; KUBEBUILDER_ASSETS names a folder with programs to use in place
of built ones; LADDER_ROOT is the repository, where it is not above the
working folder.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRun: func(*cobra.Command, []string) {
			// Otherwise controller-runtime complains that nobody did.
			log.SetLogger(klog.Background())
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.AddCommand(newUp(), newDown(), newStatus(), newBinaries(), newConvert(), newRender(), newDemo(), newPlacement(), newTenants(),
		newStorm(), newGrowth(), newSoak(),
		newNodeImage(), newKind(machineEngines), newImages(), newE2E(), newUpstream())
	return root
}

// exactly is cobra.ExactArgs with the exit code for wrong use.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return usage(cobra.ExactArgs(n)(cmd, args)) }
}

// output is the flag -o.
type output struct{ format string }

func (o *output) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", "output format: text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

func (o *output) json() (bool, error) {
	switch o.format {
	case "text":
		return false, nil
	case "json":
		return true, nil
	}
	return false, usage(fmt.Errorf("output format %q is not known; text and json are", o.format))
}

// Execute runs the program that New returns and tells how it ended: its error
// on stderr, and the exit code.
func Execute(ctx context.Context, root *cobra.Command, stderr io.Writer) int {
	subcommand.Version(root, usage)
	subcommand.Refuse(root, usage)
	return Report(root.ExecuteContext(ctx), stderr)
}
