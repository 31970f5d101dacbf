package ladder

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/decide"
)

// bareHandle is the handle of a scheduler that takes plugins only.
type bareHandle struct {
	fwk.Handle
	queue queue
}

func (h *bareHandle) Activate(logger klog.Logger, pods map[string]*corev1.Pod) {
	h.queue.Activate(logger, pods)
}

// Where SchedulePod is not wrapped, the next attempt goes on where this one
// ended, until the order is through.
func TestSearchOverSeveralAttempts(t *testing.T) {
	pod := testPod()
	r := newRig(t, pod)
	handle := &bareHandle{}
	p := &Plugin{core: &Core{waiting: r.waiting}, handle: handle}
	var all []decide.Candidate
	for i := range 300 {
		all = append(all, candidate(fmt.Sprintf("n%03d", i), "t"))
	}
	var seen []string
	for attempts := 1; ; attempts++ {
		require.Less(t, attempts, 10)
		state := framework.NewCycleState()
		s := begin(state, pod, time.Unix(int64(attempts), 0), r.resume(pod.UID))
		assert.Equal(t, int32(attempts), s.attempt)
		assert.Equal(t, time.Unix(int64(attempts), 0), s.now)
		s.take(slices.Values(fleetOf(s.query(), all)))
		assert.Less(t, len(s.part), 100, "kube-scheduler would not look at all of it")
		seen = append(seen, nodesOf(s.part)...)
		statuses := framework.NewDefaultNodeToStatus()
		for _, c := range s.part {
			statuses.Set(c.Node, refusal(fwk.Unschedulable, "NodeResourcesFit", "Insufficient cpu"))
		}
		goesOn := p.goOnLater(state, s, statuses)
		assert.Equal(t, len(s.part) > 0, goesOn)
		if !goesOn {
			break
		}
		assert.Equal(t, []string{"ns/p"}, handle.queue.take(), "at once")
	}
	assert.Len(t, seen, 300)
	assert.True(t, slices.IsSorted(seen))
	assert.Nil(t, r.resume(pod.UID), "the next attempt begins anew")
}

// profile is a framework of which only that setting is asked.
type profile struct {
	framework.Framework
	percentage *int32
}

func (p profile) PercentageOfNodesToScore() *int32 { return p.percentage }

// What the engine decides is looked at whole, and nothing else is.
func TestWholeParts(t *testing.T) {
	for _, of := range []*int32{nil, ptr.To[int32](5)} {
		state := framework.NewCycleState()
		asked := func() *int32 { return whole{profile{percentage: of}, state}.PercentageOfNodesToScore() }
		assert.Equal(t, of, asked(), "no search")
		s := begin(state, testPod(), time.Unix(0, 0), nil)
		s.take(slices.Values([]decide.Candidate{candidate("a", "t")}))
		assert.Equal(t, ptr.To[int32](100), asked())
		s.abandon()
		assert.Equal(t, of, asked(), "no search any more")
	}
}

func TestWrappedSearchEndsInOneAttempt(t *testing.T) {
	r := newRig(t, testPod())
	p := &Plugin{core: &Core{waiting: r.waiting}, handle: &bareHandle{}}
	state := framework.NewCycleState()
	state.Write(attemptKey, attempt(1))
	s := begin(state, testPod(), time.Unix(0, 0), nil)
	s.take(slices.Values([]decide.Candidate{candidate("a", "t")}))
	assert.False(t, p.goOnLater(state, s, framework.NewDefaultNodeToStatus()))
	assert.Nil(t, r.resume(s.pod.UID))
	// What a Pod left is gone with it.
	r.unfinished(s)
	r.forget(s.pod.UID)
	assert.Nil(t, r.resume(s.pod.UID))
}
