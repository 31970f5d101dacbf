// Package node is what the programs that drive one node's GPUs have in common:
// their flags, the node's object, Events, metrics, faults by request, and the
// driver itself. A program adds its hardware.
package node

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpuladder.dev/ladder/drivers/plugin"
)

// Options are what a program was asked to do, apart from its hardware.
type Options struct {
	// Name is the node's, PodUID that of the program's own Pod or "".
	Name, PodUID string
	// Kubeconfig is the path of one, or "" for what [Connect] finds.
	Kubeconfig string
	// CDIFolder, Plugins and Registrar are the folders of the container runtime
	// and of kubelet.
	CDIFolder, Plugins, Registrar string
	// BootIDFile is read for the ID of the node's boot.
	BootIDFile string
	// Metrics is the address at which metrics and probes are served, or "".
	Metrics string
	// AllowFaults has faults taken from FaultSocket, or from fault.sock in the
	// data folder where that is "".
	AllowFaults bool
	FaultSocket string
	// Health, Recovery, Collect and Stale are the periods of [plugin.Config].
	Health, Recovery, Collect, Stale time.Duration
}

// AddFlags adds the flags that every program has. Their defaults are set at
// once, so that options whose flags are never parsed have them too.
func (o *Options) AddFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.Name, "node-name", os.Getenv("NODE_NAME"), "the node (default: $NODE_NAME)")
	flags.StringVar(&o.PodUID, "pod-uid", os.Getenv("POD_UID"), "the UID of this Pod, so that the next one can start before this one ends (default: $POD_UID)")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "the cluster; without it the Pod's own account, or $KUBECONFIG and ~/.kube/config")
	flags.StringVar(&o.CDIFolder, "cdi-dir", kubeletplugin.DefaultCDIDir, "where the container runtime looks for CDI specs")
	flags.StringVar(&o.Plugins, "plugins-dir", kubeletplugin.KubeletPluginsDir, "kubelet's folder of plugins; the driver's own data folder is made in it")
	flags.StringVar(&o.Registrar, "registrar-dir", kubeletplugin.KubeletRegistryDir, "kubelet's folder for the sockets by which plugins register")
	flags.StringVar(&o.BootIDFile, "boot-id-file", "/proc/sys/kernel/random/boot_id", "where the ID of the node's boot is read")
	flags.StringVar(&o.Metrics, "metrics-address", ":9400", "where /metrics, /healthz and /readyz are served; empty for nowhere")
	flags.DurationVar(&o.Health, "health-period", plugin.DefaultHealthPeriod, "how often the hardware is asked how it is, and kubelet told")
	flags.DurationVar(&o.Recovery, "health-recovery", plugin.DefaultRecovery, "how long a trouble must be over before its taint goes")
	flags.DurationVar(&o.Collect, "collect-period", plugin.DefaultCollectPeriod, "how often claims are looked for that are over")
	flags.DurationVar(&o.Stale, "stale-after", plugin.DefaultStaleAfter, "how long a claim must be over before what kubelet left prepared for it is taken back")
}

// AddFaultFlags adds the flags of programs that misbehave by request.
func (o *Options) AddFaultFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.AllowFaults, "allow-faults", false, "let root on the node make the driver misbehave, by 'ladder fault'")
	flags.StringVar(&o.FaultSocket, "fault-socket", "", "where faults are asked for (default: fault.sock in the data folder)")
}

// Check says which flag is missing.
func (o *Options) Check() error {
	if o.Name == "" {
		return errors.New("--node-name is required")
	}
	return nil
}

// DataFolder is where the driver keeps its files.
func (o *Options) DataFolder() string { return plugin.DataFolder(o.Plugins) }

// Socket is where faults are asked for.
func (o *Options) Socket() string {
	if o.FaultSocket != "" {
		return o.FaultSocket
	}
	return filepath.Join(o.DataFolder(), "fault.sock")
}
