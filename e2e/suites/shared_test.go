//go:build e2e

package suites

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// sharedClaim is the claim of testdata/shared.yaml.
const sharedClaim = "ours"

func TestPodsShareClaim(t *testing.T) {
	var one, two *corev1.Pod
	var device device
	suite{
		name: "pods-share-claim", core: true, providers: everywhere,
		describe: "Two Pods that name one claim run on one device. It is theirs until the last of them is gone.",
	}.then("both run on its device", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "shared.yaml")
		one, two = s.sharing("one"), s.sharing("two")
		s.create(ctx, t, one, two) // at once: neither finds the claim allocated
		one, two = s.runs(ctx, t, one.Name), s.runs(ctx, t, two.Name)
		device = s.reserved(ctx, t, one, two)
		for _, pod := range []*corev1.Pod{one, two} {
			if pod.Spec.NodeName != device.node {
				t.Errorf("Pod %s is on node %s, its device is %s", pod.Name, pod.Spec.NodeName, device)
			}
		}
	}).then("nobody else gets it", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "any.yaml")
		var names []string
		for _, model := range []string{"H100", "A100", "L4"} { // as the policy takes them
			for _, pod := range s.fill(ctx, t, model, "e2e-any") {
				names = append(names, pod.Name)
			}
		}
		if free := len(s.devices("")) - len(names); free != 1 {
			t.Errorf("%d devices are not theirs who filled the fleet, want the shared one", free)
		}
		s.delete(ctx, t, names...)
	}).then("when one is gone the other keeps it", func(ctx context.Context, t *testing.T, s *scene) {
		s.delete(ctx, t, one.Name)
		if is := s.reserved(ctx, t, two); is.String() != device.String() {
			t.Errorf("the claim has %s, before it had %s", is, device)
		}
		if now := s.runs(ctx, t, two.Name); now.UID != two.UID {
			t.Errorf("Pod %s is not the same any more", two.Name)
		}
	}).then("a Pod that comes later joins it", func(ctx context.Context, t *testing.T, s *scene) {
		late := s.sharing("late")
		s.create(ctx, t, late)
		late = s.runs(ctx, t, late.Name)
		if is := s.reserved(ctx, t, two, late); is.String() != device.String() || late.Spec.NodeName != device.node {
			t.Errorf("the claim has %s, before it had %s; the Pod is on node %s", is, device, late.Spec.NodeName)
		}
	}).then("when all are gone it is free", func(ctx context.Context, t *testing.T, s *scene) {
		s.delete(ctx, t, two.Name, "late")
		s.await(ctx, t, within.freed, "the claim to be deallocated", func() (bool, string) {
			claim := s.shared()
			return claim != nil && claim.Status.Allocation == nil && len(claim.Status.ReservedFor) == 0, fmt.Sprintf("%+v", claim)
		})
		if given := s.given(func(claim string) bool { return claim == sharedClaim }); len(given) != 2 || given[0] != device.String() || given[1] != "" {
			t.Errorf("the claim was given %v, want %s once and then nothing", given, device)
		}
	}).run(t)
}

// sharing is a Pod that uses the shared claim.
func (s *scene) sharing(name string) *corev1.Pod {
	return s.pod(name, "", func(pod *corev1.Pod) {
		pod.Spec.SchedulerName = v1alpha1.SchedulerName
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new(sharedClaim)}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	})
}

// shared is the claim as the watch log knows it, or nil.
func (s *scene) shared() *resourcev1.ResourceClaim {
	return watchlog.Get[*resourcev1.ResourceClaim](s.log, client.ObjectKey{Namespace: s.ns, Name: sharedClaim})
}

// reserved waits until the claim is reserved for exactly these Pods, and returns
// its one device.
func (s *scene) reserved(ctx context.Context, t *testing.T, pods ...*corev1.Pod) device {
	t.Helper()
	var want []types.UID
	for _, pod := range pods {
		want = append(want, pod.UID)
	}
	slices.Sort(want)
	s.await(ctx, t, within.freed, fmt.Sprintf("claim %s to be reserved for %d Pods", sharedClaim, len(pods)), func() (bool, string) {
		claim := s.shared()
		if claim == nil {
			return false, "it is not there"
		}
		var is []types.UID
		for _, consumer := range claim.Status.ReservedFor {
			is = append(is, consumer.UID)
		}
		slices.Sort(is)
		return slices.Equal(is, want), fmt.Sprintf("it is reserved for %+v", claim.Status.ReservedFor)
	})
	held := s.held(pods[0])
	if len(held) != 1 {
		t.Fatalf("claim %s has the devices %v, want one", sharedClaim, held)
	}
	return held[0]
}
