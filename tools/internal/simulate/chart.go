package simulate

// Plots as SVG. Colours, fonts and line widths are the style sheet's, so that
// they follow the reader's light or dark scheme.

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// point of a line, in the units of its axes.
type point struct{ x, y float64 }

// line is one series. Its class names its colour.
type line struct {
	name, class string
	points      []point
}

// tick is a mark on an axis.
type tick struct {
	at    float64
	label string
}

// axis maps values to the plot.
type axis struct {
	from, to float64
	log      bool
	ticks    []tick
	label    string
}

// place is where a value is, from 0 to 1. What is outside is put on the edge.
func (a *axis) place(v float64) float64 {
	from, to := a.from, a.to
	if a.log {
		v, from, to = math.Log(max(v, a.from)), math.Log(from), math.Log(to)
	}
	if to <= from {
		return 0
	}
	return min(max((v-from)/(to-from), 0), 1)
}

// chart is a plot of lines.
type chart struct {
	title         string
	width, height float64
	left, bottom  float64
	x, y          axis
	lines         []line
}

const (
	chartTop   = 12.0
	chartRight = 12.0
)

// svg draws the chart.
func (c *chart) svg() string {
	var b strings.Builder
	w, h := c.width-c.left-chartRight, c.height-c.bottom-chartTop
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, c.width, c.height, html.EscapeString(c.title))
	fmt.Fprintf(&b, `<title>%s</title>`, html.EscapeString(c.title))
	for _, t := range c.y.ticks {
		y := chartTop + h*(1-c.y.place(t.at))
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, c.left, y, c.left+w, y)
		fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%.1f" text-anchor="end">%s</text>`, c.left-5, y+3.5, html.EscapeString(t.label))
	}
	for _, t := range c.x.ticks {
		x := c.left + w*c.x.place(t.at)
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, x, chartTop, x, chartTop+h)
		fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, x, chartTop+h+14, html.EscapeString(t.label))
	}
	if c.x.label != "" {
		fmt.Fprintf(&b, `<text class="axis" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, c.left+w/2, c.height-4, html.EscapeString(c.x.label))
	}
	if c.y.label != "" {
		fmt.Fprintf(&b, `<text class="axis" transform="translate(11 %.1f) rotate(-90)" text-anchor="middle">%s</text>`, chartTop+h/2, html.EscapeString(c.y.label))
	}
	for _, l := range c.lines {
		if len(l.points) == 0 {
			continue
		}
		fmt.Fprintf(&b, `<path class="series %s" d="%s"><title>%s</title></path>`, l.class, c.path(l.points, w, h), html.EscapeString(l.name))
	}
	b.WriteString(`</svg>`)
	return b.String()
}

// path connects points, leaving out those that would not be seen.
func (c *chart) path(points []point, w, h float64) string {
	var b strings.Builder
	command, last := "M", ""
	for i, p := range points {
		at := fmt.Sprintf("%.1f %.1f", c.left+w*c.x.place(p.x), chartTop+h*(1-c.y.place(p.y)))
		if at == last && i < len(points)-1 {
			continue
		}
		b.WriteString(command + at)
		command, last = "L", at
	}
	return b.String()
}

// niceTicks are about n round values from 0 to above most.
func niceTicks(most float64, n int) []tick {
	if most <= 0 {
		most = 1
	}
	raw := most / float64(n)
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * unit
	for _, m := range []float64{1, 2, 5} {
		if m*unit >= raw {
			step = m * unit
			break
		}
	}
	var ticks []tick
	for i := 0; ; i++ {
		v := float64(i) * step
		ticks = append(ticks, tick{v, fmt.Sprintf("%g", v)})
		if v >= most {
			return ticks
		}
	}
}

// timeTicks are round times up to most seconds, on a logarithmic axis.
func timeTicks(most float64) []tick {
	all := []tick{
		{1, "1 s"},
		{10, "10 s"},
		{60, "1 min"},
		{600, "10 min"},
		{3600, "1 h"},
		{6 * 3600, "6 h"},
		{86400, "1 d"},
		{7 * 86400, "7 d"},
		{30 * 86400, "30 d"},
		{365 * 86400, "1 y"},
		{10 * 365 * 86400, "10 y"},
		{100 * 365 * 86400, "100 y"},
	}
	for i, t := range all {
		if t.at >= most {
			return all[:i+1]
		}
	}
	return all
}

// powerTicks are powers of ten from least to above most.
func powerTicks(least, most float64) []tick {
	var ticks []tick
	for v := least; ; v *= 10 {
		ticks = append(ticks, tick{v, fmt.Sprintf("%g", v)})
		if v >= most {
			return ticks
		}
	}
}
