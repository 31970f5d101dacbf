package ladder

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// This file keeps Pods that wait for devices from slowing down those that need
// not. At every change in the cluster kube-scheduler's queue asks, for each Pod
// that waits, each plugin that refused it whether the change can help. With
// thousands of Pods waiting that is most of what a scheduler does.
//
// A Pod that nobody but Ladder refused is parked instead: the plugin Park keeps
// it out at PreEnqueue, and since that plugin registers no events, the queue
// passes over the Pod without a question. Ladder sees the same changes at the
// same moment, for it stands in front of the queue, and wakes the Pods that one
// concerns; see wake.go. What concerns a Pod is the same either way: see
// hints.go.

// ParkName is the name of the plugin Park in the registry and in configurations.
const ParkName = "LadderPark"

// maxParked is how long a Pod is parked that no change concerned. It is what
// kube-scheduler's queue waits before it tries a Pod for which it missed an
// event.
const maxParked = 5 * time.Minute

// Park is the plugin that keeps parked Pods out of the scheduling queue. It is a
// plugin of its own because the queue asks the plugin that keeps a Pod out, for
// each event that it registered, and Ladder registers many.
//
// It does nothing until [Core.Attach], which brings the events to Ladder.
type Park struct {
	core   *Core
	handle fwk.Handle
}

var (
	_ fwk.PreEnqueuePlugin  = &Park{}
	_ fwk.EnqueueExtensions = &Park{}
)

// NewPark makes the plugin for a profile.
func (c *Core) NewPark(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &Park{core: c, handle: h}, nil
}

// Name implements fwk.Plugin.
func (*Park) Name() string { return ParkName }

// EventsToRegister implements fwk.EnqueueExtensions: none, on purpose.
func (*Park) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

// PreEnqueue implements fwk.PreEnqueuePlugin.
func (p *Park) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	if !p.core.parks || !concernsLadder(pod) {
		return nil
	}
	if why := p.core.waiting.held(pod, p.handle); why != "" {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why)
	}
	if p.core.waiting.isParked(pod.UID) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "waiting for a change that can help")
	}
	return nil
}

// Attach joins the scheduler and Ladder: searches go on within one attempt, and
// Pods that wait for devices are parked, if all profiles with Ladder have the
// plugin Park. It must be called before informers start and the scheduler runs.
func (c *Core) Attach(sched *scheduler.Scheduler) {
	Widen(sched)
	if c.waiting == nil {
		return // no profile has Ladder
	}
	for _, profile := range sched.Profiles {
		enabled := func(name string) bool {
			return slices.ContainsFunc(profile.ListPlugins().PreEnqueue.Enabled, func(p config.Plugin) bool { return p.Name == name })
		}
		if enabled(Name) && !enabled(ParkName) {
			return
		}
	}
	c.parks = true
	c.mirror.TellOfSlices()
	sched.SchedulingQueue = &front{SchedulingQueue: sched.SchedulingQueue, waiting: c.waiting, slices: c.mirror.NoteSlices}
}

// front stands before the scheduling queue.
type front struct {
	internalqueue.SchedulingQueue
	waiting *waiting
	// slices is called when a slice, or a rule that taints devices, changed.
	slices func()
}

// MoveAllToActiveOrBackoffQueue implements internalqueue.SchedulingQueue.
func (f *front) MoveAllToActiveOrBackoffQueue(logger klog.Logger, event fwk.ClusterEvent, old, current any, check internalqueue.PreEnqueueCheck) {
	if event.Resource == fwk.ResourceSlice {
		f.slices()
	}
	f.SchedulingQueue.MoveAllToActiveOrBackoffQueue(logger, event, old, current, check)
	f.waiting.observe(event, old, current)
}

// Update implements internalqueue.SchedulingQueue.
func (f *front) Update(ctx context.Context, old, current *corev1.Pod) {
	f.SchedulingQueue.Update(ctx, old, current)
	if !sameLabels(old.Labels, current.Labels) || !sameAnnotations(old, current) || !apiequality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, current.Status.ResourceClaimStatuses) {
		f.waiting.observeOwn(current)
	}
}

// AddUnschedulablePodIfNotPresent implements internalqueue.SchedulingQueue: a Pod that
// Ladder alone refused is shown to PreEnqueue, which keeps it.
func (f *front) AddUnschedulablePodIfNotPresent(logger klog.Logger, info *framework.QueuedPodInfo, cycle int64) error {
	pod := info.Pod
	alone := info.PendingPlugins.Len() == 0 && info.UnschedulablePlugins.Len() == 1 && info.UnschedulablePlugins.Has(Name)
	parks := alone && f.waiting.parkFirmly(pod)
	if err := f.SchedulingQueue.AddUnschedulablePodIfNotPresent(logger, info, cycle); err != nil {
		return err
	}
	if parks {
		f.Activate(logger, map[string]*corev1.Pod{klog.KObj(pod).String(): pod})
	}
	return nil
}

// parkFirmly has PreEnqueue keep a Pod that waits for devices until it is woken,
// and says whether PreEnqueue has to be asked. Members of groups are tried with
// their groups only.
func (w *waiting) parkFirmly(pod *corev1.Pod) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parked[pod.UID]
	if p == nil || !p.woken.IsZero() || pod.Spec.SchedulingGroup != nil {
		return false
	}
	p.since = w.clock.Now()
	// What changed until now nobody was told of.
	if current := w.current(pod); current != nil && !sameAnnotations(p.pod, current) && p.minds(causeOwn) {
		w.due(pod.UID)
	}
	return true
}

