// Package exit gives the drivers' programs their exit codes.
package exit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/drivers/subcommand"
)

// Exit codes.
const (
	OK     = 0
	Failed = 1 // what the program works with refused, or went away
	Usage  = 2 // flags or files that can't be used
)

// Error is an error that other flags or files would not avoid.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error itself.
func (e *Error) Unwrap() error { return e.Err }

// Main is the main function of a program: it runs until it ends, or until it is
// interrupted or told to terminate, and ends the process with its exit code.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Execute gives the program its version, runs the command, tells its error and returns the exit code: Failed
// for an [Error], Usage for any other, since what comes from cobra itself is
// about flags and arguments. A word that is no command is such an error, however
// deep it is.
func Execute(ctx context.Context, cmd *cobra.Command, stderr io.Writer) int {
	subcommand.Version(cmd, func(err error) error { return err })
	if cmd.HasSubCommands() {
		subcommand.Refuse(cmd, func(err error) error { return err })
	} else { // there is nothing to complete but flags
		cmd.CompletionOptions.DisableDefaultCmd = true
	}
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return OK
	}
	fmt.Fprintf(stderr, "%s: %v\n", cmd.Name(), err)
	if failed := new(Error); errors.As(err, &failed) {
		return Failed
	}
	return Usage
}
