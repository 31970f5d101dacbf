package kind

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// Exec runs a program on a node (by its name in the cluster) and returns what
// it prints. The error holds what it said.
func (c *Cluster) Exec(ctx context.Context, node string, argv ...string) (string, error) {
	return c.execIn(ctx, nil, node, argv...)
}

// execIn does so with an input.
func (c *Cluster) execIn(ctx context.Context, stdin io.Reader, node string, argv ...string) (string, error) {
	if len(argv) == 0 {
		return "", fmt.Errorf("running a program on %s, none is named", node)
	}
	if !slices.Contains(c.state.clusterNames(), node) {
		return "", fmt.Errorf("running %s, cluster %s has no node %s", argv[0], c.state.Name, node)
	}
	args := []string{"exec"}
	if stdin != nil {
		args = append(args, "--interactive")
	}
	out, err := c.run(ctx, stdin, append(append(args, node), argv...)...)
	if err != nil {
		return out, fmt.Errorf("running %s on %s, %w", argv[0], node, err)
	}
	return out, nil
}

// run runs one command of the engine.
func (c *Cluster) run(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	var stdout, stderr strings.Builder
	cmd := c.engine.Command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	out := strings.TrimSpace(stdout.String())
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return out, errors.Join(ctx.Err(), err)
	case errors.As(err, &exit):
		return out, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return out, err
}
