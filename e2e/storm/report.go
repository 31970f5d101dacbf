package storm

import (
	"fmt"
	"io"

	"gpuladder.dev/ladder/e2e/measure"
)

// text is an idle time in one line.
func (i Idle) text() string {
	return fmt.Sprintf("scheduler %.2f s of CPU, %.1f writes, %.1f reads, %.1f attempts a minute, %.0f attempts in all", i.SchedulerCPU, i.Writes, i.Reads, i.Attempts, i.AttemptsInAll)
}

// Report writes what was measured as Markdown; beside says what else the
// machine did.
func Report(w io.Writer, o Options, r *Result, beside string) error {
	fmt.Fprintf(w, `# A storm of Pods that can never be served

%d Pods of one GPU each, which can be served, are created at once, without and with %d others beside them that can't: %d ask for models that no node has, %d wait for devices that others hold for good. Before each run the scheduler has come to rest. Measured by `+"`ladder-lab storm`"+` in the lab: real etcd, kube-apiserver and kube-controller-manager v1.37.2, ladder-scheduler and ladder-controller as processes on one machine; %d nodes with 8 GPUs each, nodes and Pods by kwok; decision records on.%s

`, o.Served, o.Storm, o.Storm-o.waiting(), o.waiting(), o.Nodes, sentence(beside))
	alone, storm := r.seconds(false), r.seconds(true)
	table := measure.NewTable("", "runs", "median", "least – most")
	for _, row := range []struct {
		name    string
		seconds []float64
	}{{"alone", alone}, {"beside the storm", storm}} {
		table.Row(row.name, fmt.Sprint(len(row.seconds)), measure.Number(measure.Median(row.seconds), 2)+" s",
			measure.Number(measure.Quantile(row.seconds, 0), 2)+" – "+measure.Number(measure.Quantile(row.seconds, 1), 2)+" s")
	}
	fmt.Fprintf(w, "## Time until all %d had their nodes\n\n%sBeside the storm they took **%s times** as long; the target is at most %s.\n\n",
		o.Served, table, measure.Number(r.Ratio(), 2), measure.Number(o.Limits.Ratio, 2))

	table = measure.NewTable("a minute in which nobody does anything", "without the storm", "under the storm", "at most")
	row := func(what string, digits int, of func(Idle) float64, most string) {
		table.Row(what, measure.Number(of(r.Before), digits), measure.Number(of(r.Under), digits), most)
	}
	row("processor time of the scheduler, s", 2, func(i Idle) float64 { return i.SchedulerCPU }, measure.Number(o.Limits.IdleCPU.Seconds(), 1))
	row("writes that the scheduler sends", 1, func(i Idle) float64 { return i.Writes }, measure.Number(o.Limits.IdleWrites, 0))
	row("reads that it sends, watches that are opened again included", 1, func(i Idle) float64 { return i.Reads }, "")
	row("attempts to schedule a Pod", 1, func(i Idle) float64 { return i.Attempts }, "")
	row("processor time of the API server, s", 2, func(i Idle) float64 { return i.APIServerCPU }, "")
	row("writes of all clients, leases of nodes included", 1, func(i Idle) float64 { return i.ServedAll }, "")
	fmt.Fprintf(w, "## Idle\n\nOver %.0f s without and %.0f s under the storm, each after the scheduler had come to rest. %.0f attempts to schedule a Pod fell into the latter: one that waits for devices in vain is tried again after five minutes.\n\n%s",
		r.Before.Seconds, r.Under.Seconds, r.Under.AttemptsInAll, table)
	if r.Under.ServedLargest != "" {
		fmt.Fprintf(w, "The writes of all clients under the storm are mostly %s a minute.\n\n", r.Under.ServedLargest)
	}

	fmt.Fprintf(w, "## Each run\n\n")
	table = measure.NewTable("round", "run", "beside the storm", "seconds", "CPU of the scheduler, s", "of the API server", "of etcd", "of kube-controller-manager", "of ladder-controller", "of kwok", "attempts that placed a Pod", "attempts in vain")
	for _, run := range r.Runs {
		with := "no"
		if run.Storm {
			with = "yes"
		}
		cells := []string{fmt.Sprint(run.Round), fmt.Sprint(run.Run), with, measure.Number(run.Seconds, 2), measure.Number(run.SchedulerCPU, 2), measure.Number(run.APIServerCPU, 2)}
		for _, part := range others {
			cells = append(cells, measure.Number(run.OthersCPU[part], 2))
		}
		table.Row(append(cells, measure.Number(run.Placed, 0), measure.Number(run.Vain, 0))...)
	}
	fmt.Fprintf(w, "%sUntil all of the storm had been told that it waits took %s s (each round).\n\n", table, list(r.ComingSeconds))
	return r.Replay.Report(w)
}

func list(seconds []float64) string {
	text := ""
	for i, s := range seconds {
		if i > 0 {
			text += ", "
		}
		text += measure.Number(s, 0)
	}
	return text
}

// sentence appends what is said, if anything is.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	return " " + s
}
