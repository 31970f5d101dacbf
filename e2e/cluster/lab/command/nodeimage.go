package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/nodeimage"
)

func newNodeImage() *cobra.Command {
	source := string(nodeimage.Auto)
	var plan bool
	cmd := &cobra.Command{
		Use:   "nodeimage",
		Short: "Provide the image of a kind cluster's nodes",
		Long: `Provide the image that nodes of a kind cluster are started from, and print its
name. Where a registry can be reached it is pulled; elsewhere it is built on this
machine, which takes root, and about 15 minutes the first time on 2 cores. An
image that is there is used as it is, until a version changes.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			from, err := nodeimage.ParseSource(source)
			if err != nil {
				return usage(err)
			}
			stderr := cmd.ErrOrStderr()
			engine, err := prepare(ctx, from, plan, stderr)
			if err != nil || engine == nil {
				return err
			}
			if engine.Started() {
				defer func() { err = errors.Join(err, engine.Close(context.WithoutCancel(ctx))) }()
			}
			image, err := nodeimage.Ensure(ctx, nodeimage.Options{Source: from, Engine: engine, Progress: stderr})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), image)
			return err
		},
	}
	registerSource(cmd, &source)
	cmd.Flags().BoolVar(&plan, "plan", false, "say what would be done, and do nothing")
	return cmd
}

func registerSource(cmd *cobra.Command, source *string) {
	cmd.Flags().StringVar(source, "source", *source, "where the node image comes from: auto, pull or build")
	_ = cmd.RegisterFlagCompletionFunc("source", cobra.FixedCompletions([]string{"auto", "pull", "build"}, cobra.ShellCompDirectiveNoFileComp))
}

// prepare says what will be done and opens the engine. It returns nil where
// nothing is to be done but to say it. What stands in the way is told before
// anything is changed.
func prepare(ctx context.Context, source nodeimage.Source, onlyPlan bool, stderr io.Writer, more ...string) (*docker.Engine, error) {
	enginePlan, err := docker.Detect(ctx, docker.Options{Install: true, Progress: stderr})
	if err != nil {
		return nil, err
	}
	o := nodeimage.Options{Source: source}
	if engine := enginePlan.Running(); engine != nil {
		o.Engine = engine
	}
	imagePlan, err := nodeimage.PlanFor(ctx, o)
	if err != nil {
		return nil, err
	}
	steps := append(append(enginePlan.Steps, imagePlan.Steps...), more...)
	list(stderr, "what will be done:", steps)
	list(stderr, "to know:", enginePlan.Notes)
	if len(imagePlan.Missing) > 0 {
		list(stderr, "what is missing:", imagePlan.Missing)
		return nil, &exitError{code: ExitFailed, err: errors.New("providing a node image, something is missing (see above); nothing was changed")}
	}
	if onlyPlan {
		return nil, nil
	}
	return enginePlan.Open(ctx)
}
