//go:build e2e

package suites

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const rollback = "e2e-rollback"

// pinned asks for a certain revision of the policy.
func pinned(revision string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels[v1alpha1.LabelPolicyRevision] = revision }
}

// change changes the policy and waits for a revision to be the active one.
func (s *scene) change(ctx context.Context, t *testing.T, active int64, change func(*v1alpha1.AcceleratorPolicySpec)) {
	t.Helper()
	key := client.ObjectKey{Name: rollback}
	p := &v1alpha1.AcceleratorPolicy{}
	if err := s.client.Get(ctx, key, p); err != nil {
		t.Fatal(err)
	}
	before := p.DeepCopy()
	change(&p.Spec)
	if err := s.client.Patch(ctx, p, client.MergeFrom(before)); err != nil {
		t.Fatalf("changing policy %s, %v", rollback, err)
	}
	s.await(ctx, t, within.policyReady, fmt.Sprintf("revision %d to be active", active), func() (bool, string) {
		now := watchlog.Get[*v1alpha1.AcceleratorPolicy](s.log, key)
		return now.Status.ActiveRevision == active && now.Status.ObservedGeneration == now.Generation, fmt.Sprintf("%+v", now.Status)
	})
	s.policiesReady(ctx, t, rollback)
}

// revision checks which revision a running Pod was placed by.
func (s *scene) revision(ctx context.Context, t *testing.T, pod *corev1.Pod, want int64) {
	t.Helper()
	if got := pod.Annotations[v1alpha1.AnnotationRevision]; got != fmt.Sprint(want) {
		t.Errorf("Pod %s carries revision %q, want %d", pod.Name, got, want)
	}
	if record := s.record(ctx, t, pod, v1alpha1.OutcomeAllocated); record.PolicyRevision != want {
		t.Errorf("the record of Pod %s says revision %d, want %d", pod.Name, record.PolicyRevision, want)
	}
}

func TestRollback(t *testing.T) {
	suite{
		name: "rollback", core: true, providers: everywhere,
		describe: "A bad revision of a policy is taken back by activeRevision. A Pod that names a revision keeps it.",
	}.then("the first revision places Pods", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "rollback.yaml")
		pod := s.start(ctx, t, s.pod("before", rollback))
		s.got(ctx, t, pod, "L4", "l4", 1)
		s.revision(ctx, t, pod, 1)
	}).then("a bad revision places none, but a pinned Pod runs", func(ctx context.Context, t *testing.T, s *scene) {
		s.change(ctx, t, 2, func(spec *v1alpha1.AcceleratorPolicySpec) {
			spec.Tiers = []v1alpha1.Tier{{Name: "b200", Models: []string{"B200"}}}
		})
		// Admission may lag behind for a moment: what counts is what it gave.
		s.admitted(ctx, t, "bad", rollback, "2")
		s.waits(ctx, t, "bad", reasonUnsatisfiable)
		if record := s.record(ctx, t, s.current("bad"), v1alpha1.OutcomeUnsatisfiable); record.PolicyRevision != 2 {
			t.Errorf("the record says revision %d", record.PolicyRevision)
		}
		pod := s.start(ctx, t, s.pod("pinned", rollback, pinned("1")))
		s.got(ctx, t, pod, "L4", "l4", 1)
		s.revision(ctx, t, pod, 1)
	}).then("rolled back, new Pods get revision 1", func(ctx context.Context, t *testing.T, s *scene) {
		one := int64(1)
		s.change(ctx, t, 1, func(spec *v1alpha1.AcceleratorPolicySpec) { spec.ActiveRevision = &one })
		s.admitted(ctx, t, "after", rollback, "1")
		pod := s.running(ctx, t, "after")
		s.got(ctx, t, pod, "L4", "l4", 1)
		s.revision(ctx, t, pod, 1)
	}).then("a Pod that names revision 2 keeps it", func(ctx context.Context, t *testing.T, s *scene) {
		keeps := s.pod("keeps", rollback, pinned("2"))
		s.create(ctx, t, keeps)
		s.waits(ctx, t, "keeps", reasonUnsatisfiable)
		if record := s.record(ctx, t, keeps, v1alpha1.OutcomeUnsatisfiable); record.PolicyRevision != 2 {
			t.Errorf("the record says revision %d", record.PolicyRevision)
		}
		if bad := s.current("bad"); bad.Spec.NodeName != "" || accelerator(bad).Reason != reasonUnsatisfiable {
			t.Errorf("the Pod of the bad revision was changed by the rollback: %s", describe(bad))
		}
	}).run(t)
}

// admitted creates a Pod that names no revision and checks which one it got. As
// admission learns of the policy's status by watching it, a Pod with the
// revision before is created anew.
func (s *scene) admitted(ctx context.Context, t *testing.T, name, policy, revision string) {
	t.Helper()
	bounded, cancel := context.WithTimeout(ctx, within.admission)
	defer cancel()
	for {
		pod := s.pod(name, policy)
		s.create(bounded, t, pod)
		got := pod.Spec.ResourceClaims[0].ResourceClaimTemplateName
		if got != nil && *got == policy+"-"+revision {
			return
		}
		if bounded.Err() != nil {
			t.Fatalf("Pods of policy %s get template %v, want revision %s", policy, got, revision)
		}
		if err := s.client.Delete(bounded, pod, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		s.await(bounded, t, within.gone, "Pod "+name+" to be gone", func() (bool, string) {
			now := s.current(name)
			return now == nil, describe(now)
		})
	}
}
