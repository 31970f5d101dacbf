//go:build e2e

package suites

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// restart kills the scheduler; undoing it starts it where a failed test did not.
func (s *scene) kill(ctx context.Context, t *testing.T) {
	t.Helper()
	s.atEnd(s.startScheduler)
	if err := s.killScheduler(ctx); err != nil {
		t.Fatal(err)
	}
}

func (s *scene) revive(ctx context.Context, t *testing.T) {
	t.Helper()
	bounded, cancel := context.WithTimeout(ctx, within.component)
	defer cancel()
	if err := s.startScheduler(bounded); err != nil {
		t.Fatal(err)
	}
	s.undo = s.undo[:len(s.undo)-1]
}

// allocations are the devices that the Pod's claim was given, one after
// another, and "" each time that they were taken back.
func (s *scene) allocations(pod string) []string {
	return s.given(func(claim string) bool { return strings.HasPrefix(claim, pod+"-") })
}

// given is the same for the claim of which isIt says that it is the one.
func (s *scene) given(isIt func(claim string) bool) []string {
	var given []string
	last := ""
	for _, e := range s.log.History() {
		if e.Claim == nil || e.Claim.Namespace != s.ns || !isIt(e.Claim.Name) || e.Type == watch.Deleted {
			continue
		}
		var now []string
		if e.Claim.Status.Allocation != nil {
			for _, r := range e.Claim.Status.Allocation.Devices.Results {
				now = append(now, r.Pool+"/"+r.Device)
			}
		}
		if joined := strings.Join(now, ","); joined != last {
			last = joined
			given = append(given, joined)
		}
	}
	return given
}

// oneChain checks what must hold of the records of a Pod whose allocation was
// tried several times: all are of one claim and revision, each names its
// devices once, and the last one allocated names what the Pod has.
func (s *scene) oneChain(ctx context.Context, t *testing.T, pod *corev1.Pod) {
	t.Helper()
	held := s.held(pod)
	if len(held) == 0 {
		t.Fatalf("Pod %s has no devices", pod.Name)
	}
	s.record(ctx, t, pod, v1alpha1.OutcomeAllocated)
	var allocated []string
	keys := map[string]bool{}
	for _, r := range s.records(pod) {
		keys[r.IdempotencyKey] = true
		if r.Outcome == v1alpha1.OutcomeAllocated {
			allocated = append(allocated, r.Devices[0].Pool+"/"+r.Devices[0].Device)
		}
	}
	if len(keys) != 1 {
		t.Errorf("the records of Pod %s have %d idempotency keys: %v", pod.Name, len(keys), keys)
	}
	if allocated[len(allocated)-1] != held[0].String() {
		t.Errorf("the last record of Pod %s says %v, it has %s", pod.Name, allocated, held[0])
	}
	if slices.Sort(allocated); len(slices.Compact(slices.Clone(allocated))) != len(allocated) {
		t.Errorf("one allocation of Pod %s is recorded twice: %v", pod.Name, allocated)
	}
}

