package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/kind"
	"gpuladder.dev/ladder/e2e/cluster/nodeimage"
)

// kindUp are the flags of kind up.
type kindUp struct {
	engines                         engines
	name, image, source, kubeconfig string
	workers                         []string
	// steps are what is to be done besides, where it is only planned.
	steps             []string
	plan, keep, again bool
	within            time.Duration
}

func newKindUp(e engines) *cobra.Command {
	o := kindUp{engines: e, source: string(nodeimage.Auto), within: 10 * time.Minute}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create a cluster, unless it is there",
		Long: `Create a cluster of one control plane and workers, and leave it running. What
will be done, and what is missing for it, is told first. A cluster of the same
name and nodes is used as it is. Without --worker there are three: h100, a100 and
small, each with the label ` + kind.TierLabel + `.`,
		Example: `  ladder-lab kind up
  ladder-lab kind up --name mine --worker a=` + kind.TierLabel + `=h100 --worker b=` + kind.TierLabel + `=l4,zone=east`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return o.run(ctx, cmd.ErrOrStderr(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	nameFlag(cmd, &o.name)
	flags.StringArrayVar(&o.workers, "worker", nil, "a worker as NAME or NAME=LABEL=VALUE,LABEL=VALUE; may be repeated")
	flags.StringVar(&o.image, "image", "", "node image that the engine has or can pull (default: see ladder-lab nodeimage)")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "write the kubeconfig to this file, too, which must not exist")
	flags.BoolVar(&o.plan, "plan", false, "say what would be done, and do nothing")
	flags.BoolVar(&o.keep, "keep", false, "leave the nodes as they are if the creation fails")
	flags.BoolVar(&o.again, "recreate", false, "remove a cluster of that name first")
	flags.DurationVar(&o.within, "within", o.within, "how long the creation may take, besides the node image")
	registerSource(cmd, &o.source)
	return cmd
}

func (o *kindUp) run(ctx context.Context, stderr, stdout io.Writer) error {
	nodes, err := kind.ParseWorkers(o.workers)
	if err != nil {
		return usage(err)
	}
	source, err := nodeimage.ParseSource(o.source)
	if err != nil {
		return usage(err)
	}
	c, err := o.existing(ctx, nodes, stderr)
	if err != nil {
		return err
	}
	if c == nil {
		if c, err = o.create(ctx, nodes, source, stderr); err != nil || c == nil {
			return err
		}
	}
	if o.kubeconfig != "" {
		if err := copyNew(c.Kubeconfig(), o.kubeconfig); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "export KUBECONFIG=%s\n", c.Kubeconfig())
	if host := c.State().Host; host != "" {
		fmt.Fprintf(stdout, "export DOCKER_HOST=%s\n", host)
	}
	fmt.Fprintf(stdout, "ladder-lab kind down --name %s removes the cluster.\n", o.name)
	return nil
}

// existing returns the cluster that is there, or nil. One that is to be made
// anew is removed.
func (o *kindUp) existing(ctx context.Context, nodes []kind.Node, stderr io.Writer) (*kind.Cluster, error) {
	c, err := o.engines.attach(ctx, o.name, stderr)
	if errors.Is(err, kind.ErrNotFound) {
		return nil, nil
	}
	if o.again && o.plan {
		o.steps = append(o.steps, "remove the cluster "+o.name+" that is there, or what is left of it")
		return nil, nil
	}
	if o.again {
		return nil, o.removeOld(ctx, stderr)
	}
	if err != nil {
		return nil, err
	}
	if err := c.State().Fits(kind.Options{Image: o.image, Nodes: nodes}); err != nil {
		return nil, fmt.Errorf("cluster %s is there, but %w; use --recreate, or another --name", o.name, err)
	}
	fmt.Fprintf(stderr, "using the cluster %s that is there\n", o.name)
	if plan, err := nodeimage.PlanFor(ctx, nodeimage.Options{Source: nodeimage.Source(o.source), Engine: c.Engine()}); err == nil &&
		o.image == "" && plan.Image != c.State().Image {
		fmt.Fprintf(stderr, "its node image is %s; --recreate makes it anew from %s\n", c.State().Image, plan.Image)
	}
	ready, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("it does not become ready"))
	defer cancel()
	return c, c.Ready(ready)
}

// removeOld removes the cluster that is to be made anew. A private daemon that
// had to be started for it is stopped: the new cluster may come on another
// engine.
func (o *kindUp) removeOld(ctx context.Context, stderr io.Writer) error {
	engine, err := o.engines.remove(ctx, o.name, stderr)
	if engine != nil && engine.Started() {
		err = errors.Join(err, closeIdle(context.WithoutCancel(ctx), engine))
	}
	return err
}

// create makes the cluster and what it needs. It returns nil where only the
// plan was asked for.
func (o *kindUp) create(ctx context.Context, nodes []kind.Node, source nodeimage.Source, stderr io.Writer) (*kind.Cluster, error) {
	list(stderr, "the machine:", kind.CheckLimits(len(nodes)))
	list(stderr, "the nodes:", kind.CheckTiers(nodes))
	engine, err := prepare(ctx, source, o.plan, stderr, append(o.steps, fmt.Sprintf("create the cluster %s of %d nodes", o.name, len(nodes)))...)
	if err != nil || engine == nil {
		return nil, err
	}
	c, err := o.createOn(ctx, engine, nodes, source, stderr)
	if err != nil && engine.Started() && !o.keep {
		err = errors.Join(err, closeIdle(context.WithoutCancel(ctx), engine))
	}
	return c, err
}

func (o *kindUp) createOn(ctx context.Context, engine *docker.Engine, nodes []kind.Node, source nodeimage.Source, stderr io.Writer) (*kind.Cluster, error) {
	image := o.image
	if image == "" {
		var err error
		if image, err = nodeimage.Ensure(ctx, nodeimage.Options{Source: source, Engine: engine, Progress: stderr}); err != nil {
			return nil, err
		}
	}
	options := kind.Options{
		Name: o.name, Nodes: nodes, Image: image, Engine: engine, Within: o.within, Keep: o.keep, Progress: stderr,
	}
	c, err := kind.Create(ctx, options)
	if !errors.Is(err, kind.ErrExists) {
		return c, err
	}
	// An engine that was started for this had nodes that nobody remembers.
	if !o.again {
		return nil, fmt.Errorf("%w; --recreate removes its nodes first", err)
	}
	if err := kind.Remove(ctx, o.name, engine, stderr); err != nil {
		return nil, err
	}
	return kind.Create(ctx, options)
}
