package ladder

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/metrics"
	"gpuladder.dev/ladder/scheduler/mirror"
	"gpuladder.dev/ladder/scheduler/objects"
	"gpuladder.dev/ladder/scheduler/outcome"
	"gpuladder.dev/ladder/scheduler/view"
)

// Engine is the decision engine's state, or a recorder around it that writes
// the journal.
type Engine interface {
	mirror.State
	Decide(q decide.Query) (*decide.Decision, error)
	Candidates(q decide.Query) (iter.Seq[decide.Candidate], error)
	FaultyNodes(q decide.Query) ([]string, error)
	TierForGroup(q decide.GroupQuery) (*decide.GroupTier, error)
	Assume(d *decide.Decision, inFlight bool) error
	Digest() string
}

// Maintained is an Engine that has something to do from time to time.
type Maintained interface {
	Maintain(now time.Time)
}

// maintenance is how often Maintain is called.
const maintenance = time.Second

// Objects is what the plugin looks up in Ladder's own group.
type Objects interface {
	Ready() bool
	Policy(name string) *v1alpha1.AcceleratorPolicy
	Revision(policy string, revision int64) *v1alpha1.PolicyRevision
	Quota(namespace string) *v1alpha1.TenantQuota
	// Ping asks the API server for anything.
	Ping(ctx context.Context) error
}

// Core is what the profiles of one scheduler share: the engine, because there
// is one set of devices, and what tells users about outcomes.
type Core struct {
	clock    clock.WithDelayedExecution
	inFlight *view.InFlight

	// mu guards engine and mirror. Scheduling cycles are serial; binding
	// cycles run beside them.
	mu     sync.Mutex
	engine Engine
	mirror *mirror.Mirror

	start    sync.Once
	startErr error
	objects  Objects
	waiting  *waiting
	groups   *groups
	holders  holders
	// extensions is guarded by mu, but for what it says itself.
	extensions *extensions
	publisher  *outcome.Publisher
	// parks says that the plugin Park keeps Pods that wait; see [Core.Attach].
	parks bool
}

// NewCore returns a Core that decides with engine. It begins to watch and to
// write when the first profile's plugin is made.
func NewCore(engine Engine, c clock.WithDelayedExecution, logger klog.Logger) *Core {
	metrics.Register()
	inFlight := view.NewInFlight()
	return &Core{
		clock:      c,
		inFlight:   inFlight,
		engine:     engine,
		groups:     newGroups(),
		extensions: newExtensions(),
		mirror:     mirror.New(engine, inFlight, logger),
	}
}

// Flush waits until every outcome so far is written or ctx ends.
func (c *Core) Flush(ctx context.Context) error {
	c.maintain()
	if c.publisher == nil {
		return nil
	}
	return c.publisher.Flush(ctx)
}

// WaitUntilReady waits until everything that decisions depend on has been read,
// or until ctx ends; Pods with claims then wait, all others need not.
func (c *Core) WaitUntilReady(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
		return c.objects.Ready(), nil
	})
	if err != nil {
		return fmt.Errorf("reading policies and quotas, %w", err)
	}
	return nil
}

// startWith begins to watch and to write, once.
func (c *Core) startWith(ctx context.Context, h fwk.Handle) error {
	c.start.Do(func() { c.startErr = c.run(ctx, h) })
	return c.startErr
}

func (c *Core) run(ctx context.Context, h fwk.Handle) error {
	logger := klog.FromContext(ctx)
	if h.KubeConfig() == nil {
		return errors.New("the scheduler has no client configuration")
	}
	client, err := objects.NewClient(h.KubeConfig())
	if err != nil {
		return err
	}
	watcher := objects.NewWatcher(client, c.changed, func() { c.waiting.wake(everyPod) })
	c.objects = watcher
	c.waiting = newWaiting(c.clock, h.SharedInformerFactory().Core().V1().Pods().Lister())
	c.publisher = outcome.NewPublisher(h.ClientSet(), objects.NewRecords(client), c.clock, func(pod *corev1.Pod) bool { return c.waiting.current(pod) != nil }, logger)
	if c.holders, err = newHolders(h.SharedInformerFactory().Resource().V1().ResourceClaims().Informer()); err != nil {
		return err
	}
	if err := c.watchCore(h); err != nil {
		return err
	}
	if err := watcher.Start(ctx); err != nil {
		return err
	}
	go c.publisher.Run(ctx)
	go wait.UntilWithContext(ctx, func(context.Context) { c.maintain() }, maintenance)
	go wait.UntilWithContext(ctx, c.askAPI, askInterval)
	return nil
}

