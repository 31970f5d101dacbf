// Package policy is what ladder does with AcceleratorPolicies themselves:
// look for mistakes, compile, compare and show them.
package policy

import (
	"fmt"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/tools/internal/command"
)

// NewCommand returns `ladder policy`.
func NewCommand(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Look for mistakes in policies, compile, compare and show them",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				err = fmt.Errorf("%w; did you mean %s?", err, near[0])
			}
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(newLintCommand(s), newCompileCommand(s), newDiffCommand(s), newShowCommand(s))
	return cmd
}
