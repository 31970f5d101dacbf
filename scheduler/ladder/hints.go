package ladder

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// EventsToRegister implements fwk.EnqueueExtensions: what wakes the embedded
// plugin's Pods, and what Ladder's wait for besides. Pods leaving a node before
// they were bound free devices that no written claim ever showed.
func (p *Plugin) EventsToRegister(ctx context.Context) ([]fwk.ClusterEventWithHint, error) {
	events, err := p.DynamicResources.EventsToRegister(ctx)
	if err != nil {
		return nil, err
	}
	events = append(events,
		fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: afterPodLeft},
		fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel}},
	)
	for i := range events {
		events[i].QueueingHintFn = p.core.waiting.hint(events[i].QueueingHintFn)
	}
	return append(events,
		fwk.ClusterEventWithHint{
			Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeTaint | fwk.UpdateNodeCondition},
			QueueingHintFn: p.core.waiting.afterNodeHealth,
		},
		fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Delete}, QueueingHintFn: p.core.waiting.afterGone},
		fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Delete}, QueueingHintFn: p.core.waiting.afterGone},
		fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: fwk.ResourceSlice, ActionType: fwk.Delete}, QueueingHintFn: p.core.waiting.afterGone},
	), nil
}

// afterPodLeft wakes Pods when one that held claims is gone.
func afterPodLeft(_ klog.Logger, pod *corev1.Pod, old, _ any) (fwk.QueueingHint, error) {
	left, ok := old.(*corev1.Pod)
	if ok && (!mayHoldDevices(left) || left.UID == pod.UID) { // itself, where it could not be bound
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// mayHoldDevices says whether the Pod may have had devices, by claims or by
// extended resources.
func mayHoldDevices(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || len(resourcesNamed(pod)) > 0
}

// hint wraps a queueing hint: a held Pod is woken only by what can end its hold,
// and every parked one by Ladder, not by the queue.
func (w *waiting) hint(inner fwk.QueueingHintFn) fwk.QueueingHintFn {
	return func(logger klog.Logger, pod *corev1.Pod, old, current any) (fwk.QueueingHint, error) {
		if !w.concerned(pod, old, current) {
			return fwk.QueueSkip, nil
		}
		if inner != nil {
			if hint, err := inner(logger, pod, old, current); err != nil || hint == fwk.QueueSkip {
				return hint, err
			}
		}
		if w.wakeSoon(pod.UID) {
			return fwk.QueueSkip, nil
		}
		return fwk.Queue, nil
	}
}

// afterNodeHealth wakes the Pods that are held because of a node's health; for
// all others other plugins look at it.
func (w *waiting) afterNodeHealth(_ klog.Logger, pod *corev1.Pod, _, current any) (fwk.QueueingHint, error) {
	node, ok := current.(*corev1.Node)
	if !ok {
		return fwk.QueueSkip, nil
	}
	return w.wakeParked(pod, func(p *parkedPod) bool { return p.hold != nil && p.mindsNode(causeHealth, node.Name) })
}

// afterGone wakes the Pods that are held because of a node or a pool, when it is
// gone, and those that wait for devices of a class: a device plugin may serve them
// now. Nobody else is served by that.
func (w *waiting) afterGone(_ klog.Logger, pod *corev1.Pod, old, _ any) (fwk.QueueingHint, error) {
	return w.wakeParked(pod, func(p *parkedPod) bool { return p.concerned(old, nil) })
}

// wakeParked wakes the Pod if it is parked and minds.
func (w *waiting) wakeParked(pod *corev1.Pod, minds func(*parkedPod) bool) (fwk.QueueingHint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.parked[pod.UID]; p != nil && minds(p) {
		w.due(pod.UID)
	}
	return fwk.QueueSkip, nil
}

// concerned says whether a change may end a Pod's wait. What is not known to be
// held is.
func (w *waiting) concerned(pod *corev1.Pod, old, current any) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parked[pod.UID]
	return p == nil || p.hold == nil || p.concerned(old, current)
}

// concerned says whether a change may end the Pod's hold.
func (p *parkedPod) concerned(old, current any) bool {
	changed := current
	if changed == nil {
		changed = old
	}
	switch o := final(changed).(type) {
	case nil: // a claim that is gone, of which nothing is known
		return p.minds(causeOwn | causeOthers)
	case *resourceapi.ResourceSlice:
		if current == nil {
			return p.mindsSlice(o, nil)
		}
		before, _ := old.(*resourceapi.ResourceSlice)
		return p.mindsSlice(before, o)
	case *corev1.Node:
		switch {
		case current == nil:
			return p.waitsForNode(o.Name)
		case old == nil:
			return p.mindsNode(causeNodes|causeNew, o.Name)
		}
		return p.mindsNode(causeNodes, o.Name)
	case *resourceapi.DeviceClass:
		return p.minds(causeClasses)
	case *resourceapi.ResourceClaim:
		if uses(p.pod, o) {
			before, _ := old.(*resourceapi.ResourceClaim)
			after, _ := current.(*resourceapi.ResourceClaim)
			return p.minds(causeOwn) && !p.wrote(before, after)
		}
		return p.minds(causeOthers)
	case *corev1.Pod:
		if o.UID == p.pod.UID {
			return p.minds(causeOwn)
		}
		return p.minds(causeOthers)
	}
	return true
}

// uses says whether the claim is one of the Pod's.
func uses(pod *corev1.Pod, claim *resourceapi.ResourceClaim) bool {
	return pod.Namespace == claim.Namespace && slices.Contains(claimNames(pod), nameOfClaim(claim))
}

// claimNames are the Pod's claims, as far as they have names yet.
func claimNames(pod *corev1.Pod) []types.NamespacedName {
	var names []types.NamespacedName
	for i := range pod.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != nil {
			names = append(names, types.NamespacedName{Namespace: pod.Namespace, Name: *name})
		}
	}
	return names
}

func nameOfClaim(claim *resourceapi.ResourceClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
}
