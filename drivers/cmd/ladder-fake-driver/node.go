package main

// This file holds the command that is the driver of a node.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/fake"
	driverfault "gpuladder.dev/ladder/drivers/fault"
	"gpuladder.dev/ladder/drivers/plugin"
	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fault"
)

// nodeOptions is what the command was asked to do.
type nodeOptions struct {
	name, podUID, kubeconfig         string
	cdiFolder, plugins, registrar    string
	bootIDFile, faultSocket, metrics string
	catalog                          string
	allowFaults                      bool
	health, recovery, collect, stale time.Duration
	client                           func(kubeconfig string) (kubernetes.Interface, error)
}

func nodeCommand() *cobra.Command {
	o := &nodeOptions{client: connect}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Be the DRA driver of a node, with fake GPUs by the node's label",
		Long: "Be the DRA driver " + v1alpha1.DriverName + " of a node, until ended: register with its kubelet, publish the GPUs that\n" +
			"the node's label " + tiers.LabelTier + " names, and prepare them for the claims of Pods.\n\n" +
			"Slices stay when it ends, for the driver that comes next; if none comes, kubelet removes them after 30 seconds.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.name, "node-name", os.Getenv("NODE_NAME"), "the node (default: $NODE_NAME)")
	flags.StringVar(&o.podUID, "pod-uid", os.Getenv("POD_UID"), "the UID of this Pod, so that the next one can start before this one ends (default: $POD_UID)")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "the cluster; without it the Pod's own account, or $KUBECONFIG and ~/.kube/config")
	flags.StringVar(&o.cdiFolder, "cdi-dir", kubeletplugin.DefaultCDIDir, "where the container runtime looks for CDI specs")
	flags.StringVar(&o.plugins, "plugins-dir", kubeletplugin.KubeletPluginsDir, "kubelet's folder of plugins; the driver's own data folder is made in it")
	flags.StringVar(&o.registrar, "registrar-dir", kubeletplugin.KubeletRegistryDir, "kubelet's folder for the sockets by which plugins register")
	flags.StringVar(&o.bootIDFile, "boot-id-file", "/proc/sys/kernel/random/boot_id", "where the ID of the node's boot is read")
	flags.StringVar(&o.metrics, "metrics-address", ":9400", "where /metrics, /healthz and /readyz are served; empty for nowhere")
	flags.StringVar(&o.catalog, "catalog", "", "a catalog of tiers in the place of the built-in one")
	flags.BoolVar(&o.allowFaults, "allow-faults", false, "let root on the node make the driver misbehave, by `ladder fault`")
	flags.StringVar(&o.faultSocket, "fault-socket", "", "where faults are asked for (default: fault.sock in the data folder)")
	flags.DurationVar(&o.health, "health-period", plugin.DefaultHealthPeriod, "how often the hardware is asked how it is, and kubelet told")
	flags.DurationVar(&o.recovery, "health-recovery", plugin.DefaultRecovery, "how long a trouble must be over before its taint goes")
	flags.DurationVar(&o.collect, "collect-period", plugin.DefaultCollectPeriod, "how often claims are looked for that are over")
	flags.DurationVar(&o.stale, "stale-after", plugin.DefaultStaleAfter, "how long a claim must be over before what kubelet left prepared for it is taken back")
	return cmd
}

func (o *nodeOptions) run(ctx context.Context) error {
	if o.name == "" {
		return errors.New("--node-name is required")
	}
	catalog, err := tiers.Load(o.catalog)
	if err != nil {
		return err
	}
	client, err := o.client(o.kubeconfig)
	if err != nil {
		return err
	}
	if err := o.drive(ctx, client, catalog); err != nil {
		return &exit.Error{Err: err}
	}
	return nil
}

// drive puts the parts together and runs them until ctx is done.
func (o *nodeOptions) drive(ctx context.Context, client kubernetes.Interface, catalog *tiers.Catalog) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithValues(klog.Background(), "node", o.name))
	group, ctx := errgroup.WithContext(ctx)
	data := plugin.DataFolder(o.plugins)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return fmt.Errorf("making data folder, %w", err)
	}
	node, err := lookUp(ctx, client, o.name)
	if err != nil {
		return err
	}
	recorder, stop := recorderFor(ctx, client)
	defer stop()
	tier := &tierWatch{
		client: client, catalog: catalog, node: node, path: filepath.Join(data, tierFileName), recorder: recorder,
	}
	pool, err := tier.begin(ctx)
	if err != nil {
		return err
	}

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	config := plugin.Config{
		NodeName: o.name, NodeUID: node.UID, PodUID: types.UID(o.podUID), Client: client,
		DataFolder: data, RegistrarFolder: o.registrar, CDIFolder: o.cdiFolder, BootIDFile: o.bootIDFile,
		HealthPeriod: o.health, Recovery: o.recovery, CollectPeriod: o.collect, StaleAfter: o.stale,
		Clock: clock.RealClock{}, Registry: registry, Recorder: recorder,
	}
	if o.allowFaults {
		faults, err := o.faults(data, tier)
		if err != nil {
			return err
		}
		listener, err := fault.Listen(o.socket(data))
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Faults can be asked for", "socket", o.socket(data))
		group.Go(func() error { return fault.Serve(ctx, listener, faults) })
		config.Hooks, config.Gate = faults, faults
		tier.hardware = fake.NewHardware(ctx, pool, faults)
	} else {
		tier.hardware = fake.NewHardware(ctx, pool, nil)
	}
	config.Inventory = tier.hardware
	driver, err := plugin.New(ctx, config)
	if err != nil {
		return err
	}
	tier.held = driver.Engine().Held
	group.Go(func() error { return driver.Run(ctx) })
	group.Go(func() error { return tier.run(ctx) })
	if o.metrics != "" {
		group.Go(func() error { return serve(ctx, o.metrics, driver.Handler(registry)) })
	}
	return group.Wait()
}

func (o *nodeOptions) socket(data string) string {
	if o.faultSocket != "" {
		return o.faultSocket
	}
	return filepath.Join(data, "fault.sock")
}

func (o *nodeOptions) faults(data string, tier *tierWatch) (*driverfault.Set, error) {
	store := checkpoint.NewStore(data)
	return driverfault.NewSet(driverfault.Config{
		Path:    filepath.Join(data, driverfault.FileName),
		Devices: func() []string { return tier.hardware.Names() },
		Tear:    store.Tear,
		Kill:    kill,
		Clock:   clock.RealClock{},
	})
}

// kill ends this process as nothing can prevent.
func kill() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	os.Exit(137)
}

// recorderFor makes Events until it is stopped.
func recorderFor(ctx context.Context, client kubernetes.Interface) (recorder events.EventRecorder, stop func()) {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "There will be no Events")
	}
	return broadcaster.NewRecorder(scheme.Scheme, v1alpha1.DriverName), broadcaster.Shutdown
}

// serve serves HTTP until ctx is done.
func serve(ctx context.Context, address string, handler http.Handler) error {
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serving metrics, %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving metrics, %w", err)
	case <-ctx.Done():
		return server.Close()
	}
}
