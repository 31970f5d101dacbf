//go:build e2e

package suites

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	evictPolicy = "e2e-evict"
	keepPolicy  = "e2e-keep"
	// evictGrace is the grace of evictPolicy.
	evictGrace = 8 * time.Second
	// reasonFailed is why a Pod's condition is no longer true.
	reasonFailed = "DeviceFailed"
)

// Kubernetes' taint eviction and Ladder's health controller together: the one
// deletes the Pod, the other says beforehand when and why.
func TestEviction(t *testing.T) {
	var evicted, keeps *corev1.Pod
	var lost device
	var due time.Time
	suite{
		name: "eviction", core: true, providers: everywhere,
		describe: "A device fails under a running Pod whose policy evicts it after a grace. The Pod is told, has its time and no more, " +
			"and the next one gets another device. A Pod whose policy keeps the device stays.",
	}.then("devices fail under two Pods", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "eviction.yaml")
		if n := len(s.devices("H100")); n < 2 {
			t.Fatalf("this suite wants 2 H100, there are %d", n)
		}
		keeps = s.start(ctx, t, s.pod("keeps", keepPolicy))
		s.fail(ctx, t, s.got(ctx, t, keeps, "A100", "a100", 1)[0])
		evicted = s.start(ctx, t, s.pod("evicted", evictPolicy))
		lost = s.got(ctx, t, evicted, "H100", "h100", 1)[0]
		due = s.fail(ctx, t, lost).Add(evictGrace)
	}).then("the Pod is evicted after the grace and not before", func(ctx context.Context, t *testing.T, s *scene) {
		s.await(ctx, t, max(time.Until(due), 0)+within.gone, "Pod "+evicted.Name+" to be evicted", func() (bool, string) {
			now := s.current(evicted.Name)
			return now == nil, describe(now)
		})
		at, reason := s.ended(evicted)
		if at.Before(due) {
			t.Errorf("Pod %s was evicted at %s, its grace ended at %s", evicted.Name, at, due)
		}
		if reason != "DeletionByDeviceTaintManager" {
			t.Errorf("Pod %s was not evicted for its device: its condition %s says %q", evicted.Name, corev1.DisruptionTarget, reason)
		}
		s.saidFailed(t, evicted, lost.name, "deleted by taint eviction at "+due.UTC().Format(time.RFC3339))
	}).then("the next Pod gets another device", func(ctx context.Context, t *testing.T, s *scene) {
		pod := s.start(ctx, t, s.pod("next", evictPolicy))
		if got := s.got(ctx, t, pod, "H100", "h100", 1)[0]; got.String() == lost.String() {
			t.Errorf("the Pod got %s, which has failed", got)
		}
		wantRejected(t, s.record(ctx, t, pod, v1alpha1.OutcomeAllocated), "h100", v1alpha1.ReasonDeviceTainted, 1)
	}).then("a Pod that keeps its device stays", func(_ context.Context, t *testing.T, s *scene) {
		if now := s.current(keeps.Name); now == nil || now.UID != keeps.UID || now.DeletionTimestamp != nil || now.Status.Phase != corev1.PodRunning {
			t.Errorf("Pod %s does not run any more: %s", keeps.Name, describe(now))
		}
		s.saidFailed(t, keeps, "the Pod keeps it")
	}).run(t)
}

// fail makes a device fail for good, and returns since when its slice says so.
func (s *scene) fail(ctx context.Context, t *testing.T, d device) time.Time {
	t.Helper()
	s.lose(ctx, t, d)
	var since time.Time
	s.await(ctx, t, within.published, "the failure of "+d.String()+" to be confirmed", func() (bool, string) {
		taints := s.taints(d)
		for _, taint := range taints {
			if taint.Key == v1alpha1.TaintFailed && taint.Effect == resourcev1.DeviceTaintEffectNoExecute && taint.TimeAdded != nil {
				since = taint.TimeAdded.Time
			}
		}
		return !since.IsZero(), fmt.Sprintf("its taints are %v", taints)
	})
	return since
}

// ended is when a Pod that is gone was deleted, and why it was disrupted, as its
// condition said; the zero time where it was not.
func (s *scene) ended(pod *corev1.Pod) (at time.Time, reason string) {
	for _, e := range s.log.History() {
		if e.Pod == nil || e.Pod.UID != pod.UID {
			continue
		}
		if at.IsZero() && (e.Type == watch.Deleted || e.Pod.DeletionTimestamp != nil) {
			at = e.At
		}
		for _, c := range e.Pod.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
				reason = c.Reason
			}
		}
	}
	return at, reason
}

// saidFailed checks that a Pod was told that its device has failed, in these
// words among others.
func (s *scene) saidFailed(t *testing.T, pod *corev1.Pod, mentions ...string) {
	t.Helper()
	var said []string
	for _, e := range s.log.History() {
		if e.Pod == nil || e.Pod.UID != pod.UID || accelerator(e.Pod).Reason != reasonFailed {
			continue
		}
		said = append(said, accelerator(e.Pod).Message)
		missing := false
		for _, m := range mentions {
			missing = missing || !contains(accelerator(e.Pod).Message, m)
		}
		if !missing {
			return
		}
	}
	t.Errorf("the condition of Pod %s never said %s with %q, but %q", pod.Name, reasonFailed, mentions, said)
}
