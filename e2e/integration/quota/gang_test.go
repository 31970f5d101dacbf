package quota_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// member makes a Pod of a group.
func member(t *testing.T, s *apiserver.Server, namespace, group, name, policy string) *corev1.Pod {
	t.Helper()
	p := pod(namespace, name, policy, func(p *corev1.Pod) {
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	})
	apiserver.Create(t, s.Client, p)
	if ptr.Deref(p.Spec.SchedulingGroup, corev1.PodSchedulingGroup{}).PodGroupName == nil {
		t.Fatal("the API server has dropped spec.schedulingGroup")
	}
	t.Cleanup(func() { remove(t, s, p) })
	return p
}

// waitsFor waits until the first that waits has the reason and the words.
func waitsFor(t *testing.T, s *apiserver.Server, quota string, pods int32, reason, words string) {
	t.Helper()
	waitStatus(t, s, quota, func(st *v1alpha1.TenantQuotaStatus) error {
		if st.Waiting != pods || len(st.Next) != 1 || st.Next[0].Reason != reason || !strings.Contains(st.Next[0].Message, words) {
			return fmt.Errorf("want %d Pods to wait in one place because of %s: %s", pods, reason, words)
		}
		return nil
	})
}

// A gang waits for its Pods, then for room for all of them, and is let in whole,
// also by a controller that finds one of its gates open.
func TestGangPassesItsGateWhole(t *testing.T) {
	s := server(t)
	namespace(t, s, "gang")
	quota(t, s, "gang", []string{"gang"}, part("L40S", 0, 3))
	fleet(t, s, "gang", "L40S", 3)
	c := startController(t, s)
	ready(t, s, "gang", "gang", v1alpha1.PreemptsNever, "L40S")
	single := create(t, s, "gang", "single", "gang")
	waitOpen(t, s, "gang", "single")

	first := member(t, s, "gang", "job", "job-0", "gang")
	waitsFor(t, s, "gang", 1, "GroupMissing", "")
	group := &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gang", Name: "job"},
		Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
			Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 3},
		}},
	}
	apiserver.Create(t, s.Client, group)
	t.Cleanup(func() { remove(t, s, group) })
	second := member(t, s, "gang", "job", "job-1", "gang")
	waitsFor(t, s, "gang", 2, "GroupIncomplete", "2 of 3 Pods")
	third := member(t, s, "gang", "job", "job-2", "gang")
	waitsFor(t, s, "gang", 3, "LimitReached", "3 Pods together")
	time.Sleep(2 * time.Second) // what must not happen takes some time not to
	waitOpen(t, s, "gang", "single")

	remove(t, s, single)
	waitOpen(t, s, "gang", "job-0", "job-1", "job-2")
	waitStatus(t, s, "gang", uses("L40S", 0, 3))
	for i, p := range []*corev1.Pod{first, second, third} {
		claim := allocate(t, s, p, "tier-0", "gang", fmt.Sprintf("gpu-%d", i))
		waitStatus(t, s, "gang", uses("L40S", int32(i+1), 3))
		t.Cleanup(func() { remove(t, s, claim) })
	}
	for _, name := range []string{"job-0", "job-1", "job-2"} {
		remove(t, s, pod("gang", name, "gang"))
		remove(t, s, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "gang", Name: name + "-accelerator"}})
	}
	waitStatus(t, s, "gang", uses("L40S", 0, 0))

	// Killed between the gates.
	c.Kill()
	var pods []*corev1.Pod
	for i := range 3 {
		pods = append(pods, member(t, s, "gang", "job", fmt.Sprintf("again-%d", i), "gang"))
	}
	opened := pods[1].DeepCopy()
	opened.Spec.SchedulingGates = nil
	if err := s.Client.Patch(t.Context(), opened, client.MergeFrom(pods[1])); err != nil {
		t.Fatal(err)
	}
	startController(t, s)
	apiserver.WaitFor(t, "the other gates", func(ctx context.Context) error {
		for _, p := range pods {
			if err := s.Client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
				return err
			}
			if len(gates(p)) > 0 {
				return fmt.Errorf("%s waits", p.Name)
			}
		}
		return nil
	})
}
