package manifest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const policyText = `apiVersion: gpuladder.dev/v1alpha1
kind: AcceleratorPolicy
metadata: {name: h100-first}
spec:
  tiers:
  - {name: h100, models: [H100]}
  - {name: any, after: 10m}
`

const podText = `apiVersion: v1
kind: Pod
metadata:
  name: p
  namespace: team-a
  labels: {gpuladder.dev/policy: h100-first}
spec:
  containers: [{name: main, image: example.com/train:1}]
`

const nodeText = `apiVersion: v1
kind: Node
metadata: {name: n-1}
status: {allocatable: {cpu: "64"}}
`

func join(docs ...string) string { return strings.Join(docs, "\n---\n") }

func TestParseReadsAndDefaults(t *testing.T) {
	set, err := Parse("in.yaml", []byte(join(nodeText, policyText, podText)))
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Objects) != 3 {
		t.Fatalf("%d objects, want 3", len(set.Objects))
	}
	o, ok := set.Find("AcceleratorPolicy", "", "h100-first")
	if !ok {
		t.Fatal("the policy is not found")
	}
	p := o.Object.(*v1alpha1.AcceleratorPolicy)
	if p.Spec.Driver != v1alpha1.DriverName || p.Spec.Ranking != v1alpha1.RankingPacked {
		t.Errorf("defaults are not applied: driver %q, ranking %q", p.Spec.Driver, p.Spec.Ranking)
	}
	if got, want := o.Source.String(), "in.yaml: document 2"; got != want {
		t.Errorf("source %q, want %q", got, want)
	}
	if got := set.Warnings(); got != nil {
		t.Errorf("warnings %q, want none", got)
	}
}

