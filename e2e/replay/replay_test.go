package replay

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/fleet"
	"gpuladder.dev/ladder/policies/journal"
)

var now = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// telling writes a journal of what a scheduler would.
type telling struct {
	*testing.T
	*journal.Recorder
	file *os.File
}

// tell begins the journal of that name with a small fleet, of which every node
// has two devices, and a policy.
func tell(t *testing.T, path string) *telling {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	r := &telling{T: t, file: f, Recorder: journal.NewRecorder(decide.Options{NodeChecks: decide.ExternalNodeChecks}, "j", f)}
	small := fleet.New(
		fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 2},
		fleet.Group{Name: "a100", Nodes: 2, Board: "A100-SXM4-80GB", GPUs: 2},
	)
	for _, n := range small.Nodes() {
		r.put(n)
	}
	for _, s := range small.Slices() {
		r.put(s)
	}
	r.put(&v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.AcceleratorPolicySpec{
		Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}, {Name: "a100", Models: []string{"A100"}}},
	}})
	return r
}

func (r *telling) put(o runtime.Object) {
	r.Helper()
	if err := r.Put(o); err != nil {
		r.Fatal(err)
	}
}

// decide has a new Pod decided and charged.
func (r *telling) decide(name string, rejected map[string]string) *decide.Decision {
	r.Helper()
	r.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: types.UID(name), Labels: map[string]string{v1alpha1.LabelPolicy: "p"}, CreationTimestamp: metav1.NewTime(now),
	}})
	return r.again(name, rejected)
}

func (r *telling) again(name string, rejected map[string]string) *decide.Decision {
	r.Helper()
	d, err := r.Decide(decide.Query{Pod: pod(name), Now: now, NodeRejections: rejected})
	if err != nil {
		r.Fatal(err)
	}
	if err := r.Assume(d, true); err != nil {
		r.Fatal(err)
	}
	return d
}

func pod(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "team", Name: name}
}

// written is the claim of a Pod as the scheduler writes it.
func written(d *decide.Decision) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: d.Namespace, Name: d.Pod + "-claim", UID: d.PodUID + "-claim",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: d.Pod, UID: d.PodUID, Controller: new(true)}},
	}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, x := range d.Devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: x.Request, Driver: x.Driver, Pool: x.Pool, Device: x.Device})
	}
	return c
}

func (r *telling) end() {
	r.Helper()
	if err := errors.Join(r.Seal(), r.file.Close()); err != nil {
		r.Fatal(err)
	}
}

// life is what a scheduler may see: devices are charged, written, given back and
// taken away, until nothing is left.
func (r *telling) life() {
	r.Helper()
	first := r.decide("a", nil)
	r.put(written(first))
	r.decide("b", nil)
	r.decide("c", map[string]string{"a100-0000": "no", "a100-0": "no"})
	r.Forget(pod("b"))
	r.decide("d", nil)
	for _, name := range []string{"e", "f", "g", "h", "i"} {
		r.decide(name, nil)
	}
	if err := r.Delete(written(first)); err != nil {
		r.Fatal(err)
	}
	if d := r.again("i", nil); d.Tier != "h100" {
		r.Errorf("Pod i got %q, the device that came free is an H100", d.Tier)
	}
}

func files(t *testing.T, path string) *Result {
	t.Helper()
	r, err := Files(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestJournalsAreDecidedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	for _, name := range []string{path + ".20261101T000000.000", path} {
		j := tell(t, name)
		j.life()
		j.end()
	}
	r := files(t, path)
	if r.Journals != 2 || r.Decisions != 20 || r.Differ != 0 || r.Twin.Asked != 20 || r.Twin.Differ != 0 || len(r.Findings) > 0 || r.Check() != nil {
		t.Errorf("%+v, %v", r, r.Check())
	}
	r.Add(files(t, path))
	if r.Journals != 4 || r.Decisions != 40 || r.Twin.Asked != 40 {
		t.Errorf("twice: %+v", r)
	}
	var out strings.Builder
	if err := r.Report(&out); err != nil || !strings.Contains(out.String(), "## Decided again\n\n**40 decisions replayed, 0 differ; 40 put to the twin, 0 differ.**") {
		t.Errorf("%v, %s", err, out.String())
	}
}

// Whatever was decided otherwise is found, by the twin too.
func TestDifferencesAreFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j := tell(t, path)
	j.life()
	j.end()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ old, new, want string }{
		"another tier":  {`"tier":"h100"`, `"tier":"a100"`, "tier: recorded"},
		"another count": {`"count":`, `"count":9`, "count: recorded"},
		"a digest":      {`"op":"digest","digest":"sha256:`, `"op":"digest","digest":"sha256:0`, "the state: digest"},
		"a lost line":   {`{"n":2,`, `{"n":3,`, "lines are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(string(text), tc.old, tc.new, 1)
			if changed == string(text) {
				t.Fatalf("%s is not in the journal", tc.old)
			}
			if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			r := files(t, path)
			if err := r.Check(); err == nil || !strings.Contains(err.Error(), tc.want) || r.Differ+r.Unread == 0 {
				t.Errorf("%v, %+v, want something about %q", err, r, tc.want)
			}
			var out strings.Builder
			if err := r.Report(&out); err != nil || !strings.Contains(out.String(), tc.want) {
				t.Errorf("the report does not tell: %v\n%s", err, out.String())
			}
		})
	}
}

