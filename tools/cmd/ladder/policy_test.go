package main

import (
	"encoding/json"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/manifest"
)

const fullPolicy = `apiVersion: gpuladder.dev/v1alpha1
kind: AcceleratorPolicy
metadata: {name: h100-first}
spec:
  constraints:
    minMemory: 40Gi
    minComputeCapability: "8.0"
    minDriverVersion: "550.54"
    architectures: [Hopper, Ampere]
    isolation: Exclusive
    matchAttributes: [resource.kubernetes.io/numaNode]
    selectors: ['device.attributes["gpu.gpuladder.dev"].?brand.orValue("") == "Nvidia"']
  tiers:
  - {name: h100, models: [H100]}
  - {name: a100, models: [A100], count: 2}
  - {name: any, after: 10m}
`

func TestPolicyShowSaysSharing(t *testing.T) {
	for sharing, want := range map[string]string{
		"{strategy: TimeSlicing}": "TimeSlicing, interval Default",
		"{strategy: MPS}":         "MPS",
		"{strategy: MPS, mps: {activeThreadPercentage: 25, pinnedDeviceMemoryLimit: 5Gi}}": "MPS, 25 % of the threads, 5Gi of the memory",
		"{strategy: Exclusive}": "",
	} {
		doc := "apiVersion: gpuladder.dev/v1alpha1\nkind: AcceleratorPolicy\nmetadata: {name: p}\nspec: {tiers: [{name: any}], sharing: " + sharing + "}\n"
		path := write(t, t.TempDir(), "p.yaml", doc)
		said := ladder(t, "policy", "show", "p", "-f", path).want(t, 0).stdout
		if line := "  sharing      " + want + "\n"; strings.Contains(said, line) != (want != "") || strings.Contains(said, "sharing") != (want != "") {
			t.Errorf("%s: it says\n%s", sharing, said)
		}
	}
}

func TestPolicyShow(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "p.yaml", fullPolicy)
	golden(t, "policy-show.txt", ladder(t, "policy", "show", "h100-first", "-f", path).want(t, 0).stdout)
	golden(t, "policy-show.yaml", ladder(t, "policy", "show", "h100-first", "-f", path, "-o", "yaml").want(t, 0).stdout)

	// With revisions, the newest one is active, or the one that is named; none is
	// in the place of one that is withdrawn.
	compiled := func(n string) string {
		return manifestOf(t, ladder(t, "policy", "compile", path, "--revision", n).want(t, 0).stdout, "PolicyRevision")
	}
	withdrawn := strings.Replace(compiled("2"), "state: Usable", "state: Withdrawn", 1)
	naming := func(n string) string {
		return strings.Replace(fullPolicy, "spec:", "spec:\n  activeRevision: "+n, 1)
	}
	status := `
status:
  observedGeneration: 1
  conditions: [{type: Ready, status: "False", reason: RevisionWithdrawn, message: revision 2 is withdrawn, lastTransitionTime: "2026-11-01T00:00:00Z"}]
`
	looked := func(generation string) string {
		return strings.Replace(fullPolicy, "{name: h100-first}", "{name: h100-first, uid: u, generation: "+generation+"}", 1) + status
	}
	for name, tc := range map[string]struct{ policy, second, want string }{
		"newest":           {fullPolicy, compiled("2"), "revision     2 active, of 1, 2\n"},
		"newest withdrawn": {fullPolicy, withdrawn, "revision     none active, of 1, 2 (withdrawn)\n"},
		"named":            {naming("1"), withdrawn, "revision     1 active, of 1, 2 (withdrawn)\n"},
		"named, withdrawn": {naming("2"), withdrawn, "revision     none active, of 1, 2 (withdrawn)\n"},
		"by its status":    {looked("1"), compiled("2"), "revision     none active, of 1, 2\n  ready        False, RevisionWithdrawn: revision 2 is withdrawn\n"},
		"changed since":    {looked("2"), withdrawn, "  ready        False, RevisionWithdrawn: revision 2 is withdrawn; it was changed since ladder-controller looked at it\n"},
		"named, not there": {strings.Replace(naming("7"), "{name: h100-first}", "{name: h100-first, uid: u}", 1), compiled("2"), "revision     none active, of 1, 2\n"},
	} {
		all := write(t, dir, "all.yaml", strings.Join([]string{tc.policy, tc.second, compiled("1")}, "\n---\n"))
		if r := ladder(t, "policy", "show", "h100-first", "-f", all).want(t, 0); !strings.Contains(r.stdout, tc.want) {
			t.Errorf("%s: it says\n%swant\n%s", name, r.stdout, tc.want)
		}
	}
	r := ladder(t, "policy", "show", "other", "-f", path).want(t, 1)
	if !strings.Contains(r.stderr, "no AcceleratorPolicy other") {
		t.Errorf("stderr %q", r.stderr)
	}
}

