package integration_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/component-base/metrics/legacyregistry"

	"gpuladder.dev/ladder/policies/fleet"
)

// gated is how many Pods the queues of this process count as kept by a plugin.
func gated(t *testing.T) int {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "scheduler_pending_pods" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "queue" && l.GetValue() == "gated" {
					return int(m.GetGauge().GetValue())
				}
			}
		}
	}
	return 0
}

// waitForQueue waits until the queue has these Pods and counts so many of them as
// kept by a plugin.
func (c *cluster) waitForQueue(kept int, names ...string) {
	c.t.Helper()
	c.eventually(func() error {
		if got := gated(c.t); got != kept {
			return fmt.Errorf("%d Pods are kept, not %d", got, kept)
		}
		var there []string
		for _, pod := range c.scheduler.Sched.SchedulingQueue.UnschedulablePods() {
			there = append(there, pod.Name)
		}
		slices.Sort(there)
		if !slices.Equal(there, names) {
			return fmt.Errorf("the queue has the Pods %q, not %q", there, names)
		}
		return nil
	})
}

// TestWaitingPodsAreParked: the queue is not asked about Pods that Ladder alone
// refused, and whatever can help them wakes them all the same.
func TestWaitingPodsAreParked(t *testing.T) {
	c := newCluster(t)
	before := gated(t) // of schedulers that have ended
	c.addFleet(fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 1})
	c.addPolicy("h100", ladderOf("H100"))
	c.addPolicy("a100", ladderOf("A100"))
	c.startScheduler()
	// Another plugin refused it, so that the queue has to ask that one.
	c.addPod("greedy", "h100", withCPU("100000"))
	c.condition("greedy", "Pending")
	c.waitForQueue(before, "greedy")
	c.remove("greedy")
	c.addPod("first", "h100")
	c.placed("first")
	c.addPod("waits", "h100")
	c.addPod("never", "a100")
	c.condition("waits", "Pending")
	c.condition("never", "Unsatisfiable")
	c.waitForQueue(before+2, "never", "waits")

	// A claim that gives its device back.
	c.remove("first")
	c.placed("waits")
	// A node and its slice.
	c.addPod("next", "h100")
	c.condition("next", "Pending")
	c.waitForQueue(before+2, "never", "next")
	c.addFleet(fleet.Group{Name: "a100", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 1})
	c.placed("never")
	c.waitForQueue(before+1, "next")
	// A taint that goes.
	c.taint("h100-0000", "gpu-0")
	c.remove("waits")
	c.condition("next", "Pending")
	c.waitForQueue(before+1, "next")
	c.untaint("gpu-0")
	c.placed("next")
}