// The twin hears only what it is told: one that missed a charge contradicts.
func TestTwinContradicts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j := tell(t, path)
	j.decide("a", nil)
	j.decide("b", nil)
	j.end()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := &comparison{result: &Result{}, name: "j", twin: newTwin()}
	report, err := journal.Walk(f, journal.Options{WholeFleet: true, Follower: deaf{c.twin}, OnDecision: c.askTwin})
	c.count(report, err)
	r := c.result
	if err := r.Check(); r.Twin.Asked != 2 || r.Twin.Differ != 1 || r.Differ != 0 || err == nil ||
		!strings.Contains(err.Error(), "Pod team/b, the twin: devices: the engine says") {
		t.Errorf("%+v, %v", r, err)
	}
}

// deaf is a twin that isn't told of charges.
type deaf struct{ *twin }

func (deaf) Assume(*decide.Decision) {}

// What a scheduler leaves that is killed is no fault.
func TestJournalsOfKilledSchedulers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j := tell(t, path)
	j.life()
	j.end()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at, left := range map[string][]byte{"0": nil, "1": text[:10], "2": text[:len(text)-20]} {
		if err := os.WriteFile(path+".20261101T00000"+at+".000", left, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path+".next", []byte("a rotation under way"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := files(t, path)
	if r.Journals != 2 || r.Unread != 0 || r.Decisions != 20 || r.Check() != nil {
		t.Errorf("%+v, %v", r, r.Check())
	}
	if notes := strings.Join(r.Notes, "\n"); strings.Count(notes, "killed before it wrote") != 2 || !strings.Contains(notes, "was cut off") {
		t.Errorf("notes %q", notes)
	}
}

func TestNothingDecidedFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	tell(t, path).end()
	var none *Result
	for name, r := range map[string]*Result{"no decision": files(t, path), "no replay": none} {
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), "no decision was replayed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (&Result{Decisions: 1}).Check(); err == nil || !strings.Contains(err.Error(), "the twin could be asked about none") {
		t.Errorf("without the twin: %v", err)
	}
	var out strings.Builder
	if err := none.Report(&out); err != nil || !strings.Contains(out.String(), "No decision was replayed") {
		t.Errorf("%v, %s", err, out.String())
	}
	if _, err := Files(t.Context(), path+".none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a journal: %v", err)
	}
	if err := os.Mkdir(path+".20261101T000000.000", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Files(t.Context(), path); err == nil {
		t.Error("a journal that can't be read is none of a scheduler that was killed")
	}
	if err := os.Remove(path + ".20261101T000000.000"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Files(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("broken off: %v", err)
	}
}

// The twin isn't asked where it knows too little, and on large fleets not each
// time.
func TestWhatTheTwinIsAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j := tell(t, path)
	j.put(written(j.decide("a", nil)))
	j.again("a", nil) // has devices
	j.again("a", nil) // and again
	if _, err := j.Decide(decide.Query{Pod: pod("nobody"), Now: now}); err == nil {
		t.Error("a Pod that isn't there was decided on")
	}
	j.end()
	if r := files(t, path); r.Decisions != 4 || r.Twin.Asked != 1 || r.Twin.Unsupported != 3 || r.Differ != 0 {
		t.Errorf("%+v", r)
	}
	for nodes, want := range map[int]int{0: 1, 14: 1, 100: 1, 300: 2, 500: 5, 1000: 26} {
		if got := every(nodes); got != want {
			t.Errorf("one decision of %d on %d nodes, want %d", got, nodes, want)
		}
	}
}
