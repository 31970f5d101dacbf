package integration_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
	"gpuladder.dev/ladder/policies/journal"
	"gpuladder.dev/ladder/scheduler/outcome"
)

// startWithGroups runs the scheduler as a process, because feature gates are
// those of a process.
func (c *cluster) startWithGroups(args ...string) (stop func()) {
	c.t.Helper()
	process := c.startProcess(append(args, "--secure-port=0", "--leader-elect=false", "--feature-gates=GenericWorkload=true")...)
	stop = sync.OnceFunc(func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	})
	c.t.Cleanup(stop)
	return stop
}

// addGroup makes a PodGroup that starts with so many Pods.
func (c *cluster) addGroup(name string, least int32, opts ...func(*schedulingv1beta1.PodGroup)) {
	c.t.Helper()
	group := &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
			Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: least},
		}},
	}
	for _, opt := range opts {
		opt(group)
	}
	c.create(group)
}

func inGroup(name string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(name)}
	}
}

// twoAndFour is one node with two H100 and two with two A100 each.
func twoAndFour() []fleet.Group {
	return []fleet.Group{
		{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 2},
		{Name: "a100", Nodes: 2, Board: "A100-SXM4-80GB", GPUs: 2},
	}
}

// addMembers makes Pods of a group that follow a policy.
func (c *cluster) addMembers(group, policy string, n int, opts ...podOption) (names []string) {
	c.t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s-%d", group, i)
		c.addPod(name, policy, append([]podOption{inGroup(group)}, opts...)...)
		names = append(names, name)
	}
	return names
}

func (c *cluster) placesOf(names []string) (places []string) {
	c.t.Helper()
	for _, name := range names {
		places = append(places, c.placed(name))
	}
	return places
}

// A group takes the first tier that can serve all of it, and its Pods say why
// not a better one. Where the policy lets tiers mix, each takes what it can get.
func TestGroupTakesOneTier(t *testing.T) {
	c := newCluster(t)
	c.addFleet(twoAndFour()...)
	c.addPolicy("one", ladderOf("H100", "A100"))
	mixing := ladderOf("H100", "A100")
	mixing.MixTiers = v1alpha1.MixTiersWithinGroup
	c.addPolicy("mixing", mixing)
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	stop := c.startWithGroups("--journal=" + path)

	c.addGroup("mixed", 3)
	mixed := c.addMembers("mixed", "mixing", 3)
	assert.ElementsMatch(t, []string{"h100-0000/gpu-0", "h100-0000/gpu-1", "a100-0000/gpu-0"}, c.placesOf(mixed))
	for _, name := range mixed {
		c.remove(name)
	}

	c.addGroup("job", 3)
	job := c.addMembers("job", "one", 3)
	assert.ElementsMatch(t, []string{"a100-0000/gpu-0", "a100-0000/gpu-1", "a100-0001/gpu-0"}, c.placesOf(job))
	for _, name := range job {
		record := c.record(name, v1alpha1.OutcomeAllocated)
		assert.Equal(t, int32(2), count(record, "t0", v1alpha1.ReasonGroupNotServed), name)
		assert.Contains(t, details(record, "t0", v1alpha1.ReasonGroupNotServed)["h100-0000"], "can serve 2 of the group's 3 Pods")
		assert.Equal(t, "t1", c.pod(name).Annotations[v1alpha1.AnnotationTier])
	}
	// One more Pod of the group goes where the others are, though H100 is free.
	c.addPod("late", "one", inGroup("job"))
	assert.Equal(t, "a100-0001/gpu-1", c.placed("late"))
	record := c.record("late", v1alpha1.OutcomeAllocated)
	assert.Contains(t, details(record, "t0", v1alpha1.ReasonGroupNotServed)["h100-0000"], "other Pods of the group have tier t1")

	stop()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	report, err := journal.Replay(file)
	require.NoError(t, err)
	assert.Empty(t, report.Differences)
	assert.GreaterOrEqual(t, report.Decisions, 7)
}

// None of a group is placed before all are, and all are as soon as they can be.
func TestGroupWaitsTogether(t *testing.T) {
	c := newCluster(t)
	c.addFleet(twoAndFour()...)
	c.addPolicy("one", ladderOf("H100", "A100"))
	c.startWithGroups()
	// Preemption may look for victims below it, and finds that none would help.
	urgent := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Value: 10}
	c.create(urgent)
	t.Cleanup(func() { _ = c.Delete(context.Background(), urgent) })
	c.addPod("other", "one")
	require.Equal(t, "h100-0000/gpu-0", c.placed("other"))
	c.addPod("another", "one")
	require.Equal(t, "h100-0000/gpu-1", c.placed("another"))

	c.addGroup("job", 5, func(g *schedulingv1beta1.PodGroup) { g.Spec.PriorityClassName = urgent.Name })
	job := c.addMembers("job", "one", 5, func(p *corev1.Pod) { p.Spec.PriorityClassName = urgent.Name })
	record := c.record(job[0], v1alpha1.OutcomePending)
	assert.Equal(t, int32(4), count(record, "t1", v1alpha1.ReasonGroupNotServed))
	c.eventually(func() error {
		if text := c.scheduled(job[0]); !strings.HasPrefix(text, "False "+corev1.PodReasonUnschedulable) {
			return fmt.Errorf("PodScheduled is %q", text)
		}
		return nil
	})
	for _, name := range job {
		assert.Empty(t, c.pod(name).Spec.NodeName, name)
	}
	c.addFleet(fleet.Group{Name: "more", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 1})
	assert.ElementsMatch(t, []string{
		"a100-0000/gpu-0", "a100-0000/gpu-1", "a100-0001/gpu-0", "a100-0001/gpu-1", "more-0000/gpu-0",
	}, c.placesOf(job))
}

