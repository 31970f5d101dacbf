package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/tools/internal/command"
	"gpuladder.dev/ladder/tools/internal/root"
)

func simulateFile(name string) string { return filepath.Join("testdata", "simulate", name) }

// simulateArgs is a sound call; further flags overrule the first ones.
func simulateArgs(more ...string) []string {
	return append([]string{
		"simulate", "--trace", simulateFile("trace.csv"), "--fleet", simulateFile("fleet.yaml"),
		"--policy", simulateFile("policy.yaml"), "--quota", simulateFile("quota.yaml"),
	}, more...)
}

// What each format prints.
func TestSimulateGolden(t *testing.T) {
	for _, format := range []string{"text", "json", "html"} {
		r := ladder(t, simulateArgs("--cost", "H100=10", "-o", format)...).want(t, 0)
		if r.stderr != "" {
			t.Errorf("%s: stderr %q", format, r.stderr)
		}
		golden(t, "simulate."+format, r.stdout)
	}
}

// The fields that programs rely on.
func TestSimulateContract(t *testing.T) {
	r := ladder(t, simulateArgs("-o", "json")...).want(t, 0)
	var got struct {
		Setups []map[string]any `json:"setups"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatal(err)
	}
	var names []any
	for _, u := range got.Setups {
		names = append(names, u["name"])
		fields(t, u, "name", "jobs", "unfinished", "jain", "waitSeconds", "tenants")
		fields(t, u["waitSeconds"].(map[string]any), "p50", "p99", "max")
		if u["jobs"] != 8.0 || u["unfinished"] != 0.0 {
			t.Errorf("%v: %v jobs, %v unfinished", u["name"], u["jobs"], u["unfinished"])
		}
		var tenants []any
		for _, x := range u["tenants"].([]any) {
			tenant := x.(map[string]any)
			tenants = append(tenants, tenant["name"])
			fields(t, tenant, "name", "jobs", "waitSeconds", "deviceSeconds", "fallbackRate", "entitlement", "share")
			fields(t, tenant["waitSeconds"].(map[string]any), "p50", "p99", "max")
		}
		if !slices.Equal(tenants, []any{"other", "research", "serving"}) {
			t.Errorf("tenants %v", tenants)
		}
	}
	if !slices.Equal(names, []any{"fifo", "priority", "no-aging", "ladder"}) {
		t.Errorf("set-ups %v", names)
	}
}

func fields(t *testing.T, object map[string]any, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, ok := object[name]; !ok {
			t.Errorf("no field %s in %v", name, object)
		}
	}
}

// Rows in another order, compressed, from stdin, or policies and quotas in one
// file: the same bytes.
func TestSimulateSameBytes(t *testing.T) {
	dir := t.TempDir()
	want := ladder(t, simulateArgs("-o", "json")...).want(t, 0).stdout
	text, err := os.ReadFile(simulateFile("trace.csv"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Reverse(lines[1:])
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(text); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	policy, err := os.ReadFile(simulateFile("policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	quota, err := os.ReadFile(simulateFile("quota.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	one := write(t, dir, "one.yaml", string(quota)+"---\n"+string(policy))
	for name, args := range map[string][]string{
		"reversed": {"--trace", write(t, dir, "reversed.csv", strings.Join(lines, "\n"))},
		"gzip":     {"--trace", write(t, dir, "trace", packed.String())},
		"named":    {"--format", "philly"},
		"one file": {"--policy", one, "--quota", one},
	} {
		if got := ladder(t, simulateArgs(append(args, "-o", "json")...)...).want(t, 0).stdout; got != want {
			t.Errorf("%s: other bytes", name)
		}
	}
	if got := ladderAs(t, "ladder", string(text), simulateArgs("--trace", "-", "-o", "json")...).want(t, 0).stdout; got != want {
		t.Error("stdin: other bytes")
	}
	if got := ladder(t, simulateArgs("--setups", "ladder", "-o", "json")...).want(t, 0).stdout; strings.Count(got, `"name": "fifo"`) != 0 {
		t.Error("a set-up that was not asked for")
	}
}

// Bad input ends with 2 and one line that names the file and the place.
func TestSimulateBadInput(t *testing.T) {
	dir := t.TempDir()
	trace := write(t, dir, "bad.csv", "timestamp,duration,num_gpus,cluster\n2017-10-09 07:00:00,x,1,a\n")
	other := write(t, dir, "other.csv", "a,b\n1,2\n")
	policy := write(t, dir, "policy.yaml", "apiVersion: gpuladder.dev/v1alpha1\nkind: AcceleratorPolicy\nmetadata: {name: p}\nspec: {tiers: [{name: a, modls: [H100]}]}\n")
	hopeless := write(t, dir, "hopeless.yaml", "apiVersion: gpuladder.dev/v1alpha1\nkind: AcceleratorPolicy\nmetadata: {name: p}\nspec: {tiers: [{name: a, models: [T4]}]}\n")
	fleet := write(t, dir, "fleet.yaml", "apiVersion: gpuladder.dev/v1alpha1\nkind: Fleet\ngroups: [{name: a, nodes: 1, board: H900, gpus: 1}]\n")
	mig := write(t, dir, "mig.yaml", "apiVersion: gpuladder.dev/v1alpha1\nkind: Fleet\ngroups: [{name: a, nodes: 1, board: A100-SXM4-40GB, gpus: 1, mig: {}}]\n")
	quota := write(t, dir, "quota.yaml", "apiVersion: gpuladder.dev/v1alpha1\nkind: TenantQuota\nmetadata: {name: q}\nspec: {namespaces: [a], models: [{model: H100, guaranteed: 2, limit: 1}]}\n")
	empty := write(t, dir, "empty.yaml", "# nothing\n")
	for name, tc := range map[string]struct {
		args        []string
		place, what string
	}{
		"trace, a cell":       {[]string{"--trace", trace}, "bad.csv", `line 2, column "duration": must be a number of seconds, is "x"`},
		"trace, a header":     {[]string{"--trace", other}, "other.csv", "line 1: the header is that of no known trace"},
		"trace, the format":   {[]string{"--format", "openb"}, "trace.csv", `line 1: there is no column "num_gpu"`},
		"trace, not there":    {[]string{"--trace", filepath.Join(dir, "none.csv")}, "none.csv", "no such file"},
		"policy, a field":     {[]string{"--policy", policy}, "policy.yaml: document 1", "spec.tiers[0].modls: unknown field"},
		"policy, hopeless":    {[]string{"--policy", hopeless}, "hopeless.yaml", "AcceleratorPolicy p: no node of the fleet can serve any of its tiers"},
		"policy, none":        {[]string{"--policy", empty}, "empty.yaml", "there is no AcceleratorPolicy in it"},
		"fleet, a field":      {[]string{"--fleet", fleet}, "fleet.yaml", "groups[0].board"},
		"fleet, MIG":          {[]string{"--fleet", mig}, "mig.yaml", "groups[0].mig"},
		"quota, a field":      {[]string{"--quota", quota}, "quota.yaml: document 1", "spec.models[0].guaranteed"},
		"quota, none":         {[]string{"--quota", empty}, "empty.yaml", "there is no TenantQuota in it"},
		"a set-up":            {[]string{"--setups", "lottery"}, "--setups", `"lottery" is none of fifo, priority, no-aging, ladder`},
		"a set-up twice":      {[]string{"--setups", "fifo,fifo"}, "--setups", "fifo is there twice"},
		"no set-up":           {[]string{"--setups", ""}, "--setups", "name at least one"},
		"a format":            {[]string{"--format", "sacct"}, "--format", "neither philly nor openb"},
		"an output":           {[]string{"-o", "yaml"}, "--output", "must be text, json or html"},
		"a cost":              {[]string{"--cost", "H100=0"}, "--cost", "of H100 must be 1 to 1000000000, is 0"},
		"a negative release":  {[]string{"--release", "-1s"}, "--release", "must not be negative"},
		"half a microsecond":  {[]string{"--notice", "500ns"}, "--notice", "must be whole milliseconds"},
		"an argument":         {[]string{"trace.csv"}, "trace.csv", "see 'ladder simulate --help'"},
		"nothing but a trace": {nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.args == nil {
				refused(t, ladder(t, "simulate", "--trace", trace), `"fleet", "policy", "quota"`, "see 'ladder simulate --help'")
				return
			}
			refused(t, ladder(t, simulateArgs(tc.args...)...), tc.place, tc.what)
		})
	}
}

// Ctrl-C ends it, with nothing on stdout.
func TestSimulateInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := root.Main(ctx, append([]string{"ladder"}, simulateArgs()...), command.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	if code != 1 || out.Len() != 0 || errs.String() != "error: interrupted\n" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
}
