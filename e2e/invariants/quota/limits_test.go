package quota

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// story is a history in the making. An entry's version is its place in it, and
// it is observed as many milliseconds after the start.
type story struct{ invariants.History }

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const settle = 100 * time.Millisecond

func (s *story) add(e invariants.Entry) *story {
	n := len(s.History) + 1
	e.At = start.Add(time.Duration(n) * time.Millisecond)
	version := strconv.Itoa(n)
	switch {
	case e.Claim != nil:
		e.Claim.ResourceVersion = version
	case e.Quota != nil:
		e.Quota.ResourceVersion, e.Quota.Generation = version, int64(n)
	case e.Slice != nil:
		e.Slice.ResourceVersion = version
	}
	s.History = append(s.History, e)
	return s
}

// later puts the next entries off.
func (s *story) later(d time.Duration) *story {
	for range d / time.Millisecond {
		s.add(invariants.Entry{Host: &invariants.Host{}})
	}
	return s
}

// told begins with a node of four H100 and one of four L4.
func told() *story {
	s := &story{}
	return s.add(invariants.Entry{Type: watch.Added, Slice: sliceOf("h", "H100", 4)}).
		add(invariants.Entry{Type: watch.Added, Slice: sliceOf("l", "L4", 4)})
}

func sliceOf(node, model string, n int) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}}
	s.Spec.Driver, s.Spec.Pool.Name, s.Spec.NodeName = v1alpha1.DriverName, node, &node
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
			Name: fmt.Sprint(i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &model}},
		})
	}
	return s
}

func part(model string, limit int32) v1alpha1.ModelQuota {
	return v1alpha1.ModelQuota{Model: model, Limit: &limit}
}

func quotaOf(name, namespace string, models ...v1alpha1.ModelQuota) *v1alpha1.TenantQuota {
	return &v1alpha1.TenantQuota{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.TenantQuotaSpec{Namespaces: []string{namespace}, Models: models},
	}
}

func (s *story) quota(kind watch.EventType, q *v1alpha1.TenantQuota) *story {
	return s.add(invariants.Entry{Type: kind, Quota: q})
}

// claimOf is a claim of a namespace with devices such as h/0.
func claimOf(namespace, name string, devices ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name)}}
	if len(devices) > 0 {
		c.Status.Allocation = &resourcev1.AllocationResult{}
	}
	for _, d := range devices {
		pool, name, _ := strings.Cut(d, "/")
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Driver: v1alpha1.DriverName, Pool: pool, Device: name})
	}
	return c
}

func (s *story) claim(kind watch.EventType, namespace, name string, devices ...string) *story {
	return s.add(invariants.Entry{Type: kind, Claim: claimOf(namespace, name, devices...)})
}

