// Package subcommand makes a mistake of a word that follows a command which only
// has commands below it: by itself cobra prints help there, and all seems well.
package subcommand

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Refuse has every group of commands of a program refuse what is none of its
// commands, the help and completion that cobra adds among them. It is called
// when all others are there and the streams are set. The error goes through
// wrap, which may give it an exit code.
func Refuse(root *cobra.Command, wrap func(error) error) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	walk(root, wrap)
}

func walk(cmd *cobra.Command, wrap func(error) error) {
	for _, below := range cmd.Commands() {
		walk(below, wrap)
	}
	check := noSubcommand
	switch {
	case cmd.HasParent() && cmd.Parent() == cmd.Root() && cmd.Name() == "help":
		check = helpTopic
	case cmd.HasSubCommands() && !cmd.Runnable():
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	default:
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return wrap(err)
		}
		return nil
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
