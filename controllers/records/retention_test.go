package records

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

var now = time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)

// recordOf is a record of a Pod, so many hours old.
func recordOf(namespace, pod string, number, hours int) record {
	name := fmt.Sprintf("%s-%016x", pod, number)
	return record{key: types.NamespacedName{Namespace: namespace, Name: name}, uid: types.UID(namespace + name), created: now.Add(-time.Duration(hours) * time.Hour)}
}

func names(records []record) []string {
	var result []string
	for _, r := range records {
		result = append(result, r.key.String())
	}
	return result
}

func podsOf(names ...string) sets.Set[types.NamespacedName] {
	pods := sets.New[types.NamespacedName]()
	for _, name := range names {
		pods.Insert(types.NamespacedName{Namespace: "a", Name: name})
	}
	return pods
}

func TestExpired(t *testing.T) {
	all := []record{
		recordOf("a", "x", 1, 1), recordOf("a", "x", 2, 30), recordOf("a", "y", 3, 50),
		recordOf("b", "z", 4, 2), recordOf("b", "z", 5, 26), recordOf("b", "z", 6, 26),
	}
	for name, test := range map[string]struct {
		retention Retention
		pods      sets.Set[types.NamespacedName]
		want      []int
	}{
		"nothing is bounded":   {Retention{}, nil, nil},
		"by age":               {Retention{MaxAge: 24 * time.Hour}, nil, []int{2, 1, 4, 5}},
		"exactly the age":      {Retention{MaxAge: 26 * time.Hour}, nil, []int{2, 1}},
		"by number":            {Retention{MaxPerNamespace: 2}, nil, []int{2, 4}},
		"by both":              {Retention{MaxAge: 40 * time.Hour, MaxPerNamespace: 2}, nil, []int{2, 4}},
		"a Pod that is there":  {Retention{MaxAge: 24 * time.Hour}, podsOf("y"), []int{1, 4, 5}},
		"its newest only":      {Retention{MaxAge: time.Minute}, podsOf("x", "y"), []int{1, 4, 5, 3}},
		"beyond the number":    {Retention{MaxPerNamespace: 1}, podsOf("x", "y"), []int{1, 4, 5}},
		"of another namespace": {Retention{MaxAge: 24 * time.Hour}, podsOf("z"), []int{2, 1, 4, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			var want []record
			for _, i := range test.want {
				want = append(want, all[i])
			}
			for range 20 { // in whatever order they are listed
				shuffled := slices.Clone(all)
				rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
				if got := test.retention.expired(shuffled, test.pods, now); !slices.Equal(names(got), names(want)) {
					t.Fatalf("got %v, want %v", names(got), names(want))
				}
			}
		})
	}
}

// What is kept never exceeds the bounds but by the Pods that are there, and
// nothing is removed twice or made up.
func TestExpiredKeepsTheBounds(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 200 {
		var all []record
		for i := range r.Intn(60) {
			all = append(all, recordOf([]string{"a", "b"}[r.Intn(2)], []string{"x", "y", "z"}[r.Intn(3)], i, r.Intn(100)))
		}
		pods := podsOf([]string{"x", "y"}[:r.Intn(3)]...)
		retention := Retention{MaxAge: time.Duration(1+r.Intn(100)) * time.Hour, MaxPerNamespace: 1 + r.Intn(20)}
		gone := sets.New(names(retention.expired(all, pods, now))...)
		kept := map[string]int{}
		for _, rec := range all {
			if gone.Has(rec.key.String()) {
				continue
			}
			kept[rec.key.Namespace]++
			if now.Sub(rec.created) > retention.MaxAge && !pods.Has(rec.pod()) {
				t.Fatalf("%s is too old", rec.key)
			}
		}
		for namespace, n := range kept {
			if n > retention.MaxPerNamespace+pods.Len() {
				t.Fatalf("namespace %s keeps %d of %d", namespace, n, retention.MaxPerNamespace)
			}
		}
	}
}

func TestPodOfARecord(t *testing.T) {
	for name, want := range map[string]string{
		"web-0-0123456789abcdef":    "web-0",
		"web-0-0123456789abcdeg":    "web-0-0123456789abcdeg",
		"short":                     "short",
		"-0123456789abcdef":         "-0123456789abcdef",
		"web-0.0123456789abcdef012": "web-0.0123456789abcdef012",
	} {
		if got := (record{key: types.NamespacedName{Namespace: "a", Name: name}}).pod(); got.Name != want || got.Namespace != "a" {
			t.Errorf("record %s is of Pod %s, want %s", name, got, want)
		}
	}
}
