package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/kind"
)

func newKind() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kind",
		Short: "Run clusters whose nodes are containers with real kubelets",
		Long: `Run clusters whose nodes are containers with real kubelets, containerd and CDI.
Docker or podman is used where it answers. Root on Debian or Ubuntu needs
neither: a private Docker daemon with its own socket and data folder is started,
and stopped with the last cluster.`,
	}
	cmd.AddCommand(newKindUp(), newKindDown(), newKindStatus(), newKindLoad(), newKindKill(), newKindRestart())
	return cmd
}

// findEngine returns the engine that clusters may be on, without a change to
// the machine: a private daemon that runs, else what the user has. It returns
// nil where there is none.
func findEngine(ctx context.Context, progress io.Writer) (*docker.Engine, error) {
	running, err := docker.Running(ctx, docker.Options{Progress: progress})
	if running != nil || err != nil {
		return running, err
	}
	plan, err := docker.Detect(ctx, docker.Options{Progress: progress})
	var missing *docker.MissingError
	switch {
	case errors.As(err, &missing):
		return nil, nil
	case err != nil:
		return nil, err
	case plan.Kind == docker.Private:
		return nil, nil
	}
	return plan.Open(ctx)
}

// openEngine returns the engine that clusters were on, a private daemon that is
// started again included; nil where there is none to start.
func openEngine(ctx context.Context, progress io.Writer) (*docker.Engine, error) {
	plan, err := docker.Detect(ctx, docker.Options{Progress: progress})
	if missing := new(docker.MissingError); errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return plan.Open(ctx)
}

// attach finds a cluster, wherever it is.
func attach(ctx context.Context, name string, progress io.Writer) (*kind.Cluster, *docker.Engine, error) {
	engine, err := findEngine(ctx, progress)
	if err != nil {
		return nil, nil, err
	}
	if engine == nil {
		return nil, nil, fmt.Errorf("looking for cluster %s, no container engine runs: %w", name, kind.ErrNotFound)
	}
	c, err := kind.Attach(ctx, name, engine, progress)
	return c, engine, err
}

// closeIdle stops a private daemon that runs nothing any more.
func closeIdle(ctx context.Context, engine *docker.Engine) error {
	if engine.Kind() != docker.Private {
		return nil
	}
	if idle, err := engine.Idle(ctx); err == nil && !idle {
		return nil
	}
	return engine.Close(ctx)
}

// list prints steps, one a line.
func list(w io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(w, title)
	for _, line := range lines {
		fmt.Fprintf(w, "  - %s\n", strings.TrimSpace(line))
	}
}
