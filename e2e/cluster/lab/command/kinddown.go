package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/kind"
)

func newKindDown(e engines) *cobra.Command {
	var name string
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove a cluster",
		Long: `Remove a cluster, complete or not, with everything that it wrote. A private
Docker daemon is stopped when nothing runs on it any more; its images are kept.
One that was killed is started again for that, or cleaned up after. Without a
cluster there is nothing to do.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			names := []string{name}
			if all {
				var err error
				if names, err = kind.List(); err != nil {
					return err
				}
			}
			return e.down(ctx, names, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().BoolVar(&all, "all", false, "remove every cluster of this user")
	return cmd
}

// down removes the clusters, and stops or cleans up after private daemons that
// nobody needs any more.
func (e engines) down(ctx context.Context, names []string, stdout, stderr io.Writer) error {
	var errs []error
	used := map[string]*docker.Engine{}
	for _, name := range names {
		engine, err := e.remove(ctx, name, stderr)
		if engine != nil {
			used[engine.Host()] = engine
		}
		switch {
		case err == nil:
			fmt.Fprintf(stdout, "cluster %s is down\n", name)
		case errors.Is(err, kind.ErrNotFound):
			fmt.Fprintf(stdout, "no cluster %s is there\n", name)
		default:
			errs = append(errs, err)
		}
	}
	if len(names) == 0 {
		fmt.Fprintln(stdout, "no cluster is there")
		engine, err := e.Present(ctx, stderr)
		if engine != nil {
			used[engine.Host()] = engine
		}
		errs = append(errs, err)
	}
	for _, engine := range used {
		errs = append(errs, closeIdle(ctx, engine))
	}
	if len(used) == 0 && errors.Join(errs...) == nil {
		return e.CleanUp(ctx, stderr)
	}
	return errors.Join(errs...)
}

// kindStatus is a cluster as it is now.
type kindStatus struct {
	kind.State
	Kubeconfig string `json:"kubeconfig"`
	// Nodes that are registered; empty where the API server does not answer.
	Registered []string `json:"registered"`
	Problem    string   `json:"problem,omitempty"`
}

func newKindStatus(e engines) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell which clusters run",
		Long:  `Tell which clusters of this user run. Exit code 3 if there is none, or one is not well.`,
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			names, err := kind.List()
			if err != nil {
				return err
			}
			well := len(names) > 0
			states := []kindStatus{}
			for _, name := range names {
				s := kindStatus{State: kind.State{Name: name}}
				if remembered, err := kind.Remembered(name); err == nil && remembered != nil {
					s.State = *remembered
				}
				c, err := e.attach(cmd.Context(), name, io.Discard)
				if err == nil {
					s.Kubeconfig = c.Kubeconfig()
					s.Registered, err = c.NodeNames(cmd.Context())
				}
				if err != nil {
					s.Problem, well = err.Error(), false
				}
				states = append(states, s)
			}
			if err := printKind(cmd.OutOrStdout(), states, asJSON, time.Now()); err != nil {
				return err
			}
			if !well {
				return &exitError{code: ExitNotRunning}
			}
			return nil
		},
	}
	out.register(cmd)
	return cmd
}

func printKind(w io.Writer, states []kindStatus, asJSON bool, now time.Time) error {
	if asJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(map[string]any{"clusters": states})
	}
	if len(states) == 0 {
		_, err := fmt.Fprintln(w, "no cluster is there")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range states {
		if s.Problem != "" {
			fmt.Fprintf(table, "cluster %s\tnot well\n  problem\t%s\n", s.Name, s.Problem)
			continue
		}
		fmt.Fprintf(table, "cluster %s\tup\tfor %s\n", s.Name, now.Sub(s.Created).Round(time.Second))
		fmt.Fprintf(table, "  kubeconfig\t%s\n  image\t%s\n  engine\t%s\n", s.Kubeconfig, s.Image, s.Engine)
		if s.Host != "" {
			fmt.Fprintf(table, "  host\t%s\n", s.Host)
		}
		for _, n := range s.Nodes {
			fmt.Fprintf(table, "  node %s\t%s\t%s\n", n.Name, n.ClusterName, n.Labels[kind.TierLabel])
		}
	}
	return table.Flush()
}

func newKindLoad(e engines) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "load ARCHIVE...",
		Short: "Give images to the nodes of a cluster",
		Long:  `Give the images in archives, as docker save writes them, to the nodes that lack them.`,
		Args:  func(cmd *cobra.Command, args []string) error { return usage(cobra.MinimumNArgs(1)(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			c, err := e.attach(ctx, name, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return c.LoadImages(ctx, args...)
		},
	}
	nameFlag(cmd, &name)
	return cmd
}
