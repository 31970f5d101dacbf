package upstream

import (
	"errors"
	"strings"
	"testing"
)

func runOf(scheduler string, outcomes map[string]Outcome) *Run {
	r := &Run{Scheduler: scheduler}
	for name, o := range outcomes {
		r.Results = append(r.Results, Result{Spec: spec(name), Outcome: o, Attempts: 1})
	}
	return r
}

func namesOf(pairs []Pair) string {
	var names []string
	for _, p := range pairs {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

func TestCompare(t *testing.T) {
	stock := runOf("kube-scheduler", map[string]Outcome{
		"same": Passed, "also same": Passed, "fails": Passed, "skips": Passed, "stops": Passed, "gone": Passed,
		"better": Failed, "both fail": Failed, "both skip": Skipped,
	})
	ours := runOf("ladder-scheduler", map[string]Outcome{
		"same": Passed, "also same": Passed, "fails": Failed, "skips": Skipped, "stops": NotRun,
		"better": Passed, "both fail": Failed, "both skip": Skipped, "new": Passed,
	})
	c := Compare(stock, ours)
	for what, pair := range map[string][2]string{
		"same":    {namesOf(c.Same), "also same same"},
		"worse":   {namesOf(c.Worse), "fails gone skips stops"},
		"better":  {namesOf(c.Better), "better new"},
		"neither": {namesOf(c.Neither), "both fail both skip"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %q, want %q", what, pair[0], pair[1])
		}
	}
	if c.Worse[1].Ours.Outcome != NotRun {
		t.Errorf("a test that is missing is %q", c.Worse[1].Ours.Outcome)
	}
}

func TestVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		stock, ours map[string]Outcome
		worse       int
		fails       bool
	}{
		"equal":          {map[string]Outcome{"a": Passed, "b": Failed}, map[string]Outcome{"a": Passed, "b": Failed}, 0, false},
		"better":         {map[string]Outcome{"a": Passed, "b": Failed}, map[string]Outcome{"a": Passed, "b": Passed}, 0, false},
		"worse":          {map[string]Outcome{"a": Passed, "b": Passed}, map[string]Outcome{"a": Passed, "b": Failed}, 1, true},
		"skipped":        {map[string]Outcome{"a": Passed}, map[string]Outcome{"a": Skipped}, 1, true},
		"nothing passed": {map[string]Outcome{"a": Failed}, map[string]Outcome{"a": Failed}, 0, true},
		"nothing ran":    {nil, nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			err := Compare(runOf("stock", tc.stock), runOf("ours", tc.ours)).Err()
			if (err != nil) != tc.fails {
				t.Fatalf("Err() = %v", err)
			}
			worse := new(WorseError)
			if errors.As(err, &worse) != (tc.worse > 0) || len(worse.Tests) != tc.worse {
				t.Errorf("Err() = %v, want %d tests worse", err, tc.worse)
			}
		})
	}
}

func TestVerdictNamesTheTests(t *testing.T) {
	ours := &Run{Scheduler: "ours", Results: []Result{{Spec: spec("a"), Outcome: Failed, Reason: "timed out"}}}
	err := Compare(runOf("stock", map[string]Outcome{"a": Passed}), ours).Err()
	if err == nil || !strings.Contains(err.Error(), "a: failed: timed out") {
		t.Errorf("Err() = %v", err)
	}
}
