package soak

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/measure"
	"gpuladder.dev/ladder/e2e/replay"
)

// Limits are what must hold.
type Limits struct {
	// Slack is how long a scheduler may take to learn of a change.
	Slack time.Duration
	// RecordWithin is how late a record may be.
	RecordWithin time.Duration
	// Growth is how many times as much memory or as many goroutines a process
	// may have in the last third as in the second.
	Growth float64
	// Processes are those that may not grow.
	Processes []string
}

// Result is what a soak came to.
type Result struct {
	Seed     uint64              `json:"seed"`
	Done     Done                `json:"done"`
	Seen     Seen                `json:"seen"`
	Verdicts []invariants.Report `json:"verdicts"`
	Samples  Samples             `json:"samples"`
	// Missed samples are those of a process that was down.
	Missed int `json:"missedSamples"`
	// Replay is what became of the decisions when they were decided again.
	Replay *replay.Result `json:"replay"`
}

// Judge judges a history by every invariant that the soak holds.
func (l Limits) Judge(h invariants.History) []invariants.Report {
	slack := invariants.Slack(l.Slack)
	return []invariants.Report{
		invariants.ExclusiveDevices(h),
		invariants.HardConstraints(h),
		invariants.FirstChoices(h, slack),
		invariants.Recorded(h, l.RecordWithin),
		invariants.Rebuilt(h),
		invariants.HealthyDevices(h, slack),
		invariants.AttemptsWithinBudget(h),
		invariants.EventsWithinBudget(h),
	}
}

// shownFindings is how many findings of an invariant are told.
const shownFindings = 5

// Check says what does not hold. An invariant of which not enough was seen does
// not hold either, unless it is about something that the soak can't bring about.
func (l Limits) Check(r *Result) error {
	var errs []error
	for _, v := range r.Verdicts {
		if v.Verdict == invariants.Pass || v.Rare && v.Verdict == invariants.Inconclusive {
			continue
		}
		shown := v
		if more := len(v.Findings) - shownFindings; more > 0 {
			shown.Findings = append(slices.Clone(v.Findings[:shownFindings]), fmt.Sprintf("and %d more", more))
		}
		errs = append(errs, errors.New(shown.String()))
	}
	if len(r.Verdicts) == 0 {
		errs = append(errs, errors.New("nothing was judged"))
	}
	return errors.Join(append(errs, r.Samples.Check(l.Growth, l.Processes...), r.Replay.Check())...)
}

// About says how a soak came about, for the report.
type About struct {
	Pace     Pace
	Duration time.Duration
	Every    time.Duration // between samples
	Beside   string        // what else the machine did
}