// isParked says whether PreEnqueue has to keep the Pod.
func (w *waiting) isParked(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parked[uid]
	return p != nil && !p.since.IsZero() && w.clock.Since(p.since) < maxParked
}

// observe wakes the parked Pods that a change may help. The queue asks about all
// others itself.
func (w *waiting) observe(event fwk.ClusterEvent, old, current any) {
	changed := concern(event, old, current)
	w.mu.Lock()
	defer w.mu.Unlock()
	wakeIf := func(p *parkedPod) {
		if p.kept() && changed.concerns(p) {
			w.due(p.pod.UID)
		}
	}
	switch {
	case changed.concerns == nil:
	case changed.of != noClaim:
		for uid := range w.users[changed.of] {
			wakeIf(w.parked[uid])
		}
	default:
		for _, p := range w.parked {
			wakeIf(p)
		}
	}
}

// observeOwn wakes a Pod that is kept and has changed in what Ladder reads of it.
func (w *waiting) observeOwn(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.parked[pod.UID]; p != nil && p.kept() && p.minds(causeOwn) {
		w.due(pod.UID)
	}
}

// kept says whether PreEnqueue keeps the Pod, so that the queue asks about it at
// no event.
func (p *parkedPod) kept() bool { return p.hold != nil || !p.since.IsZero() }

// noClaim is the name of no claim.
var noClaim types.NamespacedName

// concerned is whom a change may help: of the Pods of a claim, or of all where
// none is named, those that it concerns; nobody where concerns is nil.
type concerned struct {
	of       types.NamespacedName
	concerns func(*parkedPod) bool
}

// concern returns which parked Pods a change may help. It says of each change,
// for all Pods at once, what the hints of [Plugin.EventsToRegister] say for one.
func concern(event fwk.ClusterEvent, old, current any) concerned {
	changed := current
	if changed == nil {
		changed = old
	}
	if event.Resource == fwk.ResourceClaim {
		claim, _ := final(changed).(*resourceapi.ResourceClaim)
		return concernOfClaim(old, current, claim)
	}
	return concerned{concerns: concernOfOthers(event, old, current, final(changed))}
}

// concernOfOthers is concern for all but claims.
func concernOfOthers(event fwk.ClusterEvent, old, current, changed any) func(*parkedPod) bool {
	switch o := changed.(type) {
	case *resourceapi.ResourceSlice:
		if current == nil {
			return func(p *parkedPod) bool { return p.mindsSlice(o, nil) }
		}
		before, _ := old.(*resourceapi.ResourceSlice)
		return func(p *parkedPod) bool { return p.mindsSlice(before, o) }
	case *resourceapi.DeviceClass:
		return func(p *parkedPod) bool { return p.minds(causeClasses) }
	case *corev1.Node:
		return concernOfNode(event.ActionType, o.Name)
	case *corev1.Pod:
		if event.Resource != fwk.AssignedPod || event.ActionType&fwk.Delete == 0 || !mayHoldDevices(o) {
			return nil
		}
		// One that could not be bound is told of as one that left.
		return func(p *parkedPod) bool { return p.pod.UID != o.UID && p.minds(causeOthers) }
	}
	return nil
}

func concernOfNode(action fwk.ActionType, name string) func(*parkedPod) bool {
	if action&fwk.Delete != 0 {
		return func(p *parkedPod) bool { return p.waitsForNode(name) }
	}
	c := causeNodes
	if action&fwk.Add != 0 {
		c |= causeNew
	}
	placed := action&(fwk.Add|fwk.UpdateNodeLabel|fwk.UpdateNodeAllocatable) != 0
	health := action&(fwk.UpdateNodeTaint|fwk.UpdateNodeCondition) != 0
	if !placed && !health {
		return nil
	}
	return func(p *parkedPod) bool {
		return placed && p.mindsNode(c, name) || health && p.hold != nil && p.mindsNode(causeHealth, name)
	}
}

// concernOfClaim: a claim that gives devices back concerns all that wait for
// devices, and any other change the Pods of the claim. The claim is nil where
// nothing is known of one that is gone.
func concernOfClaim(old, current any, claim *resourceapi.ResourceClaim) concerned {
	before, known := old.(*resourceapi.ResourceClaim)
	after, _ := current.(*resourceapi.ResourceClaim)
	freed := old != nil && !known // what it held is not known
	if known {
		freed = before.Status.Allocation != nil && (after == nil || after.Status.Allocation == nil)
		if !freed && (after == nil || apiequality.Semantic.DeepEqual(&before.Status, &after.Status)) {
			return concerned{}
		}
	}
	if claim == nil {
		return concerned{concerns: func(p *parkedPod) bool { return p.minds(causeOwn | causeOthers) }}
	}
	name := nameOfClaim(claim)
	if !freed {
		return concerned{of: name, concerns: func(p *parkedPod) bool { return p.minds(causeOwn) && !p.wrote(before, after) }}
	}
	return concerned{concerns: func(p *parkedPod) bool {
		if slices.Contains(p.claims, name) {
			return p.minds(causeOwn)
		}
		return p.minds(causeOthers)
	}}
}