// manifestOf is the document of a kind.
func manifestOf(t *testing.T, text, kind string) string {
	t.Helper()
	for _, d := range strings.Split(text, "---\n") {
		if strings.Contains(d, "kind: "+kind+"\n") {
			return d
		}
	}
	t.Fatalf("no %s in\n%s", kind, text)
	return ""
}

// What is compiled can be read back, and Pods be decided by it.
func TestPolicyCompile(t *testing.T) {
	path := write(t, t.TempDir(), "p.yaml", fullPolicy)
	r := ladder(t, "policy", "compile", path, "-n", "team-a", "--revision", "3").want(t, 0)
	set, err := manifest.Parse("compiled", []byte(r.stdout))
	if err != nil {
		t.Fatalf("what was compiled is refused: %v", err)
	}
	if len(set.Objects) != 3 {
		t.Errorf("%d objects, want a class, a revision and a template", len(set.Objects))
	}
	for c := range manifest.All[*resourceapi.ResourceClaimTemplate](set) {
		tiers := c.Spec.Spec.Devices.Requests[0].FirstAvailable
		if c.Namespace != "team-a" || c.Name != "h100-first-3" || len(tiers) != 3 || tiers[1].Count != 2 {
			t.Errorf("template %s/%s with %d tiers", c.Namespace, c.Name, len(tiers))
		}
	}
	for v := range manifest.All[*v1alpha1.PolicyRevision](set) {
		if v.Spec.Revision != 3 || v.Spec.Hash != v.Spec.PolicySpec.ContentHash() {
			t.Errorf("revision %d, hash %s", v.Spec.Revision, v.Spec.Hash)
		}
	}
	fromJSON, err := manifest.Parse("json", []byte(ladder(t, "policy", "compile", path, "-n", "team-a", "--revision", "3", "-o", "json").want(t, 0).stdout))
	if err != nil || len(fromJSON.Objects) != 3 {
		t.Errorf("as JSON: %v", err)
	}
	refused(t, ladder(t, "policy", "compile", caseFile("10-bad-policy")), "document 5 (AcceleratorPolicy h100-first)", "spec.tiers")
	refused(t, ladder(t, "policy", "compile", write(t, t.TempDir(), "n.yaml", node[:strings.Index(node, "---")])), "error", "no AcceleratorPolicy in the input")
}

func TestPolicyDiff(t *testing.T) {
	dir := t.TempDir()
	before := write(t, dir, "old.yaml", fullPolicy)
	changed := strings.NewReplacer("40Gi", "48Gi", "[A100], count: 2", "[A100, A800]", "{name: any, after: 10m}", "{name: rest, after: 10m}", "  - {name: h100", "  - {name: h200, models: [H200]}\n  - {name: h100").Replace(fullPolicy)
	after := write(t, dir, "new.yaml", changed)
	golden(t, "policy-diff.txt", ladder(t, "policy", "diff", before, after).want(t, 1).stdout)

	same := write(t, dir, "same.yaml", strings.NewReplacer("40Gi", "40960Mi", "10m", "600s", "h100-first", "renamed").Replace(fullPolicy))
	if r := ladder(t, "policy", "diff", before, same).want(t, 0); r.stdout != "no difference\n" {
		t.Errorf("another spelling: %s", r.stdout)
	}
	// A revision is compared by what it froze.
	revision := write(t, dir, "revision.yaml", manifestOf(t, ladder(t, "policy", "compile", before).want(t, 0).stdout, "PolicyRevision"))
	ladder(t, "policy", "diff", revision, before).want(t, 0)

	swapped := write(t, dir, "swapped.yaml", strings.NewReplacer("name: h100, models: [H100]", "name: a100, models: [A100], count: 2", "name: a100, models: [A100], count: 2", "name: h100, models: [H100]").Replace(fullPolicy))
	var out struct {
		Changes []struct{ Policy, Field string }
	}
	r := ladder(t, "policy", "diff", before, swapped, "-o", "json").want(t, 1)
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Changes) != 1 || out.Changes[0].Field != "spec.tiers (order)" || out.Changes[0].Policy != "h100-first" {
		t.Errorf("changes %+v, want the order of the tiers alone", out.Changes)
	}

	two := write(t, dir, "two.yaml", fullPolicy+"---\n"+strings.Replace(fullPolicy, "h100-first", "second", 1))
	if r := ladder(t, "policy", "diff", before, two).want(t, 1); !strings.HasPrefix(r.stdout, "second: spec\n  + {") {
		t.Errorf("an added policy:\n%s", r.stdout)
	}
	refused(t, ladder(t, "policy", "diff", before, write(t, dir, "n.yaml", "# nothing\n")), "n.yaml", "no AcceleratorPolicy or PolicyRevision")
}

