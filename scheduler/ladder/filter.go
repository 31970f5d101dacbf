package ladder

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
)

// embeddedKey is where the embedded plugin keeps its state of a cycle.
const embeddedKey fwk.StateKey = dynamicresources.Name

// Filter implements fwk.FilterPlugin.
//
// The scheduler tries a Pod's nominated node alone before all others. A
// nomination may be older than the order of this attempt, so the node is
// refused there unless it comes first anyway; it is looked at again among the
// others.
func (p *Plugin) Filter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	s := searchOf(state)
	if s != nil && len(s.faulty) > 0 {
		return p.filterFaulty(ctx, state, pod, node)
	}
	if s != nil && s.extended.tries() {
		if !s.extended.trying.Has(node.Node().Name) {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "only nodes that the device plugin serves are looked at")
		}
		return p.DynamicResources.Filter(ctx, state, pod, node)
	}
	if s != nil {
		rank, listed := s.rank[node.Node().Name]
		if !listed {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "the node is not in the part of the order that is looked at")
		}
		if rank > 0 && node.Node().Name == pod.Status.NominatedNodeName && s.nominated.CompareAndSwap(true, false) {
			return fwk.NewStatus(fwk.Unschedulable, "the nomination is stale: other nodes come first now")
		}
	}
	return p.DynamicResources.Filter(ctx, state, pod, node)
}

// filterFaulty lets the embedded plugin's error through, which ends the attempt,
// and nothing else: whether the node serves the Pod is found out when the order
// comes to it.
func (p *Plugin) filterFaulty(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	status := p.DynamicResources.Filter(ctx, state, pod, node)
	if status.IsSuccess() || status.IsRejected() {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "a selector fails on a device of the node, but none that is needed")
	}
	return status
}

// PostFilter implements fwk.PostFilterPlugin: it gives back what is allocated to
// a Pod that can't be placed. For Pods that the engine does not decide on the
// embedded plugin does so, if it came to prepare itself.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if s := searchOf(state); s != nil {
		if p.goOnLater(state, s, statuses) {
			return nil, fwk.NewStatus(fwk.Unschedulable, "the next part of the order is looked at in another attempt")
		}
		switch released, err := p.release(ctx, s); {
		case err != nil:
			p.core.waiting.park(pod, p.handle, p.core.clock.Now().Add(releaseAgain), nil, s.seen)
			return nil, fwk.AsStatus(err)
		case released:
			return nil, fwk.NewStatus(fwk.Unschedulable, "devices that were allocated before were given back")
		}
	}
	if _, err := state.Read(embeddedKey); err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	return p.DynamicResources.PostFilter(ctx, state, pod, statuses)
}

// PreScore implements fwk.PreScorePlugin: Pods that the engine did not decide
// on are scored by the other plugins alone, and so are nodes that the device
// plugin serves.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if s := searchOf(state); s == nil || s.extended.tries() {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score implements fwk.ScorePlugin: the earlier in the order, the higher.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	s := searchOf(state)
	if s == nil {
		return 0, nil
	}
	return int64(len(s.part) - s.rank[node.Node().Name]), nil
}

// ScoreExtensions implements fwk.ScorePlugin.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore implements fwk.ScoreExtensions. The first node gets everything
// and the others nothing: a hundred points could not tell more than a hundred
// nodes apart, and ties would be broken at random.
func (p *Plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	best := 0
	for i := range scores {
		if scores[i].Score > scores[best].Score {
			best = i
		}
	}
	for i := range scores {
		if i == best {
			scores[i].Score = fwk.MaxScore
		} else {
			scores[i].Score = fwk.MinScore
		}
	}
	return nil
}
