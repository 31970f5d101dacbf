package command

import (
	"context"
	"fmt"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/kind"
)

// newKindPart makes the commands that do something to parts of a cluster.
func newKindPart(use, short, done string, do func(*kind.Cluster, context.Context, string) error) *cobra.Command {
	name := kind.DefaultName
	cmd := &cobra.Command{
		Use:   use + " COMPONENT...",
		Short: short,
		Long: short + `.

A component is a part and the node that it is on: kubelet@NODE, containerd@NODE,
node@NODE for the node itself, and on the control plane etcd@NODE,
kube-apiserver@NODE, kube-controller-manager@NODE and kube-scheduler@NODE. A node
may be named as in ladder-lab kind up (h100) or as in the cluster.`,
		Args: func(cmd *cobra.Command, args []string) error { return usage(cobra.MinimumNArgs(1)(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			c, _, err := attach(ctx, name, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, arg := range args {
				part, node, _ := strings.Cut(arg, "@")
				if in := c.Node(node); in != "" {
					arg = kind.Component(part, in)
				}
				if err := do(c, ctx, arg); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", arg, done)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", name, "name of the cluster")
	return cmd
}

func newKindKill() *cobra.Command {
	return newKindPart("kill", "End parts of a cluster without warning; they stay down until restarted", "is down", (*kind.Cluster).Kill)
}

func newKindRestart() *cobra.Command {
	return newKindPart("restart", "Restart parts of a cluster, and wait until they are ready", "is ready", (*kind.Cluster).Restart)
}
