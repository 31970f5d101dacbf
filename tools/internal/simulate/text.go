package simulate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"gpuladder.dev/ladder/policies/simulate"
	"gpuladder.dev/ladder/tools/internal/command"
)

// writeText prints the result for a terminal: a line for each set-up, then one
// for each tenant.
func writeText(w io.Writer, r *simulate.Report, s command.Streams) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", headline(r))
	table(&b, func(t io.Writer) {
		fmt.Fprintln(t, "SET-UP\tUNFINISHED\tWAIT P50\tP99\tMAX\tOVER A DAY\tSMALLEST P99\tJAIN\tIN USE\tEVICTED\tLOST\tFALLBACK\tLATER THAN ALONE")
		for i := range r.Setups {
			u := &r.Setups[i]
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%d\t%s\t%.3f\t%s\t%d\t%s\t%s\t%s\n", u.Name, u.Unfinished,
				span(u.WaitSeconds.P50), span(u.WaitSeconds.P99), span(u.WaitSeconds.Max), u.OverDay, span(u.Smallest.WaitSeconds.P99),
				u.Jain, percent(u.Utilisation), u.Evictions, deviceHours(u.LostDeviceSeconds), percent(u.FallbackRate), worst(u.Private))
		}
	})
	for i := range r.Setups {
		u := &r.Setups[i]
		fmt.Fprintf(&b, "\n%s\n", s.Paint(command.Strong, u.Name))
		table(&b, func(t io.Writer) {
			fmt.Fprintln(t, "TENANT\tJOBS\tWAIT P50\tP99\tMAX\tENTITLED\tSHARE\tSERVED\tFALLBACK\tHELD\tLATER THAN ALONE")
			for j := range u.Tenants {
				x := &u.Tenants[j]
				fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, x.Jobs,
					span(x.WaitSeconds.P50), span(x.WaitSeconds.P99), span(x.WaitSeconds.Max),
					percent(x.Entitlement), percent(x.Share), percent(x.Served), percent(x.FallbackRate), held(x.DeviceSeconds), worst(x.Private))
			}
		})
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// table aligns columns and leaves no blanks at the ends of lines.
func table(b *strings.Builder, fill func(io.Writer)) {
	var raw strings.Builder
	t := tabwriter.NewWriter(&raw, 0, 0, 2, ' ', 0)
	fill(t)
	_ = t.Flush() // a Builder takes everything
	for line := range strings.Lines(raw.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

// headline says what was played on what.
func headline(r *simulate.Report) string {
	var devices []string
	for _, m := range slices.Sorted(maps.Keys(r.Fleet.Devices)) {
		devices = append(devices, fmt.Sprintf("%d %s", r.Fleet.Devices[m], m))
	}
	return fmt.Sprintf("%d jobs (%s), %s to %s, on %d nodes with %s", r.Trace.Jobs, r.Trace.Format,
		r.Trace.FirstJob.Format(time.DateOnly), r.Trace.LastJob.Format(time.DateOnly), r.Fleet.Nodes, strings.Join(devices, ", "))
}

// held lists device hours by model.
func held(seconds map[string]float64) string {
	var out []string
	for _, m := range slices.Sorted(maps.Keys(seconds)) {
		out = append(out, m+" "+deviceHours(seconds[m]))
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}

// worst is how much longer than in the private cluster a job waited.
func worst(e *simulate.Excess) string {
	if e == nil || e.Jobs == 0 {
		return "-"
	}
	return span(e.ExcessSeconds.Max)
}

func percent(part float64) string { return fmt.Sprintf("%.1f%%", 100*part) }

func deviceHours(seconds float64) string { return fmt.Sprintf("%.0fh", seconds/3600) }

// span is a time in its two largest units.
func span(seconds float64) string {
	if seconds < 60 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", seconds), ".0") + "s"
	}
	n := int64(seconds)
	units := []struct {
		size int64
		name string
	}{{86400, "d"}, {3600, "h"}, {60, "m"}, {1, "s"}}
	for i, u := range units {
		if n < u.size || i == len(units)-1 {
			continue
		}
		out := fmt.Sprintf("%d%s", n/u.size, u.name)
		if rest := n % u.size / units[i+1].size; rest > 0 {
			out += fmt.Sprintf(" %d%s", rest, units[i+1].name)
		}
		return out
	}
	return fmt.Sprintf("%ds", n)
}
