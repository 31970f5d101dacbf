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

func newKind(e engines) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kind",
		Short: "Run clusters whose nodes are containers with real kubelets",
		Long: `Run clusters whose nodes are containers with real kubelets, containerd and CDI.
Docker or podman is used where it answers. Root on Debian or Ubuntu needs
neither: a private Docker daemon with its own socket and data folder is started,
and stopped with the last cluster.`,
	}
	cmd.AddCommand(newKindUp(e), newKindDown(e), newKindStatus(e), newKindLoad(e), newKindKill(e), newKindRestart(e))
	return cmd
}

// engines is how the commands reach the container engines of this machine.
type engines struct {
	docker.Access
	// open returns the engine of a cluster, started again where it must be.
	open func(kind.State, context.Context, io.Writer) (*docker.Engine, error)
}

// machineEngines are the real ones.
var machineEngines = engines{Access: docker.OfMachine, open: kind.State.OpenEngine}

// attach finds a cluster, wherever it is.
func (e engines) attach(ctx context.Context, name string, progress io.Writer) (*kind.Cluster, error) {
	state, err := kind.Remembered(name)
	if err != nil {
		return nil, err
	}
	var engine *docker.Engine
	if state != nil {
		engine, err = state.FindEngine(ctx, progress)
	} else {
		engine, err = e.Present(ctx, progress)
	}
	if err != nil {
		return nil, advise(err, name)
	}
	if engine == nil {
		return nil, fmt.Errorf("looking for cluster %s, no container engine runs: %w", name, kind.ErrNotFound)
	}
	c, err := kind.Attach(ctx, name, engine, progress)
	return c, advise(err, name)
}

// advise adds to an error about a cluster what helps.
func advise(err error, name string) error {
	gone := new(docker.GoneError)
	switch {
	case errors.As(err, &gone) && gone.Kind != docker.Private:
		return fmt.Errorf("%w; start it again to use or remove the cluster", err)
	case errors.As(err, &gone):
		err = fmt.Errorf("%w, and neither do its nodes", err)
	case err == nil || errors.Is(err, kind.ErrNotFound):
		return err
	}
	return fmt.Errorf("%w; ladder-lab kind down --name %s removes what is there, ladder-lab kind up --recreate --name %s makes it anew", err, name, name)
}

// remove removes a cluster, wherever it is, and returns the engine that it was
// on; nil where none is known. The error is kind.ErrNotFound where there is no
// cluster.
func (e engines) remove(ctx context.Context, name string, progress io.Writer) (*docker.Engine, error) {
	state, err := kind.Remembered(name)
	if err != nil {
		return nil, err
	}
	var engine *docker.Engine
	if state != nil {
		engine, err = e.open(*state, ctx, progress)
	} else {
		engine, err = e.Present(ctx, progress)
	}
	if err != nil {
		return nil, err
	}
	if engine == nil {
		return nil, kind.ErrNotFound
	}
	return engine, kind.Remove(ctx, name, engine, progress)
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
