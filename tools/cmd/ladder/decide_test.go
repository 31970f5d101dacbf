package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/tools/internal/decision"
)

func caseFile(name string) string { return filepath.Join(caseDir, name+".yaml") }

// What people read does not change by accident.
func TestTextOutput(t *testing.T) {
	for name, tc := range map[string]struct {
		code int
		args []string
	}{
		"decide-first-choice.txt":   {0, []string{"decide", "-f", caseFile("01-first-choice")}},
		"decide-pending.txt":        {3, []string{"decide", "-f", caseFile("06-pending")}},
		"decide-unsatisfiable.txt":  {3, []string{"decide", "-f", caseFile("05-unsatisfiable")}},
		"decide-two-pods.txt":       {0, []string{"decide", "-f", caseFile("13-limit-over-two-pods")}},
		"explain-quota.txt":         {0, []string{"explain", "p", "-n", "team-a", "-f", caseFile("09-quota")}},
		"explain-in-use-all.txt":    {0, []string{"explain", "team-a/p", "-f", caseFile("02-in-use"), "--all"}},
		"explain-memory.txt":        {0, []string{"explain", "pod/p", "-f", caseFile("04-memory-holds"), "--examples", "1"}},
		"explain-unsatisfiable.txt": {0, []string{"explain", "p", "-f", caseFile("05-unsatisfiable")}},
		"decide-first-choice.json":  {0, []string{"decide", "-f", caseFile("01-first-choice"), "-o", "json", "--examples", "1"}},
		"decide-first-choice.yaml":  {0, []string{"decide", "-f", caseFile("01-first-choice"), "-o", "yaml", "--examples", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := ladder(t, tc.args...).want(t, tc.code)
			if r.stderr != "" {
				t.Errorf("stderr: %s", r.stderr)
			}
			golden(t, name, r.stdout)
		})
	}
}

const node = `apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {allocatable: {cpu: "64", memory: 512Gi, pods: "110"}, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n-gpus}
spec:
  driver: gpu.gpuladder.dev
  nodeName: node-1
  pool: {name: node-1, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {model: {string: H100}}}
  - {name: gpu-1, attributes: {model: {string: A100}}}
---
apiVersion: gpuladder.dev/v1alpha1
kind: AcceleratorPolicy
metadata: {name: wait}
spec: {tiers: [{name: h100, models: [H100]}, {name: a100, models: [A100], after: 10m}]}
---
`

func waiting(name, more string) string {
	return `apiVersion: v1
kind: Pod
metadata: {name: ` + name + `, namespace: t, creationTimestamp: "2026-11-01T00:00:00Z", labels: {gpuladder.dev/policy: wait}}
spec: {containers: [{name: m, image: x}]` + more + `}
---
`
}

// pods gives "pod:tier" of every decision in order.
func pods(t *testing.T, r result) string {
	t.Helper()
	var l decision.List
	if err := json.Unmarshal([]byte(r.stdout), &l); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range l.Decisions {
		out = append(out, d.Pod+":"+d.Tier)
	}
	return strings.Join(out, " ")
}

// Priority first, then age, namespace and name; each sees what went before.
func TestOrderOfPods(t *testing.T) {
	young := strings.Replace(waiting("young", ""), "00:00:00Z", "00:00:01Z", 1)
	for name, tc := range map[string]struct{ in, want string }{
		"name":             {waiting("b", "") + waiting("a", ""), "a:h100 b:"},
		"age":              {young + waiting("zz", ""), "zz:h100 young:"},
		"priority":         {strings.Replace(young, "spec: {", "spec: {priority: 5, ", 1) + waiting("a", "") + waiting("low", ", priority: -1"), "young:h100 a: low:"},
		"namespace":        {waiting("a", "") + strings.Replace(waiting("z", ""), "namespace: t", "namespace: s", 1), "z:h100 a:"},
		"placed left out":  {waiting("a", ", nodeName: node-1") + waiting("b", ""), "b:h100"},
		"done left out":    {strings.Replace(waiting("a", ""), "\n---", "\nstatus: {phase: Failed}\n---", 1) + waiting("b", ""), "b:h100"},
		"without a wish":   {strings.Replace(waiting("a", ""), ", labels: {gpuladder.dev/policy: wait}", "", 1) + waiting("b", ""), "b:h100"},
		"being deleted":    {strings.Replace(waiting("a", ""), "namespace: t", "namespace: t, deletionTimestamp: '2026-11-01T00:00:00Z'", 1) + waiting("b", ""), "b:h100"},
		"the second waits": {waiting("a", "") + waiting("b", ""), "a:h100 b:"},
	} {
		t.Run(name, func(t *testing.T) {
			in := write(t, t.TempDir(), "in.yaml", node+tc.in)
			if got := pods(t, ladder(t, "decide", "-f", in, "-o", "json")); got != tc.want {
				t.Errorf("decided %q, want %q", got, tc.want)
			}
		})
	}
}

