package v1alpha1

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The whole tables, in which an API server must agree, are in
// e2e/integration/api. Here is one fault for each check, so that they can be
// tried without a server.

// faults returns "path: type" for each error.
func faults(errs field.ErrorList) []string {
	var list []string
	for _, e := range errs {
		list = append(list, e.Field+": "+string(e.Type))
	}
	slices.Sort(list)
	return list
}

func validate[T any, P interface {
	*T
	Default()
	Validate() field.ErrorList
}](t *testing.T, doc string) field.ErrorList {
	t.Helper()
	object := P(decoded[T](t, doc))
	object.Default()
	return object.Validate()
}

type fault struct {
	name, doc string
	want      []string
}

func TestValidateAcceleratorPolicy(t *testing.T) {
	for _, f := range []fault{
		{"least", `{tiers: [{name: a}]}`, nil},
		{"no tiers", `{tiers: []}`, []string{"spec.tiers: FieldValueRequired"}},
		{"nine tiers", `{tiers: [{name: a}, {name: b}, {name: c}, {name: d}, {name: e}, {name: f}, {name: g}, {name: h}, {name: i}]}`, []string{"spec.tiers: FieldValueTooMany"}},
		{"no name", `{tiers: [{models: [H100]}]}`, []string{"spec.tiers[0].name: FieldValueRequired"}},
		{"bad name", `{tiers: [{name: A}]}`, []string{"spec.tiers[0].name: FieldValueInvalid"}},
		{"same name", `{tiers: [{name: a, models: [x]}, {name: a, models: [y]}]}`, []string{"spec.tiers[1]: FieldValueDuplicate"}},
		{"same model", `{tiers: [{name: a, models: [x, x]}]}`, []string{"spec.tiers[0].models[1]: FieldValueDuplicate"}},
		{"tier count", `{tiers: [{name: a, count: 33}]}`, []string{"spec.tiers[0].count: FieldValueInvalid"}},
		{"count", `{tiers: [{name: a}], count: 0}`, []string{"spec.count: FieldValueInvalid"}},
		{"negative after", `{tiers: [{name: a, after: -1s}]}`, []string{"spec.tiers[0].after: FieldValueInvalid"}},
		{"blank selector", `{tiers: [{name: a, selectors: [" "]}]}`, []string{"spec.tiers[0].selectors[0]: FieldValueInvalid"}},
		{"unreachable tier", `{tiers: [{name: a}, {name: b, models: [x]}]}`, []string{"spec.tiers: FieldValueInvalid"}},
		{"model of two words", `{driver: gpu.nvidia.com, tiers: [{name: a, models: [RTX 6000]}]}`, []string{"spec.tiers: FieldValueInvalid"}},
		{"driver", `{driver: x, tiers: [{name: a}]}`, []string{"spec.driver: FieldValueNotSupported"}},
		{"ranking", `{ranking: x, tiers: [{name: a}]}`, []string{"spec.ranking: FieldValueNotSupported"}},
		{"mixTiers", `{mixTiers: x, tiers: [{name: a}]}`, []string{"spec.mixTiers: FieldValueNotSupported"}},
		{"mixModels", `{mixModels: x, tiers: [{name: a}]}`, []string{"spec.mixModels: FieldValueNotSupported"}},
		{"preempts", `{preempts: x, tiers: [{name: a}]}`, []string{"spec.preempts: FieldValueNotSupported"}},
		{"memory", `{constraints: {minMemory: 0}, tiers: [{name: a}]}`, []string{"spec.constraints.minMemory: FieldValueInvalid"}},
		{"compute capability", `{constraints: {minComputeCapability: x}, tiers: [{name: a}]}`, []string{"spec.constraints.minComputeCapability: FieldValueInvalid"}},
		{"driver version", `{constraints: {minDriverVersion: 1.2.3.4}, tiers: [{name: a}]}`, []string{"spec.constraints.minDriverVersion: FieldValueInvalid"}},
		{"architecture", `{constraints: {architectures: [" x"]}, tiers: [{name: a}]}`, []string{"spec.constraints.architectures[0]: FieldValueInvalid"}},
		{"isolation", `{constraints: {isolation: x}, tiers: [{name: a}]}`, []string{"spec.constraints.isolation: FieldValueNotSupported"}},
		{"constraint's selector", `{constraints: {selectors: [""]}, tiers: [{name: a}]}`, []string{"spec.constraints.selectors[0]: FieldValueInvalid"}},
		{"bare attribute", `{constraints: {matchAttributes: [x]}, tiers: [{name: a}]}`, []string{"spec.constraints.matchAttributes[0]: FieldValueInvalid"}},
		{"preferred bare attribute", `{preferAttributes: [x], tiers: [{name: a}]}`, []string{"spec.preferAttributes[0]: FieldValueInvalid"}},
		{"a must and a wish", `{preferAttributes: [a.example/x], constraints: {matchAttributes: [a.example/x]}, tiers: [{name: a}]}`, []string{"spec.preferAttributes: FieldValueInvalid"}},
		{"namespace selector", `{namespaceSelector: {matchLabels: {"a b": c}}, tiers: [{name: a}]}`, []string{"spec.namespaceSelector.matchLabels: FieldValueInvalid"}},
		{"attempts", `{retry: {maxAttempts: 0}, tiers: [{name: a}]}`, []string{"spec.retry.maxAttempts: FieldValueInvalid"}},
		{"backoffs", `{retry: {initialBackoff: 31s}, tiers: [{name: a}]}`, []string{"spec.retry.maxBackoff: FieldValueInvalid"}},
		{"grace for what is kept", `{onUnhealthy: {action: Keep, gracePeriod: 1s}, tiers: [{name: a}]}`, []string{"spec.onUnhealthy.gracePeriod: FieldValueInvalid"}},
		{"active revision", `{activeRevision: 0, tiers: [{name: a}]}`, []string{"spec.activeRevision: FieldValueInvalid"}},
	} {
		t.Run(f.name, func(t *testing.T) {
			got := faults(validate[AcceleratorPolicy](t, "metadata: {name: p}\nspec: "+f.doc))
			if !slices.Equal(got, f.want) {
				t.Errorf("got %q, want %q", got, f.want)
			}
		})
	}
}