func TestPolicyLint(t *testing.T) {
	quota := `---
apiVersion: gpuladder.dev/v1alpha1
kind: TenantQuota
metadata: {name: small}
spec: {namespaces: [team-s], models: [{model: T4}, {model: H100, limit: 1}]}
`
	policy := func(spec string) string {
		return "apiVersion: gpuladder.dev/v1alpha1\nkind: AcceleratorPolicy\nmetadata: {name: p}\nspec: " + spec + "\n"
	}
	for name, tc := range map[string]struct {
		text string
		code int
		want []string // parts of the findings, one each
	}{
		"sound":              {fullPolicy, 0, nil},
		"unguarded selector": {policy(`{constraints: {selectors: ['device.attributes["gpu.gpuladder.dev"].brand == "Nvidia"']}, tiers: [{name: a}]}`), 0, []string{`warning: spec.constraints.selectors[0]: device.attributes["gpu.gpuladder.dev"].brand is read without a guard`}},
		"guarded selector":   {policy(`{tiers: [{name: a, selectors: ['has(device.attributes["gpu.gpuladder.dev"].brand) && device.attributes["gpu.gpuladder.dev"].brand == "Nvidia"']}]}`), 0, nil},
		"after falls":        {policy(`{tiers: [{name: a, models: [A]}, {name: b, models: [B], after: 10m}, {name: c, models: [C], after: 5m}]}`), 0, []string{"warning: spec.tiers[2].after: tier c opens after 5m, before the more wanted tier b, which opens after 10m"}},
		"after everywhere":   {policy(`{tiers: [{name: a, models: [A], after: 2m}, {name: b, models: [B], after: 5m}]}`), 0, []string{"warning: spec.tiers: every tier has an after: no Pod gets anything in its first 2m"}},
		"covered by two":     {policy(`{tiers: [{name: a, models: [A]}, {name: b, models: [B]}, {name: ab, models: [A, B]}]}`), 0, []string{"warning: spec.tiers[2].models: tier ab is never used: the tiers a, b before it"}},
		"fewer are reached":  {policy(`{count: 2, tiers: [{name: a, models: [A]}, {name: b, models: [B]}, {name: ab, models: [A, B], count: 1}]}`), 0, nil},
		"mixed are reached":  {policy(`{count: 2, mixModels: WithinTier, tiers: [{name: a, models: [A]}, {name: b, models: [B]}, {name: ab, models: [A, B]}]}`), 0, nil},
		"out of quota":       {policy(`{count: 2, tiers: [{name: a, models: [H100]}, {name: b, models: [A100]}]}`) + quota, 0, []string{"warning: spec.tiers: TenantQuota small fits no tier"}},
		"in quota":           {policy(`{tiers: [{name: a, models: [H100]}]}`) + quota, 0, nil},
		"unreachable":        {policy(`{tiers: [{name: a}, {name: b, models: [B]}]}`), 1, []string{"error: spec.tiers"}},
		"several mistakes":   {policy(`{count: 0, ranking: Random, tiers: [{name: A}]}`), 1, []string{"error: spec.count", "error: spec.tiers[0].name", "error: spec.ranking"}},
		"CEL":                {policy(`{tiers: [{name: a, selectors: ['1 +']}]}`), 1, []string{"error: spec.tiers[0].selectors[0]: CEL does not compile: "}},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "p.yaml", tc.text)
			r := ladder(t, "policy", "lint", path).want(t, tc.code)
			lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
			if len(tc.want) == 0 {
				if r.stdout != "nothing found\n" {
					t.Errorf("found:\n%s", r.stdout)
				}
				return
			}
			if len(lines) != len(tc.want) {
				t.Fatalf("%d findings, want %d:\n%s", len(lines), len(tc.want), r.stdout)
			}
			for i, want := range tc.want {
				if !strings.Contains(lines[i], "p.yaml: document 1 (AcceleratorPolicy p): "+want) {
					t.Errorf("finding %d is\n%s\nwant\n%s", i, lines[i], want)
				}
			}
			if tc.code == 0 {
				ladder(t, "policy", "lint", path, "--strict").want(t, 1)
			}
		})
	}
	// As a cluster prints it, where the API server has let it in.
	stored := strings.Replace(policy(`{tiers: [{name: a, selectors: ['1 +']}]}`), "{name: p}", "{name: p, uid: u}", 1)
	if r := ladder(t, "policy", "lint", write(t, t.TempDir(), "p.yaml", stored)).want(t, 1); !strings.Contains(r.stdout, "error: spec.tiers[0].selectors[0]: CEL does not compile: ") {
		t.Errorf("found:\n%s", r.stdout)
	}
	refused(t, ladder(t, "policy", "lint", write(t, t.TempDir(), "p.yaml", policy("{tires: []}"))), "p.yaml: document 1 (AcceleratorPolicy p)", "spec.tires: unknown field")
	if r := ladder(t, "policy", "lint", "-o", "json", write(t, t.TempDir(), "p.yaml", fullPolicy)).want(t, 0); r.stdout != "{\n  \"findings\": []\n}\n" {
		t.Errorf("as JSON: %s", r.stdout)
	}
	if r := ladder(t, "policy", "lint", write(t, t.TempDir(), "p.yaml", "# none\n")).want(t, 0); !strings.Contains(r.stderr, "no AcceleratorPolicy") {
		t.Errorf("stderr %q", r.stderr)
	}
}