func TestNow(t *testing.T) {
	two := node + waiting("a", "") + waiting("b", "")
	in := write(t, t.TempDir(), "in.yaml", two)
	if got := pods(t, ladder(t, "decide", "-f", in, "-o", "json", "--now", "2026-11-01T00:09:59Z").want(t, 3)); got != "a:h100 b:" {
		t.Errorf("before its time: %s", got)
	}
	if got := pods(t, ladder(t, "decide", "-f", in, "-o", "json", "--now", "2026-11-01T01:10:00+01:00").want(t, 0)); got != "a:h100 b:a100" {
		t.Errorf("in time: %s", got)
	}
	// By default it is as late as the newest time that the input knows.
	heartbeat := strings.Replace(two, `status: "True"`, `status: "True", lastHeartbeatTime: "2026-11-01T00:10:00Z"`, 1)
	in = write(t, t.TempDir(), "in.yaml", heartbeat)
	if got := pods(t, ladder(t, "decide", "-f", in, "-o", "json").want(t, 0)); got != "a:h100 b:a100" {
		t.Errorf("by the heartbeat: %s", got)
	}
	r := ladder(t, "decide", "-f", in, "--now", "noon").want(t, 2)
	if !strings.Contains(r.stderr, `--now "noon"`) || r.stdout != "" {
		t.Errorf("stderr %q, stdout %q", r.stderr, r.stdout)
	}
}

func TestNothingToDecide(t *testing.T) {
	in := write(t, t.TempDir(), "in.yaml", node)
	r := ladder(t, "decide", "-f", in, "-o", "json").want(t, 0)
	if r.stdout != "{\n  \"decisions\": []\n}\n" {
		t.Errorf("stdout %q", r.stdout)
	}
	if !strings.HasPrefix(r.stderr, "warning: no Pod of the input waits for devices") {
		t.Errorf("stderr %q", r.stderr)
	}
}

// A Pod at a gate is named, is not decided and takes no device from others.
func TestGatedPodsAreNotDecided(t *testing.T) {
	const quota, own = ", schedulingGates: [{name: gpuladder.dev/quota}]", ", schedulingGates: [{name: example.com/own}]"
	in := write(t, t.TempDir(), "in.yaml", node+waiting("a", quota)+waiting("b", "")+waiting("c", own)+waiting("d", quota+", nodeName: node-1"))
	r := ladder(t, "decide", "-f", in, "-o", "json").want(t, 3)
	if got := pods(t, r); got != "b:h100" {
		t.Errorf("decided %q, want b alone", got)
	}
	var l decision.List
	if err := json.Unmarshal([]byte(r.stdout), &l); err != nil {
		t.Fatal(err)
	}
	want := []decision.Gated{{Namespace: "t", Pod: "a", Gates: []string{"gpuladder.dev/quota"}}, {Namespace: "t", Pod: "c", Gates: []string{"example.com/own"}}}
	if !reflect.DeepEqual(l.Gated, want) {
		t.Errorf("gated %+v, want %+v", l.Gated, want)
	}
	r = ladder(t, "decide", "-f", in).want(t, 3)
	for _, want := range []string{
		"t/a  Gated: waits at the gate gpuladder.dev/quota for its tenant's turn (`ladder quota explain a -n t` says why)\n",
		"t/c  Gated: waits until its scheduling gates are taken off: example.com/own\n",
		"1 Pod: 1 allocated, 0 pending, 0 unsatisfiable; 2 at a gate, not decided\n",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not said:\n%s", want, r.stdout)
		}
	}
	alone := write(t, t.TempDir(), "in.yaml", node+waiting("a", quota))
	if r := ladder(t, "decide", "-f", alone).want(t, 3); r.stderr != "" {
		t.Errorf("stderr %q", r.stderr)
	}
	for pod, want := range map[string]string{
		"a": "the Pod t/a waits at the gate gpuladder.dev/quota for its tenant's turn, and no scheduler looks at it; ask why with `ladder quota explain a -n t`",
		"c": "the Pod t/c waits until its scheduling gates are taken off: example.com/own, and no scheduler looks at it",
	} {
		if r := ladder(t, "explain", pod, "-f", in).want(t, 1); !strings.Contains(r.stderr, want) || r.stdout != "" {
			t.Errorf("stderr %q, stdout %q", r.stderr, r.stdout)
		}
	}
}

