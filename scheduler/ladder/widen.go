package ladder

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/scheduler/metrics"
)

// Widen makes the scheduler go on with the next part of the order, in the same
// attempt, when no node of a part passes. It must be called before Run; where
// informers have not started either, [Core.Attach] does more.
func Widen(sched *scheduler.Scheduler) {
	sched.SchedulePod = widened(sched.SchedulePod)
}

type schedulePod = func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (scheduler.ScheduleResult, error)

func widened(next schedulePod) schedulePod {
	return func(ctx context.Context, f framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo) (scheduler.ScheduleResult, error) {
		state.Write(attemptKey, attempt(pod.Attempts))
		for {
			result, err := next(ctx, whole{f, state}, state, pod)
			s := searchOf(state)
			var misfit *framework.FitError
			if s != nil && errors.As(err, &misfit) {
				if again, pause := s.refuse(misfit.Diagnosis); again && goOn(ctx, pause) {
					continue
				}
				s.conclude(&misfit.Diagnosis)
			}
			if s != nil {
				metrics.SearchRounds.Observe(float64(s.rounds))
			}
			return result, err
		}
	}
}

// whole is a framework that has every node of a part looked at. Of a hundred
// nodes and more kube-scheduler takes the first percentageOfNodesToScore that
// pass, wherever it begins, and could miss the one that comes first in the order.
// Pods that the engine does not decide about are left to the profile.
type whole struct {
	framework.Framework
	state fwk.CycleState
}

// PercentageOfNodesToScore implements framework.Framework.
func (w whole) PercentageOfNodesToScore() *int32 {
	if s := searchOf(w.state); s != nil && len(s.part) > 0 {
		return ptr.To[int32](100)
	}
	return w.Framework.PercentageOfNodesToScore()
}

// bareWidth is the longest part where SchedulePod is not wrapped: of fewer than a
// hundred nodes kube-scheduler looks at all.
const bareWidth = 64

// goOnLater is what is left where SchedulePod can't be wrapped: in a harness
// that takes plugins only. The next attempt, at once, goes on with the next part
// of the order. Other than within one attempt, a node that was refused in an
// earlier part may serve by then; it is not looked at again.
func (p *Plugin) goOnLater(state fwk.CycleState, s *search, statuses fwk.NodeToStatusReader) bool {
	if _, err := state.Read(attemptKey); err == nil {
		return false
	}
	d := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}
	for _, c := range s.part {
		d.NodeToStatus.Set(c.Node, statuses.Get(c.Node))
	}
	if s.extended.tries() {
		for node := range s.extended.trying {
			d.NodeToStatus.Set(node, statuses.Get(node))
		}
	}
	if again, _ := s.refuse(d); !again {
		return false
	}
	s.width = min(s.width, bareWidth)
	p.core.waiting.unfinished(s)
	p.handle.Activate(klog.Background(), map[string]*corev1.Pod{klog.KObj(s.pod).String(): s.pod})
	return true
}

// goOn pauses and says whether there is still reason to go on.
func goOn(ctx context.Context, pause time.Duration) bool {
	if pause == 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}