// Report writes the result as Markdown.
func Report(w io.Writer, about About, l Limits, r *Result) error {
	beside := about.Beside
	if beside != "" {
		beside = " " + beside
	}
	f := Fleet()
	fmt.Fprintf(w, `# Soak

%s of arrivals, departures, device taint rules, node losses and scheduler kills on %d nodes with %d devices of four boards, drawn from seed %d, and the time until all was put back and gone. Measured by `+"`ladder-lab soak`"+` in the lab: real etcd, kube-apiserver and kube-controller-manager v1.37.2, ladder-scheduler and ladder-controller as processes on one machine; nodes and Pods by kwok.%s

On the mean a Pod came every %s and stayed %s, a rule came every %s and stayed %s, a node was lost every %s for %s, and in the first third the scheduler was killed every %s. Half of the rules evict (NoExecute). Half of the nodes that are lost are deleted, with their slices; the others are cordoned and their Pods evicted.

`, r.Done.Took.Round(time.Second), f.NodeCount(), f.DeviceCount(), r.Seed, beside,
		about.Pace.Arrival, about.Pace.Life, about.Pace.Taint, about.Pace.Tainted, about.Pace.Loss, about.Pace.Lost, about.Pace.Kill)

	counts := measure.NewTable("what was done", "", "what was seen", "")
	tiers := ""
	for _, name := range slices.Sorted(maps.Keys(r.Seen.ByTier)) {
		if tiers != "" {
			tiers += ", "
		}
		tiers += fmt.Sprintf("%s %d", name, r.Seen.ByTier[name])
	}
	for _, row := range [][4]string{
		{"Pods created", number(r.Done.Actions[Arrive]), "Pods", number(r.Seen.Pods)},
		{"Pods deleted", number(r.Done.Actions[Depart]), "Pods that got a node", number(r.Seen.Bound)},
		{"rules created", number(r.Done.Actions[Taint]), "by tier", tiers},
		{"rules deleted", number(r.Done.Actions[Untaint]), "allocations", number(r.Seen.Allocations)},
		{"nodes deleted", number(r.Done.Removed), "Pods evicted by taints of devices and nodes, or with their node", number(r.Seen.Evicted)},
		{"nodes drained", number(r.Done.Drained), "Pods with a failed attempt between decision and bind", number(r.Seen.Failures)},
		{"nodes back", number(r.Done.Actions[Restore]), "records, of which rebuilt", fmt.Sprintf("%d, %d", r.Seen.Records, r.Seen.Rebuilt)},
		{"schedulers killed", number(r.Done.Actions[Kill]), "Events of Pods", number(r.Seen.Events)},
		{"latest action, s late", measure.Number(r.Done.Latest.Seconds(), 1), "observations in all", number(r.Seen.Changes)},
	} {
		counts.Row(row[:]...)
	}
	fmt.Fprintf(w, "%s## Invariants\n\nJudged over every change that watches of Pods, claims, slices, nodes, rules, revisions, records and Events showed. A change counts as known to a decision after %s; a record may be %s late.\n\n", counts, l.Slack, l.RecordWithin)
	verdicts := measure.NewTable("invariant", "verdict", "checked", "not judged by itself")
	for _, v := range r.Verdicts {
		verdicts.Row(v.Invariant, string(v.Verdict), number(v.Checked), number(v.Unjudged))
	}
	fmt.Fprint(w, verdicts)
	for _, v := range r.Verdicts {
		for i, finding := range v.Findings {
			if i == shownFindings {
				fmt.Fprintf(w, "- and %d more\n", len(v.Findings)-i)
				break
			}
			fmt.Fprintf(w, "- %s: %s\n", v.Invariant, finding)
		}
	}
	fmt.Fprintf(w, "\nNot judged by itself is an allocation of which nobody wrote down when it was decided (its scheduler was killed before), and the record of a Pod that was gone before it would have been rebuilt. INCONCLUSIVE is what was not seen to hold or to break; of a failed attempt, and of a record that is rebuilt, that is no failure: the soak can bring about neither at will.\n\n## Memory\n\nA sample every %s, from the second third on: the scheduler is killed in the first only, so that the others belong to one process. Of the heap after a collection a line is laid through all of these samples (the median of the slopes between windows of them), and the two figures are where it stands in the middle of each third; of the others they are medians. Flat means that the last third is at most %s times the second.\n\n", about.Every, measure.Number(l.Growth, 2))
	memory := measure.NewTable("process", "", "samples", "second third", "last third", "ratio", "an hour", "")
	for _, process := range l.Processes {
		for _, figure := range figures {
			t := r.Samples.trend(process, figure)
			hourly := ""
			if figure.slope && t.Told() {
				hourly = fmt.Sprintf("%+.1f", r.Samples.hourly(process, figure)/figure.unit)
			}
			says := "flat"
			switch {
			case !t.Told():
				says = "too short to tell"
			case t.Second <= 0:
				says = "not told"
			case !t.Flat(l.Growth):
				says = "grows"
			}
			memory.Row(process, figure.name, number(t.Samples), measure.Number(t.Second/figure.unit, 1), measure.Number(t.Last/figure.unit, 1), measure.Number(t.Ratio(), 2), hourly, says)
		}
	}
	fmt.Fprint(w, memory)
	return r.Replay.Report(w)
}

func number(n int) string { return fmt.Sprint(n) }