func TestStdinAndSkippedKinds(t *testing.T) {
	in := node + waiting("a", "") + "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
	r := ladderAs(t, "ladder", in, "decide", "-f", "-", "-o", "json").want(t, 0)
	if want := "warning: skipped kinds that are not read: Deployment.apps (1), Service (1)\n"; r.stderr != want {
		t.Errorf("stderr %q, want %q", r.stderr, want)
	}
	if got := pods(t, r); got != "a:h100" {
		t.Errorf("decided %s", got)
	}
}

func TestExamples(t *testing.T) {
	count := func(args ...string) int {
		var l decision.List
		r := ladder(t, append([]string{"decide", "-f", caseFile("02-in-use"), "-o", "json"}, args...)...).want(t, 0)
		if err := json.Unmarshal([]byte(r.stdout), &l); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, tier := range l.Decisions[0].Tiers {
			for _, r := range tier.Rejections {
				n += len(r.Examples)
			}
		}
		return n
	}
	if one, all := count("--examples", "1"), count("--all"); one >= all || all != 8 {
		t.Errorf("--examples 1 names %d devices, --all %d; want fewer, and 8", one, all)
	}
	refused(t, ladder(t, "decide", "-f", caseFile("02-in-use"), "--examples", "0"), "--examples 0", "use --all")
	refused(t, ladder(t, "decide", "-f", caseFile("02-in-use"), "--examples", "1", "--all"), "examples", "all")
}

func TestExplain(t *testing.T) {
	dir := t.TempDir()
	bundle := filepath.Join(dir, "run.jsonl")
	ladder(t, "decide", "-f", caseFile("13-limit-over-two-pods"), "--bundle", bundle).want(t, 0)
	fromFiles := ladder(t, "explain", "p2", "-n", "team-a", "-f", caseFile("13-limit-over-two-pods")).want(t, 0)
	fromBundle := ladder(t, "explain", "p2", "-n", "team-a", "--bundle", bundle).want(t, 0)
	if fromFiles.stdout != fromBundle.stdout {
		t.Errorf("from files:\n%sfrom the bundle:\n%s", fromFiles.stdout, fromBundle.stdout)
	}
	if !strings.Contains(fromFiles.stdout, "QuotaExceeded") {
		t.Errorf("the quota is not named:\n%s", fromFiles.stdout)
	}

	record := `apiVersion: gpuladder.dev/v1alpha1
kind: AllocationDecision
metadata: {name: %s, namespace: t}
spec: {pod: old, outcome: Pending, message: "Pending: %s", decidedAt: "2026-11-01T00:00:0%s.000000Z", attempt: 1}
---
`
	older := strings.NewReplacer("%s}", "1}").Replace(record)
	records := write(t, dir, "records.yaml", format(older, "one", "the first time", "1")+format(record, "two", "the last time", "2"))
	if r := ladder(t, "explain", "old", "-f", records).want(t, 0); !strings.Contains(r.stdout, "the last time") {
		t.Errorf("not the newest record:\n%s", r.stdout)
	}

	input := write(t, dir, "in.yaml", node+waiting("placed", ", nodeName: node-1")+strings.Replace(waiting("plain", ""), ", labels: {gpuladder.dev/policy: wait}", "", 1)+
		waiting("two", "")+strings.Replace(waiting("two", ""), "namespace: t", "namespace: u", 1))
	for name, tc := range map[string]struct {
		code int
		args []string
		want string
	}{
		"nobody":          {1, []string{"nobody", "-f", input}, "no Pod nobody in the input"},
		"placed":          {1, []string{"placed", "-f", input}, "the Pod t/placed is on node node-1 already"},
		"plain":           {1, []string{"plain", "-f", input}, "asks for no devices"},
		"two of the name": {2, []string{"two", "-f", input}, "several namespaces have a Pod two"},
		"two namespaces":  {2, []string{"t/two", "-n", "u", "-f", input}, "in namespace t by its name and in u by -n"},
		"not in bundle":   {1, []string{"nobody", "--bundle", bundle}, "no decision about a Pod nobody"},
		"no bundle":       {2, []string{"p", "--bundle", filepath.Join(dir, "none")}, "no such file"},
		"bad bundle":      {2, []string{"p", "--bundle", input}, "line 1: reading the header"},
		"both":            {2, []string{"p", "--bundle", bundle, "-f", input}, "[filename bundle]"},
	} {
		t.Run(name, func(t *testing.T) {
			r := ladder(t, append([]string{"explain"}, tc.args...)...).want(t, tc.code)
			if r.stdout != "" || !strings.Contains(r.stderr, tc.want) || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("stdout %q, stderr %q; want %q", r.stdout, r.stderr, tc.want)
			}
		})
	}
}

