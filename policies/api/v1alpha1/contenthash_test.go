package v1alpha1

import (
	"reflect"
	"regexp"
	"testing"
)

func hashOf(t *testing.T, spec string) string {
	t.Helper()
	return decoded[AcceleratorPolicySpec](t, spec).ContentHash()
}

// TestContentHashIsStable pins the hash: it is stored in revisions, so it may
// not change between releases.
func TestContentHashIsStable(t *testing.T) {
	for spec, want := range map[string]string{
		`{tiers: [{name: h100, models: [H100]}, {name: any, after: 10m}]}`: "sha256:4feada7c4f5afbb8b16ae8e4e7bb2fcac7cbcae6bc5fd972bcd112d2c7ccb998",
		`
driver: gpu.nvidia.com
count: 2
constraints: {minMemory: 40Gi, minComputeCapability: "8.0", minDriverVersion: "550.54", architectures: [Hopper, Ampere], isolation: Exclusive, selectors: ["true"], matchAttributes: [resource.kubernetes.io/numaNode]}
tiers: [{name: a, models: [H100], selectors: ["1 < 2"], count: 4, after: 90s}]
ranking: Spread
mixModels: WithinTier
preferAttributes: [resource.kubernetes.io/pcieRoot]
preempts: LowerPriority
namespaceSelector: {matchLabels: {b: "1", a: "2"}}
retry: {maxAttempts: 3, initialBackoff: 2s, maxBackoff: 1m, deadline: 30m}
onUnhealthy: {action: Evict, gracePeriod: 60s}
`: "sha256:5f2f36ee0403b1d28653b25fce12000da24316a347666a8f199a29f44f3e5521",
	} {
		if got := hashOf(t, spec); got != want {
			t.Errorf("%s hashes to %s, want %s", spec, got, want)
		}
	}
}

func TestContentHashForm(t *testing.T) {
	got := hashOf(t, `{tiers: [{name: a}]}`)
	if !regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(got) {
		t.Errorf("unexpected form %s", got)
	}
}

func TestContentHashOfEqualContent(t *testing.T) {
	for name, pair := range map[string][2]string{
		"tiers not mixed":     {`{tiers: [{name: a}]}`, `{tiers: [{name: a}], mixTiers: Never}`},
		"binary units":        {`{tiers: [{name: a}], constraints: {minMemory: 40Gi}}`, `{tiers: [{name: a}], constraints: {minMemory: 40960Mi}}`},
		"bytes and units":     {`{tiers: [{name: a}], constraints: {minMemory: 40Gi}}`, `{tiers: [{name: a}], constraints: {minMemory: "42949672960"}}`},
		"number and text":     {`{tiers: [{name: a}], constraints: {minMemory: 1024}}`, `{tiers: [{name: a}], constraints: {minMemory: 1Ki}}`},
		"part of a unit":      {`{tiers: [{name: a}], constraints: {minMemory: 1.5Gi}}`, `{tiers: [{name: a}], constraints: {minMemory: 1536Mi}}`},
		"durations":           {`{tiers: [{name: a, after: 90s}]}`, `{tiers: [{name: a, after: 1m30s}]}`},
		"defaults":            {`{tiers: [{name: a}]}`, `{tiers: [{name: a}], count: 1, driver: gpu.gpuladder.dev, ranking: Packed, retry: {deadline: 60m}, onUnhealthy: {action: Evict}}`},
		"active revision":     {`{tiers: [{name: a}]}`, `{tiers: [{name: a}], activeRevision: 3}`},
		"empty selector":      {`{tiers: [{name: a}]}`, `{tiers: [{name: a}], namespaceSelector: {}}`},
		"empty lists":         {`{tiers: [{name: a}]}`, `{tiers: [{name: a, models: [], selectors: []}], constraints: {architectures: []}, preferAttributes: []}`},
		"order of map keys":   {`{tiers: [{name: a}], namespaceSelector: {matchLabels: {a: x, b: y}}}`, `{tiers: [{name: a}], namespaceSelector: {matchLabels: {b: y, a: x}}}`},
		"order of the fields": {`{tiers: [{name: a, models: [H100]}], count: 2}`, `{count: 2, tiers: [{models: [H100], name: a}]}`},
	} {
		if a, b := hashOf(t, pair[0]), hashOf(t, pair[1]); a != b {
			t.Errorf("%s: %s and %s", name, a, b)
		}
	}
}

func TestContentHashOfOtherContent(t *testing.T) {
	seen := map[string]string{}
	for _, spec := range []string{
		`{tiers: [{name: a}]}`,
		`{tiers: [{name: b}]}`,
		`{tiers: [{name: a}, {name: b}]}`,
		`{tiers: [{name: b}, {name: a}]}`,
		`{tiers: [{name: a, models: [H100]}]}`,
		`{tiers: [{name: a, models: [A100]}]}`,
		`{tiers: [{name: a, selectors: ["true"]}]}`,
		`{tiers: [{name: a, count: 1}]}`,
		`{tiers: [{name: a, after: 1s}]}`,
		`{tiers: [{name: a}], count: 2}`,
		`{tiers: [{name: a}], driver: gpu.nvidia.com}`,
		`{tiers: [{name: a}], ranking: Spread}`,
		`{tiers: [{name: a}], mixModels: WithinTier}`,
		`{tiers: [{name: a}], mixTiers: WithinGroup}`,
		`{tiers: [{name: a}], preempts: Borrowed}`,
		`{tiers: [{name: a}], preferAttributes: [a.example/x]}`,
		`{tiers: [{name: a}], namespaceSelector: {matchLabels: {a: x}}}`,
		`{tiers: [{name: a}], retry: {maxAttempts: 6}}`,
		`{tiers: [{name: a}], onUnhealthy: {action: Keep}}`,
		`{tiers: [{name: a}], constraints: {minMemory: 40Gi}}`,
		`{tiers: [{name: a}], constraints: {minMemory: 40G}}`,
		`{tiers: [{name: a}], constraints: {minComputeCapability: "8"}}`,
		`{tiers: [{name: a}], constraints: {minDriverVersion: "8"}}`,
		`{tiers: [{name: a}], constraints: {architectures: [Hopper]}}`,
		`{tiers: [{name: a}], constraints: {isolation: Exclusive}}`,
		`{tiers: [{name: a}], constraints: {selectors: ["true"]}}`,
		`{tiers: [{name: a}], constraints: {matchAttributes: [a.example/x]}}`,
	} {
		h := hashOf(t, spec)
		if other, found := seen[h]; found {
			t.Errorf("%s and %s hash alike", spec, other)
		}
		seen[h] = spec
	}
}

func TestContentHashLeavesTheSpecAlone(t *testing.T) {
	const doc = `{tiers: [{name: a}], activeRevision: 2, constraints: {minMemory: 40960Mi}, namespaceSelector: {}}`
	s, before := decoded[AcceleratorPolicySpec](t, doc), decoded[AcceleratorPolicySpec](t, doc)
	s.ContentHash()
	if !reflect.DeepEqual(s, before) {
		t.Errorf("changed to %+v", s)
	}
}