// A scheduler that ends between Reserve and bind, at each point where the
// cluster can be in between.
func TestSchedulerRestart(t *testing.T) {
	suite{
		name: "scheduler-restart", core: true, providers: everywhere,
		describe: "The scheduler is killed between Reserve and bind. The Pod ends up with one device, and no device is in two claims.",
	}.then("the allocation is written, binding is refused", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "h100-first")
		hold := s.holdBindings(ctx, t)
		pod := s.pod("written", "h100-first")
		s.create(ctx, t, pod)
		s.await(ctx, t, within.decided, "the claim to be allocated", func() (bool, string) {
			now := s.current(pod.Name)
			return now != nil && len(s.held(now)) == 1, describe(now)
		})
		if now := s.current(pod.Name); now.Spec.NodeName != "" {
			t.Fatalf("the Pod was bound in spite of the hold: %s", describe(now))
		}
		was := s.held(s.current(pod.Name))[0]
		s.kill(ctx, t)
		// Somebody else comes while nobody schedules, and is served first or
		// last: in no case with the same device.
		other := s.pod("other", "h100-first")
		s.create(ctx, t, other)
		s.revive(ctx, t)
		hold.release(ctx, t)
		one, two := s.running(ctx, t, pod.Name), s.running(ctx, t, other.Name)
		s.got(ctx, t, one, "H100", "h100", 1)
		s.got(ctx, t, two, "H100", "h100", 1)
		if is := s.held(one)[0]; is.String() != was.String() && !slices.Contains(s.allocations(pod.Name), "") {
			t.Errorf("the Pod got %s after %s, which was never given back: %v", is, was, s.allocations(pod.Name))
		}
		s.oneChain(ctx, t, one)
		s.delete(ctx, t, pod.Name, other.Name)
	}).then("the allocation can't be written", func(ctx context.Context, t *testing.T, s *scene) {
		hold := s.holdClaims(ctx, t)
		pod := s.pod("unwritten", "h100-first")
		s.create(ctx, t, pod)
		s.waits(ctx, t, pod.Name, reasonPending, string(v1alpha1.FailureBindConflict))
		if given := s.allocations(pod.Name); len(given) > 0 {
			t.Fatalf("the claim was allocated in spite of the hold: %v", given)
		}
		s.kill(ctx, t)
		s.revive(ctx, t)
		hold.release(ctx, t)
		now := s.running(ctx, t, pod.Name)
		s.got(ctx, t, now, "H100", "h100", 1)
		if given := s.allocations(pod.Name); len(given) != 1 {
			t.Errorf("the claim was given %v", given)
		}
		s.oneChain(ctx, t, now)
		s.delete(ctx, t, pod.Name)
	}).then("the decision is known to the scheduler alone", func(ctx context.Context, t *testing.T, s *scene) {
		volume, needed := s.holdVolume(ctx, t)
		pod := s.pod("reserved", "h100-first", needed)
		s.create(ctx, t, pod)
		node := volume.held(ctx, t)
		if given := s.allocations(pod.Name); len(given) > 0 {
			t.Fatalf("the claim was allocated before the volume was there: %v", given)
		}
		s.kill(ctx, t)
		s.revive(ctx, t)
		volume.provide(ctx, t)
		now := s.running(ctx, t, pod.Name)
		s.got(ctx, t, now, "H100", "h100", 1)
		if given := s.allocations(pod.Name); len(given) != 1 || now.Spec.NodeName != node {
			t.Errorf("the claim was given %v, the node is %s after %s", given, now.Spec.NodeName, node)
		}
		s.oneChain(ctx, t, now)
	}).run(t)
}

// A device that is lost after it was chosen and before the Pod is bound.
func TestDeviceLostBeforeBind(t *testing.T) {
	suite{
		name: "lost-before-bind", core: true, providers: everywhere,
		describe: "A device is lost while binding is held back. The Pod does not start on it and gets another.",
	}.then("before the allocation is written", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "h100-first")
		landmark := s.landmark(ctx, t, "L4")
		volume, needed := s.holdVolume(ctx, t)
		pod := s.pod("early", "h100-first", needed)
		s.create(ctx, t, pod)
		lost := s.first(t, volume.held(ctx, t))
		s.lose(ctx, t, lost)
		landmark.passed(ctx, t)
		volume.provide(ctx, t)
		now := s.running(ctx, t, pod.Name)
		if got := s.got(ctx, t, now, "H100", "h100", 1)[0]; got.String() == lost.String() {
			t.Errorf("the Pod runs on %s, which is lost", got)
		}
		if given := s.allocations(pod.Name); len(given) != 1 || given[0] == lost.String() {
			t.Errorf("the claim was given %v", given)
		}
		s.saidUnhealthy(t, pod.Name, lost)
		s.delete(ctx, t, pod.Name)
	}).then("after the allocation was written", func(ctx context.Context, t *testing.T, s *scene) {
		if n := len(s.devices("H100")); n != 2 {
			t.Fatalf("this suite wants 2 H100, there are %d", n)
		}
		hold := s.holdBindings(ctx, t)
		pod := s.pod("late", "h100-first")
		s.create(ctx, t, pod)
		s.await(ctx, t, within.decided, "the claim to be allocated", func() (bool, string) {
			now := s.current(pod.Name)
			return now != nil && len(s.held(now)) == 1, describe(now)
		})
		lost := s.held(s.current(pod.Name))[0]
		s.lose(ctx, t, lost)
		s.await(ctx, t, within.decided, "the lost device to be taken back", func() (bool, string) {
			given := s.allocations(pod.Name)
			return slices.Contains(given[1:], ""), fmt.Sprintf("given %v, %s", given, describe(s.current(pod.Name)))
		})
		hold.release(ctx, t)
		// That was the last H100.
		s.got(ctx, t, s.running(ctx, t, pod.Name), "A100", "a100", 1)
		s.saidUnhealthy(t, pod.Name, lost)
	}).run(t)
}

