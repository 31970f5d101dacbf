package bench

// The comparison for people.

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// About says how results came about, for the report.
type About struct {
	// Repeats is how often each scheduler met each workload.
	Repeats int
	// Nodes of each workload.
	Nodes int
	// Machine in words.
	Machine string
}

// Markdown writes the comparison as Markdown.
func (c Comparison) Markdown(about About) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# How fast Pods with accelerators are scheduled

Measured by `+"`go tool mage bench:scheduler`"+` ([what it does](../benchmarks.md)): kube-apiserver, controllers and scheduler in one process, etcd beside it, %d nodes, runs of each scheduler and workload: %d, the schedulers in turn. %s Every number is the median of its runs.

`, about.Nodes, about.Repeats, about.Machine)
	c.throughput(&b)
	c.latency(&b)
	c.memory(&b)
	c.choices(&b)
	b.WriteString("## Targets\n\n")
	if len(c.Missed) == 0 && len(c.Failed) == 0 {
		b.WriteString("None of those that could be checked was missed.\n")
	}
	for _, m := range c.Missed {
		fmt.Fprintf(&b, "- missed: %s\n", m)
	}
	for _, f := range c.Failed {
		fmt.Fprintf(&b, "- no result: %s\n", f)
	}
	return b.String()
}

// table writes a table with a column for each scheduler and some more. A row
// without a cell for a scheduler shows a dash.
func (c Comparison) table(b *strings.Builder, title string, rows []Row, more []string, cell func(Cell) string, values func(Row) []string) {
	header := []string{"workload"}
	for _, s := range c.Schedulers {
		header = append(header, string(s))
	}
	header = append(header, more...)
	fmt.Fprintf(b, "## %s\n\n| %s |\n|%s\n", title, strings.Join(header, " | "), strings.Repeat("---|", len(header)))
	for _, row := range rows {
		line := []string{row.Workload.Name}
		for _, s := range c.Schedulers {
			text := "–"
			if measured, ok := row.Cells[s]; ok {
				text = cell(measured)
			}
			line = append(line, text)
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(append(line, values(row)...), " | "))
	}
	b.WriteString("\n")
}

func (c Comparison) throughput(b *strings.Builder) {
	c.table(b, "Pods a second (least – most)", c.Rows, []string{"Ladder / default", "Ladder / configured", "upstream's threshold"},
		func(cell Cell) string {
			return fmt.Sprintf("%.1f (%.1f – %.1f)", cell.PodsPerSecond, cell.Least, cell.Most)
		},
		func(row Row) []string {
			threshold := ""
			if row.Threshold > 0 {
				threshold = fmt.Sprintf("%g", row.Threshold)
			}
			return []string{times(row.Ratio(StockDefault)), times(row.Ratio(StockConfigured)), threshold}
		})
}

func (c Comparison) latency(b *strings.Builder) {
	none := func(Row) []string { return nil }
	c.table(b, "From a Pod to its node, milliseconds, p50 / p99", c.Rows, nil, func(cell Cell) string { return cell.Decision.text() }, none)
	c.table(b, "From the queue until bound, milliseconds, p50 / p99", c.Rows, nil, func(cell Cell) string { return cell.Attempt.text() }, none)
}

func (q Quantiles) text() string { return fmt.Sprintf("%.1f / %.1f", q.P50, q.P99) }

func (c Comparison) memory(b *strings.Builder) {
	c.table(b, "Live heap of the whole process afterwards (before), MiB", c.Rows, []string{"Ladder / default", "records", "seconds until the last was written"},
		func(cell Cell) string { return fmt.Sprintf("%.0f (%.0f)", cell.Heap.LiveAfter, cell.Heap.LiveBefore) },
		func(row Row) []string {
			ratio := times(row.HeapRatio(StockDefault))
			cell, measured := row.Cells[Ladder]
			if !measured {
				return []string{ratio, "", ""}
			}
			return []string{ratio, fmt.Sprintf("%.0f", cell.Records), fmt.Sprintf("%.1f", cell.RecordsLag)}
		})
}

// choices tells which boards Pods got where they preferred some.
func (c Comparison) choices(b *strings.Builder) {
	var rows []Row
	for _, row := range c.Rows {
		if row.Workload.Ours() {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return
	}
	c.table(b, "Boards that the Pods got, each run, best tier first", rows, nil, func(cell Cell) string {
		var runs []string
		for _, counts := range cell.Boards {
			runs = append(runs, describe(counts))
		}
		slices.Sort(runs)
		return strings.Join(slices.Compact(runs), "; ")
	}, func(Row) []string { return nil })
}

// describe lists counts by tier: h100 before a100 before l4.
func describe(counts map[string]int) string {
	order := []string{"h100", "a100", "l4"}
	var parts []string
	for _, board := range append(order, slices.Sorted(maps.Keys(counts))...) {
		if n := counts[board]; n > 0 && !slices.ContainsFunc(parts, func(p string) bool { return strings.HasPrefix(p, board+" ") }) {
			parts = append(parts, fmt.Sprintf("%s %d", board, n))
		}
	}
	return strings.Join(parts, ", ")
}

func times(ratio float64, known bool) string {
	if !known {
		return "–"
	}
	return fmt.Sprintf("%.2f", ratio)
}
