package upstream

// What a run found, from Ginkgo's report.

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// Outcome is what became of a test.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
	// NotRun is the outcome of a test that was selected and of which the report
	// says nothing: the run was broken off.
	NotRun Outcome = "not run"
)

// Spec is one test of the suite.
type Spec struct {
	// Name is the full name, without labels that are no part of it.
	Name string `json:"name"`
	// Labels are those of the test and of everything around it, sorted.
	Labels []string `json:"labels,omitempty"`
}

// Result is what became of one test.
type Result struct {
	Spec
	Outcome Outcome `json:"outcome"`
	// Reason is what the test said when it failed or skipped itself.
	Reason string `json:"reason,omitempty"`
	// Attempts is how often it ran; more than one where it failed at first.
	Attempts int           `json:"attempts,omitempty"`
	Took     time.Duration `json:"took,omitempty"`
}

// Run is one run of a selection against one cluster.
type Run struct {
	// Scheduler is the name of the default scheduler.
	Scheduler string `json:"scheduler"`
	// Results are sorted by name.
	Results []Result `json:"results"`
	// Trouble is what went wrong outside of tests: the set-up of the suite, a
	// run that was broken off.
	Trouble []string      `json:"trouble,omitempty"`
	Took    time.Duration `json:"took"`
	// Dir holds Ginkgo's report, JUnit and the output.
	Dir string `json:"dir,omitempty"`
}

// Count is the number of tests with an outcome.
func (r *Run) Count(o Outcome) int {
	n := 0
	for _, result := range r.Results {
		if result.Outcome == o {
			n++
		}
	}
	return n
}

// readReports reads Ginkgo's JSON report.
func readReports(path string) ([]types.Report, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading Ginkgo's report, %w", err)
	}
	var reports []types.Report
	if err := json.Unmarshal(content, &reports); err != nil {
		return nil, fmt.Errorf("reading Ginkgo's report, %w", err)
	}
	return reports, nil
}

// selected returns the tests that a dry run selected, sorted by name.
func selected(reports []types.Report) []Spec {
	var specs []Spec
	for _, report := range reports {
		for _, s := range report.SpecReports {
			if s.LeafNodeType == types.NodeTypeIt && s.State == types.SpecStatePassed {
				specs = append(specs, specOf(s))
			}
		}
	}
	slices.SortFunc(specs, byName)
	return specs
}

func specOf(s types.SpecReport) Spec {
	labels := s.Labels()
	slices.Sort(labels)
	return Spec{Name: s.FullText(), Labels: slices.Compact(labels)}
}

func byName(a, b Spec) int { return cmp.Compare(a.Name, b.Name) }

// results joins the tests that were to run with what the reports say of them.
func results(specs []Spec, reports []types.Report) (all []Result, trouble []string) {
	found := map[string]types.SpecReport{}
	for _, report := range reports {
		trouble = append(trouble, report.SpecialSuiteFailureReasons...)
		for _, s := range report.SpecReports {
			if s.LeafNodeType == types.NodeTypeIt {
				if _, twice := found[s.FullText()]; !twice || !s.StartTime.IsZero() {
					found[s.FullText()] = s
				}
				continue
			}
			if s.State.Is(types.SpecStateFailureStates) {
				trouble = append(trouble, fmt.Sprintf("%s: %s", s.LeafNodeType, firstLines(s.Failure.Message)))
			}
		}
	}
	for _, spec := range specs {
		s, ok := found[spec.Name]
		if !ok {
			all = append(all, Result{Spec: spec, Outcome: NotRun})
			continue
		}
		all = append(all, Result{
			Spec: spec, Outcome: outcomeOf(s), Reason: firstLines(s.Failure.Message),
			Attempts: s.NumAttempts, Took: s.RunTime.Round(time.Second),
		})
	}
	slices.SortFunc(all, func(a, b Result) int { return byName(a.Spec, b.Spec) })
	slices.Sort(trouble)
	return all, slices.Compact(trouble)
}

func outcomeOf(s types.SpecReport) Outcome {
	switch {
	case s.State == types.SpecStatePassed:
		return Passed
	case s.State.Is(types.SpecStateFailureStates):
		return Failed
	case s.State == types.SpecStateSkipped && s.Failure.Message != "":
		return Skipped
	}
	// Skipped without a word: Ginkgo's mark of what it did not come to.
	return NotRun
}

// maxReason is how many characters of a failure are told.
const maxReason = 600

// firstLines joins the first lines of a message.
func firstLines(message string) string {
	var words []string
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(line); line != "" {
			words = append(words, line)
		}
	}
	text := []rune(strings.Join(words, " "))
	if len(text) > maxReason {
		return string(text[:maxReason]) + "…"
	}
	return string(text)
}