// Each bad input gives one line with file, document, object, field and advice.
func TestParseRefuses(t *testing.T) {
	badSlice := `apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: d
  nodeName: n
  pool: {name: p, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    capacity: {memory: {value: "80 GB"}}
`
	for name, tc := range map[string]struct {
		in   string
		want []string // parts of the line, in order
	}{
		"unknown field":            {join(nodeText, strings.Replace(policyText, "models", "modles", 1)), []string{"in.yaml: document 2 (AcceleratorPolicy h100-first): spec.tiers[0].modles: unknown field;"}},
		"unknown field of a Pod":   {join(policyText, podText+"  nodeNam: x\n"), []string{"document 2 (Pod team-a/p): spec.nodeNam: unknown field"}},
		"wrong case":               {strings.Replace(nodeText, "status", "Status", 1), []string{"(Node n-1): Status: unknown field"}},
		"wrong type, scalar":       {strings.Replace(policyText, "[H100]", "H100", 1), []string{`spec.tiers[0].models: wrong type, the string "H100"; give a list`}},
		"wrong type, number":       {strings.Replace(policyText, "[H100]", "[100]", 1), []string{`spec.tiers[0].models[0]: wrong type, the number 100; give a string`}},
		"wrong type, boolean":      {strings.Replace(nodeText, "n-1", "n", 1), []string{"metadata.name: wrong type, the boolean false; give a string (put it in quotes: y, n,"}},
		"wrong type, mapping":      {strings.Replace(policyText, "spec:", "spec: 3\nx:", 1), []string{"spec: wrong type, the number 3; give a mapping"}},
		"wrong type, int":          {strings.Replace(podText, "spec:", "spec:\n  priority: high", 1), []string{`spec.priority: wrong type, the string "high"; give a whole number`}},
		"bad quantity":             {badSlice, []string{`(ResourceSlice s): spec.devices[0].capacity[memory].value: the string "80 GB" is not valid here`}},
		"bad time":                 {strings.Replace(podText, "name: p", "name: p\n  creationTimestamp: yesterday", 1), []string{"metadata.creationTimestamp: the string \"yesterday\" is not valid"}},
		"bad duration":             {strings.Replace(policyText, "10m", "soon", 1), []string{"spec.tiers[1].after: the string \"soon\" is not valid"}},
		"duplicate key":            {nodeText + "kind: Pod\n", []string{`document 1: kind: key "kind" is given twice (line 5 of the document)`}},
		"duplicate key deep":       {strings.Replace(policyText, "models: [H100]", "models: [H100], models: [A100]", 1), []string{`spec.tiers[0].models: key "models" is given twice`}},
		"duplicate key in JSON":    {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","name":"m"}}`, []string{"metadata.name: is given twice"}},
		"empty tiers":              {strings.Split(policyText, "  tiers:")[0] + "  tiers: []\n", []string{"(AcceleratorPolicy h100-first): spec.tiers: Required"}},
		"bad model":                {strings.Replace(policyText, "[H100]", `[" "]`, 1), []string{"spec.tiers[0].models[0]: Invalid"}},
		"same object twice":        {join(nodeText, policyText, nodeText), []string{"document 3 (Node n-1): metadata.name: is given twice, first in in.yaml: document 1; keep one"}},
		"unknown policy":           {podText, []string{"(Pod team-a/p): metadata.labels[gpuladder.dev/policy]: names AcceleratorPolicy \"h100-first\", which is not there"}},
		"unknown revision":         {join(policyText, strings.Replace(podText, "h100-first}", `h100-first, gpuladder.dev/policy-revision: "3"}`, 1)), []string{"document 2 (Pod team-a/p): metadata.labels[gpuladder.dev/policy-revision]: names revision 3"}},
		"revision is no number":    {join(policyText, strings.Replace(podText, "h100-first}", `h100-first, gpuladder.dev/policy-revision: "03"}`, 1)), []string{`policy-revision]: "03" is not a revision`}},
		"revision without policy":  {strings.Replace(podText, "gpuladder.dev/policy:", "gpuladder.dev/policy-revision:", 1), []string{"names no policy"}},
		"activeRevision":           {strings.Replace(policyText, "spec:", "spec:\n  activeRevision: 7", 1), []string{"spec.activeRevision: names revision 7"}},
		"CEL":                      {strings.Replace(policyText, "models: [H100]", "selectors: ['device.foo == 1']", 1), []string{"spec.tiers[0].selectors[0]", "does not compile", "undefined field 'foo'"}},
		"CEL of a class":           {"apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: c}\nspec: {selectors: [{cel: {expression: '1 +'}}]}\n", []string{"(DeviceClass c): spec.selectors[0].cel.expression: ", "does not compile"}},
		"CEL of a claim":           {"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: r, firstAvailable: [{name: a, deviceClassName: x, selectors: [{cel: {expression: '3'}}]}]}]}}\n", []string{"(ResourceClaim default/c): spec.devices.requests[0].firstAvailable[0].selectors[0].cel.expression: "}},
		"truncated":                {podText[:len(podText)-20], []string{"in.yaml: document 1", "not valid YAML at line", "cut off"}},
		"truncated JSON":           {`{"apiVersion":"v1","kind":"Node","metadata":{"na`, []string{"document 1: is not valid JSON", "middle of a value"}},
		"binary":                   {"\x7fELF\x00\x01", []string{"document 1: is binary, not text (a zero byte at offset 4)"}},
		"gzip":                     {"\x1f\x8b\x08\x00", []string{"compressed by gzip"}},
		"latin-1":                  {nodeText + "# \xe4\n", []string{"not text in UTF-8 (byte 0xe4"}},
		"scalar":                   {"hello", []string{"document 1: is not a Kubernetes object"}},
		"list":                     {"- a\n- b\n", []string{"document 1: is not a Kubernetes object"}},
		"no kind":                  {"apiVersion: v1\nmetadata: {name: x}\n", []string{"document 1 (x): kind: is missing"}},
		"no apiVersion":            {"kind: Node\nmetadata: {name: x}\n", []string{"(Node x): apiVersion: is missing"}},
		"kind is a list":           {"apiVersion: v1\nkind: [Node]\n", []string{"kind: is missing or no string"}},
		"old version":              {"apiVersion: resource.k8s.io/v1beta1\nkind: ResourceSlice\nmetadata: {name: x}\n", []string{"(ResourceSlice x): apiVersion: resource.k8s.io/v1beta1 is not read; use resource.k8s.io/v1", "kubectl get resourceslices.v1.resource.k8s.io"}},
		"wrong own version":        {strings.Replace(policyText, "v1alpha1", "v1", 1), []string{"apiVersion: gpuladder.dev/v1 is not read; use gpuladder.dev/v1alpha1"}},
		"misspelt own kind":        {strings.Replace(policyText, "AcceleratorPolicy", "AcceleratorPolcy", 1), []string{"kind: gpuladder.dev has no kind AcceleratorPolcy"}},
		"no name":                  {"apiVersion: v1\nkind: Node\nmetadata: {}\n", []string{"(Node): metadata.name: is missing"}},
		"bad name":                 {"apiVersion: v1\nkind: Node\nmetadata: {name: 'a b'}\n", []string{`metadata.name: "a b" is not a name`}},
		"namespace of a node":      {"apiVersion: v1\nkind: Node\nmetadata: {name: a, namespace: b}\n", []string{"metadata.namespace: a Node has no namespace"}},
		"bad namespace":            {"apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: B}\n", []string{"metadata.namespace: \"B\" is not a namespace"}},
		"item of a List":           {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: a}}\n- {apiVersion: v1, kind: Node, metadata: {name: b}, spec: {x: 1}}\n", []string{"in.yaml: document 1 (Node b), item 2: spec.x: unknown field"}},
		"item of a typed List":     {"apiVersion: v1\nkind: PodList\nitems:\n- {metadata: {name: a}, spec: {containers: 3}}\n", []string{"document 1 (Pod a), item 1: spec.containers: wrong type, the number 3; give a list"}},
		"unknown field of a List":  {"apiVersion: v1\nkind: List\nitms: []\nitems: []\n", []string{"document 1 (List): itms: unknown field"}},
		"List in a List":           {"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: []}]\n", []string{"item 1: a List inside a List"}},
		"text after the end":       {nodeText + "...\nkind: Pod\n", []string{"document 1: text stands after the end"}},
		"two tenants":              {join(quota("a", "ns"), quota("b", "ns")), []string{"document 2 (TenantQuota b): spec.namespaces[0]: namespace ns belongs to TenantQuota a already"}},
		"alias bomb":               {aliasBomb(), []string{"document 1: the text grows too much"}},
		"deep nesting":             {"a: " + strings.Repeat("[", 200_000), []string{"document 1: is not valid YAML", "exceeded max depth"}},
		"control characters":       {"apiVersion: v1\nkind: \"No\\u001b[31mde\"\nmetadata: {name: 3}\napiVersion: v2\n", []string{"apiVersion: key \"apiVersion\" is given twice"}},
		"several mistakes, one is": {strings.Replace(nodeText, "status:", "a: 1\nb: 2\nstatus:", 1), []string{"(Node n-1): a: unknown field", "(and 1 more in this object)"}},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Parse("in.yaml", []byte(tc.in))
			if err == nil {
				t.Fatalf("no error, but %d objects", len(set.Objects))
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error is %T, want *Error", err)
			}
			line := err.Error()
			if strings.ContainsAny(line, "\n\x1b") {
				t.Errorf("more than one line, or a control character: %q", line)
			}
			if !strings.HasPrefix(line, "in.yaml: document ") {
				t.Errorf("file and document are not named: %s", line)
			}
			rest := line
			for _, want := range tc.want {
				i := strings.Index(rest, want)
				if i < 0 {
					t.Fatalf("%q\ndoes not say %q", line, want)
				}
				rest = rest[i+len(want):]
			}
		})
	}
}

