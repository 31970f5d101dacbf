package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/manifest"
)

const world = `
apiVersion: v1
kind: Node
metadata: {name: n-1}
status:
  allocatable: {cpu: "64", memory: 512Gi, pods: "110"}
  conditions: [{type: Ready, status: "True"}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n-1-gpus}
spec:
  driver: gpu.gpuladder.dev
  nodeName: n-1
  pool: {name: n-1, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {model: {string: H100}}, capacity: {memory: {value: 80Gi}}}
  - {name: gpu-1, attributes: {model: {string: A100}}, capacity: {memory: {value: 80Gi}}}
---
apiVersion: gpuladder.dev/v1alpha1
kind: AcceleratorPolicy
metadata: {name: h100-first}
spec:
  tiers: [{name: h100, models: [H100]}, {name: a100, models: [A100]}]
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: team, uid: uid-a, labels: {gpuladder.dev/policy: h100-first}}
spec: {containers: [{name: main, image: x}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: team, uid: uid-b, labels: {gpuladder.dev/policy: h100-first}}
spec: {containers: [{name: main, image: x}]}
`

var now = time.Date(2026, 11, 1, 0, 0, 0, 123456789, time.UTC)

func pod(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "team", Name: name}
}

// objects are those of the world.
func objects(t *testing.T) []manifest.Object {
	t.Helper()
	set, err := manifest.Parse("world", []byte(world))
	if err != nil {
		t.Fatal(err)
	}
	return set.Objects
}

func fill(t *testing.T, r *Recorder) {
	t.Helper()
	for _, o := range objects(t) {
		if err := r.Put(o.Object); err != nil {
			t.Fatal(err)
		}
	}
}

