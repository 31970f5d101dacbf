package simulate

// The page: one file, nothing from the network, light or dark as the reader has it.

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	_ "embed"

	"gpuladder.dev/ladder/policies/simulate"
)

//go:embed page.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"span": span, "percent": percent, "deviceHours": deviceHours, "held": held, "worst": worst,
	"class": class, "guarantee": guarantee, "ratio": func(v float64) string { return fmt.Sprintf("%.2f", v) },
	"index3": func(v float64) string { return fmt.Sprintf("%.3f", v) },
}).Parse(pageText))

// page is what the template is given.
type page struct {
	*simulate.Report
	Headline                              string
	Waits, Fairness, Utilisation, Waiting template.HTML
	Tenants                               []tenantPlots
	// Compared: the private clusters were played.
	Compared bool
	First    *simulate.Setup
	Costs    string
}

// tenantPlots are a tenant's plots over time.
type tenantPlots struct {
	Name         string
	Due          float64
	Jobs         int
	Held, Queued template.HTML
}

// writePage prints the result as a page.
func writePage(w io.Writer, r *simulate.Report) error {
	p := page{
		Report: r, Headline: headline(r), First: &r.Setups[0], Compared: r.Setups[0].Private != nil,
		Waits: drawn(waits(r)), Utilisation: drawn(utilisation(r)), Waiting: drawn(waiting(r)),
	}
	if p.Compared {
		p.Fairness = drawn(fairness(r))
	}
	for _, m := range slices.Sorted(maps.Keys(r.Fleet.Costs)) {
		p.Costs += fmt.Sprintf("%s %d, ", m, r.Fleet.Costs[m])
	}
	p.Costs = strings.TrimSuffix(p.Costs, ", ")
	for i := range p.First.Tenants {
		t := &p.First.Tenants[i]
		if t.Jobs == 0 {
			continue
		}
		p.Tenants = append(p.Tenants, tenantPlots{
			Name: t.Name, Due: p.First.Timeline.Tenants[i].Due, Jobs: t.Jobs,
			Held: drawn(overTime(r, i, "devices held by "+t.Name, true)), Queued: drawn(overTime(r, i, "GPUs that jobs of "+t.Name+" wait for", false)),
		})
	}
	if err := pageTemplate.Execute(w, p); err != nil {
		return fmt.Errorf("making the page, %w", err)
	}
	return nil
}

// drawn marks a chart as HTML: names in it are escaped where they are put in.
func drawn(c *chart) template.HTML {
	return template.HTML(c.svg())
}

// class is the colour of the n-th set-up.
func class(n int) string { return fmt.Sprintf("c%d", n%4) }

