package exit

// This file has commands that only group others refuse what is none of theirs.

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// group makes a mistake of a word that follows a command which only has
// commands below it, for the whole program: without it cobra prints help and
// all seems well. The commands that cobra adds are there afterwards.
func group(root *cobra.Command) {
	if !root.HasSubCommands() { // there is nothing to complete but flags
		root.CompletionOptions.DisableDefaultCmd = true
		return
	}
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	walk(root)
}

func walk(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		walk(below)
	}
	switch {
	case cmd.HasParent() && cmd.Parent() == cmd.Root() && cmd.Name() == "help":
		cmd.Args = helpTopic
	case cmd.HasSubCommands() && !cmd.Runnable():
		cmd.Args = noSubcommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
}

// noSubcommand is the Args of a group: what cobra leaves over is no command.
func noSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	said := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		said += "; did you mean " + near[0] + "?"
	}
	return fmt.Errorf("%s; see '%s --help'", said, cmd.CommandPath())
}

// helpTopic is the Args of help.
func helpTopic(cmd *cobra.Command, args []string) error {
	if found, left, err := cmd.Root().Find(args); err != nil || found.HasSubCommands() && len(left) > 0 {
		return fmt.Errorf("there is no command %q; see '%s --help'", strings.Join(args, " "), cmd.Root().CommandPath())
	}
	return nil
}
