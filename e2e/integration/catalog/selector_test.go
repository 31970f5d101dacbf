package catalog_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
)

// TestNamespaceSelector holds the CEL that evaluates a policy's namespace
// selector to what the label selector itself says, over all operators.
func TestNamespaceSelector(t *testing.T) {
	s := server(t)
	namespaces := map[string]labels.Set{
		"team-a": {"tier": "gold"}, "team-b": {"tier": "silver"}, "team-c": {},
	}
	requirement := func(op metav1.LabelSelectorOperator, values ...string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: op, Values: values}}}
	}
	both := requirement(metav1.LabelSelectorOpExists)
	both.MatchLabels = map[string]string{"tier": "gold"}
	name := metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "team-c"}}
	selectors := []metav1.LabelSelector{
		{},
		both, name,
		{MatchLabels: map[string]string{"tier": "gold", "kubernetes.io/metadata.name": "team-a"}},
		{MatchLabels: map[string]string{"tier": "gold", "absent": "x"}},
		requirement(metav1.LabelSelectorOpIn, "gold", "silver"),
		requirement(metav1.LabelSelectorOpIn, "bronze"),
		requirement(metav1.LabelSelectorOpNotIn, "gold"),
		requirement(metav1.LabelSelectorOpExists),
		requirement(metav1.LabelSelectorOpDoesNotExist),
	}
	for i := range selectors {
		policy := fmt.Sprintf("select-%d", i)
		createPolicy(t, s.Client, policy, &selectors[i], 1, 1)
	}
	for i := range selectors {
		policy := fmt.Sprintf("select-%d", i)
		selector, err := metav1.LabelSelectorAsSelector(&selectors[i])
		if err != nil {
			t.Fatal(err)
		}
		for ns, set := range namespaces {
			set := labels.Merge(set, labels.Set{"kubernetes.io/metadata.name": ns})
			t.Run(fmt.Sprintf("%s in %s", selector, ns), func(t *testing.T) {
				var got error
				apiserver.WaitFor(t, "policy "+policy+" to be known", func(ctx context.Context) error {
					got = s.Client.Create(ctx, pod(ns, policy), client.DryRunAll)
					if got != nil && strings.Contains(got.Error(), "does not select") {
						return nil
					}
					return got
				})
				if want := selector.Matches(set); (got == nil) != want {
					t.Errorf("admitted: %v, want %v: %v", got == nil, want, got)
				}
			})
		}
	}
}
