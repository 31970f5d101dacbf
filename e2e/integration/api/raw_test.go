package api_test

import (
	"slices"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func document(spec string) []byte {
	return []byte("apiVersion: gpuladder.dev/v1alpha1\nkind: AcceleratorPolicy\nmetadata: {name: raw}\nspec: " + spec)
}

func createRaw(t *testing.T, doc []byte) (*unstructured.Unstructured, error) {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(doc, &object.Object); err != nil {
		t.Fatalf("decoding the document, %v", err)
	}
	err := apiserver.Get(t).Client.Create(t.Context(), object, client.DryRunAll)
	return object, err
}

// TestRaw judges documents that Go's types can't hold, or hold in one form
// only. Where decoding refuses one already, no further check is needed.
func TestRaw(t *testing.T) {
	for _, c := range []struct {
		name, spec string
		refused    []string
		undecoded  bool
	}{
		{name: "flow style", spec: `{tiers: [{name: a, after: 90s}], constraints: {minMemory: 40960Mi}}`},
		{name: "memory as a number", spec: `{tiers: [{name: a}], constraints: {minMemory: 1073741824}}`},
		{name: "memory 0 as a number", spec: `{tiers: [{name: a}], constraints: {minMemory: 0}}`, refused: []string{"spec.constraints.minMemory"}},
		{name: "memory in gigabytes spelled out", spec: `{tiers: [{name: a}], constraints: {minMemory: 40GB}}`, refused: []string{"spec.constraints.minMemory"}, undecoded: true},
		{name: "count 0", spec: `{tiers: [{name: a}], count: 0}`, refused: []string{"spec.count"}},
		{name: "attempts 0", spec: `{tiers: [{name: a}], retry: {maxAttempts: 0}}`, refused: []string{"spec.retry.maxAttempts"}},
		{name: "count as text", spec: `{tiers: [{name: a}], count: two}`, refused: []string{"spec.count"}, undecoded: true},
		{name: "no spec", spec: `{}`, refused: []string{"spec.tiers"}},
		{name: "duration 0", spec: `{tiers: [{name: a, after: "0"}]}`},
		{name: "duration of fractions", spec: `{tiers: [{name: a, after: 1.5h}]}`},
		{name: "duration without unit", spec: `{tiers: [{name: a, after: "10"}]}`, refused: []string{"spec.tiers[0].after"}, undecoded: true},
		{name: "duration in days", spec: `{tiers: [{name: a, after: 1d}]}`, refused: []string{"spec.tiers[0].after"}, undecoded: true},
		{name: "duration beyond 290 years", spec: `{tiers: [{name: a, after: 9999999999h}]}`, refused: []string{"spec.tiers[0].after"}, undecoded: true},
		{name: "duration with a sign", spec: `{tiers: [{name: a, after: -1s}]}`, refused: []string{"spec.tiers[0].after"}},
		{name: "tiers in the form of a map", spec: `{tiers: {a: {}}}`, refused: []string{"spec.tiers"}, undecoded: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc := document(c.spec)
			theirs, err := createRaw(t, doc)
			if got := refusedFields(t, err); !slices.Equal(got, sorted(c.refused)) {
				t.Errorf("the API server refuses %q, want %q: %v", got, c.refused, err)
			}
			ours := &v1alpha1.AcceleratorPolicy{}
			if err := yaml.UnmarshalStrict(doc, ours); err != nil {
				if !c.undecoded {
					t.Errorf("decoding, %v", err)
				}
				return
			}
			ours.Default()
			if got := paths(ours.Validate()); !slices.Equal(got, sorted(c.refused)) || c.undecoded {
				t.Errorf("decoded, and Validate refuses %q, want %q", got, c.refused)
			}
			if err == nil {
				requireSameSpec(t, ours, theirs)
			}
		})
	}
}

func requireSameSpec(t *testing.T, ours *v1alpha1.AcceleratorPolicy, theirs *unstructured.Unstructured) {
	t.Helper()
	raw, err := theirs.MarshalJSON()
	if err != nil {
		t.Fatalf("encoding the server's answer, %v", err)
	}
	typed := &v1alpha1.AcceleratorPolicy{}
	if err := yaml.UnmarshalStrict(raw, typed); err != nil {
		t.Fatalf("decoding the server's answer, %v", err)
	}
	if !apiequality.Semantic.DeepEqual(ours.Spec, typed.Spec) {
		t.Errorf("Default gives\n%+v\nthe API server\n%+v", ours.Spec, typed.Spec)
	}
}
