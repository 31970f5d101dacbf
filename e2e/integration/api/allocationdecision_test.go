package api_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func decision(change func(*v1alpha1.AllocationDecisionSpec)) *v1alpha1.AllocationDecision {
	at := metav1.NewMicroTime(time.Date(2026, 11, 1, 0, 0, 0, 123456000, time.UTC))
	d := &v1alpha1.AllocationDecision{
		ObjectMeta: metav1.ObjectMeta{Name: "train-1", Namespace: "default"},
		Spec: v1alpha1.AllocationDecisionSpec{
			Pod: "train", PodUID: "b7a9", Claim: "train-accelerator", Outcome: v1alpha1.OutcomeAllocated, Message: "tier h100 on node n-1",
			Policy: "h100-first", PolicyRevision: 3, PolicyHash: policy(nil).Spec.ContentHash(),
			Tier: "h100", TierIndex: ptr.To[int32](0), Node: "n-1", Attempt: 1, IdempotencyKey: "c1/3", InputDigest: "sha256:00", EngineVersion: "1", DecidedAt: &at,
			Devices: []v1alpha1.DecidedDevice{{Driver: v1alpha1.DriverName, Pool: "n-1", Device: "gpu-0", Request: "accelerator/h100", Model: "H100"}},
			Tiers: []v1alpha1.TierEvidence{{Name: "h100", Outcome: v1alpha1.TierSelected, Rejections: []v1alpha1.Rejection{
				{Code: v1alpha1.ReasonInUse, Count: 7, Examples: []v1alpha1.RejectionExample{{Node: "n-0", Pool: "n-0", Device: "gpu-3", Detail: "claim team-b/x"}}},
			}}},
		},
	}
	change(&d.Spec)
	return d
}

func TestAllocationDecision(t *testing.T) {
	pending := func(change func(*v1alpha1.AllocationDecisionSpec)) *v1alpha1.AllocationDecision {
		return decision(func(s *v1alpha1.AllocationDecisionSpec) {
			s.Outcome = v1alpha1.OutcomePending
			s.Tier, s.TierIndex, s.Node, s.Devices = "", nil, "", nil
			change(s)
		})
	}
	judge(t, []judgement{
		{name: "allocated", object: decision(func(*v1alpha1.AllocationDecisionSpec) {})},
		{name: "pending", object: pending(func(s *v1alpha1.AllocationDecisionSpec) { s.Class = v1alpha1.FailureStaleSlice })},
		{name: "unsatisfiable", object: pending(func(s *v1alpha1.AllocationDecisionSpec) {
			s.Outcome, s.Class = v1alpha1.OutcomeUnsatisfiable, v1alpha1.FailureUnsatisfiable
		})},
		{name: "no outcome", object: pending(func(s *v1alpha1.AllocationDecisionSpec) { s.Outcome = "" }), refused: []string{"spec.outcome"}},
		{name: "unknown outcome", object: pending(func(s *v1alpha1.AllocationDecisionSpec) { s.Outcome = "Perhaps" }), refused: []string{"spec.outcome"}},
		{name: "allocated with a failure", object: decision(func(s *v1alpha1.AllocationDecisionSpec) { s.Class = v1alpha1.FailureNodeLost }), refused: []string{"spec.class"}},
		{name: "pending with a tier", object: pending(func(s *v1alpha1.AllocationDecisionSpec) { s.Tier = "h100" }), refused: []string{"spec.tier"}},
		{name: "pending with a tier's place", object: pending(func(s *v1alpha1.AllocationDecisionSpec) { s.TierIndex = ptr.To[int32](0) }), refused: []string{"spec.tierIndex"}},
		{name: "pending with a node", object: pending(func(s *v1alpha1.AllocationDecisionSpec) { s.Node = "n-1" }), refused: []string{"spec.node"}},
		{name: "pending with a device", object: pending(func(s *v1alpha1.AllocationDecisionSpec) {
			s.Devices = []v1alpha1.DecidedDevice{{Driver: "d", Pool: "p", Device: "x"}}
		}), refused: []string{"spec.devices"}},
	})
}
