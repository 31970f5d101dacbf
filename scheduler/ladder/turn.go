package ladder

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
)

// This file keeps the order among Pods that wait for devices when some come
// free. The end of one Pod is several events. The first of them wakes all that
// wait, and the device is free with a later one, in the middle of the round: the
// Pods tried before that were told no, and whoever is tried next would take what
// belongs to the first of them.
//
// So every Pod that waits remembers how much had come free when it was told no.
// Before a Pod is served the engine is asked about those that stand ahead of it
// and have not been asked since something more came free. If one of them could
// be served, it goes first: the Pod comes back with it, in the order.
//
// That costs those that can be served little, however many wait in vain: Pods
// that ask alike are asked about once, and a no is remembered until more comes
// free.

const (
	// maxYields is how often in a row a Pod lets others go first.
	maxYields = 3
	// maxAsks is how many kinds of Pods the engine is asked about before one is
	// served.
	maxAsks = 32
	// turnTimeout is how long others let a Pod go first that was woken and does
	// not come: another plugin refuses it before Ladder is asked.
	turnTimeout = 5 * time.Second
)

// kind is what the engine's answer about a Pod that waits depends on, but for
// the time it has waited. Pods whose claims no policy made are of their own.
type kind struct {
	namespace, policy, revision, turn string
	claims                            int
	alone                             types.UID
}

func kindOf(pod *corev1.Pod) kind {
	policy := pod.Labels[v1alpha1.LabelPolicy]
	made := revisionOfClaim(pod, policy)
	k := kind{
		namespace: pod.Namespace,
		policy:    policy,
		revision:  cmp.Or(pod.Labels[v1alpha1.LabelPolicyRevision], made),
		turn:      pod.Annotations[v1alpha1.AnnotationTurnModels],
		claims:    len(pod.Spec.ResourceClaims),
	}
	if k.policy == "" || k.claims != 1 || made == "" {
		k.alone = pod.UID
	}
	return k
}

// mustYield returns a Pod that has to be tried before this one is served, or
// nil. A Pod that has devices already is not served before anybody. The caller
// holds the lock of the engine.
func (p *Plugin) mustYield(s *search) *corev1.Pod {
	if len(s.part) == 0 || s.pod.Spec.SchedulingGroup != nil || s.holds() {
		return nil
	}
	w, asks, refused := p.core.waiting, 0, map[kind]time.Time{}
	for _, other := range w.ahead(s.pod, s.seen.gains) {
		// Who has waited longer may use more tiers.
		since, asked := refused[kindOf(other)]
		if !asked || other.CreationTimestamp.Time.Before(since) {
			if asks++; asks > maxAsks {
				break
			}
			if p.core.couldServe(other, s.now) {
				return other
			}
			refused[kindOf(other)] = other.CreationTimestamp.Time
		}
		w.told(other.UID, s.seen.gains)
	}
	return nil
}

// couldServe says whether the engine has a place for the Pod. The caller holds
// the lock of the engine.
func (c *Core) couldServe(pod *corev1.Pod, now time.Time) bool {
	candidates, err := c.engine.Candidates(decide.Query{Pod: keyOf(pod), Now: now})
	if err != nil {
		return false
	}
	for range candidates {
		return true
	}
	return false
}

// ahead returns the Pods that wait for devices, stand before this one, and were
// told no before as much had come free as now, in their order; none where the
// Pod has let others go first often enough.
func (w *waiting) ahead(pod *corev1.Pod, gains uint64) []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.parked[pod.UID]; w.settled >= gains || p != nil && p.yields >= maxYields {
		return nil
	}
	here, now, settled := placeOfPod(pod), w.clock.Now(), true
	var before []*corev1.Pod
	for _, p := range w.parked {
		if p.pod.Spec.SchedulingGroup != nil {
			continue // it is tried with its group only
		}
		missed := !p.woken.IsZero() && now.Sub(p.woken) > turnTimeout
		if p.hold != nil || p.gains >= gains || p.pod.UID == pod.UID || missed {
			continue
		}
		settled = false
		if placeOfPod(p.pod).compare(here) < 0 {
			before = append(before, p.pod)
		}
	}
	if settled {
		w.settled = gains
	}
	slices.SortFunc(before, func(a, b *corev1.Pod) int { return placeOfPod(a).compare(placeOfPod(b)) })
	return before
}

// told notes that the Pod would be told no with as much free as now.
func (w *waiting) told(uid types.UID, gains uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.parked[uid]; p != nil {
		p.gains = gains
	}
}

// yield parks a Pod that lets another go first, and has both tried in their
// order. Nothing is told of it: the Pod has not been refused.
func (w *waiting) yield(pod *corev1.Pod, activator fwk.PodActivator, first *corev1.Pod) *fwk.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.parked[pod.UID]
	// It has been told nothing yet, so that those behind it wait for it.
	p := &parkedPod{pod: pod, activator: activator, yields: 1}
	if before != nil {
		p.yields += before.yields
	}
	w.add(p)
	w.settled = 0
	w.due(first.UID)
	w.due(pod.UID)
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("%s stands ahead and is tried first", klog.KObj(first)))
}
