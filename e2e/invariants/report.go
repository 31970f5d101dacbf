package invariants

import (
	"fmt"
	"strings"
)

// Verdict is what a checker came to.
type Verdict string

// The verdicts.
const (
	// Pass: enough was seen, and all of it was as promised.
	Pass Verdict = "PASS"
	// Fail: something was seen that must never be.
	Fail Verdict = "FAIL"
	// Inconclusive: nothing bad was seen, but not enough of anything.
	Inconclusive Verdict = "INCONCLUSIVE"
)

// Report is the result of one checker.
type Report struct {
	// Invariant is its number and what it promises.
	Invariant string
	Verdict   Verdict
	// Checked counts what could have broken the promise.
	Checked int
	// Unjudged counts what could not be judged by itself: nobody wrote down when
	// it was decided, or it was gone before its time was over.
	Unjudged int
	// Rare says that a run can't bring about what could break the promise, so that
	// not to have seen any of it is no failure.
	Rare bool
	// Findings say what was wrong, or what is missing, in the order of time.
	Findings []string
}

// String is the report in one line for each finding.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s (%d checked", r.Invariant, r.Verdict, r.Checked)
	if r.Unjudged > 0 {
		fmt.Fprintf(&b, ", %d not judged", r.Unjudged)
	}
	b.WriteString(")")
	for _, f := range r.Findings {
		b.WriteString("\n  ")
		b.WriteString(f)
	}
	return b.String()
}

// conclude makes the report of violations and of what is missing; violations
// are certain also where something is missing.
func conclude(invariant string, checked int, violations, missing []string) Report {
	r := Report{Invariant: invariant, Verdict: Pass, Checked: checked}
	switch {
	case len(violations) > 0:
		r.Verdict, r.Findings = Fail, violations
	case len(missing) > 0:
		r.Verdict, r.Findings = Inconclusive, missing
	case checked == 0:
		r.Verdict, r.Findings = Inconclusive, []string{"nothing was seen that could have broken it"}
	}
	return r
}