func TestLimitsHold(t *testing.T) {
	two := func() *story {
		return told().quota(watch.Added, quotaOf("a", "ns-a", part("H100", 2), v1alpha1.ModelQuota{Model: "L4"}))
	}
	for name, tc := range map[string]struct {
		story *story
		want  Result
	}{
		"up to the limit": {
			two().claim(watch.Added, "ns-a", "x").claim(watch.Modified, "ns-a", "x", "h/0").claim(watch.Added, "ns-a", "y", "h/1"),
			Result{Versions: 4, Given: 2, AtLimit: 1},
		},
		"no limit": {
			two().claim(watch.Added, "ns-a", "x", "l/0", "l/1", "l/2", "l/3"),
			Result{Versions: 2, Given: 4},
		},
		"one after another": {
			two().claim(watch.Added, "ns-a", "x", "h/0", "h/1").claim(watch.Modified, "ns-a", "x").claim(watch.Added, "ns-a", "y", "h/0", "h/2").
				claim(watch.Deleted, "ns-a", "y", "h/0", "h/2").claim(watch.Added, "ns-a", "z", "h/1"),
			Result{Versions: 6, Given: 5, Returned: 4, AtLimit: 2},
		},
		"told again": {
			two().claim(watch.Added, "ns-a", "x", "h/0", "h/1").claim(watch.Modified, "ns-a", "x", "h/0", "h/1"),
			Result{Versions: 3, Given: 2, AtLimit: 1},
		},
		"nobody's": {
			two().claim(watch.Added, "elsewhere", "x", "h/0", "h/1", "h/2").claim(watch.Added, "ns-a", "y", "h/3"),
			Result{Versions: 3, Given: 1},
		},
		"each its own": {
			two().quota(watch.Added, quotaOf("b", "ns-b", part("H100", 2))).
				claim(watch.Added, "ns-a", "x", "h/0", "h/1").claim(watch.Added, "ns-b", "x", "h/2", "h/3"),
			Result{Versions: 4, Given: 4, AtLimit: 2},
		},
		"raised before": {
			two().quota(watch.Modified, quotaOf("a", "ns-a", part("H100", 3))).claim(watch.Added, "ns-a", "x", "h/0", "h/1", "h/2"),
			Result{Versions: 3, Given: 3, AtLimit: 1, Changes: 2}, // and L4 is no more listed
		},
		"lowered below what is held": {
			two().claim(watch.Added, "ns-a", "x", "h/0").claim(watch.Added, "ns-a", "y", "h/1").
				quota(watch.Modified, quotaOf("a", "ns-a", part("H100", 1), v1alpha1.ModelQuota{Model: "L4"})).
				later(time.Second).claim(watch.Modified, "ns-a", "x", "h/0").
				claim(watch.Deleted, "ns-a", "x", "h/0").claim(watch.Modified, "ns-a", "y").claim(watch.Added, "ns-a", "z", "h/0"),
			Result{Versions: 8, Given: 3, Returned: 2, AtLimit: 2, Changes: 1, Below: 1},
		},
		"another model while above": {
			two().claim(watch.Added, "ns-a", "x", "h/0", "h/1").
				quota(watch.Modified, quotaOf("a", "ns-a", part("H100", 1), v1alpha1.ModelQuota{Model: "L4"})).
				later(time.Second).claim(watch.Added, "ns-a", "y", "l/0"),
			Result{Versions: 4, Given: 3, AtLimit: 1, Changes: 1, Below: 1},
		},
		"a quota that is gone": {
			two().quota(watch.Deleted, quotaOf("a", "ns-a", part("H100", 2))).claim(watch.Added, "ns-a", "x", "h/0", "h/1", "h/2").
				quota(watch.Added, quotaOf("a", "ns-a", part("H100", 4))).claim(watch.Added, "ns-a", "y", "h/3"),
			Result{Versions: 5, Given: 1, AtLimit: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Limits(tc.story.History, settle)
			if err := got.Err(); err != nil {
				t.Fatal(err)
			}
			if len(got.Crossed) > 0 {
				t.Errorf("crossed %v", got.Crossed)
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

// Histories that must fail, each with all that is to be told.
func TestLimitsArePassed(t *testing.T) {
	two := func() *story { return told().quota(watch.Added, quotaOf("a", "ns-a", part("H100", 2), part("L4", 1))) }
	shared := quotaOf("a", "ns-a", part("H100", 2))
	shared.Spec.Namespaces = []string{"ns-a", "ns-b"}
	for name, tc := range map[string]struct {
		story *story
		want  Excess
	}{
		"one too many": {
			two().claim(watch.Added, "ns-a", "x", "h/0").claim(watch.Added, "ns-a", "y", "h/1").claim(watch.Added, "ns-a", "z", "h/2"),
			Excess{Claim: "ns-a/z", Version: 6, Model: "H100", Used: 3, Limit: 2, After: -1},
		},
		"for a moment only": {
			two().claim(watch.Added, "ns-a", "x", "h/0", "h/1").claim(watch.Added, "ns-a", "y", "h/2").
				claim(watch.Deleted, "ns-a", "x", "h/0", "h/1").claim(watch.Deleted, "ns-a", "y", "h/2"),
			Excess{Claim: "ns-a/y", Version: 5, Model: "H100", Used: 3, Limit: 2, After: -1},
		},
		"several at once": {
			two().claim(watch.Added, "ns-a", "x", "l/0", "l/1"),
			Excess{Claim: "ns-a/x", Version: 4, Model: "L4", Used: 2, Limit: 1, After: -1},
		},
		"a claim that gets more": {
			two().claim(watch.Added, "ns-a", "x", "h/0", "h/1").claim(watch.Modified, "ns-a", "x", "h/0", "h/1", "h/3"),
			Excess{Claim: "ns-a/x", Version: 5, Model: "H100", Used: 3, Limit: 2, After: -1},
		},
		"in two namespaces": {
			told().quota(watch.Added, shared).claim(watch.Added, "ns-a", "x", "h/0", "h/1").claim(watch.Added, "ns-b", "x", "h/2"),
			Excess{Claim: "ns-b/x", Version: 5, Model: "H100", Used: 3, Limit: 2, After: -1},
		},
		"a model that is not listed": {
			told().quota(watch.Added, quotaOf("a", "ns-a", part("H100", 2))).claim(watch.Added, "ns-a", "x", "l/0"),
			Excess{Claim: "ns-a/x", Version: 4, Model: "L4", Used: 1, Limit: 0, After: -1},
		},
		"not yet raised": {
			two().claim(watch.Added, "ns-a", "x", "h/0", "h/1", "h/2").quota(watch.Modified, quotaOf("a", "ns-a", part("H100", 3), part("L4", 1))),
			Excess{Claim: "ns-a/x", Version: 4, Model: "H100", Used: 3, Limit: 2, After: -1},
		},
		"raised again too late": {
			two().quota(watch.Modified, quotaOf("a", "ns-a", part("H100", 1), part("L4", 1))).claim(watch.Added, "ns-a", "x", "h/0", "h/1", "h/2"),
			Excess{Claim: "ns-a/x", Version: 5, Model: "H100", Used: 3, Limit: 1, After: -1},
		},
		"given again while above": {
			two().claim(watch.Added, "ns-a", "x", "h/0").claim(watch.Added, "ns-a", "y", "h/1").
				quota(watch.Modified, quotaOf("a", "ns-a", part("H100", 1), part("L4", 1))).later(settle).
				claim(watch.Deleted, "ns-a", "x", "h/0").claim(watch.Added, "ns-a", "z", "h/0"),
			Excess{Claim: "ns-a/z", Version: 108, Model: "H100", Used: 2, Limit: 1, After: settle + 2*time.Millisecond},
		},
		"the claim was there before its quota": {
			told().claim(watch.Added, "ns-a", "x", "h/0", "h/1").quota(watch.Added, quotaOf("a", "ns-a", part("H100", 1))).
				claim(watch.Added, "ns-a", "y", "h/2"),
			Excess{Claim: "ns-a/y", Version: 5, Model: "H100", Used: 3, Limit: 1, After: -1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Limits(tc.story.History, settle)
			if len(got.Passed) != 1 {
				t.Fatalf("%d violations, want one: %+v", len(got.Passed), got)
			}
			tc.want.Tenant, tc.want.At = "a", start.Add(time.Duration(tc.want.Version)*time.Millisecond)
			if got.Passed[0] != tc.want {
				t.Errorf("got  %+v\nwant %+v", got.Passed[0], tc.want)
			}
			err := got.Err()
			for _, word := range []string{tc.want.Claim, fmt.Sprintf("version %d", tc.want.Version), "tenant a", tc.want.Model, fmt.Sprintf("limit %d", tc.want.Limit)} {
				if err == nil || !strings.Contains(err.Error(), word) {
					t.Errorf("the error lacks %q: %v", word, err)
				}
			}
		})
	}
}

// A write that was under way when the limit came down is told apart.
func TestCrossingALimit(t *testing.T) {
	story := told().quota(watch.Added, quotaOf("a", "ns-a", part("H100", 2))).claim(watch.Added, "ns-a", "x", "h/0").
		quota(watch.Modified, quotaOf("a", "ns-a", part("H100", 1))).later(50*time.Millisecond).claim(watch.Added, "ns-a", "y", "h/1")
	got := Limits(story.History, settle)
	if err := got.Err(); err != nil {
		t.Fatal(err)
	}
	if len(got.Crossed) != 1 || got.Crossed[0].Claim != "ns-a/y" || got.Crossed[0].After != 51*time.Millisecond {
		t.Errorf("crossed %+v", got.Crossed)
	}
	if got := Limits(story.History, 50*time.Millisecond); len(got.Passed) != 1 {
		t.Errorf("with less time %+v", got)
	}
	// No earlier limit allows as much.
	story.claim(watch.Added, "ns-a", "z", "h/2")
	if got := Limits(story.History, settle); len(got.Passed) != 1 || got.Passed[0].Claim != "ns-a/z" {
		t.Errorf("with one more %+v", got)
	}
}

// The order of observation says nothing.
func TestLimitsGoByVersion(t *testing.T) {
	s := told().quota(watch.Added, quotaOf("a", "ns-a", part("H100", 1))).
		claim(watch.Added, "ns-a", "x", "h/0").claim(watch.Added, "ns-a", "y", "h/1").claim(watch.Deleted, "ns-a", "x", "h/0")
	y, gone := s.History[4].Claim, s.History[5].Claim
	y.ResourceVersion, gone.ResourceVersion = "6", "5"
	if got := Limits(s.History, settle); got.Err() != nil {
		t.Error(got.Err())
	}
	y.ResourceVersion, gone.ResourceVersion = "5", "6"
	if got := Limits(s.History, settle); len(got.Passed) != 1 {
		t.Errorf("got %+v", got)
	}
}

// Where something was not seen nothing is promised.
func TestNotEnoughWasSeen(t *testing.T) {
	gap := told().quota(watch.Added, quotaOf("a", "ns-a", part("H100", 1))).claim(watch.Added, "ns-a", "x", "h/0").
		add(invariants.Entry{Gap: "watching ResourceClaim broke off"})
	unnamed := sliceOf("u", "", 1)
	unnamed.Spec.Devices[0].Attributes = nil
	for name, tc := range map[string]struct {
		history invariants.History
		says    string
	}{
		"nothing":          {nil, "no device was given"},
		"nothing given":    {told().quota(watch.Added, quotaOf("a", "ns-a", part("H100", 1))).claim(watch.Added, "ns-a", "x").History, "no device was given"},
		"a gap":            {gap.History, "watching ResourceClaim broke off"},
		"a device unheard": {told().quota(watch.Added, quotaOf("a", "ns-a", part("H100", 9))).claim(watch.Added, "ns-a", "x", "h/0", "h/9").History, "h/9"},
		"a device without a model": {
			told().add(invariants.Entry{Slice: unnamed}).quota(watch.Added, quotaOf("a", "ns-a", part("H100", 9))).claim(watch.Added, "ns-a", "x", "h/0", "u/0").History, "u/0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Limits(tc.history, settle)
			if err := got.Err(); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
	// A violation is certain all the same.
	gap.claim(watch.Added, "ns-a", "y", "h/1")
	got := Limits(gap.History, settle)
	if err := got.Err(); err == nil || !strings.Contains(err.Error(), "passed a limit") {
		t.Errorf("got %v", err)
	}
}

// Whom a namespace belongs to is what is in force, too.
func TestNamespacesChangeHands(t *testing.T) {
	both := quotaOf("b", "ns-b", part("H100", 2))
	both.Spec.Namespaces = []string{"ns-a", "ns-b"}
	s := told().quota(watch.Added, quotaOf("a", "ns-a", part("H100", 4))).claim(watch.Added, "ns-a", "x", "h/0", "h/1").
		quota(watch.Added, both).claim(watch.Added, "ns-b", "x", "h/2") // ns-a is a's, which comes first
	if got := Limits(s.History, settle); got.Err() != nil {
		t.Fatal(got.Err())
	}
	s.quota(watch.Deleted, quotaOf("a", "ns-a", part("H100", 4))).claim(watch.Added, "ns-b", "y", "h/3")
	got := Limits(s.History, settle)
	if len(got.Passed) != 1 || got.Passed[0].Tenant != "b" || got.Passed[0].Used != 4 {
		t.Errorf("got %+v", got)
	}
}