// What was allocated to a Pod of a group before and can't be used any more, or
// not on its node, is given back, and the group gets other devices.
func TestGroupGivesBackWhatItCannotUse(t *testing.T) {
	for name, spoil := range map[string]func(c *cluster, job []string){
		"tainted": func(c *cluster, job []string) {
			c.allocate(job[0]+"-accelerator", v1alpha1.RequestName+"/t0", "h100-0000", "gpu-1")
			c.taint("h100-0000", "gpu-1")
		},
		// Which of the two is tried first does not matter.
		"tainted, of the other": func(c *cluster, job []string) {
			c.allocate(job[1]+"-accelerator", v1alpha1.RequestName+"/t0", "h100-0000", "gpu-1")
			c.taint("h100-0000", "gpu-1")
		},
		"gone": func(c *cluster, job []string) {
			c.allocate(job[0]+"-accelerator", v1alpha1.RequestName+"/t0", "h100-0000", "gpu-7")
			c.taint("h100-0000", "gpu-1")
		},
		"on a node that is full": func(c *cluster, job []string) {
			c.allocate(job[1]+"-accelerator", v1alpha1.RequestName+"/t0", "h100-0002", "gpu-0")
			node := &corev1.Node{}
			require.NoError(c.t, c.Get(c.t.Context(), clusterKey("h100-0002"), node))
			node.Spec.Unschedulable = true
			require.NoError(c.t, c.Update(c.t.Context(), node))
			c.taint("h100-0000", "gpu-1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.addFleet(small(3))
			c.addPolicy("h100", ladderOf("H100"))
			c.addGroup("job", 2)
			job := c.addMembers("job", "h100", 2)
			spoil(c, job)
			c.startWithGroups()
			assert.ElementsMatch(t, []string{"h100-0000/gpu-0", "h100-0001/gpu-0"}, c.placesOf(job))
		})
	}
}

// What other plugins refuse shows only when the Pods are placed: the group then
// takes the next tier.
func TestGroupTakesTheNextTierWhereOthersRefuse(t *testing.T) {
	c := newCluster(t)
	c.addFleet(twoAndFour()...)
	c.addPolicy("one", ladderOf("H100", "A100"))
	full := plainPod("full", withCPU("31"))
	full.Spec.NodeName = "h100-0000"
	c.create(full)
	c.startWithGroups()
	c.addGroup("job", 2)
	job := c.addMembers("job", "one", 2, withCPU("1"))
	assert.ElementsMatch(t, []string{"a100-0000/gpu-0", "a100-0000/gpu-1"}, c.placesOf(job))
	for _, name := range job {
		record := c.record(name, v1alpha1.OutcomeAllocated)
		assert.Contains(t, details(record, "t0", v1alpha1.ReasonGroupNotServed)["h100-0000"], "Insufficient cpu", name)
	}
}

// kube-scheduler reserves for a group twice, and gives back in between. With what
// was reserved for the last Pod still counted, the first would go elsewhere: both
// nodes have one device left for it then, and b comes before z.
func TestGroupReservedTwice(t *testing.T) {
	c := newCluster(t)
	c.addFleet(
		fleet.Group{Name: "z", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 3},
		fleet.Group{Name: "b", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 4},
	)
	c.addPolicy("one", ladderOf("A100"))
	c.startWithGroups()
	c.addGroup("job", 6)
	job := c.addMembers("job", "one", 6)
	assert.ElementsMatch(t, []string{
		"z-0000/gpu-0", "z-0000/gpu-1", "z-0000/gpu-2", "b-0000/gpu-0", "b-0000/gpu-1", "b-0000/gpu-2",
	}, c.placesOf(job))
	for _, name := range job {
		c.record(name, v1alpha1.OutcomeAllocated)
		for _, e := range c.events(name, "Accelerator"+outcome.ReasonPending) {
			assert.NotContains(t, e.Note, "disagree", name)
		}
	}
}

