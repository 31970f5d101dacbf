package command

import (
	"fmt"

	"github.com/spf13/cobra"
)

// NoSubcommand is the Args of a command that only has commands below it: what
// follows it and is none of them is a mistake, told with the nearest one.
func NoSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, near[0])
	}
	return err
}
