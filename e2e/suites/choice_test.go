//go:build e2e

package suites

import (
	"context"
	"testing"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestFirstChoice(t *testing.T) {
	suite{
		name: "first-choice", core: true, providers: everywhere,
		describe: "A Pod that names the policy h100-first gets an H100, and everything that tells what it got agrees.",
	}.then("the Pod gets an H100", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "h100-first")
		pod := s.start(ctx, t, s.pod("train", "h100-first"))
		s.got(ctx, t, pod, "H100", "h100", 1)
		if c := accelerator(pod); c.Reason != reasonAllocated {
			t.Errorf("the condition's reason is %s", c.Reason)
		}
		record := s.record(ctx, t, pod, v1alpha1.OutcomeAllocated)
		if record.TierIndex == nil || *record.TierIndex != 0 || record.PolicyRevision < 1 || record.PolicyHash == "" || record.InputDigest == "" {
			t.Errorf("the record is incomplete: %+v", record)
		}
		wantRejected(t, record, "h100", v1alpha1.ReasonSelected, 1)
		wantRejected(t, record, "h100", v1alpha1.ReasonLowerRank, len(s.devices("H100"))-1)
		wantRejected(t, record, "h100", v1alpha1.ReasonModelMismatch, len(s.devices(""))-len(s.devices("H100")))
	}).then("kubelet's status names model and device", kubeletStatus).run(t)
}

func TestFallback(t *testing.T) {
	suite{
		name: "fallback", core: true, providers: everywhere,
		describe: "With every H100 in use the next Pod gets an A100, and its record says why.",
	}.then("the next tier is taken", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "h100-first")
		s.fill(ctx, t, "H100", "h100-first")
		pod := s.start(ctx, t, s.pod("next", "h100-first"))
		s.got(ctx, t, pod, "A100", "a100", 1)
		record := s.record(ctx, t, pod, v1alpha1.OutcomeAllocated)
		wantRejected(t, record, "h100", v1alpha1.ReasonInUse, len(s.devices("H100")))
		wantRejected(t, record, "h100", v1alpha1.ReasonModelMismatch, len(s.devices(""))-len(s.devices("H100")))
		wantRejected(t, record, "a100", v1alpha1.ReasonSelected, 1)
		if evidence := record.Tiers[0]; evidence.Outcome != v1alpha1.TierRejected {
			t.Errorf("tier %s is %s", evidence.Name, evidence.Outcome)
		}
	}).run(t)
}

func TestHardConstraint(t *testing.T) {
	suite{
		name: "hard-constraint", core: true, providers: everywhere,
		describe: "No fallback relaxes minMemory: with the large boards in use a Pod waits beside free L4s.",
	}.then("a Pod waits rather than take an L4", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "never-small.yaml")
		taken := append(s.fill(ctx, t, "H100", "e2e-never-small"), s.fill(ctx, t, "A100", "e2e-never-small")...)
		large, small := len(s.devices("H100"))+len(s.devices("A100")), len(s.devices("L4"))
		if small == 0 {
			t.Fatal("there is no L4 to be passed over")
		}
		waiting := s.pod("waits", "e2e-never-small")
		s.create(ctx, t, waiting)
		s.waits(ctx, t, waiting.Name, reasonPending, string(v1alpha1.ReasonMemoryTooSmall), string(v1alpha1.ReasonInUse))
		record := s.record(ctx, t, waiting, v1alpha1.OutcomePending)
		wantRejected(t, record, "any", v1alpha1.ReasonInUse, large)
		wantRejected(t, record, "any", v1alpha1.ReasonMemoryTooSmall, small)

		leaves := taken[0]
		freed := s.held(leaves)
		s.delete(ctx, t, leaves.Name)
		pod := s.running(ctx, t, waiting.Name)
		if got := s.got(ctx, t, pod, "H100", "h100", 1); got[0].String() != freed[0].String() {
			t.Errorf("the Pod got %s, free was %s", got[0], freed[0])
		}
	}).then("what can never be is told at once", func(ctx context.Context, t *testing.T, s *scene) {
		pod := s.pod("impossible", "e2e-impossible")
		s.create(ctx, t, pod)
		s.waits(ctx, t, pod.Name, reasonUnsatisfiable, string(v1alpha1.FailureUnsatisfiable))
		record := s.record(ctx, t, pod, v1alpha1.OutcomeUnsatisfiable)
		if record.Class != v1alpha1.FailureUnsatisfiable {
			t.Errorf("the record's class is %s", record.Class)
		}
		wantRejected(t, record, "any", v1alpha1.ReasonInUse, len(s.devices("H100"))+len(s.devices("A100")))
		wantRejected(t, record, "any", v1alpha1.ReasonMemoryTooSmall, len(s.devices("L4")))
		s.never(t, "L4")
	}).run(t)
}