func mustDecide(t *testing.T, r *Recorder, name, tier string) *decide.Decision {
	t.Helper()
	d, err := r.Decide(decide.Query{Pod: pod(name), Now: now, Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	if d.Tier != tier {
		t.Fatalf("Pod %s: tier %q, want %q", name, d.Tier, tier)
	}
	return d
}

// record makes a journal of two Pods of which each gets a device.
func record(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	r := NewRecorder(decide.Options{}, "j", &out)
	fill(t, r)
	first := mustDecide(t, r, "a", "h100")
	if want := fmt.Sprintf("j#%d", r.Position()); first.Journal != want {
		t.Errorf("the decision's journal is %q, want %q", first.Journal, want)
	}
	if err := r.Assume(first, true); err != nil {
		t.Fatal(err)
	}
	if err := r.Assume(mustDecide(t, r, "b", "a100"), false); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Decide(decide.Query{Pod: pod("nobody"), Now: now}); !errors.Is(err, decide.ErrNotFound) {
		t.Fatalf("a Pod that is not there: %v", err)
	}
	r.Forget(pod("a"))
	mustDecide(t, r, "a", "h100")
	if err := r.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n-1"}}); err != nil {
		t.Fatal(err)
	}
	mustDecide(t, r, "a", "")
	if err := r.Seal(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestReplayIsTheSame(t *testing.T) {
	text := record(t)
	report, err := Replay(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Differences) != 0 || len(report.Notes) != 0 {
		t.Errorf("differences %v, notes %v; want none", report.Differences, report.Notes)
	}
	if report.Decisions != 5 || report.Entries != strings.Count(text, "\n")-1 {
		t.Errorf("%d decisions in %d entries; want 5 in %d", report.Decisions, report.Entries, strings.Count(text, "\n")-1)
	}
	if !strings.HasPrefix(report.Digest, v1alpha1.HashPrefix) {
		t.Errorf("digest %q", report.Digest)
	}
}

// heard are the calls of a Follower, in order.
type heard []string

func (h *heard) Put(o runtime.Object) {
	*h = append(*h, "put "+o.(metav1.Object).GetName())
}

func (h *heard) Delete(o runtime.Object) {
	*h = append(*h, "delete "+o.(metav1.Object).GetName())
}
func (h *heard) Assume(d *decide.Decision)     { *h = append(*h, "assume "+d.Pod) }
func (h *heard) Forget(p types.NamespacedName) { *h = append(*h, "forget "+p.Name) }

// A look at every node gives the same, and whoever follows hears everything that
// comes before a decision.
func TestWalkWholeFleetWithFollower(t *testing.T) {
	for name, external := range map[string]bool{"builtin checks": false, "external checks": true} {
		t.Run(name, func(t *testing.T) {
			text := record(t)
			if external {
				text = recordExternal(t)
			}
			var h heard
			report, err := Walk(strings.NewReader(text), Options{WholeFleet: true, Follower: &h, OnDecision: func(s Step) {
				h = append(h, "decide "+s.Query.Pod.Name)
			}})
			if err != nil || len(report.Differences) != 0 {
				t.Fatalf("%v, differences %v", err, report.Differences)
			}
			if opts, err := (Options{WholeFleet: true}).state(report.Header); err != nil || !opts.WholeFleet {
				t.Errorf("the State's options are %+v, %v", opts, err)
			}
			want := "put n-1,put n-1-gpus,put h100-first,put a,put b,decide a,assume a,decide b,assume b,decide nobody,forget a,decide a,delete n-1,decide a"
			if external {
				want = "put n-1,put n-1-gpus,put h100-first,put a,put b,decide a,assume a,decide b"
			}
			if got := strings.Join(h, ","); got != want {
				t.Errorf("heard %s, want %s", got, want)
			}
		})
	}
}

// recordExternal makes a journal of an engine that reads off what it keeps of the
// fleet: others check the nodes.
func recordExternal(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	r := NewRecorder(decide.Options{NodeChecks: decide.ExternalNodeChecks}, "j", &out)
	fill(t, r)
	if err := r.Assume(mustDecide(t, r, "a", "h100"), true); err != nil {
		t.Fatal(err)
	}
	mustDecide(t, r, "b", "a100")
	if err := r.Seal(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Whatever is changed in a journal is found.
func TestReplayFindsTampering(t *testing.T) {
	text := record(t)
	for name, tc := range map[string]struct{ old, new, path string }{
		"another device":    {`"pool":"n-1","device":"gpu-0","request"`, `"pool":"n-1","device":"gpu-9","request"`, "devices[0].device"},
		"another tier":      {`"tier":"h100"`, `"tier":"a100"`, "tier"},
		"a reason":          {`"code":"ModelMismatch"`, `"code":"InUse"`, "tiers[0].rejections[0].code"},
		"a count":           {`"ModelMismatch","count":1`, `"ModelMismatch","count":2`, "tiers[0].rejections[0].count"},
		"a device's model":  {`"model":{"string":"H100"}`, `"model":{"string":"H200"}`, "inputDigest"},
		"the time":          {`"now":"2026-11-01T00:00:00.123456789Z"`, `"now":"2026-11-01T00:00:00.123456788Z"`, "inputDigest"},
		"an error":          {`"error":"Pod team/nobody, not found"`, `"error":"Pod team/nobody, found"`, "error"},
		"a digest":          {`"op":"digest","digest":"sha256:`, `"op":"digest","digest":"sha256:0`, "digest"},
		"how it is written": {`"decision":{"namespace":"team"`, `"decision":{ "namespace":"team"`, "decision"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(text, tc.old, tc.new, 1)
			if changed == text {
				t.Fatalf("%s is not in the journal", tc.old)
			}
			report, err := Replay(strings.NewReader(changed))
			if err != nil {
				t.Fatal(err)
			}
			var paths []string
			for _, d := range report.Differences {
				for _, f := range d.Fields {
					paths = append(paths, f.Path)
					if f.Path == tc.path {
						return
					}
				}
			}
			t.Errorf("differences in %q, want one in %s", paths, tc.path)
		})
	}
}

// The journal field is not the engine's.
func TestReplayIgnoresJournalNames(t *testing.T) {
	text := strings.ReplaceAll(record(t), `"journal":"j#`, `"journal":"elsewhere#`)
	report, err := Replay(strings.NewReader(text))
	if err != nil || len(report.Differences) != 0 {
		t.Errorf("%v, differences %v", err, report.Differences)
	}
}

func TestReplayRefusesCorruption(t *testing.T) {
	text := record(t)
	lines := strings.SplitAfter(text, "\n")
	without := func(i int) string {
		return strings.Join(lines[:i], "") + strings.Join(lines[i+1:], "")
	}
	for name, tc := range map[string]struct {
		text string
		line int
		want string
	}{
		"empty":            {"", 1, "no header"},
		"no header":        {without(0), 1, "reading the header"},
		"not a journal":    {"hello\n", 1, "reading the header"},
		"cut-off header":   {lines[0][:20], 1, "reading the header"},
		"other format":     {strings.Replace(text, `"journal":1`, `"journal":2`, 1), 1, "journal format 2 is not read, only 1"},
		"unknown checks":   {strings.Replace(text, "Builtin", "None", 1), 1, `options.nodeChecks is "None"`},
		"missing line":     {without(3), 4, "number 4, not 3; lines are missing"},
		"swapped lines":    {lines[0] + lines[2] + lines[1], 2, "number 2, not 1"},
		"torn in between":  {strings.Replace(text, lines[3], lines[3][:30]+"\n", 1), 4, "reading an entry"},
		"unknown field":    {strings.Replace(text, `"op":"put"`, `"op":"put","x":1`, 1), 2, `unknown field "x"`},
		"unknown op":       {strings.Replace(text, `"op":"put"`, `"op":"set"`, 1), 2, `op "set" is not known`},
		"unknown kind":     {strings.Replace(text, `"kind":"Node","object"`, `"kind":"Nod","object"`, 1), 2, `kind "Nod" is not known`},
		"field in object":  {strings.Replace(text, `"allocatable":`, `"allocatible":`, 1), 2, "status.allocatible"},
		"decision and err": {strings.Replace(text, `"error":"Pod`, `"decision":{},"error":"Pod`, 1), 11, "either a decision or an error"},
		"zeros at the end": {text + "\x00\x00\n", strings.Count(text, "\n") + 1, "reading an entry"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Replay(strings.NewReader(tc.text))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v, want *Error", err)
			}
			if e.Line != tc.line || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v; want line %d and %q", err, tc.line, tc.want)
			}
		})
	}
}

// A crash tears the last line, wherever.
func TestReplayToleratesTornEnd(t *testing.T) {
	text := record(t)
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	last := lines[len(lines)-1]
	head := strings.Join(lines[:len(lines)-1], "")
	for cut := 1; cut < len(last); cut += 7 {
		report, err := Replay(strings.NewReader(head + last[:cut]))
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if len(report.Notes) != 1 || !strings.Contains(report.Notes[0], fmt.Sprintf("line %d was cut off", len(lines))) {
			t.Fatalf("cut at %d: notes %q", cut, report.Notes)
		}
		if report.Entries != len(lines)-2 {
			t.Fatalf("cut at %d: %d entries, want %d", cut, report.Entries, len(lines)-2)
		}
	}
	// Whole, but for the end of the line: nothing is missing.
	report, err := Replay(strings.NewReader(head + last))
	if err != nil || len(report.Notes) != 0 || report.Entries != len(lines)-1 {
		t.Errorf("%v, notes %q, %d entries", err, report.Notes, report.Entries)
	}
}

func TestReplayNotesAnotherEngine(t *testing.T) {
	text := strings.Replace(record(t), `"engineVersion":"`+decide.EngineVersion+`","options"`, `"engineVersion":"0","options"`, 1)
	report, err := Replay(strings.NewReader(text))
	if err != nil || len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "engine version 0") {
		t.Errorf("%v, notes %q", err, report.Notes)
	}
}