func quota(name, namespace string) string {
	return "apiVersion: gpuladder.dev/v1alpha1\nkind: TenantQuota\nmetadata: {name: " + name + "}\nspec: {namespaces: [" + namespace + "], models: [{model: H100}]}\n"
}

func aliasBomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 10; i++ {
		prev := string(rune('0' + i - 1))
		b.WriteString("a" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + strings.TrimSuffix(strings.Repeat("*a"+prev+", ", 10), ", ") + "]\n")
	}
	return b.String()
}

func TestDocumentNumbers(t *testing.T) {
	bad := "apiVersion: v1\nkind: Node\nmetadata: {}\n"
	for name, tc := range map[string]struct {
		in   string
		want int
	}{
		"first":                      {bad, 1},
		"third":                      {join(nodeText, policyText, bad), 3},
		"opening marker":             {"---\n" + bad, 1},
		"blank lines before":         {"\n\n---\n" + bad, 1},
		"byte order mark":            {"\xef\xbb\xbf---\n" + bad, 1},
		"comment only is counted":    {"# fleet of May\n---\n" + bad, 2},
		"empty ones between":         {nodeText + "---\n---\n" + bad, 3},
		"comment behind the marker":  {nodeText + "--- # next\n" + bad, 2},
		"content behind the marker":  {nodeText + "--- {apiVersion: v1, kind: Node, metadata: {}}\n", 2},
		"windows line ends":          {strings.ReplaceAll(join(nodeText, bad), "\n", "\r\n"), 2},
		"end marker":                 {nodeText + "...\n---\n" + bad, 2},
		"several JSON values":        {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}} {"apiVersion":"v1","kind":"Node","metadata":{}}`, 2},
		"behind several JSON values": {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}{"apiVersion":"v1","kind":"Node","metadata":{"name":"b"}}` + "\n---\n" + bad, 3},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("f", []byte(tc.in))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v, want one about metadata.name", err)
			}
			if e.Document != tc.want || e.Field != "metadata.name" {
				t.Errorf("document %d, field %s; want %d, metadata.name", e.Document, e.Field, tc.want)
			}
		})
	}
}

