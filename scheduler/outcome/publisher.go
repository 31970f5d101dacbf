package outcome

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/metrics"
)

const (
	workers = 4
	// maxRecords and maxPending bound the writes that wait. Beyond the first no
	// record, and beyond the second no condition is taken on: it is dropped and
	// counted. What a Pod got is rebuilt from its annotations, and why one waits is
	// told when it is found out the next time.
	maxRecords = 20000
	maxPending = 40000
	// maxTries bounds the tries of one write; with the backoff below they span
	// about ten minutes.
	maxTries    = 20
	firstDelay  = 100 * time.Millisecond
	longestWait = 30 * time.Second
)

// Recorder writes AllocationDecisions.
type Recorder interface {
	Create(ctx context.Context, record *v1alpha1.AllocationDecision) error
}

// Publisher tells outcomes in the background.
type Publisher struct {
	client   kubernetes.Interface
	recorder Recorder
	clock    clock.PassiveClock
	there    func(*corev1.Pod) bool
	logger   klog.Logger
	queue    workqueue.TypedRateLimitingInterface[string]

	mu    sync.Mutex
	tasks map[string]task
	// told counts how often an outcome of a Pod has been told; last is the
	// newest one.
	told map[types.UID]map[string]int
	last map[types.UID]saying
}

// saying is an outcome with what was said of failed attempts. unsaid: the
// condition that says it was not written.
type saying struct {
	key, failures string
	unsaid        bool
}

// task is one write; only the newest of a name is kept. lost is called if it is
// given up.
type task struct {
	version int
	write   func(ctx context.Context) error
	lost    func()
}

// NewPublisher returns a Publisher. Run must be called for it to write. there
// says whether a Pod still is, before [Publisher.Forget] is called for it.
func NewPublisher(client kubernetes.Interface, recorder Recorder, c clock.PassiveClock, there func(*corev1.Pod) bool, logger klog.Logger) *Publisher {
	return &Publisher{
		client:   client,
		recorder: recorder,
		clock:    c,
		there:    there,
		logger:   logger,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstDelay, longestWait)),
		tasks: map[string]task{},
		told:  map[types.UID]map[string]int{},
		last:  map[types.UID]saying{},
	}
}

// Run writes until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for p.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	p.queue.ShutDown()
	group.Wait()
}

// Publish tells an outcome: once, however often it is published in a row. One
// that comes back after another is recorded again, so that the newest record is
// what holds now, but has no second Event. The Event goes out through recorder,
// which belongs to the Pod's scheduler profile.
func (p *Publisher) Publish(o Outcome, recorder events.EventRecorder) {
	p.mu.Lock()
	last, changed := p.last[o.Pod.UID]
	this := saying{key: o.key, failures: o.failures}
	if last == this {
		p.mu.Unlock()
		return
	}
	p.last[o.Pod.UID] = this
	if p.told[o.Pod.UID] == nil {
		p.told[o.Pod.UID] = map[string]int{}
	}
	before := p.told[o.Pod.UID][o.key]
	again := last.key == o.key
	if !again {
		p.told[o.Pod.UID][o.key]++
	}
	p.mu.Unlock()
	there := p.there(o.Pod)
	if !there {
		// It went while it was tried, and what was remembered of it with it: nobody
		// would tell of it again, and what was told looks new.
		p.Forget(o.Pod.UID)
	}

	// The Event names the record. Without that client-go takes two that are told
	// of one version of a Pod for one and the same, whatever they say.
	var related runtime.Object
	if o.Decision != nil && !again {
		record := recordOf(o, before)
		related = &corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "AllocationDecision", Namespace: record.Namespace, Name: record.Name,
		}
		p.add("record/"+record.Namespace+"/"+record.Name, maxRecords, func(ctx context.Context) error {
			return p.recorder.Create(ctx, record)
		}, func() { p.lose(o.Pod.UID, this, saying{}) })
	}
	// The Pod at hand may be older than what was told last: only where nothing
	// has been told since the start does its condition say what users see.
	if existing := v1alpha1.AcceleratorCondition(o.Pod); !changed && existing != nil && existing.Status == o.Status && existing.Reason == o.Reason && sameMessage(existing.Message, o.Message) {
		return
	}
	now := metav1.NewTime(p.clock.Now())
	p.add("condition/"+string(o.Pod.UID), maxPending, func(ctx context.Context) error {
		return p.patchCondition(ctx, o, now)
	}, func() { p.lose(o.Pod.UID, this, saying{key: this.key, unsaid: true}) })
	if before == 0 && (there || o.Status == corev1.ConditionTrue) {
		kind := corev1.EventTypeNormal
		if o.Status != corev1.ConditionTrue {
			kind = corev1.EventTypeWarning
		}
		recorder.Eventf(o.Pod, related, kind, "Accelerator"+o.Reason, "Scheduling", "%s", o.Message)
	}
}

