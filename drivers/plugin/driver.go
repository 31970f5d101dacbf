package plugin

// This file runs a driver from its start to its end.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"gpuladder.dev/ladder/drivers/bootid"
	"gpuladder.dev/ladder/drivers/cdi"
	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/health"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/publish"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Driver is one driver. Make it by [New] and run it once.
type Driver struct {
	config   Config
	metrics  *metrics
	observer *observer
	engine   *engine.Engine
	devices  devices
	beat     *beat
	claims   *conditions
	fatal    context.CancelCauseFunc
	present  *Presence
	hardware answers

	// toPublish receives when there may be something new to publish.
	toPublish chan struct{}
	// last is what was handed to the library; only publish uses it.
	last *resourceslice.DriverResources

	registered, published, started atomic.Bool
}

// New makes a driver and its folders. Nothing runs yet, and no one is told of
// anything.
func New(ctx context.Context, config Config) (*Driver, error) {
	config.Default()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("configuring driver, %w", err)
	}
	for folder, mode := range map[string]os.FileMode{config.DataFolder: 0o750, config.CDIFolder: 0o755} {
		if err := os.MkdirAll(folder, mode); err != nil {
			return nil, fmt.Errorf("making folder, %w", err)
		}
	}
	boot, err := bootid.Read(config.BootIDFile)
	if err != nil {
		return nil, err
	}
	metrics, err := newMetrics(config.Registry)
	if err != nil {
		return nil, err
	}
	d := &Driver{config: config, metrics: metrics, beat: newBeat(), toPublish: make(chan struct{}, 1), hardware: newAnswers()}
	d.observer = &observer{
		metrics: metrics, recorder: config.Recorder, cdi: config.CDIFolder, data: config.DataFolder, background: klog.FromContext(ctx),
		node: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: config.NodeName, UID: config.NodeUID},
		held: func(namespace, name string) bool { return d.holds(ctx, namespace, name) },
	}
	if d.present = config.Presence; d.present == nil {
		if d.present, err = Join(ctx, config.DataFolder, config.CDIFolder); err != nil {
			return nil, err
		}
	}
	monitor, err := health.New(config.DataFolder, boot, config.Clock, config.Recovery)
	if damaged := new(health.DamagedError); errors.As(err, &damaged) && damaged.Recovered {
		klog.FromContext(ctx).Error(err, "Going on with what was known of the devices' health before its last change")
		d.observer.event(corev1.EventTypeWarning, EventHealthRecovered, "Starting", "What is known of the devices' health was read from the file before: %v", err)
	} else if err != nil {
		klog.FromContext(ctx).Error(err, "Going on without what was known of the devices' health")
		d.observer.event(corev1.EventTypeWarning, EventHealthForgotten, "Starting", "What was known of the devices' health is lost: %v", err)
	}
	d.devices = devices{Inventory: config.Inventory, monitor: monitor}
	sharer, _ := config.Inventory.(inventory.Sharer) // nil where it is none
	d.engine = engine.New(engine.Config{
		Driver: v1alpha1.DriverName, Pool: config.NodeName,
		Store: checkpoint.NewStore(config.DataFolder), CDI: cdi.NewFolder(config.CDIFolder, v1alpha1.DriverName),
		Hardware: d.devices, Claims: claims{config.Client}, Observer: d.observer, Clock: config.Clock,
		BootIDFile: config.BootIDFile, StaleAfter: config.StaleAfter, Hooks: config.Hooks,
		Settled: config.Settled, Sharer: sharer,
	})
	d.claims = newConditions(&config, d.engine, d.devices)
	return d, nil
}

// Engine is the driver's engine, for whoever has to know what is in use.
func (d *Driver) Engine() *engine.Engine { return d.engine }

