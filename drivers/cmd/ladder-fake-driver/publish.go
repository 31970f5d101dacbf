package main

// This file holds the command that publishes to a cluster.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/fake"
	"gpuladder.dev/ladder/drivers/node"
	"gpuladder.dev/ladder/drivers/publish"
	"gpuladder.dev/ladder/policies/fleet"
)

// maxHelperNodes is how many nodes are published through the kubelet plugin
// library by one process: each has a watch of its own on the API server.
const maxHelperNodes = 100

// publishing is what the command was asked to do.
type publishing struct {
	fleet, kubeconfig string
	nodes             []string
	direct, once      bool
	parallelism       int
	resync            time.Duration
	client            func(kubeconfig string) (kubernetes.Interface, error)
}

func publishCommand() *cobra.Command {
	p := &publishing{client: node.Connect}
	cmd := &cobra.Command{
		Use:   "publish --fleet FLEET",
		Short: "Publish the GPUs of a fleet to a cluster that has its Nodes",
		Long: "Publish the GPUs of a fleet to a cluster that has its Nodes.\n\n" +
			"Without --direct every node is published as its own driver would do it, through the kubelet plugin library,\n" +
			"until the program is ended; the slices stay. This is for a few nodes.\n" +
			"With --direct the slices of all nodes are written at once, in the same shape, and again every --resync;\n" +
			"slices that an earlier run wrote for other nodes are deleted, unless --nodes is given. With --once too,\n" +
			"the program ends after the first time.",
		Example: "  ladder-fake-driver publish --fleet fleet.yaml --nodes 'h100-*'\n" +
			"  ladder-fake-driver publish --fleet openb_node_list_gpu_node.csv --direct --once",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&p.fleet, "fleet", "", "the fleet: a fleet file, or a node list that ends in .csv (required)")
	flags.StringVar(&p.kubeconfig, "kubeconfig", "", "the cluster; without it $KUBECONFIG, ~/.kube/config, or the Pod's own account")
	flags.StringSliceVar(&p.nodes, "nodes", nil, "only nodes with these names; * and ? stand for other characters")
	flags.BoolVar(&p.direct, "direct", false, "write the slices directly, for many nodes")
	flags.BoolVar(&p.once, "once", false, "end after writing once; only with --direct")
	flags.IntVar(&p.parallelism, "parallelism", 16, "how many nodes to write at a time; only with --direct")
	flags.DurationVar(&p.resync, "resync", 30*time.Second, "how often to write again what someone changed; only with --direct")
	return cmd
}

func (p *publishing) run(ctx context.Context, out io.Writer) error {
	switch {
	case p.fleet == "":
		return errors.New("--fleet is required")
	case p.once && !p.direct:
		return errors.New("--once goes only with --direct: a driver runs until it is ended")
	case p.parallelism < 1:
		return fmt.Errorf("--parallelism must be at least 1, is %d", p.parallelism)
	case p.resync < time.Second:
		return fmt.Errorf("--resync must be at least 1s, is %v", p.resync)
	}
	f, err := fleet.ReadFile(p.fleet)
	if err != nil {
		return err
	}
	nodes, err := choose(f.NodeNames(), p.nodes)
	if err != nil {
		return err
	}
	if !p.direct && len(nodes) > maxHelperNodes {
		return fmt.Errorf("%d nodes are too many for one driver each (at most %d): use --direct, or choose some by --nodes", len(nodes), maxHelperNodes)
	}
	client, err := p.client(p.kubeconfig)
	if err != nil {
		return err
	}
	if p.direct {
		err = p.writeDirectly(ctx, client, chosenSlices(f, nodes), out)
	} else {
		err = runDrivers(ctx, client, f, nodes, out)
	}
	if err != nil {
		return &exit.Error{Err: err}
	}
	return nil
}

// choose keeps the names that match one of the patterns; each has to match one.
func choose(names, patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		return names, nil
	}
	chosen := map[string]bool{}
	for _, pattern := range patterns {
		found := false
		for _, name := range names {
			matches, err := path.Match(pattern, name)
			if err != nil {
				return nil, fmt.Errorf("--nodes %q, %w", pattern, err)
			}
			if matches {
				chosen[name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("--nodes %q matches no node of the fleet", pattern)
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !chosen[name] }), nil
}

func chosenSlices(f *fleet.Fleet, nodes []string) []*resourcev1.ResourceSlice {
	chosen := map[string]bool{}
	for _, node := range nodes {
		chosen[node] = true
	}
	return slices.DeleteFunc(f.Slices(), func(s *resourcev1.ResourceSlice) bool { return !chosen[s.Spec.Pool.Name] })
}

// writeDirectly ends at once with --once. Otherwise it ends with ctx, and an
// error after the first time is told and made good by a later time.
func (p *publishing) writeDirectly(ctx context.Context, client kubernetes.Interface, wanted []*resourcev1.ResourceSlice, out io.Writer) error {
	options := publish.Options{Parallelism: p.parallelism, Partial: len(p.nodes) > 0}
	for first := true; ; first = false {
		start := time.Now()
		summary, err := publish.Direct(ctx, client, wanted, options)
		changed := summary.Created+summary.Updated+summary.Deleted > 0
		switch {
		case ctx.Err() != nil && !p.once:
			return nil
		case err != nil && (first || p.once):
			return err
		case err != nil:
			fmt.Fprintf(out, "not all is as it should be: %v\n", err)
		case first || changed:
			fmt.Fprintf(out, "%d slices: %d created, %d updated, %d unchanged, %d stale ones deleted, in %v\n",
				len(wanted), summary.Created, summary.Updated, summary.Unchanged, summary.Deleted, time.Since(start).Round(time.Millisecond))
		}
		if p.once {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(p.resync):
		}
	}
}

// runDrivers runs one driver for each node until ctx is done; if one fails all end.
func runDrivers(ctx context.Context, client kubernetes.Interface, f *fleet.Fleet, nodes []string, out io.Writer) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range nodes {
		hardware, err := fake.New(f, node)
		if err != nil {
			return err
		}
		group.Go(func() error { return publish.Node(ctx, client, node, hardware) })
	}
	fmt.Fprintf(out, "publishing %d nodes until ended\n", len(nodes))
	return group.Wait()
}