// A device that comes free while a group is being placed makes no difference to it:
// with gpu-0 free the first Pod would be decided on differently the second time.
func TestGroupKeepsToWhatWasFoundOut(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "a", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 3})
	c.addPolicy("one", ladderOf("A100"))
	free := sync.OnceFunc(func() {
		if _, err := c.place("holder"); err != nil {
			t.Error(err)
		}
		c.remove("holder")
		time.Sleep(time.Second) // until the scheduler has heard of it
	})
	c.startWithGroups("--config=" + c.configWithExtender(extender(t, func(pod, _ string) bool {
		if pod == "job-1" {
			free()
		}
		return false
	}).URL))
	c.addPod("holder", "one")
	assert.Equal(t, "a-0000/gpu-0", c.placed("holder"))
	c.addGroup("job", 2)
	assert.Equal(t, []string{"a-0000/gpu-1", "a-0000/gpu-2"}, c.placesOf(c.addMembers("job", "one", 2)))
	for _, name := range []string{"job-0", "job-1"} {
		assert.Empty(t, c.events(name, "Accelerator"+outcome.ReasonPending))
	}
}

// A Pod that replaces one of a gang after the policy was changed does not wait for a
// tier that the policy has no more.
func TestReplacedAfterTheTiersChanged(t *testing.T) {
	c := newCluster(t)
	c.addFleet(twoAndFour()...)
	c.addPolicy("one", ladderOf("H100", "A100"))
	c.startWithGroups()
	c.addGroup("job", 2)
	job := c.addMembers("job", "one", 2)
	c.placesOf(job)
	changed := ladderOf("A100")
	changed.Tiers[0].Name = "other"
	c.addRevision("one", 2, changed)
	c.remove(job[1])
	c.addPodOf("again", "one", 2, inGroup("job"))
	assert.Contains(t, c.placed("again"), "a100-")
}

// A Pod of a group is not held for what is wrong with another of them, which would
// keep the group from being tried: when a sound one has come both are placed.
func TestGroupWithAMistake(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 4})
	c.addPolicy("one", ladderOf("H100"))
	c.addPolicy("two", ladderOf("H100", "A100"))
	c.startWithGroups()
	c.addPod("first", "one")
	c.placed("first")
	c.addGroup("job", 2)
	c.addPod("a", "one", inGroup("job")) // it comes before b, so it is tried before
	sound := c.templates["one-1"]
	c.templates["one-1"] = c.templates["two-1"]
	c.addPod("b", "one", inGroup("job"))
	c.templates["one-1"] = sound
	c.eventually(func() error { return c.says("a", "Pod default/b") })
	c.remove("b")
	c.addPod("c", "one", inGroup("job"))
	c.placed("a")
	c.placed("c")
}

// Members that share a claim beside claims of their own are not placed past the
// tenant's limit, whether one of them is enough for the group or all are needed.
func TestGroupThatSharesAClaimHasALimit(t *testing.T) {
	for name, test := range map[string]struct {
		least  int32
		placed int
		told   string
	}{
		"one is enough":  {1, 1, string(v1alpha1.ReasonQuotaExceeded)},
		"all are needed": {3, 0, `the claim "link"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.addFleet(fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 8})
			c.create(&v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: v1alpha1.TenantQuotaSpec{
				Namespaces: []string{namespace}, Models: []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](2)}},
			}})
			c.addPlain("link", "true", func(p *corev1.Pod) {
				p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}}
			})
			c.addGroup("job", test.least)
			var job []string
			for i := range 3 {
				name := fmt.Sprintf("job-%d", i)
				job = append(job, name)
				c.addPlain(name, "true", inGroup("job"), func(p *corev1.Pod) {
					p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "link", ResourceClaimName: ptr.To("link")}}
					p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "link"}}
				})
			}
			c.startWithGroups()
			c.eventually(func() error {
				told, placed := 0, 0
				for _, name := range job {
					pod := c.pod(name)
					if pod.Spec.NodeName != "" {
						placed++
					} else if condition := conditionOf(pod); condition != nil && strings.Contains(condition.Message, test.told) {
						told++
					}
				}
				if placed != test.placed || told == 0 {
					return fmt.Errorf("%d are placed, and %d say why not", placed, told)
				}
				return nil
			})
		})
	}
}

// Members that share a claim beside the claims of their policy are not placed
// past the policy: it is told that they can't be.
func TestGroupThatSharesAClaim(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 4})
	c.addPolicy("one", ladderOf("H100"))
	c.addPlain("link", "true", func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}}
	})
	c.startWithGroups()
	c.addGroup("job", 2)
	job := c.addMembers("job", "one", 2, func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "link", ResourceClaimName: ptr.To("link")}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "link"}}
	})
	c.eventually(func() error {
		for _, name := range job {
			if condition := conditionOf(c.pod(name)); condition != nil && strings.Contains(condition.Message, `the claim "link"`) {
				return nil
			}
		}
		return fmt.Errorf("nobody says why: %s; %s", conditionText(c.pod(job[0])), conditionText(c.pod(job[1])))
	})
	for _, name := range job {
		assert.Empty(t, c.pod(name).Spec.NodeName)
	}
}
