package api_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

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
