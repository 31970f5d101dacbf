// Package root puts ladder's commands together.
package root

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/tools/internal/build"
	"gpuladder.dev/ladder/tools/internal/command"
	"gpuladder.dev/ladder/tools/internal/decision"
	"gpuladder.dev/ladder/tools/internal/doctor"
	"gpuladder.dev/ladder/tools/internal/fault"
	"gpuladder.dev/ladder/tools/internal/policy"
	"gpuladder.dev/ladder/tools/internal/quota"
	"gpuladder.dev/ladder/tools/internal/released"
	"gpuladder.dev/ladder/tools/internal/simulate"
)

// Main runs ladder with the process's arguments, the program's own name first,
// and returns the exit code. A command that fails after ctx has ended was
// interrupted, whatever it says itself.
func Main(ctx context.Context, args []string, s command.Streams) int {
	name := programName(args[0])
	cmd := newCommand(name, s)
	cmd.SetArgs(args[1:])
	ran, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return command.CodeDone
	}
	var exit *command.Exit
	if errors.As(err, &exit) {
		if ctx.Err() != nil && exit.Err != nil {
			exit = &command.Exit{Code: command.CodeFailed, Err: command.ErrInterrupted}
		}
		if exit.Err != nil {
			fmt.Fprintf(s.Err, "error: %v\n", oneLine(exit.Err))
		}
		return exit.Code
	}
	// Only the parsing of the command line returns errors of other types.
	fmt.Fprintf(s.Err, "error: %v; see '%s --help'\n", oneLine(err), path(ran, name))
	return command.CodeBadInput
}

// programName is how help texts call the program: as a kubectl plugin it is
// reached as "kubectl ladder".
func programName(arg0 string) string {
	base := strings.TrimSuffix(filepath.Base(arg0), ".exe")
	if base == "kubectl-ladder" || base == "kubectl_ladder" {
		return "kubectl ladder"
	}
	return "ladder"
}

func newCommand(name string, s command.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "ladder",
		Short: "GPU choice by policy: decide, explain, replay",
		Long: `Ladder makes GPU choice on Kubernetes a policy that can be verified: ordered
tiers, hard constraints that no fallback relaxes, one reproducible answer, and a
record of why.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.AddCommand(
		decision.NewDecideCommand(s),
		decision.NewExplainCommand(s),
		decision.NewReplayCommand(s),
		policy.NewCommand(s),
		quota.NewCommand(s),
		released.NewCommand(s),
		doctor.NewCommand(s),
		fault.NewCommand(s),
		simulate.NewCommand(s),
		build.NewVersionCommand(s),
	)
	command.Groups(root)
	nameExamples(root, name)
	return root
}

// nameExamples puts the program's name into the help texts.
func nameExamples(cmd *cobra.Command, name string) {
	cmd.Example = strings.ReplaceAll(cmd.Example, "{{ladder}}", name)
	for _, c := range cmd.Commands() {
		nameExamples(c, name)
	}
}

func path(cmd *cobra.Command, name string) string {
	if cmd == nil {
		return name
	}
	return cmd.CommandPath()
}

// oneLine puts an error on one line: cobra lists suggestions over several.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