func TestListsOfKubectl(t *testing.T) {
	in := `apiVersion: v1
items:
- apiVersion: v1
  kind: Node
  metadata:
    name: n-1
    managedFields: [{manager: kubelet, operation: Update, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: {"f:status": {}}}]
  spec: {}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web}
  spec: {anything: goes}
- apiVersion: v1
  kind: Pod
  metadata: {name: p}
  status: {phase: Running}
kind: List
metadata: {resourceVersion: ""}
---
{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClassList", "metadata": {}, "items": [{"metadata": {"name": "c"}, "spec": {}}]}
---
apiVersion: apps/v1
kind: DeploymentList
items: [{metadata: {name: other}}]
`
	set, err := Parse("f", []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range set.Objects {
		got = append(got, o.String())
		if o.Meta().GetManagedFields() != nil {
			t.Errorf("%s keeps its managedFields", o)
		}
		if o.GetObjectKind().GroupVersionKind().Kind != KindOf(o.Object) {
			t.Errorf("%s has the kind %q", o, o.GetObjectKind().GroupVersionKind().Kind)
		}
	}
	if want := "Node n-1,Pod default/p,DeviceClass c"; strings.Join(got, ",") != want {
		t.Errorf("objects %q, want %q", got, want)
	}
	if want := []string{"skipped kinds that are not read: Deployment.apps (2)"}; len(set.Warnings()) != 1 || set.Warnings()[0] != want[0] {
		t.Errorf("warnings %q, want %q", set.Warnings(), want)
	}
}

// A Pod that is placed or done was decided by the policy of its time.
func TestLabelsOfPlacedPods(t *testing.T) {
	for name, in := range map[string]string{
		"placed":   podText + "  nodeName: n-1\n",
		"done":     podText + "status: {phase: Succeeded}\n",
		"deleting": strings.Replace(podText, "name: p", "name: p\n  deletionTimestamp: 2026-11-01T00:00:00Z", 1),
	} {
		if _, err := Parse("f", []byte(in)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// In a cluster what an object names may be changed or deleted after it, so a dump
// of one is read; told is what nobody else would tell. An object that was
// written by hand is refused, also beside a dump.
func TestObjectsOfAClusterMayBeUnsettled(t *testing.T) {
	fromCluster := func(text, name string) string {
		return strings.Replace(text, "name: "+name, "uid: u-"+name+", name: "+name, 1)
	}
	pod := strings.Replace(podText, "  name: p", "  uid: u\n  name: p", 1)
	for name, tc := range map[string]struct {
		in   string
		want []string // parts of the warnings, one each
		err  string
	}{
		"a policy that is gone":    {pod, nil, ""},
		"a revision that is gone":  {join(policyText, strings.Replace(pod, "h100-first}", `h100-first, gpuladder.dev/policy-revision: "3"}`, 1)), nil, ""},
		"no active revision":       {strings.Replace(fromCluster(policyText, "h100-first"), "spec:", "spec:\n  activeRevision: 7", 1), []string{"spec.activeRevision: names revision 7"}, ""},
		"two tenants":              {join(fromCluster(quota("a", "ns"), "a"), fromCluster(quota("b", "ns"), "b")), []string{"spec.namespaces[0]: namespace ns belongs to TenantQuota a already"}, ""},
		"CEL":                      {strings.Replace(fromCluster(policyText, "h100-first"), "models: [H100]", "selectors: ['device.foo == 1']", 1), []string{"spec.tiers[0].selectors[0]: CEL does not compile"}, ""},
		"two tenants, one by hand": {join(fromCluster(quota("a", "ns"), "a"), quota("b", "ns")), nil, "belongs to TenantQuota a already"},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Parse("in.yaml", []byte(tc.in))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := set.Warnings()
			if len(got) != len(tc.want) {
				t.Fatalf("warnings %q, want %q", got, tc.want)
			}
			for i, want := range tc.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("warning %q, want %q", got[i], want)
				}
			}
		})
	}
	var many []string
	for i := range 3 * mostUnsettled {
		name := strings.Repeat("q", i+1)
		many = append(many, fromCluster(quota(name, "ns"), name))
	}
	set, err := Parse("in.yaml", []byte(join(many...)))
	if err != nil {
		t.Fatal(err)
	}
	if got := set.Warnings(); len(got) != mostUnsettled+1 || !strings.HasPrefix(got[mostUnsettled], "19 further") {
		t.Errorf("%d warnings, the last %q", len(got), got[len(got)-1])
	}
}

