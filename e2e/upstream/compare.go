package upstream

// Judging two runs.

import (
	"fmt"
	"slices"
	"strings"
)

// Pair is what became of one test in both runs.
type Pair struct {
	Spec
	Stock, Ours Result
}

// Comparison is the judgement on two runs of the same tests.
type Comparison struct {
	Stock, Ours *Run
	// Same passed in both, Worse with the stock scheduler only, Better with
	// ours only, Neither in none. All are sorted by name.
	Same, Worse, Better, Neither []Pair
}

// Compare judges ours by stock. Tests that are in one run only count as not run
// in the other.
func Compare(stock, ours *Run) *Comparison {
	c := &Comparison{Stock: stock, Ours: ours}
	pairs := map[string]*Pair{}
	var names []string
	pair := func(s Spec) *Pair {
		p := pairs[s.Name]
		if p == nil {
			missing := Result{Spec: s, Outcome: NotRun}
			p = &Pair{Spec: s, Stock: missing, Ours: missing}
			pairs[s.Name] = p
			names = append(names, s.Name)
		}
		return p
	}
	for _, r := range stock.Results {
		pair(r.Spec).Stock = r
	}
	for _, r := range ours.Results {
		pair(r.Spec).Ours = r
	}
	slices.Sort(names)
	for _, name := range names {
		p := *pairs[name]
		stockPassed, oursPassed := p.Stock.Outcome == Passed, p.Ours.Outcome == Passed
		switch {
		case stockPassed && oursPassed:
			c.Same = append(c.Same, p)
		case stockPassed:
			c.Worse = append(c.Worse, p)
		case oursPassed:
			c.Better = append(c.Better, p)
		default:
			c.Neither = append(c.Neither, p)
		}
	}
	return c
}

// Err is nil where every test that passes with the stock scheduler passes with
// ours, and at least one does.
func (c *Comparison) Err() error {
	if len(c.Worse) > 0 {
		return &WorseError{Tests: c.Worse}
	}
	if len(c.Same) == 0 {
		return fmt.Errorf("comparing the schedulers, no test passed with %s, so nothing was compared", c.Stock.Scheduler)
	}
	return nil
}

// WorseError occurs when tests pass with the stock scheduler and not with ours.
type WorseError struct{ Tests []Pair }

func (e *WorseError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tests that pass with the stock scheduler and not with ours: %d", len(e.Tests))
	for _, t := range e.Tests {
		fmt.Fprintf(&b, "\n  %s: %s", t.Name, t.Ours.Outcome)
		if t.Ours.Reason != "" {
			fmt.Fprintf(&b, ": %s", t.Ours.Reason)
		}
	}
	return b.String()
}
