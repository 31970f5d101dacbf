package integration_test

import (
	"fmt"
	"testing"

	"gpuladder.dev/ladder/policies/fleet"
	"gpuladder.dev/ladder/scheduler/ladder"
)

// keptBy waits until the queue has the Pod, kept by a plugin; "" for none.
func (c *cluster) keptBy(name, plugin string) {
	c.t.Helper()
	c.eventually(func() error {
		info, ok := c.scheduler.Sched.SchedulingQueue.GetPod(name, namespace, nil)
		if !ok {
			return fmt.Errorf("the queue has no Pod %s", name)
		}
		if info.GatingPlugin != plugin {
			return fmt.Errorf("the queue has Pod %s, kept by %q, not by %q", name, info.GatingPlugin, plugin)
		}
		return nil
	})
}

// TestWaitingPodsAreParked: the queue is not asked about Pods that Ladder alone
// refused, and whatever can help them wakes them all the same.
func TestWaitingPodsAreParked(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 1})
	c.addPolicy("h100", ladderOf("H100"))
	c.addPolicy("a100", ladderOf("A100"))
	c.startScheduler()
	// Another plugin refused it, so that the queue has to ask that one.
	c.addPod("greedy", "h100", withCPU("100000"))
	c.condition("greedy", "Pending")
	c.keptBy("greedy", "")
	c.remove("greedy")
	c.addPod("first", "h100")
	c.placed("first")
	c.addPod("waits", "h100")
	c.addPod("never", "a100")
	c.condition("waits", "Pending")
	c.condition("never", "Unsatisfiable")
	c.keptBy("waits", ladder.ParkName)
	c.keptBy("never", ladder.ParkName)

	// A claim that gives its device back.
	c.remove("first")
	c.placed("waits")
	// A node and its slice.
	c.addPod("next", "h100")
	c.condition("next", "Pending")
	c.keptBy("next", ladder.ParkName)
	c.addFleet(fleet.Group{Name: "a100", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 1})
	c.placed("never")
	c.keptBy("next", ladder.ParkName)
	// A taint that goes.
	c.taint("h100-0000", "gpu-0")
	c.remove("waits")
	c.condition("next", "Pending")
	c.keptBy("next", ladder.ParkName)
	c.untaint("gpu-0")
	c.placed("next")
}
