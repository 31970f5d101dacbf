package quota_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/tenants"
)

// ready makes a policy and waits until the controller has made what Pods need.
func ready(t *testing.T, s *apiserver.Server, namespace, name string, preempts v1alpha1.Preempts, models ...string) {
	t.Helper()
	p := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.AcceleratorPolicySpec{Preempts: preempts}}
	for i, m := range models {
		p.Spec.Tiers = append(p.Spec.Tiers, v1alpha1.Tier{Name: fmt.Sprintf("tier-%d", i), Models: []string{m}})
	}
	apiserver.Create(t, s.Client, p)
	t.Cleanup(func() { remove(t, s, p) })
	waitGated(t, s, namespace, name, true)
}

func create(t *testing.T, s *apiserver.Server, namespace, name, policy string, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	p := pod(namespace, name, policy, change...)
	apiserver.Create(t, s.Client, p)
	t.Cleanup(func() { remove(t, s, p) })
	return p
}

// waitStatus waits until the status of a quota is as it should be.
func waitStatus(t *testing.T, s *apiserver.Server, name string, check func(*v1alpha1.TenantQuotaStatus) error) {
	t.Helper()
	apiserver.WaitFor(t, "the status of TenantQuota "+name, func(ctx context.Context) error {
		q := &v1alpha1.TenantQuota{}
		if err := s.Client.Get(ctx, types.NamespacedName{Name: name}, q); err != nil {
			return err
		}
		if err := check(&q.Status); err != nil {
			return fmt.Errorf("%w in %+v", err, q.Status)
		}
		return nil
	})
}

func uses(model string, used, charged int32) func(*v1alpha1.TenantQuotaStatus) error {
	return func(s *v1alpha1.TenantQuotaStatus) error {
		for _, m := range s.Models {
			if m.Model == model && m.Used == used && m.Charged == charged {
				return nil
			}
		}
		return fmt.Errorf("want %d %s used and %d charged", used, model, charged)
	}
}

// A tenant's Pods go through their gate in turn, whoever is killed when.
func TestPodsPassTheirGateInTurn(t *testing.T) {
	s := server(t)
	namespace(t, s, "loop")
	q := quota(t, s, "loop", []string{"loop"}, part("H100", 0, 1), part("A100", 0, 1))
	fleet(t, s, "loop-h", "H100", 2)
	fleet(t, s, "loop-a", "A100", 2)
	c := startController(t, s)
	again := func() {
		c.Kill()
		c = startController(t, s)
	}
	ready(t, s, "loop", "loop", v1alpha1.PreemptsNever, "H100", "A100")
	first := create(t, s, "loop", "first", "loop")
	waitOpen(t, s, "loop", "first")
	second := create(t, s, "loop", "second", "loop")
	waitOpen(t, s, "loop", "first", "second") // one on each model
	third := create(t, s, "loop", "third", "loop")
	waitStatus(t, s, "loop", func(st *v1alpha1.TenantQuotaStatus) error {
		if st.Waiting != 1 || len(st.Next) != 1 || st.Next[0].Name != "third" || st.Next[0].Reason != "LimitReached" || st.Next[0].Position != 1 {
			return fmt.Errorf("want third to wait for the limit")
		}
		return nil
	})
	again()
	allocate(t, s, first, "tier-0", "loop-h", "gpu-0")
	claim := allocate(t, s, second, "tier-1", "loop-a", "gpu-0")
	waitStatus(t, s, "loop", uses("H100", 1, 1))
	waitStatus(t, s, "loop", uses("A100", 1, 1))
	again()
	waitOpen(t, s, "loop", "first", "second")

	// By force: the Pod is gone, its device is not.
	remove(t, s, second)
	again()
	time.Sleep(2 * time.Second) // what must not happen takes some time not to
	waitOpen(t, s, "loop", "first")
	remove(t, s, claim)
	waitOpen(t, s, "loop", "first", "third")

	// A higher limit lets more in at once.
	fourth := create(t, s, "loop", "fourth", "loop")
	apiserver.WaitFor(t, "the quota to be changed", func(ctx context.Context) error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(q), q); err != nil {
			return err
		}
		limit := int32(2)
		q.Spec.Models[0].Limit = &limit
		return s.Client.Update(ctx, q)
	})
	waitOpen(t, s, "loop", "first", "third", fourth.Name)
	allocate(t, s, third, "tier-1", "loop-a", "gpu-1")
	waitStatus(t, s, "loop", func(st *v1alpha1.TenantQuotaStatus) error {
		for _, m := range st.Models {
			if m.Model == "H100" && m.FirstChoice == 2 && m.Fallbacks == 1 && st.Waiting == 0 && st.ObservedGeneration == q.Generation {
				return nil
			}
		}
		return fmt.Errorf("want one of two to have fallen back")
	})
}

