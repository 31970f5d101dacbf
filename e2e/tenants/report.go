package tenants

import (
	"fmt"
	"io"
	"strings"
	"time"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/invariants/quota"
)

// Report writes the outcome as Markdown.
func Report(w io.Writer, o *Outcome) error {
	var b strings.Builder
	o.intro(&b)
	o.promises(&b)
	o.speed(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (o *Outcome) intro(b *strings.Builder) {
	var fleet []string
	all := 0
	for i, m := range o.Models {
		fleet = append(fleet, fmt.Sprintf("%d %s", o.Devices[i], m))
		all += o.Devices[i]
	}
	fmt.Fprintf(b, `# Tenants in the lab: limits, kills, and how soon a turn comes

%d tenants with guarantees, limits and weights share %d devices (%s, on %d nodes). %d Pods with policies of three tiers came and went. ladder-controller was killed %d times meanwhile, ladder-scheduler %d times, both by SIGKILL at random moments, and quotas were changed %d times. Measured by `+"`ladder-lab tenants`"+` (seed %d): real etcd, kube-apiserver and kube-controller-manager v1.37.2, ladder-scheduler and ladder-controller as processes on one machine; nodes and Pods by kwok; slices by the fake driver. Machine: %s, which also ran the lab itself and what made the load; its load average was %.1f when the run began. The whole took %.0f s.

`, o.Tenants, all, strings.Join(fleet, ", "), sum(o.Nodes), o.Churn.Pods, o.Churn.ControllerKills, o.Churn.SchedulerKills, o.Churn.Changes, o.Seed, o.Machine, o.Load, o.Seconds)
	if err := o.Err(); err != nil {
		fmt.Fprintf(b, "**FAILED**: %s\n\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

func sum(all []int) int {
	n := 0
	for _, v := range all {
		n += v
	}
	return n
}

func verdict(ok bool) string {
	if ok {
		return "yes"
	}
	return "**no**"
}

func (o *Outcome) promises(b *strings.Builder) {
	l, c := &o.Limits, &o.Churn
	fmt.Fprintf(b, `## What was judged

Claims and TenantQuotas are watched from the version of one list on, without a gap, and judged at every resource version in the order of versions. The judge (`+"`e2e/invariants/quota`"+`) counts anew from the allocations, the model of a device from its slice, and shares no code with the engine. A limit that is lowered below what a tenant has takes nothing away; what counts is that nothing more is given.

| promise | kept | seen |
|---|---|---|
| no allocation passes the limit in force | %s | %d versions of claims and quotas, %d devices given, %d of the allocations up to exactly the limit; %d changed limits, %d of them below what was in use |
| no device in two claims | %s | %d looks at a device that was given |
| nothing that could be served waits when all is at rest | %s | %d Pods waited then and %d devices were free; at rest %.1f s after the last kill and change |
| every Pod gets its devices in the end | %s | %d had devices, %d of them were evicted to give borrowed devices back; %d were deleted by plan while they waited; %d lost |

`,
		verdict(l.Err() == nil), l.Versions, l.Given, l.AtLimit, l.Changes, l.Below,
		verdict(o.Exclusive.Verdict == invariants.Pass), o.Exclusive.Checked,
		verdict(len(o.Rest.Idle) == 0), o.Rest.Waiting, o.Rest.Free, o.Rest.Seconds,
		verdict(c.Lost == 0), c.Served, c.Evicted, c.Dropped, c.Lost)
	for _, x := range l.Passed {
		fmt.Fprintf(b, "- limit passed: %s\n", x)
	}
	for _, x := range l.Missing {
		fmt.Fprintf(b, "- not seen: %s\n", x)
	}
	for _, x := range o.Exclusive.Findings {
		fmt.Fprintf(b, "- %s\n", x)
	}
	for _, x := range o.Rest.Idle {
		fmt.Fprintf(b, "- %s\n", x)
	}
	fmt.Fprintf(b, "A limit that comes down while an allocation is being written can't be seen by the writer any more. %s\n\n", crossed(l, o.Settle))
	fmt.Fprintf(b, "The Pods came within %.0f s (%.0f s by plan, the last of them %.1f s late).\n\n", c.Seconds, o.Duration, max(c.Behind, 0))
}

// crossed tells of allocations that met a limit on its way down.
func crossed(l *quota.Result, settle float64) string {
	if len(l.Crossed) == 0 {
		return fmt.Sprintf("That is let pass for up to %g s, and happened not once.", settle)
	}
	var longest time.Duration
	for _, x := range l.Crossed {
		longest = max(longest, x.After)
	}
	text := fmt.Sprintf("That is let pass for up to %g s, and happened %d times, at most %d ms after the change:\n", settle, len(l.Crossed), longest.Milliseconds())
	for _, x := range l.Crossed {
		text += fmt.Sprintf("\n- %s", x)
	}
	return text
}

func (o *Outcome) speed(b *strings.Builder) {
	u, r := &o.Burst, &o.Reaction
	fmt.Fprintf(b, `## How fast

Without kills, before the above.

**A burst.** %d Pods of all tenants wait at their gates, as many as there are devices; then their quotas are raised. From the first of these changes on: the first gate is open after %.2f s, the last after %.2f s, the last Pod bound after %.2f s. That is **%.1f gates opened a second** and %.1f Pods bound a second.

`, u.Pods, u.FirstGate, u.LastGate, u.LastBound, u.GatesPerSecond, u.BoundPerSecond)
	if r.Times > 0 {
		fmt.Fprintf(b, `**A device that is freed.** All devices are taken and Pods of all tenants wait. One Pod after another is deleted, %d times; the times are those at which a watch tells.

| from – to | p50 | p99 | longest |
|---|---|---|---|
| Pod deleted – its claim has given the device back (Kubernetes' own controllers) | %s |
| device freed – next gate open | %s |
| device freed – that Pod bound | %s |

`, r.Times, r.Freed, r.Gate, r.Bound)
	}
	fmt.Fprintf(b, `### Beside Kueue

Kueue's published figures are the bars that its own performance tests have to reach in its CI, on machines that we do not have. They can be read beside ours, not against them.

| | admitted | a second | what is in it |
|---|---|---|---|
| Kueue, baseline | 15,000 workloads, 30 ClusterQueues in 5 cohorts | 42.7 on average (at most 425 s in all) | admission of Workload objects |
| Kueue, large scale | 50,000 workloads, 1,000 ClusterQueues | 42.4 on average (at most 1,416 s in all) | the same |
| Ladder, this run | %d Pods, %d tenants | **%.1f** gates, %.1f bound | the gate of each Pod opened; its claim made, decided on and bound |

What differs:

- Kueue's runner generates Workload objects and mimics their execution. A reduced Kueue with the core controllers and its scheduler runs beside a test API server; no Pod is scheduled and no device allocated. Here each opened gate is followed by a claim that is made from its template, a scheduling attempt, an allocation, a binding and a decision record, by processes on the same %s.
- A workload there asks for one number. A Pod here has three alternatives of different models and is charged by model.
- Kueue rejects a claim with `+"`firstAvailable`"+`, so the same load can't be given to it.
- Kueue publishes how long workloads wait for admission under load (small ones 260 s on average at most, large ones 11 s, in the baseline), not how soon a freed device is used.
`, u.Pods, o.Tenants, u.GatesPerSecond, u.BoundPerSecond, o.Machine)
}

// String is the spread as cells of a table.
func (s Spread) String() string {
	cell := func(ms float64) string {
		if ms < 1000 {
			return fmt.Sprintf("%.0f ms", ms)
		}
		return fmt.Sprintf("%.2f s", ms/1000)
	}
	return cell(s.P50) + " | " + cell(s.P99) + " | " + cell(s.Max)
}
