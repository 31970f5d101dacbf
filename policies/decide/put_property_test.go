package decide_test

// Put meets whatever decodes: it may refuse, it may not panic, and what it
// refuses leaves no trace.

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// FuzzPut decodes JSON into an object of some kind, puts it beside a sound
// cluster, and decides.
func FuzzPut(f *testing.F) {
	kinds := decidetest.Kinds()
	indexOf := map[string]int{}
	for i, k := range kinds {
		indexOf[k] = i
	}
	files, err := filepath.Glob("testdata/cases/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no cases: %v", err)
	}
	var base []runtime.Object
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		objects, err := decidetest.DecodeYAML(raw)
		if err != nil {
			f.Fatal(err)
		}
		if base == nil {
			base = objects
		}
		for _, o := range objects[max(len(objects)-2, 0):] {
			line, err := json.Marshal(o)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(indexOf[o.GetObjectKind().GroupVersionKind().Kind]), line)
		}
	}
	for seed := range 3 {
		for _, o := range decidetest.Clusters().Example(seed).Objects() {
			line, err := json.Marshal(o)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(indexOf[o.GetObjectKind().GroupVersionKind().Kind]), line)
		}
	}
	for i := range kinds {
		f.Add(uint8(i), []byte(`{}`))
		f.Add(uint8(i), []byte(`{"metadata":{"name":"x"},"spec":null}`))
	}
	now := decidetest.Newest(base)
	pod := types.NamespacedName{Namespace: "team-a", Name: "p"}
	// One State for all inputs: what each leaves behind is checked, and undone.
	s := newState(f, decide.Options{}, base)
	clean := s.Digest()
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		obj := decidetest.NewOfKind(kinds[int(kind)%len(kinds)])
		if err := json.Unmarshal(data, obj); err != nil {
			t.Skip()
		}
		original := toJSON(obj)
		err := s.Put(obj)
		if toJSON(obj) != original {
			t.Fatalf("Put changed the object:\n%s\n%s", original, toJSON(obj))
		}
		if err != nil && s.Digest() != clean {
			t.Fatalf("a refused %T (%v) changed the digest", obj, err)
		}
		d, err := s.Decide(decide.Query{Pod: pod, Now: now})
		if (d == nil) == (err == nil) {
			t.Fatalf("decision %v with error %v", d, err)
		}
		if d != nil {
			if err := s.Assume(d, true); err != nil {
				t.Fatalf("assuming what was decided, %v", err)
			}
			s.Forget(pod)
		}
		if err := s.Delete(obj); err != nil {
			t.Fatalf("deleting what was put, %v", err)
		}
		for _, o := range base { // one of them may have had the object's name
			put(t, s, o)
		}
		if s.Digest() != clean {
			t.Fatalf("something of the %T is left:\n%s", obj, original)
		}
	})
}

// TestPutSurvivesDamage: an object with one field gone, or holding something
// unlikely, is refused or decided with; the State still works.
func TestPutSurvivesDamage(t *testing.T) {
	refused, taken := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		before := answers(t, s, c)
		victim := rapid.SampledFrom(c.Objects()).Draw(t, "object")
		damagedOne := damaged(t, victim)
		if damagedOne == nil {
			return // what is left does not decode
		}
		if err := s.Put(damagedOne); err != nil {
			refused++
			if after := answers(t, s, c); after != before {
				t.Fatalf("refused with %v, yet something changed:\n%s\n%s", err, before, after)
			}
			return
		}
		taken++
		for _, name := range c.Pending() {
			q, _ := question(c, name)
			if d, err := s.Decide(q); err == nil {
				if err := s.Assume(d, false); err != nil {
					t.Fatalf("assuming, %v: %s", err, toJSON(d))
				}
				s.Forget(name)
			}
		}
		if err := s.Delete(damagedOne); err != nil {
			t.Fatalf("deleting, %v", err)
		}
		for _, o := range c.Objects() {
			put(t, s, o)
		}
		if after := answers(t, s, c); after != before {
			t.Fatalf("something is left of %s:\n%s\n%s", toJSON(damagedOne), before, after)
		}
	})
	t.Logf("%d objects refused, %d taken", refused, taken)
}

// damaged replaces one value somewhere in the object's JSON.
func damaged(t *rapid.T, obj runtime.Object) runtime.Object {
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	var at any = tree
	for {
		children := map[string]any{}
		switch node := at.(type) {
		case map[string]any:
			children = node
		case []any:
			for i, v := range node {
				children[strconv.Itoa(i)] = v
			}
		}
		key := rapid.SampledFrom(slices.Sorted(maps.Keys(children))).Draw(t, "field")
		child := children[key]
		if deep := size(child) > 0; deep && !rapid.Bool().Draw(t, "stop here") {
			at = child
			continue
		}
		value := rapid.SampledFrom([]any{nil, "", "x", -1, 0, 33, int64(1) << 62, true, []any{}, map[string]any{}, strings.Repeat("9", 40)}).Draw(t, "value")
		switch node := at.(type) {
		case map[string]any:
			node[key] = value
		case []any:
			i, _ := strconv.Atoi(key)
			node[i] = value
		}
		break
	}
	if raw, err = json.Marshal(tree); err != nil {
		t.Fatal(err)
	}
	out := decidetest.NewOfKind(obj.GetObjectKind().GroupVersionKind().Kind)
	if json.Unmarshal(raw, out) != nil {
		return nil
	}
	return out
}

func size(v any) int {
	switch v := v.(type) {
	case map[string]any:
		return len(v)
	case []any:
		return len(v)
	}
	return 0
}

// TestPutRefusesOtherKinds: an object that no decision depends on is an error.
func TestPutRefusesOtherKinds(t *testing.T) {
	s := decide.NewState(decide.Options{})
	before := s.Digest()
	if err := s.Put(&runtime.Unknown{}); err == nil {
		t.Error("an unknown object was taken")
	}
	if s.Digest() != before {
		t.Error("it changed the digest")
	}
}
