//go:build e2e

package suites

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Suites about Ladder beside the cluster's own scheduler, which only kind runs.

const stockScheduler = corev1.DefaultSchedulerName

func TestStockClaims(t *testing.T) {
	suite{
		name: "stock-claims", core: true, providers: realNodes,
		describe: "A claim of another driver's devices under the default scheduler is none of Ladder's business: it is allocated, and Ladder writes nothing.",
	}.then("allocated by the default scheduler alone", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "stock.yaml")
		pod := s.pod("stock", "", workload.FromTemplate("stock", stockScheduler))
		s.create(ctx, t, pod)
		var now *corev1.Pod
		var claim *resourcev1.ResourceClaim
		s.await(ctx, t, within.decided, "the Pod to be bound and its claim to be reserved for it", func() (bool, string) {
			now = s.current(pod.Name)
			if now == nil || now.Spec.NodeName == "" || len(s.claims(now)) != 1 {
				return false, describe(now)
			}
			claim = s.claims(now)[0]
			return claim.Status.Allocation != nil && len(claim.Status.ReservedFor) == 1, fmt.Sprintf("%+v", claim.Status)
		})
		if r := claim.Status.Allocation.Devices.Results; len(r) != 1 || r[0].Driver != "stock.e2e.gpuladder.dev" || now.Spec.NodeName != s.devices("H100")[0].node {
			t.Errorf("the claim got %+v on node %s", r, now.Spec.NodeName)
		}
		if c := v1alpha1.AcceleratorCondition(now); c != nil {
			t.Errorf("the Pod has Ladder's condition: %+v", c)
		}
		for name := range now.Annotations {
			if strings.Contains(name, v1alpha1.GroupName) {
				t.Errorf("the Pod has the annotation %s", name)
			}
		}
		if records := watchlog.List[*v1alpha1.AllocationDecision](s.log, s.ns); len(records) > 0 {
			t.Errorf("Ladder keeps %d records of it", len(records))
		}
		s.notWrittenByLadder(ctx, t, now, claim)
	}).run(t)
}

// notWrittenByLadder looks through who wrote what of objects.
func (s *scene) notWrittenByLadder(ctx context.Context, t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		now, ok := o.DeepCopyObject().(client.Object)
		if !ok {
			t.Fatalf("%T is no object", o)
		}
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			t.Fatal(err)
		}
		if len(now.GetManagedFields()) == 0 {
			t.Errorf("%T %s does not say who wrote it", o, o.GetName())
		}
		for _, f := range now.GetManagedFields() {
			if strings.Contains(f.Manager, "ladder") && f.Manager != "ladder-e2e" {
				t.Errorf("%T %s was written by %s", o, o.GetName(), f.Manager)
			}
		}
	}
}

func TestGuard(t *testing.T) {
	suite{
		name: "guard", core: true, providers: realNodes,
		describe: "The default scheduler may not allocate Ladder's devices: the API server refuses, and says so where a user looks.",
	}.then("a Pod with a template is refused at once", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "guarded.yaml")
		pod := s.pod("early", "", workload.FromTemplate("by-hand", stockScheduler))
		err := workload.WaitFor(ctx, within.admission, "the Pod to be refused", func(ctx context.Context) (bool, string, error) {
			err := s.client.Create(ctx, pod.DeepCopy(), &client.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err != nil && contains(err.Error(), "schedulerName") && contains(err.Error(), "ladder-scheduler"), fmt.Sprint(err), nil
		})
		if err != nil {
			t.Error(err)
		}
		pod.Name, pod.Spec.SchedulerName = "proper", v1alpha1.SchedulerName
		s.start(ctx, t, pod)
		s.delete(ctx, t, pod.Name)
	}).then("the default scheduler can't allocate", func(ctx context.Context, t *testing.T, s *scene) {
		pod := s.pod("late", "", func(pod *corev1.Pod) {
			name := "by-hand"
			pod.Spec.SchedulerName = stockScheduler
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
			pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
		})
		s.create(ctx, t, pod)
		s.await(ctx, t, within.decided, "the Pod to be told why it can't be scheduled", func() (bool, string) {
			now := s.current(pod.Name)
			return now != nil && contains(describe(now), "ladder-guard-allocations") && contains(describe(now), "give the Pod spec.schedulerName ladder-scheduler"), describe(now)
		})
		if now := s.current(pod.Name); now.Spec.NodeName != "" {
			t.Errorf("the Pod was bound: %s", describe(now))
		}
		for _, e := range s.log.History() {
			if e.Claim != nil && e.Claim.Namespace == s.ns && e.Claim.Name == "by-hand" && e.Claim.Status.Allocation != nil {
				t.Fatalf("the claim was allocated: %+v", e.Claim.Status.Allocation)
			}
		}
	}).run(t)
}
