// Package fault is `ladder fault`: it makes the driver of a node misbehave while it
// runs, over the driver's socket.
package fault

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/fault"
	"gpuladder.dev/ladder/tools/internal/command"
)

// timeout is how long the driver may take to answer.
const timeout = 30 * time.Second

// shared is what all subcommands have in common.
type shared struct {
	streams command.Streams
	socket  string
	format  command.Format
	getenv  func(string) string
}

// NewCommand returns `ladder fault`.
func NewCommand(s command.Streams) *cobra.Command {
	f := &shared{streams: s, format: command.Text, getenv: os.Getenv}
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Make the driver of this node misbehave",
		Long: `Fault puts faults of a driver in force, the fake one or that of NVIDIA's GPUs,
and ends them, over the driver's socket on the same node. Faults are off unless
the driver was started with --allow-faults. A fault holds until it is cleared,
also over a restart of the driver, unless its own help says otherwise.

Faults of devices are added to what the hardware says. Over a simulated NVML the
hardware itself can have them, by ladder-fakenvml in the container fakenvml.

Exit code 0: done; 1: the driver does not answer, or failed; 2: the driver has
no such device or fault, or the command line makes no sense.`,
		Example: `  # In a cluster, on one of the nodes and on the node of a Pod
  kubectl -n ladder-system exec ds/ladder-driver -- /ladder fault xid gpu-0 79
  kubectl -n ladder-system exec ladder-driver-x7k2p -- /ladder fault list

  # Of the simulated NVML's hardware
  kubectl -n ladder-system exec ds/ladder-driver -c fakenvml -- /ladder-fakenvml fault xid 0 79

  {{ladder}} fault crash-at after-cdi
  {{ladder}} fault clear`,
	}
	cmd.PersistentFlags().StringVar(&f.socket, "socket", "", "the driver's socket (default $"+fault.SocketVariable+", else "+fault.DefaultSocket+")")
	cmd.AddCommand(f.list(), f.clear())
	cmd.AddCommand(f.ofDevices()...)
	cmd.AddCommand(f.ofDriver()...)
	return cmd
}

// client reaches the driver.
func (f *shared) client() *fault.Client {
	socket := f.socket
	if socket == "" {
		socket = f.getenv(fault.SocketVariable)
	}
	if socket == "" {
		socket = fault.DefaultSocket
	}
	return fault.NewClient(socket)
}

// ask does something with the driver, within its time.
func (f *shared) ask(ctx context.Context, do func(context.Context, *fault.Client) error) error {
	ctx, stop := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the driver has not answered within %v", timeout))
	defer stop()
	err := do(ctx, f.client())
	switch {
	case err == nil:
		return nil
	case fault.Refused(err):
		return command.BadInput(err)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return command.Failed(err)
}

// inject checks a fault before the driver does, so that what makes no sense
// needs no driver, and puts it in force.
func (f *shared) inject(ctx context.Context, spec fault.Spec) error {
	spec.Default()
	if err := spec.Validate(); err != nil {
		return command.BadInput(err)
	}
	var made fault.Fault
	err := f.ask(ctx, func(ctx context.Context, c *fault.Client) (err error) {
		made, err = c.Inject(ctx, spec)
		return err
	})
	if err != nil {
		return err
	}
	return f.print(made)
}