// format fills %s in order.
func format(text string, values ...string) string {
	for _, v := range values {
		text = strings.Replace(text, "%s", v, 1)
	}
	return text
}

func TestReplay(t *testing.T) {
	dir := t.TempDir()
	bundle := filepath.Join(dir, "run.jsonl")
	ladder(t, "decide", "-f", caseFile("13-limit-over-two-pods"), "--bundle", bundle).want(t, 0)
	text, err := os.ReadFile(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if again := filepath.Join(dir, "again.jsonl"); ladder(t, "decide", "-f", caseFile("13-limit-over-two-pods"), "--bundle", again).code == 0 {
		if second, err := os.ReadFile(again); err != nil || string(second) != string(text) {
			t.Errorf("the same run gives another bundle (%v)", err)
		}
	}
	r := ladder(t, "replay", bundle).want(t, 0)
	for _, want := range []string{"run.jsonl: ", "2 decisions: the same", "digest " + v1alpha1.HashPrefix} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not said:\n%s", want, r.stdout)
		}
	}

	tampered := write(t, dir, "tampered.jsonl", strings.Replace(string(text), `"code":"QuotaExceeded"`, `"code":"InUse"`, 1))
	r = ladder(t, "replay", bundle, tampered).want(t, 1)
	if !strings.Contains(r.stdout, "1 DIFFER") || !strings.Contains(r.stdout, `code: recorded "InUse", now "QuotaExceeded"`) {
		t.Errorf("the difference is not told:\n%s", r.stdout)
	}
	var out struct {
		Bundles []decision.Replayed `json:"bundles"`
	}
	r = ladder(t, "replay", "-o", "json", bundle, tampered).want(t, 1)
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Bundles) != 2 || len(out.Bundles[0].Differences) != 0 || len(out.Bundles[1].Differences) != 1 || out.Bundles[1].Differences[0].Pod != "p2" {
		t.Errorf("bundles %+v", out.Bundles)
	}

	// The fleet is tampered with instead: every later digest tells.
	fleet := write(t, dir, "fleet.jsonl", strings.Replace(string(text), `"string":"H100"`, `"string":"A100"`, 1))
	ladder(t, "replay", fleet).want(t, 1)

	torn := write(t, dir, "torn.jsonl", string(text[:len(text)-10]))
	if r := ladder(t, "replay", torn).want(t, 0); !strings.Contains(r.stdout, "was cut off") {
		t.Errorf("the torn line is not told:\n%s", r.stdout)
	}
	broken := write(t, dir, "broken.jsonl", string(text[:200])+"\n"+string(text[200:]))
	refused(t, ladder(t, "replay", bundle, broken), "broken.jsonl: line 2", "reading an entry")
	refused(t, ladder(t, "replay", caseFile("01-first-choice")), "01-first-choice.yaml: line 1", "reading the header")
	refused(t, ladder(t, "replay", filepath.Join(dir, "none")), "none", "no such file")
}