func TestRewrite(t *testing.T) {
	set, err := Parse("in.yaml", []byte(join(nodeText, policyText, podText)))
	if err != nil {
		t.Fatal(err)
	}
	policy, _ := set.Find("AcceleratorPolicy", "", "h100-first")
	next := &v1alpha1.PolicyRevision{}
	next.Name = "h100-first-1"
	out := set.Rewrite(func(o Object) runtime.Object {
		switch o.Object.(type) {
		case *corev1.Node:
			return nil
		case *corev1.Pod:
			pod := o.Object.(*corev1.Pod).DeepCopy()
			pod.Labels["new"] = "yes"
			return pod
		}
		return o.Object
	}, Object{next, policy.Source})
	var got []string
	for _, o := range out.Objects {
		got = append(got, o.String())
	}
	if want := "AcceleratorPolicy h100-first,Pod team-a/p,PolicyRevision h100-first-1"; strings.Join(got, ",") != want {
		t.Errorf("objects %q, want %q", got, want)
	}
	if o, ok := out.Find("Pod", "team-a", "p"); !ok || o.Object.(*corev1.Pod).Labels["new"] != "yes" {
		t.Error("the new Pod is not found")
	}
	if _, ok := out.Find("Node", "", "n-1"); ok {
		t.Error("the Node is still found")
	}
	if o, _ := set.Find("Pod", "team-a", "p"); len(set.Objects) != 3 || o.Object.(*corev1.Pod).Labels["new"] != "" {
		t.Error("the first set was changed")
	}
}

// Reading ends with its context, also while it waits for input.
func TestReadIsGivenUp(t *testing.T) {
	in, writer := io.Pipe()
	defer writer.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = writer.Write([]byte(nodeText)) // it is read, and more is waited for
		cancel()
	}()
	_, err := Read(ctx, []string{"-"}, Options{Stdin: in})
	var e *Error
	if !errors.Is(err, context.Canceled) || !errors.As(err, &e) {
		t.Errorf("got %v, want an *Error of the context", err)
	}
}