// first is the first free device of a node: what a Pod that was sent there is
// about to get.
func (s *scene) first(t *testing.T, node string) device {
	t.Helper()
	for _, d := range s.devices("") {
		if d.node == node && d.claim == "" {
			return d
		}
	}
	t.Fatalf("node %s has no free device", node)
	return device{}
}

// lose makes a device fail and waits until its slice says so.
func (s *scene) lose(ctx context.Context, t *testing.T, d device) {
	t.Helper()
	s.atEnd(func(ctx context.Context) error { return s.mendDevice(ctx, d) })
	if err := s.breakDevice(ctx, d); err != nil {
		t.Fatal(err)
	}
	s.await(ctx, t, within.published, "device "+d.String()+" to be tainted", func() (bool, string) {
		return len(s.taints(d)) > 0, "it has no taint"
	})
}

// landmark is how a test knows that the scheduler has heard of a change of a
// slice: it breaks another device afterwards, and asks by Pods that can't be
// placed until one is told of that device. What came before in the same watch
// is known then, too.
type landmark struct {
	s      *scene
	policy string
	spare  device
}

// landmark prepares one with a model that the test does not use otherwise.
func (s *scene) landmark(ctx context.Context, t *testing.T, model string) *landmark {
	t.Helper()
	all := s.devices(model)
	if len(all) == 0 {
		t.Fatalf("there is no %s", model)
	}
	tooMany := int32(len(all) + 1)
	policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: s.ns}}
	policy.Spec.Count = &tooMany
	policy.Spec.Tiers = []v1alpha1.Tier{{Name: "all", Models: []string{model}}}
	s.atEnd(func(ctx context.Context) error { return client.IgnoreNotFound(s.client.Delete(ctx, policy)) })
	if err := s.client.Create(ctx, policy); err != nil {
		t.Fatalf("making a landmark, %v", err)
	}
	s.policiesReady(ctx, t, policy.Name)
	return &landmark{s: s, policy: policy.Name, spare: all[len(all)-1]}
}

// passed returns when the scheduler knows all changes of slices until now.
func (l *landmark) passed(ctx context.Context, t *testing.T) {
	t.Helper()
	l.s.lose(ctx, t, l.spare)
	bounded, cancel := context.WithTimeout(ctx, within.decided)
	defer cancel()
	for n := 0; ; n++ {
		pod := l.s.pod(fmt.Sprintf("landmark-%d", n), l.policy)
		l.s.create(bounded, t, pod)
		l.s.waits(bounded, t, pod.Name, reasonUnsatisfiable)
		if rejected(l.s.record(bounded, t, pod, v1alpha1.OutcomeUnsatisfiable), "all", v1alpha1.ReasonDeviceTainted) > 0 {
			return
		}
	}
}

// saidUnhealthy checks that the Pod was told why its first device was no good.
func (s *scene) saidUnhealthy(t *testing.T, pod string, lost device) {
	t.Helper()
	var said []string
	for _, e := range s.log.History() {
		if e.Pod == nil || e.Pod.Namespace != s.ns || e.Pod.Name != pod {
			continue
		}
		message := accelerator(e.Pod).Message
		if contains(message, string(v1alpha1.FailureDeviceBecameUnhealthy)) && contains(message, lost.name) {
			return
		}
		if len(said) == 0 || said[len(said)-1] != message {
			said = append(said, message)
		}
	}
	t.Errorf("the condition of Pod %s never said %s of %s, but %q", pod, v1alpha1.FailureDeviceBecameUnhealthy, lost, said)
}
