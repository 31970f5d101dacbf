package decide_test

// The given cases: inputs with their right answers, for engine and twin.

import (
	"cmp"
	"encoding/json"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// expectation is NAME.expect.json.
type expectation struct {
	Why       string             `json:"why"`
	Exit      int                `json:"exit"`
	Args      []string           `json:"args"`
	Decisions []expectedDecision `json:"decisions"`
	Field     string             `json:"field"`
}

type expectedDecision struct {
	Namespace  string                             `json:"namespace"`
	Pod        string                             `json:"pod"`
	Outcome    v1alpha1.Outcome                   `json:"outcome"`
	Tier       string                             `json:"tier"`
	Node       string                             `json:"node"`
	Devices    []expectedDevice                   `json:"devices"`
	Rejections map[string]map[v1alpha1.Reason]int `json:"rejections"`
}

type expectedDevice struct {
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.expect.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".expect.json"), func(t *testing.T) {
			runCase(t, file)
		})
	}
}

func runCase(t *testing.T, file string) {
	var want expectation
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	input, err := os.ReadFile(strings.TrimSuffix(file, ".expect.json") + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decidetest.DecodeYAML(input)
	if err != nil {
		t.Fatal(err)
	}
	if want.Exit == 2 {
		requireRefusal(t, objects, want.Field)
		return
	}
	now := evaluationTime(t, objects, want.Args)
	var first string
	for seed := range 5 {
		if seed > 0 {
			rand.New(rand.NewSource(int64(seed))).Shuffle(len(objects), func(i, j int) {
				objects[i], objects[j] = objects[j], objects[i]
			})
		}
		got := decideAll(t, objects, now, want)
		if seed == 0 {
			first = got
		} else if got != first {
			t.Fatalf("the answer depends on the order of the documents:\n%s\n%s", first, got)
		}
	}
}

// requireRefusal wants exactly the objects with that field to be refused.
func requireRefusal(t *testing.T, objects []runtime.Object, field string) {
	t.Helper()
	s := decide.NewState(decide.Options{})
	var refused []string
	for _, o := range objects {
		if err := s.Put(o); err != nil {
			refused = append(refused, err.Error())
		}
	}
	if len(refused) != 1 || !strings.Contains(refused[0], field) {
		t.Fatalf("refused %q, want one that names %s", refused, field)
	}
}

func evaluationTime(t *testing.T, objects []runtime.Object, args []string) time.Time {
	t.Helper()
	if len(args) == 0 {
		return decidetest.Newest(objects)
	}
	if len(args) != 2 || args[0] != "--now" {
		t.Fatalf("arguments %q are not known", args)
	}
	now, err := time.Parse(time.RFC3339, args[1])
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// decideAll decides the waiting Pods one after another, checks each answer
// against the expectation and the twin, and returns all of them as bytes.
func decideAll(t *testing.T, objects []runtime.Object, now time.Time, want expectation) string {
	t.Helper()
	c := &decidetest.Cluster{Now: now}
	if !c.Add(objects...) {
		t.Fatal("an object is of an unknown kind")
	}
	s := newState(t, everyDevice, objects)
	waiting := inOrder(c)
	if len(waiting) != len(want.Decisions) {
		t.Fatalf("%d Pods wait, want %d", len(waiting), len(want.Decisions))
	}
	var all []*decide.Decision
	for i, name := range waiting {
		q, twin := question(c, name)
		got := mustDecide(t, s, q)
		answer, err := c.Decide(twin)
		if err != nil {
			t.Fatalf("twin: %v", err)
		}
		compareWithTwin(t, c, got, answer)
		requireExpected(t, got, want.Decisions[i])
		if err := s.Assume(got, false); err != nil {
			t.Fatal(err)
		}
		if got.Outcome == v1alpha1.OutcomeAllocated {
			c = c.With(name, answer)
		}
		all = append(all, got)
	}
	return toJSON(all)
}

func requireExpected(t *testing.T, got *decide.Decision, want expectedDecision) {
	t.Helper()
	if got.Namespace != want.Namespace || got.Pod != want.Pod || got.Outcome != want.Outcome {
		t.Fatalf("got %s/%s %s, want %s/%s %s", got.Namespace, got.Pod, got.Outcome, want.Namespace, want.Pod, want.Outcome)
	}
	if (want.Tier != "" && got.Tier != want.Tier) || (want.Node != "" && got.Node != want.Node) {
		t.Fatalf("tier %s on node %s, want %s on %s", got.Tier, got.Node, want.Tier, want.Node)
	}
	var devices []expectedDevice
	for _, d := range got.Devices {
		devices = append(devices, expectedDevice{d.Pool, d.Device})
	}
	if !slices.Equal(devices, want.Devices) {
		t.Fatalf("devices %v, want %v", devices, want.Devices)
	}
	for name, rejections := range want.Rejections {
		i := slices.IndexFunc(got.Tiers, func(e v1alpha1.TierEvidence) bool { return e.Name == name })
		if i < 0 {
			t.Fatalf("no tier %s: %s", name, toJSON(got))
		}
		have := counts(got.Tiers[i])
		delete(have, v1alpha1.ReasonLowerRank)
		delete(have, v1alpha1.ReasonSelected)
		if toJSON(have) != toJSON(rejections) {
			t.Fatalf("tier %s: rejections %v, want %v", name, have, rejections)
		}
	}
}

// inOrder sorts the waiting Pods as `ladder decide` does: priority, creation,
// namespace, name.
func inOrder(c *decidetest.Cluster) []types.NamespacedName {
	var pods []*corev1.Pod
	for _, name := range c.Pending() {
		pods = append(pods, c.Pod(name))
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(
			cmp.Compare(ptr.Deref(b.Spec.Priority, 0), ptr.Deref(a.Spec.Priority, 0)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var out []types.NamespacedName
	for _, p := range pods {
		out = append(out, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
	}
	return out
}
