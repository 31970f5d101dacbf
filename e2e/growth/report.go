package growth

import (
	"fmt"
	"io"
	"strings"

	"gpuladder.dev/ladder/e2e/measure"
)

// Report writes what was measured as Markdown; beside says what else the
// machine did.
func Report(w io.Writer, o Options, r *Result, beside string) error {
	if beside != "" {
		beside = " " + beside
	}
	fmt.Fprintf(w, `# How the cost of placing a Pod grows with the fleet

On each fleet %d Pods of one GPU each are created one after another, each when the one before has its node, and then %d at once. The policy's tiers are H100, A100, L4; half of the nodes carry H100, so that the first tier has room throughout. %d runs on each fleet, medians. Measured by `+"`ladder-lab growth`"+` in the lab: real etcd, kube-apiserver and kube-controller-manager v1.37.2, ladder-scheduler and ladder-controller as processes on one machine; 8 GPUs a node, nodes and Pods by kwok; decision records on.%s

`, o.Single, o.Pods, o.Runs, beside)
	sizes := r.sizes()
	if len(sizes) == 0 {
		_, err := io.WriteString(w, "Nothing was measured.\n")
		return err
	}
	header := []string{"time of a Pod, ms"}
	for _, n := range sizes {
		header = append(header, fmt.Sprintf("%d nodes", n))
	}
	row := func(t *measure.Table, what string, digits int, of func(Run) float64) {
		cells := []string{what}
		for _, n := range sizes {
			cells = append(cells, measure.Number(r.median(n, of), digits))
		}
		t.Row(cells...)
	}
	times := measure.NewTable(header...)
	row(times, "one after another: from creation to its node", 1, func(r Run) float64 { return r.Wait })
	row(times, "the scheduler's attempt in that, binding included", 1, func(r Run) float64 { return r.Attempt })
	row(times, "at once: until all had nodes, by Pod", 1, func(r Run) float64 { return r.Wall })
	row(times, "the scheduler's decision in that", 2, func(r Run) float64 { return r.Decision })
	row(times, "the engine's part of the decision", 2, func(r Run) float64 { return r.Engine })
	fmt.Fprintf(w, "## Time\n\n%sAn attempt and a decision are what the scheduler tells in `scheduler_scheduling_attempt_duration_seconds` and `scheduler_scheduling_algorithm_duration_seconds`, on the mean; the engine's part is `ladder_decision_seconds` with all steps.\n\n", times)

	grown := measure.NewTable(append([]string{fmt.Sprintf("times that of %d nodes", sizes[0])}, header[1:]...)...)
	for _, figure := range judged {
		cells := []string{figure.name}
		for _, n := range sizes {
			cells = append(cells, measure.Number(r.growth(n, figure.of), 2))
		}
		grown.Row(cells...)
	}
	cells := []string{"log(nodes), the most that they may grow"}
	for _, n := range sizes {
		cells = append(cells, measure.Number(allowed(sizes[0], n), 2))
	}
	grown.Row(cells...)
	fmt.Fprintf(w, "## Growth\n\n%s", grown)

	header[0] = "cost of a Pod, at once"
	cost := measure.NewTable(header...)
	row(cost, "processor time of the scheduler, ms", 1, func(r Run) float64 { return r.SchedulerCPU })
	row(cost, "of the API server", 1, func(r Run) float64 { return r.APIServerCPU })
	row(cost, "of etcd", 1, func(r Run) float64 { return r.EtcdCPU })
	row(cost, "of kube-controller-manager, ladder-controller and kwok", 1, func(r Run) float64 { return r.OthersCPU })
	row(cost, "writes of the scheduler", 2, func(r Run) float64 { return r.Calls.Writes })
	row(cost, "reads of the scheduler", 2, func(r Run) float64 { return r.Calls.Reads })
	row(cost, "requests of all clients", 2, func(r Run) float64 { return sum(r.Served) })
	fmt.Fprintf(w, "## What bounds it\n\nThe record of each decision is included; what the cluster costs in the same time of doing nothing is taken off.\n\n%s", cost)
	last := sizes[len(sizes)-1]
	fmt.Fprintf(w, "The requests of a Pod on %d nodes, by what they are: %s.\n\n", last, r.requests(last))

	idle := measure.NewTable("doing nothing, in a second", "processor time of the scheduler, ms", "of the API server, ms", "requests")
	for _, i := range r.Idles {
		idle.Row(fmt.Sprintf("%d nodes", i.Nodes), measure.Number(i.SchedulerCPU, 1), measure.Number(i.APIServerCPU, 1), measure.Number(i.Served, 1))
	}
	each := measure.NewTable("nodes", "run", "one after another, ms", "attempt, ms", "at once, ms", "decision, ms", "first choices")
	for _, run := range r.Runs {
		each.Row(fmt.Sprint(run.Nodes), fmt.Sprint(run.Run), measure.Number(run.Wait, 1), measure.Number(run.Attempt, 1),
			measure.Number(run.Wall, 1), measure.Number(run.Decision, 2), fmt.Sprintf("%d of %d", run.FirstTier, o.Pods))
	}
	fmt.Fprintf(w, "%s## Each run\n\n%s", idle, each)
	return r.Replay.Report(w)
}

// named is how many kinds of requests are told, leastShare how often one must
// occur for a Pod to be told.
const (
	named      = 10
	leastShare = 0.1
)

// requests lists those of a Pod, the most frequent first.
func (r *Result) requests(nodes int) string {
	kinds := map[string]float64{}
	for _, run := range r.Runs {
		for what := range run.Served {
			kinds[what] = r.median(nodes, func(run Run) float64 { return run.Served[what] })
		}
	}
	var told []string
	for _, what := range measure.Largest(kinds, named, leastShare) {
		told = append(told, what+" "+measure.Number(kinds[what], 1))
	}
	return strings.Join(told, ", ")
}