// What is guaranteed is taken back from who borrowed it, by the Eviction API.
func TestBorrowedDevicesAreTakenBack(t *testing.T) {
	s := server(t)
	for _, name := range []string{"owner", "borrower"} {
		namespace(t, s, name)
	}
	quota(t, s, "owner", []string{"owner"}, part("L4", 1, 1))
	quota(t, s, "borrower", []string{"borrower"}, part("L4", 0, 1))
	fleet(t, s, "reclaim", "L4", 1)
	c := startController(t, s, "notice: 5s\n")
	ready(t, s, "borrower", "reclaim", v1alpha1.PreemptsBorrowed, "L4")
	waitGated(t, s, "owner", "reclaim", true)
	ofJob := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "j", Controller: ptr.To(true)}}
		p.Finalizers = []string{batchv1.JobTrackingFinalizer}
	}
	holder := create(t, s, "borrower", "holder", "reclaim", ofJob)
	waitOpen(t, s, "borrower", "holder")
	claim := allocate(t, s, holder, "tier-0", "reclaim", "gpu-0")
	asks := create(t, s, "owner", "asks", "reclaim")
	apiserver.WaitFor(t, "the notice", func(ctx context.Context) error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(holder), holder); err != nil {
			return err
		}
		if got := holder.Annotations[v1alpha1.AnnotationReclaimFor]; got != string(asks.UID) {
			return fmt.Errorf("the notice is for %q", got)
		}
		return nil
	})
	deadline, err := time.Parse(time.RFC3339Nano, holder.Annotations[v1alpha1.AnnotationReclaimDeadline])
	if err != nil {
		t.Fatal(err)
	}
	c.Kill()
	startController(t, s, "notice: 5s\n")
	apiserver.WaitFor(t, "the eviction", func(ctx context.Context) error {
		err := s.Client.Get(ctx, client.ObjectKeyFromObject(holder), holder)
		if err == nil && holder.DeletionTimestamp.IsZero() {
			return fmt.Errorf("still there")
		}
		return client.IgnoreNotFound(err)
	})
	if now := time.Now(); now.Before(deadline) {
		t.Errorf("evicted at %v, before the end of the notice at %v", now, deadline)
	}
	// What the Job makes in its place goes on with the count.
	again := create(t, s, "borrower", "again", "reclaim", ofJob)
	apiserver.WaitFor(t, "the count on the Pod that comes in its place", func(ctx context.Context) error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(again), again); err != nil {
			return err
		}
		if got := tenants.ReclaimsOn(again); got.Times != 1 || got.At.Before(deadline.Add(-time.Second)) {
			return fmt.Errorf("it says %v", again.Annotations)
		}
		return nil
	})
	waitOpen(t, s, "owner")
	remove(t, s, claim)
	waitOpen(t, s, "owner", "asks")
	for _, p := range []*corev1.Pod{holder, again} {
		apiserver.WaitFor(t, "the Pod to be let go", func(ctx context.Context) error {
			return client.IgnoreNotFound(s.Client.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
		})
	}
}
