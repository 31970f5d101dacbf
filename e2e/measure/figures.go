package measure

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Median is the middle of the values, or the mean of the two in the middle; NaN
// of none.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	switch {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Quantile is the smallest of the values that at least the share q are not
// above; NaN of none.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(int(math.Ceil(q*float64(len(sorted)))), 1)-1]
}

// Seconds are durations as numbers.
func Seconds(durations ...time.Duration) []float64 {
	var all []float64
	for _, d := range durations {
		all = append(all, d.Seconds())
	}
	return all
}

// Trend compares the last third of some samples with the second one: the first
// is the time in which caches fill.
type Trend struct {
	Second, Last float64 // medians
	Samples      int
}

// leastSamples is how many samples a trend needs: three in each third.
const leastSamples = 9

// TrendOf takes samples that were made at equal distances.
func TrendOf(samples []float64) Trend {
	third := len(samples) / 3
	return Trend{
		Second: Median(samples[third : len(samples)-third]), Last: Median(samples[len(samples)-third:]), Samples: len(samples),
	}
}

// Ratio is how much higher the last third is than the second.
func (t Trend) Ratio() float64 { return t.Last / t.Second }

// Told says whether there are enough samples to speak of a trend.
func (t Trend) Told() bool { return t.Samples >= leastSamples }

// Flat says whether the last third is at most the given times the second.
func (t Trend) Flat(most float64) bool { return t.Told() && t.Last <= most*t.Second }

// Largest are the names with the largest numbers, largest first, equal ones by
// name; those below least are left out.
func Largest(numbers map[string]float64, most int, least float64) []string {
	names := slices.SortedFunc(maps.Keys(numbers), func(a, b string) int {
		return cmp.Or(cmp.Compare(numbers[b], numbers[a]), cmp.Compare(a, b))
	})
	names = slices.DeleteFunc(names, func(n string) bool { return numbers[n] < least })
	return names[:min(most, len(names))]
}

// Table is a table in Markdown.
type Table struct{ rows [][]string }

// NewTable begins a table.
func NewTable(header ...string) *Table { return &Table{rows: [][]string{header}} }

// Row adds a row; numbers that are not known become dashes.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// String is the table with an empty line after it.
func (t *Table) String() string {
	var b strings.Builder
	for i, row := range t.rows {
		b.WriteString("| ")
		for j, cell := range row {
			if j > 0 {
				b.WriteString(" | ")
			}
			b.WriteString(strings.ReplaceAll(cell, "|", `\|`))
		}
		b.WriteString(" |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	b.WriteString("\n")
	return b.String()
}

// Number formats a number with so many digits after the point, and a dash for
// what is not known.
func Number(n float64, digits int) string {
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return "–"
	}
	return fmt.Sprintf("%.*f", digits, n)
}
