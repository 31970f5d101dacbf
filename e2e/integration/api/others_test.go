package api_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func revision(change func(*v1alpha1.PolicyRevision)) *v1alpha1.PolicyRevision {
	spec := policy(nil).Spec
	r := &v1alpha1.PolicyRevision{
		ObjectMeta: metav1.ObjectMeta{Name: "h100-first-3"},
		Spec:       v1alpha1.PolicyRevisionSpec{Policy: "h100-first", Revision: 3, Hash: spec.ContentHash(), PolicySpec: spec},
	}
	if change != nil {
		change(r)
	}
	return r
}

func TestPolicyRevision(t *testing.T) {
	hash := []string{"spec.hash"}
	judge(t, []judgement{
		{name: "least", object: revision(nil)},
		{name: "withdrawn", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.State = v1alpha1.RevisionWithdrawn })},
		{name: "unknown state", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.State = "Gone" }), refused: []string{"spec.state"}},
		{name: "other name", object: revision(func(r *v1alpha1.PolicyRevision) { r.Name = "h100-first-4" }), refused: []string{"metadata.name"}, server: []string{wholeObject}},
		{name: "name with a leading zero", object: revision(func(r *v1alpha1.PolicyRevision) { r.Name = "h100-first-03" }), refused: []string{"metadata.name"}, server: []string{wholeObject}},
		{name: "no policy", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.Policy = "" }), refused: []string{"spec.policy"}},
		{name: "bad policy", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.Policy = "H100" }), refused: []string{"metadata.name", "spec.policy"}, server: []string{wholeObject, "spec.policy"}},
		{name: "long policy", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.Policy = strings.Repeat("a", 64) }), refused: []string{"spec.policy"}},
		{name: "no revision", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.Revision = 0 }), refused: []string{"spec.revision"}},
		{name: "negative revision", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.Revision = -3 }), refused: []string{"metadata.name", "spec.revision"}, server: []string{wholeObject, "spec.revision"}},
		{name: "no hash", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.Hash = "" }), refused: hash},
		{name: "short hash", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.Hash = "sha256:0" }), refused: hash},
		{name: "hash in capitals", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.Hash = "sha256:" + strings.Repeat("A", 64) }), refused: hash},
		{name: "bad policySpec", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.PolicySpec.Tiers[1].Name = "h100" }), refused: []string{"spec.policySpec.tiers[1]"}},
		{name: "unreachable tier in policySpec", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.PolicySpec.Tiers[0].Models = nil }), refused: []string{"spec.policySpec.tiers"}},
		{name: "no tiers in policySpec", object: revision(func(r *v1alpha1.PolicyRevision) {
			r.Spec.PolicySpec = v1alpha1.AcceleratorPolicySpec{Ranking: v1alpha1.RankingSpread}
		}), refused: []string{"spec.policySpec.tiers"}},
		{name: "active revision in policySpec", object: revision(func(r *v1alpha1.PolicyRevision) { r.Spec.PolicySpec.ActiveRevision = ptr.To[int64](3) }), refused: []string{"spec.policySpec.activeRevision"}},
	})
}

func TestTenantQuota(t *testing.T) {
	quota := func(change func(*v1alpha1.TenantQuotaSpec)) *v1alpha1.TenantQuota {
		q := &v1alpha1.TenantQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "team-a"},
			Spec: v1alpha1.TenantQuotaSpec{
				Namespaces: []string{"team-a"},
				Models:     []v1alpha1.ModelQuota{{Model: "H100", Guaranteed: 4, Limit: ptr.To[int32](8)}, {Model: "A100"}},
			},
		}
		change(&q.Spec)
		return q
	}
	namespaces := func(list ...string) *v1alpha1.TenantQuota {
		return quota(func(s *v1alpha1.TenantQuotaSpec) { s.Namespaces = list })
	}
	models := func(list ...v1alpha1.ModelQuota) *v1alpha1.TenantQuota {
		return quota(func(s *v1alpha1.TenantQuotaSpec) { s.Models = list })
	}
	weight := func(w int32) *v1alpha1.TenantQuota {
		return quota(func(s *v1alpha1.TenantQuotaSpec) { s.Weight = &w })
	}
	judge(t, []judgement{
		{name: "usual", object: quota(func(*v1alpha1.TenantQuotaSpec) {})},
		{name: "no namespaces", object: namespaces(), refused: []string{"spec.namespaces"}},
		{name: "namespace in capitals", object: namespaces("team-a", "Team"), refused: []string{"spec.namespaces[1]"}},
		{name: "namespace with a dot", object: namespaces("team.a"), refused: []string{"spec.namespaces[0]"}},
		{name: "namespace without a name", object: namespaces(""), refused: []string{"spec.namespaces[0]"}},
		{name: "long namespace", object: namespaces(strings.Repeat("n", 64)), refused: []string{"spec.namespaces[0]"}},
		{name: "namespace twice", object: namespaces("a", "b", "a"), refused: []string{"spec.namespaces[2]"}},
		{name: "weight 0", object: weight(0), refused: []string{"spec.weight"}},
		{name: "weight beyond bounds", object: weight(1_000_001), refused: []string{"spec.weight"}},
		{name: "greatest weight", object: weight(1_000_000)},
		{name: "no models", object: models(), refused: []string{"spec.models"}},
		{name: "model without a name", object: models(v1alpha1.ModelQuota{}), refused: []string{"spec.models[0].model"}},
		{name: "blank model", object: models(v1alpha1.ModelQuota{Model: " "}), refused: []string{"spec.models[0].model"}},
		{name: "model twice", object: models(v1alpha1.ModelQuota{Model: "H100"}, v1alpha1.ModelQuota{Model: "H100"}), refused: []string{"spec.models[1]"}},
		{name: "guaranteed is the limit", object: models(v1alpha1.ModelQuota{Model: "H100", Guaranteed: 8, Limit: ptr.To[int32](8)})},
		{name: "guaranteed above limit", object: models(v1alpha1.ModelQuota{Model: "L4"}, v1alpha1.ModelQuota{Model: "H100", Guaranteed: 9, Limit: ptr.To[int32](8)}), refused: []string{"spec.models[1].guaranteed"}},
		{name: "limit 0", object: models(v1alpha1.ModelQuota{Model: "H100", Limit: ptr.To[int32](0)})},
		{name: "negative guaranteed", object: models(v1alpha1.ModelQuota{Model: "H100", Guaranteed: -1}), refused: []string{"spec.models[0].guaranteed"}},
		{name: "negative limit", object: models(v1alpha1.ModelQuota{Model: "H100", Limit: ptr.To[int32](-1)}), refused: []string{"spec.models[0].guaranteed", "spec.models[0].limit"}},
	})
}

