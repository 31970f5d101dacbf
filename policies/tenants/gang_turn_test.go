package tenants

// What can be changed of a gang after its turn has come lets nobody in.

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// A gang that was let in with one Pod is raised to three.
func TestRaisedGangHasNoTurnForMore(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "T4", 1)
	w.gpus("m", "H100", 8)
	w.policy("t", nil, tier("T4"))
	w.policy("h", nil, tier("H100"))
	w.quota("team", []string{"team"}, part("T4", 0, 8), part("H100", 0, 8))
	w.quota("owner", []string{"owner"}, part("H100", 8, 8))
	firm := func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPreemptible] = "false" }
	group := w.group("team", "job", 1)
	first := w.pod("team", "job-0", "t", of("job"))
	w.expect("Open team/job-0")
	w.opened(first)
	for _, least := range []int32{3, math.MaxInt32} {
		raised := group.DeepCopy()
		raised.Spec.SchedulingPolicy.Gang.MinCount = least
		w.put(raised)
		w.now = w.now.Add(time.Second)
		w.pod("team", "job-1", "h", of("job"), firm)
		w.pod("team", "job-2", "t", of("job"))
		w.expect() // the H100 are guaranteed to the owner, the T4 is taken
		w.requireUsage("team", "T4", 0, 1)
		w.requireUsage("team", "H100", 0, 0)
		w.requireSameAsRestarted()
	}
}

// One that is gone before it had devices is replaced by its like alone.
func TestOnlyTheLikeTakeAPlace(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "T4", 2)
	w.gpus("m", "H100", 1)
	w.policy("t", nil, tier("T4"))
	w.policy("h", nil, tier("H100"))
	w.quota("team", []string{"team"}, part("T4", 0, 8), part("H100", 0, 8))
	w.quota("owner", []string{"owner"}, part("H100", 1, 1))
	w.group("team", "job", 2)
	a, b := w.pod("team", "job-a", "t", of("job")), w.pod("team", "job-b", "t", of("job"))
	w.expect("Open team/job-a", "Open team/job-b")
	a = w.opened(a)
	w.requireSameAsRestarted() // the second gate is opened by the next controller
	b = w.opened(b)
	w.requireUsage("team", "T4", 0, 2)
	w.remove(b)
	w.pod("team", "job-c", "h", of("job"), func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPreemptible] = "false" })
	w.expect()
	w.requireUsage("team", "T4", 0, 2)
	w.pod("team", "job-d", "t", of("job"))
	w.expect("Open team/job-d")
	w.requireSameAsRestarted()
	w.requireUsage("team", "T4", 0, 2)
	_ = a
}
