package records

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
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

// podsOf are Pods of namespace a.
func podsOf(names ...string) living {
	there := living{pods: sets.New[types.NamespacedName](), named: sets.New[types.NamespacedName]()}
	for _, name := range names {
		there.pods.Insert(types.NamespacedName{Namespace: "a", Name: v1alpha1.RecordPrefix(name)})
	}
	return there
}

// bound are Pods whose Bindings named these records.
func (l living) bound(records ...record) living {
	for _, r := range records {
		l.named.Insert(r.key)
	}
	return l
}

func TestExpired(t *testing.T) {
	all := []record{
		recordOf("a", "x", 1, 1), recordOf("a", "x", 2, 30), recordOf("a", "y", 3, 50),
		recordOf("b", "z", 4, 2), recordOf("b", "z", 5, 26), recordOf("b", "z", 6, 26),
	}
	for name, test := range map[string]struct {
		retention Retention
		pods      living
		want      []int
	}{
		"nothing is bounded":   {Retention{}, living{}, nil},
		"by age":               {Retention{MaxAge: 24 * time.Hour}, living{}, []int{2, 1, 4, 5}},
		"exactly the age":      {Retention{MaxAge: 26 * time.Hour}, living{}, []int{2, 1}},
		"by number":            {Retention{MaxPerNamespace: 2}, living{}, []int{2, 4}},
		"by both":              {Retention{MaxAge: 40 * time.Hour, MaxPerNamespace: 2}, living{}, []int{2, 4}},
		"a Pod that is there":  {Retention{MaxAge: 24 * time.Hour}, podsOf("y"), []int{1, 4, 5}},
		"its newest only":      {Retention{MaxAge: time.Minute}, podsOf("x", "y"), []int{1, 4, 5, 3}},
		"beyond the number":    {Retention{MaxPerNamespace: 1}, podsOf("x", "y"), []int{1, 4, 5}},
		"of another namespace": {Retention{MaxAge: 24 * time.Hour}, podsOf("z"), []int{2, 1, 4, 5}},
		"what a Binding named": {Retention{MaxAge: time.Minute}, podsOf("x").bound(all[1]), []int{2, 0, 4, 5, 3}},
		"named, beyond number": {Retention{MaxPerNamespace: 1}, podsOf("x").bound(all[1]), []int{2, 4, 5}},
		"named, but not there": {Retention{MaxAge: time.Minute}, podsOf("x").bound(recordOf("a", "x", 9, 1)), []int{2, 1, 4, 5, 3}},
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
		for _, rec := range all {
			if r.Intn(20) == 0 && pods.pods.Has(rec.pod()) {
				pods.bound(rec)
			}
		}
		retention := Retention{MaxAge: time.Duration(1+r.Intn(100)) * time.Hour, MaxPerNamespace: 1 + r.Intn(20)}
		gone := sets.New(names(retention.expired(all, pods, now))...)
		kept := map[string]int{}
		for _, rec := range all {
			if gone.Has(rec.key.String()) {
				continue
			}
			kept[rec.key.Namespace]++
			if now.Sub(rec.created) > retention.MaxAge && !pods.pods.Has(rec.pod()) {
				t.Fatalf("%s is too old", rec.key)
			}
		}
		for namespace, n := range kept {
			if n > retention.MaxPerNamespace+pods.pods.Len()+pods.named.Len() {
				t.Fatalf("namespace %s keeps %d of %d", namespace, n, retention.MaxPerNamespace)
			}
		}
	}
}

// Records are written with times of whole seconds: that of the allocation is kept
// whether or not its name comes first.
func TestWrittenInTheSameSecond(t *testing.T) {
	for _, number := range []int{1, 3} {
		pending, allocated := recordOf("a", "x", 2, 30), recordOf("a", "x", number, 30)
		gone := Retention{MaxAge: 24 * time.Hour}.expired([]record{pending, allocated}, podsOf("x").bound(allocated), now)
		if !slices.Equal(names(gone), names([]record{pending})) {
			t.Errorf("of %s, named, and %s gone are %v", allocated.key, pending.key, names(gone))
		}
	}
}

// A record that was rebuilt stands for the one that the Binding named.
func TestRebuiltIsKept(t *testing.T) {
	missing, rebuilt, later := recordOf("a", "x", 1, 30), recordOf("a", "x", 2, 30), recordOf("a", "x", 3, 29)
	rebuilt.instead = missing.key.Name
	gone := Retention{MaxAge: 24 * time.Hour}.expired([]record{rebuilt, later}, podsOf("x").bound(missing), now)
	if !slices.Equal(names(gone), names([]record{later})) {
		t.Errorf("gone are %v", names(gone))
	}
}

// The name of a record has no room for all of a long name.
func TestRecordOfALongName(t *testing.T) {
	const longest = 253 - v1alpha1.RecordSuffix
	for _, pod := range []string{strings.Repeat("x", 253), strings.Repeat("x", longest-1) + "-" + strings.Repeat("y", 9), strings.Repeat("x", longest)} {
		rec := recordOf("a", v1alpha1.RecordPrefix(pod), 1, 30)
		if len(rec.key.Name) > 253 {
			t.Errorf("name of %d characters", len(rec.key.Name))
		}
		if gone := (Retention{MaxAge: 24 * time.Hour}).expired([]record{rec}, podsOf(pod), now); len(gone) > 0 {
			t.Errorf("the only record of %s is removed", pod)
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