// Run runs the driver until ctx is done, and then returns nil. Its sockets are
// gone then; slices, checkpoint and CDI files stay: the driver that comes next
// goes on with them, and if none comes kubelet removes the slices after 30
// seconds. An error is one that trying again does not mend; hardware that does
// not answer, also from the start, is none.
func (d *Driver) Run(ctx context.Context) error {
	running, fatal := context.WithCancelCause(ctx)
	defer fatal(nil)
	d.fatal = fatal
	defer d.present.Leave()
	if err := d.removeSockets(running); err != nil {
		klog.FromContext(ctx).Error(err, "Going on with the sockets that other drivers left")
	}
	helper, err := kubeletplugin.Start(running, plugin{d},
		kubeletplugin.DriverName(v1alpha1.DriverName),
		kubeletplugin.KubeClient(d.config.Client),
		kubeletplugin.NodeName(d.config.NodeName),
		kubeletplugin.NodeUID(d.config.NodeUID),
		kubeletplugin.PluginDataDirectoryPath(d.config.DataFolder),
		kubeletplugin.RegistrarDirectoryPath(d.config.RegistrarFolder),
		kubeletplugin.CDIDirectory(d.config.CDIFolder),
		kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion}),
		kubeletplugin.RollingUpdate(d.config.PodUID),
		kubeletplugin.Serialize(false), // the engine has locks of its own
		kubeletplugin.GRPCInterceptor(d.watchRegistration),
	)
	if err != nil {
		return fmt.Errorf("starting kubelet plugin, %w", err)
	}
	defer helper.Stop()
	var parts sync.WaitGroup
	parts.Go(func() { d.start(running) })
	parts.Go(func() { d.watchHealth(running) })
	parts.Go(func() { d.collect(running) })
	parts.Go(func() {
		d.claims.run(running, d.config.HealthPeriod, max(maxSilence, d.config.HealthPeriod), d.metrics.publishErrors.Inc)
	})
	parts.Go(func() {
		if err := d.publishAll(running, helper); err != nil {
			fatal(err)
		}
	})
	parts.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(running)
}

// start has the engine bring the disk in order, and tries until it has: each
// claim that kubelet asks for meanwhile meets the same error and says so.
func (d *Driver) start(ctx context.Context) {
	told := false
	for {
		err := d.engine.Start(ctx)
		if err == nil {
			d.started.Store(true)
			return
		}
		if ctx.Err() != nil {
			return
		}
		var schema *checkpoint.SchemaError
		if errors.As(err, &schema) && !told {
			told = true
			d.observer.event(corev1.EventTypeWarning, EventCheckpointRefused, "Starting", "No claim can be prepared: %v", schema)
		}
		klog.FromContext(ctx).Error(err, "The state on disk can't be used yet; trying again")
		select {
		case <-ctx.Done():
			return
		case <-d.config.Clock.After(d.config.HealthPeriod):
		}
	}
}

// collect looks for claims that are over until ctx is done.
func (d *Driver) collect(ctx context.Context) {
	period := d.config.Clock.NewTicker(d.config.CollectPeriod)
	defer period.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-period.C():
		}
		if err := d.engine.Collect(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Collecting claims that are over; trying again later")
		}
	}
}

// publishAll publishes until ctx is done. It is on its own since the library's
// first call waits for the API server, for however long that is away.
func (d *Driver) publishAll(ctx context.Context, helper *kubeletplugin.Helper) error {
	var gate <-chan struct{}
	if d.config.Gate != nil {
		gate = d.config.Gate.Changed()
	}
	// The taints that are known go out with the first slices.
	select {
	case <-ctx.Done():
		return nil
	case <-d.hardware.answered:
	}
	for {
		if err := d.publish(ctx, helper); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // broken off on purpose
			}
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-gate:
		case <-d.toPublish:
		}
	}
}

// publish hands the slices to the library if they have changed. The library
// writes them, tries again until it has, and mends what others change.
func (d *Driver) publish(ctx context.Context, helper *kubeletplugin.Helper) error {
	way := PublishAll
	if d.config.Gate != nil {
		way = d.config.Gate.Publishing()
	}
	var resources resourceslice.DriverResources
	switch way {
	case PublishNoChange:
		d.published.Store(true)
		return nil
	case PublishNothing:
	default:
		pool, err := d.devices.tainted(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Leaving the slices as they are")
			return nil
		}
		resources = publish.Resources(d.config.NodeName, pool)
	}
	if d.last != nil && equality.Semantic.DeepEqual(*d.last, resources) {
		return nil
	}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return fmt.Errorf("publishing, %w", err)
	}
	d.last = &resources
	d.published.Store(way == PublishAll)
	return nil
}

// holds says whether a claim of this name is prepared.
func (d *Driver) holds(ctx context.Context, namespace, name string) bool {
	held, err := d.engine.Held(ctx)
	if err != nil {
		return true
	}
	for _, claim := range held {
		if claim.Namespace == namespace && claim.Name == name {
			return true
		}
	}
	return false
}

// watchRegistration sees kubelet's answer to the registration.
func (d *Driver) watchRegistration(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if status, is := request.(*registerapi.RegistrationStatus); is {
		d.registered.Store(status.GetPluginRegistered())
		if status.GetPluginRegistered() {
			klog.FromContext(ctx).Info("Registered with kubelet")
		} else {
			klog.FromContext(ctx).Error(errors.New(status.GetError()), "Kubelet did not register the driver")
		}
	}
	return handle(ctx, request)
}