func TestNewest(t *testing.T) {
	in := join(
		"apiVersion: v1\nkind: Node\nmetadata: {name: a, creationTimestamp: 2026-11-01T00:00:00Z}\nstatus: {conditions: [{type: Ready, status: 'True', lastHeartbeatTime: 2026-11-01T03:00:00Z}]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a, creationTimestamp: 2026-11-01T02:00:00+02:00, deletionTimestamp: 2027-01-01T00:00:00Z, annotations: {until: '2030-01-01T00:00:00Z'}}\n")
	set, err := Parse("f", []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.Newest().UTC(), time.Date(2026, 11, 1, 3, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("newest %v, want %v", got, want)
	}
	for p := range All[*corev1.Pod](set) {
		if p.DeletionTimestamp == nil {
			t.Error("looking for the newest time took the deletionTimestamp away")
		}
	}
	empty, err := Parse("f", nil)
	if err != nil || !empty.Newest().IsZero() {
		t.Errorf("nothing read: %v, %v", empty, err)
	}
}

func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("b.yml", policyText)
	write("a.yaml", nodeText)
	write("notes.txt", "not: read: at: all")
	write("sub/c.json", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"deep"}}`)

	names := func(opts Options, paths ...string) string {
		t.Helper()
		set, err := Read(t.Context(), paths, opts)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range set.Objects {
			got = append(got, o.String())
		}
		return strings.Join(got, ",")
	}
	if got, want := names(Options{}, dir), "Node n-1,AcceleratorPolicy h100-first"; got != want {
		t.Errorf("folder: %s, want %s", got, want)
	}
	if got, want := names(Options{Recursive: true}, dir), "Node n-1,AcceleratorPolicy h100-first,Node deep"; got != want {
		t.Errorf("folders: %s, want %s", got, want)
	}
	if got, want := names(Options{Stdin: strings.NewReader(podText)}, "-", filepath.Join(dir, "b.yml")), "Pod team-a/p,AcceleratorPolicy h100-first"; got != want {
		t.Errorf("stdin: %s, want %s", got, want)
	}
	for name, tc := range map[string]struct {
		paths []string
		want  string
	}{
		"missing":       {[]string{filepath.Join(dir, "x.yaml")}, "x.yaml: stat: no such file"},
		"twice":         {[]string{dir, filepath.Join(dir, "a.yaml")}, "a.yaml: is given twice"},
		"empty folder":  {[]string{t.TempDir()}, "holds no *.yaml"},
		"no stdin":      {[]string{"-"}, "stdin: is not available"},
		"bad file name": {[]string{write("bad.yaml", "x"), dir + "/b.yml"}, "bad.yaml: document 1: is not a Kubernetes object"},
	} {
		_, err := Read(t.Context(), tc.paths, Options{})
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want *Error with %q", name, err, tc.want)
		}
	}
}

func TestReadLimit(t *testing.T) {
	text := join(nodeText, policyText, podText)
	_, err := Read(t.Context(), []string{"-"}, Options{Stdin: strings.NewReader(text), MaxBytes: int64(len(text))})
	if err != nil {
		t.Errorf("input of just the limit: %v", err)
	}
	_, err = Read(t.Context(), []string{"-"}, Options{Stdin: strings.NewReader(text), MaxBytes: int64(len(text) - 1)})
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrTooLarge) || e.Document != 3 {
		t.Errorf("one byte over the limit: %v, want ErrTooLarge in document 3", err)
	}
}

// Rubbish of 50 MB ends at once, whatever it is made of.
func TestFiftyMegabytes(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 50 MB several times")
	}
	const n = 50_000_000
	for name, unit := range map[string]string{
		"letters": "x", "lists": "- ", "brackets": "[", "keys": "a: b\n", "quotes": "'", "zero": "\x00",
		"objects": nodeText + "---\n", "one object": "  k: v\n",
	} {
		_, err := Read(t.Context(), []string{"-"}, Options{Stdin: strings.NewReader(strings.Repeat(unit, n/len(unit)))})
		if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "stdin: document ") {
			t.Errorf("%s: %v, want ErrTooLarge with the document", name, err)
		}
	}
}

// Below the limit the text is really parsed, and ends with an error.
func TestParseLargeRubbish(t *testing.T) {
	if testing.Short() {
		t.Skip("parses 4 MB several times")
	}
	const n = 4 << 20
	for name, unit := range map[string]string{
		"letters": "x", "lists": "- ", "brackets": "[", "braces": "{", "keys": "a: b\n", "quotes": "'", "aliases": "&a ",
		"JSON": `{"a":`, "questions": "? ", "open string": "\"a ",
		"flow": "a,", "long keys": "a: bcdefghijklmnopq\n",
	} {
		_, err := Parse("f", []byte(strings.Repeat(unit, n/len(unit))))
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v, want *Error", name, err)
		}
	}
}
