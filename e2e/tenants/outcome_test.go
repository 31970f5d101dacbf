package tenants

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/invariants/quota"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// good is an outcome in which all was kept.
func good() *Outcome {
	o := options()
	out := newOutcome(&o)
	out.Burst = Burst{Pods: 192, FirstGate: 0.1, LastGate: 4, LastBound: 16, GatesPerSecond: 48, BoundPerSecond: 12}
	out.Reaction = Reaction{Times: 10, Freed: Spread{1, 2, 3}, Gate: Spread{10, 20, 30}, Bound: Spread{40, 50, 6000}}
	out.Churn = Churn{Pods: 2000, Served: 1900, Evicted: 3, Dropped: 100, ControllerKills: 9, SchedulerKills: 11, Changes: 100}
	out.Rest = Rest{Waiting: 17}
	out.Limits = quota.Result{Versions: 9999, Given: 2222, AtLimit: 333}
	out.Exclusive = invariants.Report{Invariant: "I1", Verdict: invariants.Pass, Checked: 2222}
	return out
}

func TestOutcome(t *testing.T) {
	if err := good().Err(); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*Outcome)
		says   string
	}{
		"a limit passed": {func(o *Outcome) {
			o.Limits.Passed = []quota.Excess{{Claim: "ns/c", Version: 77, Tenant: "t", Model: "H100", Used: 3, Limit: 2, After: -1}}
		}, "claim ns/c at version 77"},
		"a gap":           {func(o *Outcome) { o.Limits.Missing = []string{"the watch broke off"} }, "the watch broke off"},
		"nothing given":   {func(o *Outcome) { o.Limits.Given = 0 }, "no device was given"},
		"two claims":      {func(o *Outcome) { o.Exclusive.Verdict = invariants.Fail; o.Exclusive.Findings = []string{"gpu-0"} }, "gpu-0"},
		"not enough seen": {func(o *Outcome) { o.Exclusive.Verdict = invariants.Inconclusive }, "INCONCLUSIVE"},
		"left waiting":    {func(o *Outcome) { o.Rest.Idle = []quota.Idle{{Pod: "ns/idle"}} }, "ns/idle"},
		"lost":            {func(o *Outcome) { o.Churn.Lost, o.Churn.Served = 1, 1899 }, "1 Pods went away"},
		"unaccounted for": {func(o *Outcome) { o.Churn.Served-- }, "2000 Pods were created"},
	} {
		t.Run(name, func(t *testing.T) {
			out := good()
			tc.change(out)
			err := out.Err()
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v, want %q", err, tc.says)
			}
			var text bytes.Buffer
			if err := Report(&text, out); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text.String(), "**FAILED**") || !strings.Contains(text.String(), tc.says) {
				t.Errorf("the report does not tell:\n%s", text.String())
			}
		})
	}
}

func TestReport(t *testing.T) {
	out := good()
	out.Limits.Crossed = []quota.Excess{{Claim: "ns/late", Version: 5, Tenant: "t", Model: "L4", Used: 2, Limit: 1, After: 40 * time.Millisecond}}
	var text bytes.Buffer
	if err := Report(&text, out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"20 tenants", "192 devices (48 H100, 64 A100, 80 L4, on 24 nodes)", "killed 9 times", "11 times, both by SIGKILL", "changed 100 times",
		"9999 versions", "up to exactly the limit", "17 Pods waited", "**48.0 gates opened a second**", "| 40 ms | 50 ms | 6.00 s |",
		"happened 1 times, at most 40 ms", "claim ns/late", "CPUs", "42.7 on average",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "FAILED") {
		t.Error("the report tells of a failure")
	}
	out.Reaction, out.Limits.Crossed = Reaction{}, nil
	text.Reset()
	if err := Report(&text, out); err != nil || strings.Contains(text.String(), "freed.**") || !strings.Contains(text.String(), "happened not once") {
		t.Errorf("without reactions %v:\n%s", err, text.String())
	}
}

func TestSpread(t *testing.T) {
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(200-i)*time.Millisecond)
	}
	if got := spread(all); got.String() != "100 ms | 198 ms | 200 ms" {
		t.Errorf("of 1 to 200 ms %s", got)
	}
	if got := spread(all[:1]); got.String() != "200 ms | 200 ms | 200 ms" {
		t.Errorf("of one %s", got)
	}
	if got := spread(nil); got != (Spread{}) {
		t.Errorf("of none %+v", got)
	}
}

func seenPod(name, node string, gated bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	p.Spec.NodeName = node
	if gated {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.GateQuota}}
	}
	return p
}

func seenClaim(pod string, allocated bool) *resourcev1.ResourceClaim {
	yes := true
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: types.UID(pod), Controller: &yes}}}}
	if allocated {
		c.Status.Allocation = &resourcev1.AllocationResult{}
	}
	return c
}

// A Pod's life is put together from two watches, whichever tells first.
func TestFollower(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := newFollower()
	var history invariants.History
	tell := func(e invariants.Entry) time.Time {
		e.At = start.Add(time.Duration(len(history)) * time.Second)
		history = append(history, e)
		f.take(history[f.read:])
		return e.At
	}
	pod := func(kind watch.EventType, p *corev1.Pod) time.Time { return tell(invariants.Entry{Type: kind, Pod: p}) }
	claim := func(kind watch.EventType, c *resourcev1.ResourceClaim) time.Time {
		return tell(invariants.Entry{Type: kind, Claim: c})
	}

	seen := pod(watch.Added, seenPod("a", "", true))
	pod(watch.Modified, seenPod("a", "", true))
	opened := pod(watch.Modified, seenPod("a", "", false))
	claim(watch.Added, seenClaim("a", false))
	claim(watch.Modified, seenClaim("a", true))
	if all, open, bound := f.count(); all != 1 || open != 1 || bound != 0 || len(f.holds) != 1 {
		t.Errorf("%d there, %d open, %d bound, %d hold", all, open, bound, len(f.holds))
	}
	bound := pod(watch.Modified, seenPod("a", "n", false))
	pod(watch.Modified, seenPod("a", "n", false))
	gone := pod(watch.Deleted, seenPod("a", "n", false))
	freed := claim(watch.Modified, seenClaim("a", false))
	claim(watch.Deleted, seenClaim("a", false))
	want := life{seen: seen, opened: opened, bound: bound, gone: gone, freed: freed}
	want.Namespace, want.Name = "ns", "a"
	if got := *f.lives["a"]; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if all, _, _ := f.count(); all != 0 || len(f.holds) != 0 || f.moved != freed {
		t.Errorf("%d are left, %d hold, moved %v", all, len(f.holds), f.moved)
	}

	claim(watch.Added, seenClaim("b", true)) // before its Pod
	pod(watch.Added, seenPod("b", "n", false))
	freed = claim(watch.Deleted, seenClaim("b", true))
	if b := f.lives["b"]; b.bound.IsZero() || b.freed != freed || len(f.live) != 1 {
		t.Errorf("b %+v of %d", *b, len(f.live))
	}
	tell(invariants.Entry{Type: watch.Added, Claim: &resourcev1.ResourceClaim{}}) // nobody's
	if len(f.lives) != 2 {
		t.Errorf("%d lives", len(f.lives))
	}
}