func TestReplayBoundsLines(t *testing.T) {
	if testing.Short() {
		t.Skip("reads more than MaxLine")
	}
	header, _, _ := strings.Cut(record(t), "\n")
	endless := io.LimitReader(letters{}, MaxLine+1<<20)
	_, err := Replay(io.MultiReader(strings.NewReader(header+"\n"), endless))
	var e *Error
	if !errors.As(err, &e) || e.Line != 2 || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("an endless line: %v", err)
	}
}

// letters are read without end.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestWalkGivesEveryExample(t *testing.T) {
	var out bytes.Buffer
	r := NewRecorder(decide.Options{Examples: 1}, "", &out)
	fill(t, r)
	slice := objects(t)[1].Object.(*resourceapi.ResourceSlice).DeepCopy()
	for i := range 5 {
		d := *slice.Spec.Devices[1].DeepCopy()
		d.Name = fmt.Sprintf("more-%d", i)
		slice.Spec.Devices = append(slice.Spec.Devices, d)
	}
	if err := r.Put(slice); err != nil {
		t.Fatal(err)
	}
	if d := mustDecide(t, r, "a", "h100"); d.Journal != "" || len(d.Tiers[0].Rejections[0].Examples) != 1 {
		t.Errorf("recorded: journal %q, examples %v", d.Journal, d.Tiers[0].Rejections[0].Examples)
	}
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	every, calls := -1, 0
	report, err := Walk(&out, Options{Examples: &every, OnDecision: func(s Step) {
		calls++
		if got := len(s.Decision.Tiers[0].Rejections[0].Examples); got != 6 || s.Entry != r.Position() {
			t.Errorf("%d examples at entry %d, want 6 at %d", got, s.Entry, r.Position())
		}
	}})
	if err != nil || calls != 1 || len(report.Differences) != 0 {
		t.Errorf("%v, %d calls, differences %v", err, calls, report.Differences)
	}
}

// brokenWriter fails after some bytes.
type brokenWriter struct{ left int }

var errBroken = errors.New("disk full")

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errBroken
	}
	return len(p), nil
}

// A full disk changes no answer, and is told once and for all.
func TestRecorderKeepsWriteErrors(t *testing.T) {
	r := NewRecorder(decide.Options{}, "j", &brokenWriter{left: 100})
	fill(t, r)
	mustDecide(t, r, "a", "h100")
	if err := r.Flush(); !errors.Is(err, errBroken) {
		t.Errorf("flush: %v", err)
	}
	mustDecide(t, r, "b", "h100")
	if err := r.Err(); !errors.Is(err, errBroken) || !errors.Is(r.Flush(), errBroken) {
		t.Errorf("the error is forgotten: %v", err)
	}
}

// What the State refuses is not written.
func TestRecorderLeavesOutRefusedObjects(t *testing.T) {
	var out bytes.Buffer
	r := NewRecorder(decide.Options{}, "", &out)
	for _, obj := range []runtime.Object{
		&v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: "no-tiers"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "no-kind-of-ours"}},
	} {
		if err := r.Put(obj); !errors.Is(err, decide.ErrInvalid) {
			t.Errorf("%T: %v", obj, err)
		}
	}
	if err := r.Flush(); err != nil || r.Position() != 0 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%v, position %d, text %q", err, r.Position(), out.String())
	}
}

func BenchmarkRecorderPut(b *testing.B) {
	set, err := manifest.Parse("world", []byte(world))
	if err != nil {
		b.Fatal(err)
	}
	r := NewRecorder(decide.Options{}, "j", io.Discard)
	p := set.Objects[3].Object
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Put(p); err != nil {
			b.Fatal(err)
		}
	}
}