// lose has an outcome that could not be written told when it is published the next
// time, unless another was told since.
func (p *Publisher) lose(pod types.UID, told, instead saying) {
	metrics.OutcomesDropped.Inc()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.last[pod] != told:
	case instead == saying{}:
		delete(p.last, pod)
	default:
		p.last[pod] = instead
	}
}

// Told says whether something was told about a Pod, by this process or before.
func (p *Publisher) Told(pod *corev1.Pod) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, told := p.last[pod.UID]
	return told || v1alpha1.AcceleratorCondition(pod) != nil
}

// Forget drops what is remembered of a Pod that is gone.
func (p *Publisher) Forget(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.told, pod)
	delete(p.last, pod)
}

// Flush waits until everything is written or ctx ends.
func (p *Publisher) Flush(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
		return p.pending() == 0, nil
	})
	if err != nil {
		return fmt.Errorf("flushing outcomes with %d left, %w", p.pending(), err)
	}
	return nil
}

func (p *Publisher) pending() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.tasks)
}

// add has something written, unless more wait than limit says.
func (p *Publisher) add(name string, limit int, write func(ctx context.Context) error, lost func()) {
	p.mu.Lock()
	before, waits := p.tasks[name]
	if !waits && len(p.tasks) >= limit {
		p.mu.Unlock()
		lost()
		return
	}
	p.tasks[name] = task{version: before.version + 1, write: write, lost: lost}
	p.mu.Unlock()
	p.queue.Add(name)
}

func (p *Publisher) work(ctx context.Context) bool {
	name, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(name)
	p.mu.Lock()
	t, ok := p.tasks[name]
	p.mu.Unlock()
	if !ok {
		return true
	}
	err := t.write(ctx)
	switch {
	case err == nil, permanent(err):
		if err != nil {
			p.logger.V(2).Info("Outcome not written", "what", name, "err", err)
		}
	case p.queue.NumRequeues(name) < maxTries:
		p.queue.AddRateLimited(name)
		return true
	default:
		p.logger.Error(err, "Outcome given up", "what", name)
		t.lost()
	}
	p.queue.Forget(name)
	p.mu.Lock()
	if p.tasks[name].version == t.version {
		delete(p.tasks, name)
	}
	p.mu.Unlock()
	return true
}

// permanent says whether another try cannot help: the Pod is gone or replaced,
// its namespace is going, or the API server does not accept the object.
func permanent(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// patchCondition sets the Pod's condition. The UID keeps it off a Pod of the
// same name that was created later.
func (p *Publisher) patchCondition(ctx context.Context, o Outcome, now metav1.Time) error {
	condition := corev1.PodCondition{
		Type:               v1alpha1.ConditionAccelerator,
		Status:             o.Status,
		Reason:             o.Reason,
		Message:            o.Message,
		LastTransitionTime: now,
	}
	if existing := v1alpha1.AcceleratorCondition(o.Pod); existing != nil && existing.Status == o.Status {
		condition.LastTransitionTime = existing.LastTransitionTime
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": o.Pod.UID},
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	})
	if err != nil {
		return fmt.Errorf("encoding condition, %w", err)
	}
	_, err = p.client.CoreV1().Pods(o.Pod.Namespace).Patch(ctx, o.Pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("patching condition of pod %s, %w", klog.KObj(o.Pod), err)
	}
	return nil
}

// recordOf is the record of an outcome that was told so many times before.
func recordOf(o Outcome, before int) *v1alpha1.AllocationDecision {
	record := &v1alpha1.AllocationDecision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Pod.Namespace,
			Name:      RecordName(o.Pod, o.key, before),
		},
		Spec: *o.Decision.AllocationDecisionSpec.DeepCopy(),
	}
	if o.Decision.Policy != "" {
		record.Labels = map[string]string{v1alpha1.LabelPolicy: o.Decision.Policy}
	}
	return record
}
