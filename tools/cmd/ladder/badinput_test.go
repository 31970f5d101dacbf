package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sound is an input that is decided; the bad ones are made from it. It has no
// UIDs, as one that was written by hand.
func sound(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(caseDir, "01-first-choice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(uids.ReplaceAllString(string(text), ""), "\n---\n")
}

var uids = regexp.MustCompile(`(?m)^ *uid: .*\n`)

// Bad input of each kind ends with 2, one line that names file, document and
// field, and nothing on stdout.
func TestBadInput(t *testing.T) {
	documents := sound(t)
	number := func(kind string) int {
		for i, d := range documents {
			if strings.Contains(d, `kind: "`+kind+`"`) {
				return i + 1
			}
		}
		t.Fatalf("no %s in the sound input", kind)
		return 0
	}
	replace := func(kind, old, new string) string {
		changed := append([]string{}, documents...)
		i := number(kind) - 1
		changed[i] = strings.Replace(changed[i], old, new, 1)
		if changed[i] == documents[i] {
			t.Fatalf("%q is not in the %s", old, kind)
		}
		return strings.Join(changed, "\n---\n")
	}
	all := strings.Join(documents, "\n---\n")
	policy, pod, slice := number("AcceleratorPolicy"), number("Pod"), number("ResourceSlice")
	for name, tc := range map[string]struct {
		text     string
		document int
		want     string
	}{
		"unknown field":             {replace("AcceleratorPolicy", "models:", "modls:"), policy, "spec.tiers[0].modls: unknown field"},
		"unknown field of a slice":  {replace("ResourceSlice", "nodeName:", "nodeNam:"), slice, "spec.nodeNam: unknown field"},
		"wrong type":                {replace("AcceleratorPolicy", "spec:", "spec:\n  count: many"), policy, "spec.count: wrong type"},
		"wrong type of a quantity":  {replace("ResourceSlice", `value: "81920Mi"`, `value: "lots"`), slice, "spec.devices[0].capacity[memory].value"},
		"empty tiers":               {replace("AcceleratorPolicy", "tiers:", "tiers: []\n  preferAttributes:"), policy, "spec.preferAttributes[0]"},
		"no tiers":                  {"apiVersion: gpuladder.dev/v1alpha1\nkind: AcceleratorPolicy\nmetadata: {name: p}\nspec: {tiers: []}\n", 1, "spec.tiers: Required"},
		"unknown policy":            {replace("Pod", `policy: "h100-first"`, `policy: "h200-first"`), pod, "metadata.labels[gpuladder.dev/policy]: names AcceleratorPolicy \"h200-first\""},
		"unknown revision":          {replace("Pod", "labels:", "labels:\n    gpuladder.dev/policy-revision: \"9\""), pod, "metadata.labels[gpuladder.dev/policy-revision]: names revision 9"},
		"CEL that does not compile": {replace("AcceleratorPolicy", "spec:", "spec:\n  constraints: {selectors: ['device.attributes[']}"), policy, "spec.constraints.selectors[0]: CEL does not compile"},
		"a duplicate":               {all + "\n---\n" + documents[0], len(documents) + 1, "metadata.name: is given twice"},
		"truncated YAML":            {all + "\n---\napiVersion: v1\nkind: Node\nmetadata: {name: \"n", len(documents) + 1, "not valid YAML"},
		"truncated JSON":            {`{"apiVersion": "v1", "kind": "Node"`, 1, "not valid JSON"},
		"binary":                    {"\x00\x01\x02\xff", 1, "binary"},
		"an old API":                {replace("ResourceSlice", "resource.k8s.io/v1", "resource.k8s.io/v1beta1"), slice, "apiVersion: resource.k8s.io/v1beta1 is not read"},
		"no such template": {
			replace("Pod", "spec:", "spec:\n  resourceClaims: [{name: other, resourceClaimTemplateName: missing}]"),
			pod, `spec.resourceClaims[0]: ResourceClaimTemplate "missing", not found; add it to the input`,
		},
		"a claim of no class": {
			all + "\n---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c, namespace: team-a}\nspec: {devices: {requests: [{name: r, exactly: {deviceClassName: none}}]}}\n---\n" +
				"apiVersion: v1\nkind: Pod\nmetadata: {name: q, namespace: team-a}\nspec: {resourceClaims: [{name: c, resourceClaimName: c}], containers: [{name: m, image: x}]}\n",
			len(documents) + 2, `DeviceClass "none", not found; add it to the input`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "in.yaml", tc.text)
			for _, format := range []string{"text", "json", "yaml"} {
				refused(t, ladder(t, "decide", "-f", path, "-o", format), fmt.Sprintf("in.yaml: document %d", tc.document), tc.want)
			}
		})
	}
}

// refused checks one refusal.
func refused(t *testing.T, r result, place, what string) {
	t.Helper()
	r.want(t, 2)
	if r.stdout != "" {
		t.Errorf("there is something on stdout: %.200s", r.stdout)
	}
	if strings.Count(r.stderr, "\n") != 1 || strings.Contains(r.stderr, "goroutine") {
		t.Errorf("stderr is not one line: %q", r.stderr)
	}
	if !strings.Contains(r.stderr, place) || !strings.Contains(r.stderr, what) {
		t.Errorf("stderr does not say %q and %q: %s", place, what, r.stderr)
	}
}

// 50 MB end soon, whatever they are.
func TestBadInputOf50MB(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 50 MB several times")
	}
	documents := strings.Join(sound(t), "\n---\n")
	const size = 50_000_000
	for name, unit := range map[string]string{
		"truncated": documents + "\n---\n", "letters": "x", "binary": "\x00\xff", "brackets": "{[",
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "big.yaml", strings.Repeat(unit, size/len(unit)))
			refused(t, ladder(t, "decide", "-f", path), "big.yaml: document ", "limit of 32 MiB")
		})
	}
}

func TestMissingFile(t *testing.T) {
	refused(t, ladder(t, "decide", "-f", filepath.Join(t.TempDir(), "none.yaml")), "none.yaml", "no such file")
}

// A bundle of a run that failed is not left behind.
func TestBadInputLeavesNoBundle(t *testing.T) {
	dir := t.TempDir()
	in := write(t, dir, "in.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: c, resourceClaimName: none}], containers: []}\n")
	refused(t, ladder(t, "decide", "-f", in, "--bundle", filepath.Join(dir, "run.jsonl")), "in.yaml: document 1 (Pod default/p)", `ResourceClaim "none", not found`)
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("files left: %v, %v", left, err)
	}
	if hidden, _ := filepath.Glob(filepath.Join(dir, ".run*")); len(hidden) != 0 {
		t.Errorf("a temporary file is left: %v", hidden)
	}
}
