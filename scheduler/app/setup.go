// Package app wires ladder-scheduler: kube-scheduler with the plugin Ladder and
// a search that goes on, within one attempt, until a node is found or none is
// left.
package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/scheduler/ladder"
)

// Options are Ladder's own, beside kube-scheduler's.
type Options struct {
	// Journal is the file that input events and decisions are appended to;
	// empty for none.
	Journal string
	// JournalKeep is how many earlier files of it are kept; negative for all.
	JournalKeep int
	// Clock is the real clock where it is nil.
	Clock clock.WithDelayedExecution
}

// Scheduler is a scheduler that is ready to run.
type Scheduler struct {
	Config *schedulerconfig.CompletedConfig
	Sched  *scheduler.Scheduler
	Core   *ladder.Core
}

// Plugins returns what the profiles of one scheduler share and the registry of
// its own plugins, for scheduler.New. Who doesn't use [Setup] must also call
// [ladder.Core.Attach] on the scheduler, or [ladder.Widen] where its informers
// have started.
func Plugins(own Options, logger klog.Logger) (*ladder.Core, frameworkruntime.Registry, error) {
	if own.Clock == nil {
		own.Clock = clock.RealClock{}
	}
	engine, err := newEngine(own.Journal, own.JournalKeep, own.Clock.Now(), logger)
	if err != nil {
		return nil, nil, err
	}
	core := ladder.NewCore(engine, own.Clock, logger)
	registry := frameworkruntime.Registry{}
	if err := errors.Join(
		registry.Register(ladder.Name, core.Factory()),
		registry.Register(ladder.OrderName, ladder.NewOrder),
		registry.Register(ladder.ParkName, core.NewPark),
	); err != nil {
		return nil, nil, fmt.Errorf("registering plugins, %w", err)
	}
	return core, registry, nil
}

// Setup makes a scheduler from kube-scheduler's options. It does what
// kube-scheduler's own Setup does, which leaves no way to bring another default
// configuration without losing the flags.
func Setup(ctx context.Context, opts *options.Options, own Options) (*Scheduler, error) {
	if err := ladder.CheckGates(utilfeature.DefaultFeatureGate); err != nil {
		return nil, err
	}
	defaults, err := defaultConfig()
	if err != nil {
		return nil, err
	}
	opts.ComponentConfig = defaults
	if errs := opts.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("checking options, %w", utilerrors.NewAggregate(errs))
	}
	config, err := opts.Config(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading configuration, %w", err)
	}
	cc := config.Complete()
	if err := narrow(utilfeature.DefaultMutableFeatureGate, len(cc.ComponentConfig.Extenders) > 0); err != nil {
		return nil, err
	}
	serveInOrder(cc.ComponentConfig.Profiles)
	park(cc.ComponentConfig.Profiles)
	core, registry, err := Plugins(own, klog.FromContext(ctx))
	if err != nil {
		return nil, err
	}
	sched, err := scheduler.New(ctx, cc.Client, cc.InformerFactory, cc.DynInformerFactory,
		func(name string) events.EventRecorderLogger { return cc.EventBroadcaster.NewRecorder(name) },
		scheduler.WithComponentConfigVersion(cc.ComponentConfig.APIVersion),
		scheduler.WithKubeConfig(cc.KubeConfig),
		scheduler.WithProfiles(cc.ComponentConfig.Profiles...),
		scheduler.WithPercentageOfNodesToScore(cc.ComponentConfig.PercentageOfNodesToScore),
		scheduler.WithFrameworkOutOfTreeRegistry(registry),
		scheduler.WithPodMaxBackoffSeconds(cc.ComponentConfig.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(cc.ComponentConfig.PodInitialBackoffSeconds),
		scheduler.WithPodMaxInUnschedulablePodsDuration(cc.PodMaxInUnschedulablePodsDuration),
		scheduler.WithExtenders(cc.ComponentConfig.Extenders...),
		scheduler.WithParallelism(cc.ComponentConfig.Parallelism),
	)
	if err != nil {
		return nil, fmt.Errorf("making the scheduler, %w", err)
	}
	if err := checkProfiles(sched); err != nil {
		return nil, err
	}
	core.Attach(sched)
	return &Scheduler{Config: &cc, Sched: sched, Core: core}, nil
}

// Narrowing is the feature of kube-scheduler that has its queue look, where a
// claim changes that gives nothing back, at the claim's own Pods alone instead of
// walking past every Pod that waits. It is off by default there, and on in
// ladder-scheduler.
const Narrowing = features.SchedulerPreQueueingHints

const allAlpha featuregate.Feature = "AllAlpha"

// narrow turns it on, unless --feature-gates speaks of it, an earlier version is
// emulated that does not have it, or there are extenders: who was refused by one
// would not be looked at where claims change.
func narrow(gates featuregate.MutableVersionedFeatureGate, extenders bool) error {
	_, known := gates.GetAll()[Narrowing]
	if !known || extenders || gates.ExplicitlySet(Narrowing) || gates.ExplicitlySet(allAlpha) {
		return nil
	}
	if err := gates.SetFromMap(map[string]bool{string(Narrowing): true}); err != nil {
		return fmt.Errorf("turning on %s, %w", Narrowing, err)
	}
	return nil
}

// readyTimeout bounds the wait for policies and quotas at the start.
const readyTimeout = 10 * time.Second

// Run schedules until ctx ends.
func (s *Scheduler) Run(ctx context.Context) error {
	ready, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := s.Core.WaitUntilReady(ready); err != nil {
		klog.FromContext(ctx).Error(err, "Starting all the same; Pods with claims wait")
	}
	return kubescheduler.Run(ctx, s.Config, s.Sched)
}