// guarantee lists guaranteed devices.
func guarantee(devices map[string]int64) string {
	var out []string
	for _, m := range slices.Sorted(maps.Keys(devices)) {
		out = append(out, fmt.Sprintf("%d %s", devices[m], m))
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}

const wide, high = 720, 300

// tail turns a distribution into the part of the jobs that have more.
func tail(points []simulate.Point) []point {
	var out []point
	for _, p := range points {
		out = append(out, point{p.Value, 1 - p.Part})
	}
	return out
}

func partAxis() axis {
	return axis{from: 0.0005, to: 1, log: true, label: "part of the jobs", ticks: []tick{
		{1, "100%"}, {0.5, "50%"}, {0.1, "10%"}, {0.01, "1%"}, {0.001, "0.1%"},
	}}
}

// waits is how many jobs waited longer than a time.
func waits(r *simulate.Report) *chart {
	most := 60.0
	c := &chart{title: "Part of the jobs that waited longer", width: wide, height: high, left: 60, bottom: 38, y: partAxis()}
	for i := range r.Setups {
		u := &r.Setups[i]
		most = max(most, u.WaitSeconds.Max)
		c.lines = append(c.lines, line{u.Name, class(i), tail(u.WaitDistribution)})
	}
	c.x = axis{from: 1, log: true, ticks: timeTicks(most), label: "wait"}
	c.x.to = c.x.ticks[len(c.x.ticks)-1].at
	return c
}

// fairness is how many jobs have a larger ratio of finish times.
func fairness(r *simulate.Report) *chart {
	most := 10.0
	c := &chart{title: "Part of the jobs with a larger ratio of finish times", width: wide, height: high, left: 60, bottom: 38, y: partAxis()}
	for i := range r.Setups {
		u := &r.Setups[i]
		most = max(most, u.FinishTimeFairness.Max)
		c.lines = append(c.lines, line{u.Name, class(i), tail(u.FinishTimeFairness.Distribution)})
	}
	c.x = axis{from: 0.001, log: true, ticks: powerTicks(0.001, most), label: "time from creation to end, shared over alone"}
	c.x.to = c.x.ticks[len(c.x.ticks)-1].at
	return c
}

// sumOverTime adds up what all tenants hold, or wait for.
func sumOverTime(r *simulate.Report, title string, of func(*simulate.TenantLine) []float64, floor float64) *chart {
	most, last := floor, 0.0
	c := &chart{title: title, width: wide, height: high, left: 60, bottom: 38}
	for i := range r.Setups {
		l := &r.Setups[i].Timeline
		var sum []float64
		for t := range l.Tenants {
			for j, v := range of(&l.Tenants[t]) {
				if j == len(sum) {
					sum = append(sum, 0)
				}
				sum[j] += v
			}
		}
		for _, v := range sum {
			most = max(most, v)
		}
		last = max(last, float64(len(sum))*l.StepSeconds)
		c.lines = append(c.lines, line{r.Setups[i].Name, class(i), steps(sum, l.StepSeconds)})
	}
	c.y = axis{to: most, ticks: niceTicks(most, 5)}
	c.y.to = c.y.ticks[len(c.y.ticks)-1].at
	c.x = calendar(r.Trace.FirstJob, last, 8)
	return c
}

func utilisation(r *simulate.Report) *chart {
	var devices int64
	for _, n := range r.Fleet.Devices {
		devices += n
	}
	c := sumOverTime(r, "Devices that are held", func(l *simulate.TenantLine) []float64 { return l.Held }, float64(devices))
	c.y.label = "devices"
	return c
}

func waiting(r *simulate.Report) *chart {
	c := sumOverTime(r, "GPUs that jobs wait for", func(l *simulate.TenantLine) []float64 { return l.Queued }, 1)
	c.y.label = "GPUs"
	return c
}

// overTime is one tenant, in every set-up, beside its due.
func overTime(r *simulate.Report, tenant int, title string, held bool) *chart {
	due := r.Setups[0].Timeline.Tenants[tenant].Due
	most, last := 1.0, 0.0
	if held {
		most = due
	}
	c := &chart{title: title, width: 340, height: 120, left: 36, bottom: 20}
	for i := range r.Setups {
		l := &r.Setups[i].Timeline
		values := l.Tenants[tenant].Queued
		if held {
			values = l.Tenants[tenant].Held
		}
		for _, v := range values {
			most = max(most, v)
		}
		last = max(last, float64(len(values))*l.StepSeconds)
		c.lines = append(c.lines, line{r.Setups[i].Name, class(i), steps(values, l.StepSeconds)})
	}
	if held {
		c.lines = append(c.lines, line{"due", "due", []point{{0, due}, {last, due}}})
	}
	c.y = axis{to: most, ticks: niceTicks(most, 3)}
	c.y.to = c.y.ticks[len(c.y.ticks)-1].at
	c.x = calendar(r.Trace.FirstJob, last, 4)
	return c
}

// steps draws means of equal spans as points in their middles.
func steps(values []float64, step float64) []point {
	var out []point
	for i, v := range values {
		out = append(out, point{(float64(i) + 0.5) * step, v})
	}
	return out
}

// calendar is an axis of seconds since a time, with about n dates; of a day or
// less with hours, of many years with years. A time.Duration ends at 292 years,
// a simulation need not, so it counts in seconds.
func calendar(from time.Time, seconds float64, n int) axis {
	const hour, day, year = 3600, 24 * 3600, 365 * 24 * 3600
	a := axis{to: max(seconds, 1)}
	unit := int64(0)
	for _, u := range []int64{60, 600, hour, 6 * hour, day, 2 * day, 7 * day, 14 * day, 28 * day, 91 * day, year} {
		if unit = u; a.to/float64(u) <= float64(n) {
			break
		}
	}
	layout := "2 Jan"
	switch {
	case unit < day:
		layout = "15:04"
	case unit == year:
		unit *= int64(math.Ceil(a.to / year / float64(n)))
		layout = "2006"
	}
	// Whole units since the first of January of the year 1, as time.Truncate
	// counts them. It was a Monday, so weeks begin on one.
	const origin = -62_135_596_800
	first := from.Unix()
	for at := (first-origin)/unit*unit + origin; float64(at-first) <= a.to; at += unit {
		if at >= first {
			a.ticks = append(a.ticks, tick{float64(at - first), time.Unix(at, 0).UTC().Format(layout)})
		}
	}
	return a
}
