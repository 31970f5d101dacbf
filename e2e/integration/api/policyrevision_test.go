package api_test

import (
	"strings"
	"testing"

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
