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
func newKindPart(e engines, use, short, done string, do func(*kind.Cluster, context.Context, string) error) *cobra.Command {
	var name string
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
			c, err := e.attach(ctx, name, cmd.ErrOrStderr())
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
	nameFlag(cmd, &name)
	return cmd
}

func newKindKill(e engines) *cobra.Command {
	return newKindPart(e, "kill", "End parts of a cluster without warning; they stay down until restarted", "is down", (*kind.Cluster).Kill)
}

func newKindRestart(e engines) *cobra.Command {
	return newKindPart(e, "restart", "Restart parts of a cluster, and wait until they are ready", "is ready", (*kind.Cluster).Restart)
}