func TestValidateName(t *testing.T) {
	for name, want := range map[string][]string{
		"p":                     nil,
		strings.Repeat("p", 63): nil,
		strings.Repeat("p", 64): {"metadata.name: FieldValueInvalid"},
		"P":                     {"metadata.name: FieldValueInvalid"},
		`""`:                    {"metadata.name: FieldValueRequired"},
	} {
		got := faults(validate[AcceleratorPolicy](t, "{metadata: {name: "+name+"}, spec: {tiers: [{name: a}]}}"))
		if !slices.Equal(got, want) {
			t.Errorf("name %s: got %q, want %q", name, got, want)
		}
	}
}

func TestUnreachableTierNamesBoth(t *testing.T) {
	errs := validate[AcceleratorPolicy](t, `{metadata: {name: p}, spec: {tiers: [{name: h100, models: [H100]}, {name: any}, {name: late, after: 1h}]}}`)
	if len(errs) != 1 || errs[0].BadValue != "late" || !strings.Contains(errs[0].Detail, "tier any") {
		t.Errorf("got %v, want one error that names late and any", errs)
	}
}

func TestValidateOtherKinds(t *testing.T) {
	const hash = "sha256:0123456789012345678901234567890123456789012345678901234567890123"
	revision := func(name, spec string) field.ErrorList {
		return validate[PolicyRevision](t, "metadata: {name: "+name+"}\nspec: "+spec)
	}
	quota := func(spec string) field.ErrorList { return validate[TenantQuota](t, "spec: "+spec) }
	migration := func(spec string) field.ErrorList { return validate[DeviceMigration](t, "spec: "+spec) }
	decision := func(spec string) field.ErrorList { return validate[AllocationDecision](t, "spec: "+spec) }
	for name, c := range map[string]struct {
		got  field.ErrorList
		want []string
	}{
		"revision":                  {revision("p-1", `{policy: p, revision: 1, hash: "`+hash+`", policySpec: {tiers: [{name: a}]}}`), nil},
		"revision of another name":  {revision("p-2", `{policy: p, revision: 1, hash: "`+hash+`", policySpec: {tiers: [{name: a}]}}`), []string{"metadata.name: FieldValueInvalid"}},
		"revision of nothing":       {revision("p-1", `{policySpec: {tiers: [{name: a}]}}`), []string{"spec.hash: FieldValueRequired", "spec.policy: FieldValueRequired", "spec.revision: FieldValueRequired"}},
		"revision that names one":   {revision("p-1", `{policy: p, revision: 1, hash: "`+hash+`", policySpec: {tiers: [{name: a}], activeRevision: 1}}`), []string{"spec.policySpec.activeRevision: FieldValueInvalid"}},
		"quota":                     {quota(`{namespaces: [a], models: [{model: H100, guaranteed: 1, limit: 1}]}`), nil},
		"quota of nobody":           {quota(`{models: [{model: H100}]}`), []string{"spec.namespaces: FieldValueRequired"}},
		"quota of nothing":          {quota(`{namespaces: [a]}`), []string{"spec.models: FieldValueRequired"}},
		"quota over its limit":      {quota(`{namespaces: [a], models: [{model: H100, guaranteed: 2, limit: 1}]}`), []string{"spec.models[0].guaranteed: FieldValueInvalid"}},
		"quota of a bad namespace":  {quota(`{namespaces: [a.b], models: [{model: H100}]}`), []string{"spec.namespaces[0]: FieldValueInvalid"}},
		"quota of a model twice":    {quota(`{namespaces: [a], models: [{model: x}, {model: x}]}`), []string{"spec.models[1]: FieldValueDuplicate"}},
		"migration":                 {migration(`{policy: p, waves: [1, 100]}`), nil},
		"migration without waves":   {migration(`{policy: p}`), []string{"spec.waves: FieldValueRequired"}},
		"migration that falls back": {migration(`{policy: p, waves: [2, 1]}`), []string{"spec.waves: FieldValueInvalid"}},
		"migration beyond all":      {migration(`{policy: p, waves: [200]}`), []string{"spec.waves[0]: FieldValueInvalid"}},
		"migration to nowhere":      {migration(`{waves: [1]}`), []string{"spec.policy: FieldValueRequired"}},
		"migration of core":         {migration(`{policy: p, waves: [1], legacyResource: kubernetes.io/gpu}`), []string{"spec.legacyResource: FieldValueInvalid"}},
		"decision":                  {decision(`{outcome: Allocated, tier: a, node: n}`), nil},
		"decision of nothing":       {decision(`{}`), []string{"spec.outcome: FieldValueRequired"}},
		"pending decision's place":  {decision(`{outcome: Pending, tier: a, node: n}`), []string{"spec.node: FieldValueInvalid", "spec.tier: FieldValueInvalid"}},
		"allocated yet failed":      {decision(`{outcome: Allocated, class: NodeLost}`), []string{"spec.class: FieldValueInvalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := faults(c.got); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestValidateUpdate(t *testing.T) {
	old := decoded[PolicyRevision](t, `{metadata: {name: p-1}, spec: {policy: p, revision: 1, hash: "sha256:`+strings.Repeat("0", 64)+`", policySpec: {tiers: [{name: a}], constraints: {minMemory: 1Gi}}}}`)
	same := old.DeepCopy()
	same.Spec.State = RevisionWithdrawn
	*same.Spec.PolicySpec.Constraints.MinMemory = decoded[AcceleratorPolicySpec](t, `{constraints: {minMemory: 1024Mi}}`).Constraints.MinMemory.DeepCopy()
	if errs := same.ValidateUpdate(old); len(errs) > 0 {
		t.Errorf("withdrawing is refused: %v", errs)
	}
	other := old.DeepCopy()
	other.Spec.PolicySpec.Tiers[0].Name = "b"
	if got, want := faults(other.ValidateUpdate(old)), []string{"spec.policySpec: FieldValueInvalid"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	record := &AllocationDecision{Spec: AllocationDecisionSpec{Outcome: OutcomePending, Message: "x"}}
	rewritten := record.DeepCopy()
	rewritten.Spec.Message = "y"
	if got, want := faults(rewritten.ValidateUpdate(record)), []string{"spec: FieldValueInvalid"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if errs := record.DeepCopy().ValidateUpdate(record); len(errs) > 0 {
		t.Errorf("an update without a change is refused: %v", errs)
	}
}