func TestDeviceMigration(t *testing.T) {
	migration := func(change func(*v1alpha1.DeviceMigrationSpec)) *v1alpha1.DeviceMigration {
		m := &v1alpha1.DeviceMigration{
			ObjectMeta: metav1.ObjectMeta{Name: "to-dra"},
			Spec:       v1alpha1.DeviceMigrationSpec{Policy: "h100-first", Waves: []int32{5, 25, 100}},
		}
		change(&m.Spec)
		return m
	}
	waves := func(list ...int32) *v1alpha1.DeviceMigration {
		return migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Waves = list })
	}
	legacy := func(name string) *v1alpha1.DeviceMigration {
		return migration(func(s *v1alpha1.DeviceMigrationSpec) { s.LegacyResource = name })
	}
	gates := func(g v1alpha1.MigrationGates) *v1alpha1.DeviceMigration {
		return migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Gates = g })
	}
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn}}}
	judge(t, []judgement{
		{name: "usual", object: migration(func(*v1alpha1.DeviceMigrationSpec) {})},
		{name: "everything", object: migration(func(s *v1alpha1.DeviceMigrationSpec) {
			s.Target, s.OnGateFailure, s.BoundPods = v1alpha1.TargetDRA, v1alpha1.GatePause, v1alpha1.BoundPodsEvict
			s.LegacyResource = "gpu.example.com/gpu.shared"
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
			s.Gates = v1alpha1.MigrationGates{MinSample: ptr.To[int32](1), Soak: lasting(time.Hour), MaxSuccessRateDrop: ptr.To[int32](0), MaxFallbackRate: ptr.To[int32](100), MaxLatencyRise: ptr.To[int32](10000), MaxUtilizationDrop: ptr.To[int32](5)}
		})},
		{name: "no waves", object: waves(), refused: []string{"spec.waves"}},
		{name: "one wave", object: waves(100)},
		{name: "wave 0", object: waves(0, 100), refused: []string{"spec.waves[0]"}},
		{name: "wave 101", object: waves(5, 101), refused: []string{"spec.waves[1]"}},
		{name: "waves that fall", object: waves(50, 25), refused: []string{"spec.waves"}},
		{name: "waves that stay", object: waves(5, 25, 25), refused: []string{"spec.waves"}},
		{name: "17 waves", object: waves(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17), refused: []string{"spec.waves"}},
		{name: "no policy", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Policy = "" }), refused: []string{"spec.policy"}},
		{name: "bad policy", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Policy = "a_b" }), refused: []string{"spec.policy"}},
		{name: "unknown target", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Target = "Cloud" }), refused: []string{"spec.target"}},
		{name: "unknown onGateFailure", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.OnGateFailure = "Hope" }), refused: []string{"spec.onGateFailure"}},
		{name: "unknown boundPods", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.BoundPods = "Kill" }), refused: []string{"spec.boundPods"}},
		{name: "legacy resource without domain", object: legacy("gpu"), refused: []string{"spec.legacyResource"}},
		{name: "legacy resource of Kubernetes", object: legacy("node.kubernetes.io/gpu"), refused: []string{"spec.legacyResource"}},
		{name: "legacy resource of a like-named domain", object: legacy("notkubernetes.io/gpu")},
		{name: "bad selector", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Selector = bad }), refused: []string{"spec.selector.matchExpressions[0].values"}, server: []string{"spec.selector.matchExpressions"}},
		{name: "bad namespaceSelector", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.NamespaceSelector = bad }), refused: []string{"spec.namespaceSelector.matchExpressions[0].values"}, server: []string{"spec.namespaceSelector.matchExpressions"}},
		{name: "no sample", object: gates(v1alpha1.MigrationGates{MinSample: ptr.To[int32](0)}), refused: []string{"spec.gates.minSample"}},
		{name: "negative soak", object: gates(v1alpha1.MigrationGates{Soak: lasting(-time.Hour)}), refused: []string{"spec.gates.soak"}},
		{name: "drop of 101", object: gates(v1alpha1.MigrationGates{MaxSuccessRateDrop: ptr.To[int32](101)}), refused: []string{"spec.gates.maxSuccessRateDrop"}},
		{name: "fallback of -1", object: gates(v1alpha1.MigrationGates{MaxFallbackRate: ptr.To[int32](-1)}), refused: []string{"spec.gates.maxFallbackRate"}},
		{name: "rise beyond bounds", object: gates(v1alpha1.MigrationGates{MaxLatencyRise: ptr.To[int32](10001)}), refused: []string{"spec.gates.maxLatencyRise"}},
		{name: "utilisation drop of 101", object: gates(v1alpha1.MigrationGates{MaxUtilizationDrop: ptr.To[int32](101)}), refused: []string{"spec.gates.maxUtilizationDrop"}},
	})
}

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
