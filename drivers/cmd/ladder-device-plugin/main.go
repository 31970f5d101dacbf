// Command ladder-device-plugin offers a node's fake GPUs to its kubelet in the
// legacy way, as an extended resource.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/deviceplugin"
	"gpuladder.dev/ladder/drivers/tiers"
)

func main() {
	exit.Main(func(ctx context.Context, args []string, _, stderr io.Writer) int { return run(ctx, args, stderr) })
}

// options are the flags.
type options struct {
	node, kubeconfig, resource, folder, health, catalog, faultSocket string
	allowFaults                                                      bool
	verbosity                                                        int
	// client is what a test replaces.
	client func(kubeconfig string) (kubernetes.Interface, error)
}

// run is the program: arguments in, exit code out.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	o := &options{client: connect}
	cmd := o.command(stderr)
	cmd.SetArgs(args)
	cmd.SetOut(stderr)
	cmd.SetErr(stderr)
	return exit.Execute(ctx, cmd, stderr)
}

func (o *options) command(stderr io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ladder-device-plugin",
		Short: "Offer a node's fake GPUs to its kubelet as an extended resource",
		Long: "Offer a node's fake GPUs to its kubelet as an extended resource, as device plugins did before DRA.\n\n" +
			"The node's label " + tiers.LabelTier + " says which GPUs it has. The label " + deviceplugin.LabelStack + " decides:\n" +
			"while it is not " + deviceplugin.StackDevicePlugin + ", nothing is offered and the node's allocatable goes to 0.\n\n" +
			"Exit codes: 0 ended by a signal, 1 it did not work, 2 flags or files can't be used.",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(stderr), textlogger.Verbosity(o.verbosity)))
			return o.run(klog.NewContext(cmd.Context(), logger))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "name of this node (default $NODE_NAME)")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "the cluster; without it the Pod's own account")
	flags.StringVar(&o.resource, "resource-name", deviceplugin.DefaultResource, "the extended resource")
	flags.StringVar(&o.folder, "kubelet-dir", "/var/lib/kubelet/device-plugins", "kubelet's folder for device plugins")
	flags.StringVar(&o.health, "health-address", "", "where to serve /healthz and /readyz, such as :8081; empty for nowhere")
	flags.StringVar(&o.catalog, "catalog", "", "a tier catalog in place of the built-in one")
	flags.BoolVar(&o.allowFaults, "allow-faults", false, "take faults (xid, lost) on the fault socket")
	flags.IntVar(&o.verbosity, "v", 2, "verbosity of the log, 0 to 10")
	flags.StringVar(&o.faultSocket, "fault-socket", "/run/ladder/fault.sock", "where to take faults with --allow-faults")
	return cmd
}

// check says which flag can't be used.
func (o *options) check() error {
	if o.node == "" {
		return errors.New("--node-name or $NODE_NAME is required")
	}
	if messages := validation.IsQualifiedName(o.resource); len(messages) > 0 {
		return fmt.Errorf("--resource-name %q: %s", o.resource, messages[0])
	}
	if info, err := os.Stat(o.folder); err != nil {
		return fmt.Errorf("--kubelet-dir, %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("--kubelet-dir, %s is no folder", o.folder)
	}
	return nil
}

func connect(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("finding the cluster, %w", err)
	}
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client, %w", err)
	}
	return client, nil
}
