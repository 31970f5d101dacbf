package node

// This file puts the parts together and runs them.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/engine"
	driverfault "gpuladder.dev/ladder/drivers/fault"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/plugin"
	"gpuladder.dev/ladder/policies/fault"
)

// Node is what hardware is made with.
type Node struct {
	// Object is the Node as it was at the start.
	Object *corev1.Node
	Client kubernetes.Interface
	// Recorder makes Events, Registry takes metrics.
	Recorder events.EventRecorder
	Registry prometheus.Registerer
	Clock    clock.WithTicker
	// DataFolder is there, and takes files of the hardware's own.
	DataFolder string
	// BootIDFile is read for the ID of the node's boot.
	BootIDFile string
	// Faults are nil without --allow-faults. Those of the driver need nothing of
	// the hardware; what is wrong with devices by request is for it to report.
	Faults *driverfault.Set
}

// Hardware is what a program adds.
type Hardware struct {
	Inventory inventory.Inventory
	// Settled is that of [engine.Config], and may be nil.
	Settled func(ctx context.Context, pool inventory.Pool) error
	// Run may be nil. It runs beside the driver until ctx is done; its error ends
	// the program. The engine says which claims hold what.
	Run func(ctx context.Context, engine *engine.Engine) error
}

// Run drives a node until ctx is done, with the hardware that found returns once
// the node's object is known. It waits for an API server that is away. A Node
// that is registered again ends it with [ErrAnotherNode].
func (o *Options) Run(ctx context.Context, client kubernetes.Interface, found func(context.Context, *Node) (Hardware, error)) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithValues(klog.Background(), "node", o.Name))
	group, ctx := errgroup.WithContext(ctx)
	answering := &probes{now: before("waiting for the API server", true)}
	if o.Metrics != "" {
		group.Go(func() error { return serve(ctx, o.Metrics, answering) })
	}
	group.Go(func() error { return o.drive(ctx, client, found, answering) })
	return group.Wait()
}

// drive is Run, but for the serving.
func (o *Options) drive(ctx context.Context, client kubernetes.Interface, found func(context.Context, *Node) (Hardware, error), answering *probes) error {
	group, ctx := errgroup.WithContext(ctx)
	data := o.DataFolder()
	if err := os.MkdirAll(data, 0o750); err != nil {
		return fmt.Errorf("making data folder, %w", err)
	}
	// Before anything is written there.
	presence, err := plugin.Join(ctx, data, o.CDIFolder)
	if err != nil {
		return err
	}
	defer presence.Leave()
	object, err := lookUp(ctx, client, o.Name)
	if err != nil {
		return err
	}
	answering.become(before("the driver is not made yet", false))
	recorder, stop := recorderFor(ctx, client)
	defer stop()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	on := &Node{
		Object: object, Client: client, Recorder: recorder, Registry: registry, Clock: clock.RealClock{},
		DataFolder: data, BootIDFile: o.BootIDFile,
	}
	var hardware Hardware
	if o.AllowFaults {
		on.Faults, err = faults(data, func() []string { return names(ctx, hardware.Inventory) })
		if err != nil {
			return err
		}
	}
	if hardware, err = found(ctx, on); err != nil {
		return err
	}
	config := plugin.Config{
		NodeName: o.Name, NodeUID: object.UID, PodUID: types.UID(o.PodUID), Client: client, Inventory: hardware.Inventory,
		DataFolder: data, RegistrarFolder: o.Registrar, CDIFolder: o.CDIFolder, BootIDFile: o.BootIDFile, Presence: presence,
		HealthPeriod: o.Health, Recovery: o.Recovery, CollectPeriod: o.Collect, StaleAfter: o.Stale,
		Clock: on.Clock, Registry: registry, Recorder: recorder, Settled: hardware.Settled,
	}
	var faulty plugin.Gate
	if on.Faults != nil {
		config.Hooks, faulty = on.Faults, on.Faults
	}
	stack := newStack(ctx, object, faulty)
	config.Gate = stack
	driver, err := plugin.New(ctx, config)
	if err != nil {
		return err
	}
	if on.Faults != nil {
		listener, err := fault.Listen(o.Socket())
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Faults can be asked for", "socket", o.Socket())
		group.Go(func() error { return fault.Serve(ctx, listener, on.Faults) })
	}
	group.Go(func() error { return follow(ctx, client, object, func(node *corev1.Node) { stack.see(ctx, node) }) })
	group.Go(func() error { return driver.Run(ctx) })
	if hardware.Run != nil {
		group.Go(func() error { return hardware.Run(ctx, driver.Engine()) })
	}
	answering.become(driver.Handler(registry))
	return group.Wait()
}

// names are those of the devices, for whoever asks for a fault of one.
func names(ctx context.Context, of inventory.Inventory) []string {
	pool, err := of.Pool(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Reading the devices for a fault")
		return nil
	}
	all := []string{}
	for i := range pool.Devices {
		all = append(all, pool.Devices[i].Name)
	}
	return all
}

func faults(data string, devices func() []string) (*driverfault.Set, error) {
	return driverfault.NewSet(driverfault.Config{
		Path:    filepath.Join(data, driverfault.FileName),
		Devices: devices,
		Tear:    checkpoint.NewStore(data).Tear,
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
