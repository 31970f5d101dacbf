package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Groups makes a mistake of a word that follows a command which only has
// commands below it, for the whole program: without it cobra prints help and
// all seems well. It is called when all commands are there and the streams are
// set; the commands that cobra adds are there afterwards.
func Groups(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() { // cobra sees to the root itself
		if cmd.Name() == "help" {
			cmd.Args = helpTopic
		}
		groups(cmd)
	}
}

func groups(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		groups(below)
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.SuggestionsMinimumDistance = 2
		cmd.Args = noSubcommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
}

// noSubcommand is the Args of a group: what cobra leaves over is none of its
// commands, and is told with the nearest one.
func noSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, near[0])
	}
	return err
}

// helpTopic is the Args of help.
func helpTopic(cmd *cobra.Command, args []string) error {
	if found, left, err := cmd.Root().Find(args); err != nil || found.HasSubCommands() && len(left) > 0 {
		return fmt.Errorf("there is no command %q", strings.Join(args, " "))
	}
	return nil
}
