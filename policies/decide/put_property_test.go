package decide_test

// Put meets whatever decodes: it may refuse, it may not panic, and what it
// refuses leaves no trace.

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

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
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		obj := decidetest.NewOfKind(kinds[int(kind)%len(kinds)])
		if err := json.Unmarshal(data, obj); err != nil {
			t.Skip()
		}
		copied := obj.DeepCopyObject()
		s := decide.NewState(decide.Options{})
		for _, o := range base {
			put(t, s, o)
		}
		before := s.Digest()
		err := s.Put(obj)
		if toJSON(obj) != toJSON(copied) {
			t.Fatalf("Put changed the object:\n%s\n%s", toJSON(copied), toJSON(obj))
		}
		if err != nil && s.Digest() != before {
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
	})
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
