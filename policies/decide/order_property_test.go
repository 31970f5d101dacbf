package decide_test

// The answer depends on what is in the State, not on how it came there.

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// answers are the bytes of all decisions, and the digest.
func answers(t failer, s *decide.State, c *decidetest.Cluster) string {
	t.Helper()
	out := s.Digest()
	for _, name := range c.Pending() {
		q, _ := question(c, name)
		raw, err := json.Marshal(mustDecide(t, s, q))
		if err != nil {
			t.Fatalf("encoding, %v", err)
		}
		out += "\n" + string(raw)
	}
	return out
}

// TestOrderOfInputDoesNotMatter: any order of Put gives the same bytes.
func TestOrderOfInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		objects := c.Objects()
		shuffled := rapid.Permutation(objects).Draw(t, "order")
		want := answers(t, newState(t, everyDevice, objects), c)
		if got := answers(t, newState(t, everyDevice, shuffled), c); got != want {
			t.Fatalf("the order of the input matters:\n%s\n%s", want, got)
		}
	})
}

// TestHistoryDoesNotMatter: objects that came and went, or were other objects
// before, leave no trace; and a digest that differs tells different content.
func TestHistoryDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		stranger := decidetest.Clusters().Draw(t, "stranger")
		want := answers(t, newState(t, everyDevice, c.Objects()), c)

		s := newState(t, everyDevice, rapid.Permutation(stranger.Objects()).Draw(t, "before"))
		for _, name := range stranger.Pending() {
			q, _ := question(stranger, name)
			mustDecide(t, s, q) // fills whatever the engine keeps
		}
		for _, o := range rapid.Permutation(c.Objects()).Draw(t, "order") {
			if rapid.Bool().Draw(t, "twice") {
				put(t, s, changed(o))
			}
			put(t, s, o)
		}
		for _, o := range rapid.Permutation(stranger.Objects()).Draw(t, "after") {
			if err := s.Delete(o); err != nil {
				t.Fatalf("deleting %T: %v", o, err)
			}
		}
		// What both had under one name is gone now and comes back.
		for _, o := range c.Objects() {
			put(t, s, o)
		}
		if got := answers(t, s, c); got != want {
			t.Fatalf("the history matters:\n%s\n%s", want, got)
		}
	})
}

func put(t failer, s *decide.State, o runtime.Object) {
	t.Helper()
	if err := s.Put(o); err != nil {
		t.Fatalf("putting %T: %v", o, err)
	}
}

// changed is another version of an object: still valid, with another meaning.
func changed(o runtime.Object) runtime.Object {
	switch o := o.DeepCopyObject().(type) {
	case *corev1.Node:
		o.Spec.Unschedulable = !o.Spec.Unschedulable
		o.Labels["zone"] = "elsewhere"
		return o
	case *corev1.Pod:
		o.Spec.NodeName = "n-1"
		return o
	case *resourceapi.ResourceSlice:
		o.Spec.Pool.Generation += 7
		return o
	case *resourceapi.ResourceClaim:
		if o.Status.Allocation != nil {
			o.Status.Allocation.Devices.Results = nil
		}
		return o
	default:
		return o
	}
}

// TestDigestTellsContent: taking one object away changes the digest, putting
// it back restores it.
func TestDigestTellsContent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		before := s.Digest()
		o := rapid.SampledFrom(c.Objects()).Draw(t, "object")
		if err := s.Delete(o); err != nil {
			t.Fatal(err)
		}
		if s.Digest() == before {
			t.Fatalf("the digest does not tell that a %T is gone", o)
		}
		put(t, s, o)
		if s.Digest() != before {
			t.Fatalf("the digest does not come back with the %T", o)
		}
	})
}

// TestDecideLeavesStateAlone: asking twice gives the same bytes.
func TestDecideLeavesStateAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		first := answers(t, s, c)
		if second := answers(t, s, c); first != second {
			t.Fatalf("asked twice, two answers:\n%s\n%s", first, second)
		}
	})
}
