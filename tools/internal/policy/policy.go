// Package policy is what ladder does with AcceleratorPolicies themselves:
// look for mistakes, compile, compare and show them.
package policy

import (
	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/tools/internal/command"
)

// NewCommand returns `ladder policy`.
func NewCommand(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Look for mistakes in policies, compile, compare and show them",
	}
	cmd.AddCommand(newLintCommand(s), newCompileCommand(s), newDiffCommand(s), newShowCommand(s))
	return cmd
}
