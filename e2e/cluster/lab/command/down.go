package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/cluster/process"
)

// downWithin is how long the keeper of a lab gets to end it.
const downWithin = 30 * time.Second

func newDown() *cobra.Command {
	var name string
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End a lab and remove what it wrote",
		Long: `End a lab, wherever it was started, and remove everything that it wrote. A lab
whose process was killed is cleaned up. Without a lab there is nothing to do.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			memory, err := lab.OpenMemory()
			if err != nil {
				return err
			}
			states, err := chosen(memory, name, all)
			if err != nil {
				return err
			}
			switch {
			case len(states) == 0 && all:
				fmt.Fprintln(cmd.OutOrStdout(), "no lab is there")
			case len(states) == 0:
				fmt.Fprintf(cmd.OutOrStdout(), "no lab %q is there\n", name)
			}
			var errs []error
			for _, state := range states {
				errs = append(errs, end(cmd.Context(), memory, state, cmd.OutOrStdout()))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().StringVar(&name, "name", "default", "name of the lab")
	cmd.Flags().BoolVar(&all, "all", false, "end every lab of this user")
	return cmd
}

// chosen returns the lab of a name, or all.
func chosen(memory *lab.Memory, name string, all bool) ([]lab.State, error) {
	if all {
		return memory.List()
	}
	state, err := memory.Get(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, usage(err)
	}
	return []lab.State{*state}, nil
}

// end asks the keeper to end its lab and waits for that.
func end(ctx context.Context, memory *lab.Memory, state lab.State, stdout io.Writer) error {
	err := state.Holder.Signal(syscall.SIGTERM)
	if err != nil && !errors.Is(err, process.ErrExited) {
		return fmt.Errorf("ending lab %q, %w", state.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, downWithin)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for state.Alive() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("ending lab %q, process %d goes on, %w", state.Name, state.Holder.PID, ctx.Err())
		}
	}
	if err := memory.Forget(state); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "lab %q is down\n", state.Name)
	return nil
}
