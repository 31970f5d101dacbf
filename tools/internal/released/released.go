// Package released is the command that waits until the devices of a Pod are
// free again. The chart's own test uses it, since its images hold no kubectl.
package released

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/tools/internal/cluster"
	"gpuladder.dev/ladder/tools/internal/command"
)

// interval is the wait between two looks.
const interval = 500 * time.Millisecond

// NewCommand returns `ladder released`.
func NewCommand(s command.Streams) *cobra.Command {
	var flags cluster.Flags
	var namespace string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "released POD [-n NAMESPACE]",
		Short: "Wait until a Pod that has ended holds no devices",
		Long: `Released returns when no ResourceClaim that was made for the Pod holds devices
any more, and fails with the names of those that do when the time is up. A claim
that the Pod names itself, and may share, is not looked at.`,
		Example: `  {{ladder}} released train-0 -n team-a --timeout 30s`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := flags.Connect()
			if err != nil {
				return command.Failed(err)
			}
			if namespace == "" {
				namespace = client.Namespace
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := wait(ctx, interval, func(ctx context.Context) ([]string, error) {
				return client.Held(ctx, namespace, args[0])
			}); err != nil {
				return command.Failed(fmt.Errorf("waiting for the devices of Pod %s/%s, %w", namespace, args[0], err))
			}
			_, err = fmt.Fprintf(s.Out, "Pod %s/%s holds no devices\n", namespace, args[0])
			return command.Printed(err)
		},
	}
	flags.Flags(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "the Pod's namespace (default: the context's)")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

// errHeld says that time is up.
var errHeld = errors.New("still held by")

// wait looks until nothing is held. What an API server that could not be asked
// holds against us is told when time is up, like the claims.
func wait(ctx context.Context, interval time.Duration, look func(context.Context) ([]string, error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		held, err := look(ctx)
		if err == nil && len(held) == 0 {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%w %s", errHeld, strings.Join(held, ", "))
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