func (c *Core) maintain() {
	if m, ok := c.engine.(Maintained); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		m.Maintain(c.clock.Now())
	}
}

// watchCore follows namespaces, which policies select, and Pods that end.
func (c *Core) watchCore(h fwk.Handle) error {
	factory := h.SharedInformerFactory().Core().V1()
	_, err := factory.Namespaces().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { c.noteNamespace(nil, obj) },
		UpdateFunc: func(old, obj any) {
			c.noteNamespace(old, obj)
		},
		DeleteFunc: func(obj any) {
			if ns, ok := final(obj).(*corev1.Namespace); ok {
				c.mirror.Note(ns, true)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching namespaces, %w", err)
	}
	_, err = factory.Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.noteBound(nil, obj) },
		UpdateFunc: c.noteBound,
		DeleteFunc: func(obj any) {
			if pod, ok := final(obj).(*corev1.Pod); ok {
				c.gone(pod)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching pods, %w", err)
	}
	return nil
}

// noteBound passes on a Pod that is bound now and says of which model its devices
// are.
func (c *Core) noteBound(old, obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || !saysModel(pod) {
		return
	}
	if before, ok := old.(*corev1.Pod); ok && saysModel(before) && before.Annotations[v1alpha1.AnnotationModel] == pod.Annotations[v1alpha1.AnnotationModel] {
		return
	}
	c.mirror.Note(pod, false)
}

// saysModel says whether a Pod is bound and names the model of its devices.
func saysModel(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Annotations[v1alpha1.AnnotationModel] != ""
}

// noteNamespace passes on a namespace whose labels matter now.
func (c *Core) noteNamespace(old, obj any) {
	ns, ok := obj.(*corev1.Namespace)
	if !ok {
		return
	}
	if before, ok := old.(*corev1.Namespace); ok && sameLabels(before.Labels, ns.Labels) {
		return
	}
	reduced := &corev1.Namespace{}
	reduced.Name, reduced.UID, reduced.Labels = ns.Name, ns.UID, ns.Labels
	c.changed(reduced, false)
}

// changed takes over a change that parked Pods may have waited for.
func (c *Core) changed(obj runtime.Object, deleted bool) {
	c.mirror.Note(obj, deleted)
	switch o := obj.(type) {
	case *v1alpha1.AcceleratorPolicy:
		c.waiting.wake(func(p *corev1.Pod) bool { return policyOf(p) == o.Name })
	case *v1alpha1.PolicyRevision:
		c.waiting.wake(func(p *corev1.Pod) bool { return policyOf(p) == o.Spec.Policy })
	case *corev1.Namespace:
		c.waiting.wake(func(p *corev1.Pod) bool { return p.Namespace == o.Name })
	default:
		c.waiting.wake(everyPod)
	}
}

func everyPod(*corev1.Pod) bool { return true }

// gone drops what is remembered of a Pod that was deleted.
func (c *Core) gone(pod *corev1.Pod) {
	c.mirror.Note(pod, true)
	c.waiting.forget(pod.UID)
	c.extensions.forget(pod.UID)
	if key, ok := groupKeyOf(pod); ok {
		c.groups.forget(key)
	}
	c.publisher.Forget(pod.UID)
}

// putPod tells the engine of a Pod that is to be decided on. One that was deleted
// while it was tried is not told of again, so it is taken out with the next change.
// The caller holds the lock.
func (c *Core) putPod(pod *corev1.Pod) error {
	if err := c.mirror.PutPod(pod); err != nil {
		return err
	}
	if c.waiting.current(pod) == nil {
		c.mirror.Note(pod, true)
		c.extensions.forget(pod.UID)
	}
	return nil
}

// timed observes how long a step of a decision takes.
func (c *Core) timed(step string, f func() error) error {
	start := time.Now()
	err := f()
	metrics.DecisionSeconds.WithLabelValues(step).Observe(time.Since(start).Seconds())
	return err
}

// decide asks the engine for the record of a query.
func (c *Core) decide(q decide.Query) (*decide.Decision, error) {
	var d *decide.Decision
	err := c.timed("record", func() (err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		d, err = c.engine.Decide(q)
		return err
	})
	return d, err
}

func final(obj any) any {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return unknown.Obj
	}
	return obj
}

func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
