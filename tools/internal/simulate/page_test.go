package simulate

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/simulate"
	"gpuladder.dev/ladder/tools/internal/command"
)

// sample is a result with two set-ups and a tenant of an unkind name.
func sample() *simulate.Report {
	setup := func(name string, wait float64) simulate.Setup {
		s := simulate.Spread{P50: 0, P99: wait, Max: 2 * wait}
		points := []simulate.Point{{Part: 0, Value: 0}, {Part: 0.5, Value: 0}, {Part: 0.99, Value: wait}, {Part: 1, Value: 2 * wait}}
		fairness := &simulate.Fairness{Jobs: 3, Spread: simulate.Spread{P50: 1, P99: 2, Max: 3}, Distribution: points}
		return simulate.Setup{
			Name: name, Jobs: 3, Jain: 0.5, WaitSeconds: s, Smallest: simulate.Smallest{Name: "b", WaitSeconds: s},
			WaitDistribution: points, FinishTimeFairness: fairness, Private: &simulate.Excess{Jobs: 3, BoundSeconds: 60, ExcessSeconds: s},
			Tenants: []simulate.Tenant{
				{Name: "<b>", Jobs: 3, WaitSeconds: s, DeviceSeconds: map[string]float64{"L4": 7200, "H100": 3600}, Guaranteed: map[string]int64{"H100": 2}, FinishTimeFairness: fairness},
				{Name: "idle", FinishTimeFairness: &simulate.Fairness{}, Private: &simulate.Excess{}},
			},
			Timeline: simulate.Timeline{StepSeconds: 3600, Tenants: []simulate.TenantLine{
				{Name: "<b>", Due: 1.5, Held: []float64{1, 2, 0}, Queued: []float64{0, 4, 0}}, {Name: "idle", Due: 0.5, Held: []float64{0, 0, 0}, Queued: []float64{0, 0, 0}},
			}},
		}
	}
	at := time.Date(2017, 10, 2, 3, 4, 5, 0, time.UTC)
	return &simulate.Report{
		Trace:  simulate.TraceInfo{Format: simulate.Philly, Jobs: 3, FirstJob: at, LastJob: at.Add(2 * time.Hour), LargestGPUs: 1},
		Fleet:  simulate.FleetInfo{Nodes: 2, Devices: map[string]int64{"H100": 1, "L4": 1}, Costs: map[string]int64{"H100": 3, "L4": 1}},
		Setups: []simulate.Setup{setup("fifo", 5000), setup("ladder", 30)},
	}
}

// A time of zero on the command line is no time, not the default.
func TestZeroIsNotTheDefault(t *testing.T) {
	o := simulate.Options{Aging: time.Hour}
	zeroes(&o)
	for name, d := range map[string]time.Duration{
		"reserve-after": o.ReserveAfter, "keep-after": o.KeepAfter, "priority-aging": o.PriorityAging, "notice": o.Notice, "cooldown": o.Cooldown,
	} {
		if d == 0 || d > time.Millisecond {
			t.Errorf("--%s 0s is %v", name, d)
		}
	}
	if o.Aging != time.Hour || o.LendAfter != 0 || o.Release != 0 {
		t.Errorf("got %+v", o)
	}
}

// The page loads nothing, runs nothing, and takes names for text.
func TestPageStandsAlone(t *testing.T) {
	var page bytes.Buffer
	if err := writePage(&page, sample()); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	for _, banned := range []string{"<script", "src=", "href=", "url(", "@import", "http:", "https:", "<b>", "NaN", "Inf", "%!"} {
		if strings.Contains(text, banned) {
			t.Errorf("the page has %q", banned)
		}
	}
	for _, want := range []string{"&lt;b&gt;", "prefers-color-scheme: dark", "fifo", "ladder", "1h 23m", "H100 3, L4 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	// Four wide plots, and two of the tenant that has jobs.
	if n := strings.Count(text, "<svg "); n != 6 {
		t.Errorf("%d plots, want 6", n)
	}
	for part := range strings.SplitSeq(text, "<svg ") {
		svg, _, ok := strings.Cut(part, "</svg>")
		if ok {
			wellFormed(t, "<svg "+svg+"</svg>")
		}
	}
}

func wellFormed(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in %.300s", err, svg)
		}
	}
}

// Without private clusters nothing is said of them.
func TestPageWithoutPrivateClusters(t *testing.T) {
	r := sample()
	for i := range r.Setups {
		r.Setups[i].Private, r.Setups[i].FinishTimeFairness = nil, nil
		for j := range r.Setups[i].Tenants {
			r.Setups[i].Tenants[j].FinishTimeFairness = nil
		}
	}
	var page bytes.Buffer
	if err := writePage(&page, r); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(page.String(), "beyond alone") || strings.Count(page.String(), "<svg ") != 5 {
		t.Error("the page compares with what was not played")
	}
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	if err := writeText(&out, sample(), command.Streams{}); err != nil {
		t.Fatal(err)
	}
	const want = `3 jobs (philly), 2017-10-02 to 2017-10-02, on 2 nodes with 1 H100, 1 L4

SET-UP  UNFINISHED  WAIT P50  P99     MAX     OVER A DAY  SMALLEST P99  JAIN   IN USE  EVICTED  LOST  FALLBACK  LATER THAN ALONE
fifo    0           0s        1h 23m  2h 46m  0           1h 23m        0.500  0.0%    0        0h    0.0%      2h 46m
ladder  0           0s        30s     1m      0           30s           0.500  0.0%    0        0h    0.0%      1m

fifo
TENANT  JOBS  WAIT P50  P99     MAX     ENTITLED  SHARE  SERVED  FALLBACK  HELD            LATER THAN ALONE
<b>     3     0s        1h 23m  2h 46m  0.0%      0.0%   0.0%    0.0%      H100 1h, L4 2h  -
`
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	for line := range strings.Lines(out.String()) {
		if strings.TrimRight(line, " \n")+"\n" != line {
			t.Errorf("blanks at the end of %q", line)
		}
	}
}

func TestSpan(t *testing.T) {
	for seconds, want := range map[float64]string{
		0: "0s", 0.5: "0.5s", 59: "59s", 60: "1m", 61.7: "1m 1s", 3600: "1h", 3660: "1h 1m", 86399: "23h 59m", 86400: "1d", 900000: "10d 10h",
	} {
		if got := span(seconds); got != want {
			t.Errorf("%v s is %q, want %q", seconds, got, want)
		}
	}
}

func TestAxis(t *testing.T) {
	linear, log := axis{from: 0, to: 10}, axis{from: 1, to: 100, log: true}
	for _, tc := range []struct {
		a    *axis
		v, p float64
	}{{&linear, 0, 0}, {&linear, 5, 0.5}, {&linear, 11, 1}, {&linear, -1, 0}, {&log, 10, 0.5}, {&log, 0, 0}, {&log, 1000, 1}, {&axis{}, 3, 0}} {
		if got := tc.a.place(tc.v); math.Abs(got-tc.p) > 1e-9 {
			t.Errorf("%v is at %v, want %v", tc.v, got, tc.p)
		}
	}
}

func TestTicks(t *testing.T) {
	last := func(ticks []tick) float64 { return ticks[len(ticks)-1].at }
	for _, most := range []float64{0, 0.3, 1, 7, 480, 12345} {
		if ticks := niceTicks(most, 5); last(ticks) < most || len(ticks) < 2 || len(ticks) > 8 {
			t.Errorf("up to %v: %v", most, ticks)
		}
	}
	for _, most := range []float64{1, 59, 61, 1e6, 1e12} {
		if ticks := timeTicks(most); most < 1e10 && last(ticks) < most {
			t.Errorf("times up to %v: %v", most, ticks)
		}
	}
	if ticks := powerTicks(0.001, 5); last(ticks) < 5 || last(ticks) > 11 {
		t.Errorf("powers: %v", ticks)
	}
	from := time.Date(2017, 10, 2, 3, 4, 5, 0, time.UTC)
	for _, seconds := range []float64{0, 300, 7200, 86400, 100 * 86400, 3e8, 3e10} {
		a := calendar(from, seconds, 8)
		if len(a.ticks) > 9 {
			t.Errorf("%v s: %d dates", seconds, len(a.ticks))
		}
		for _, mark := range a.ticks {
			if mark.at < 0 || mark.at > a.to {
				t.Errorf("%v s: a date at %v", seconds, mark.at)
			}
		}
	}
}

// Progress is for terminals only.
func TestProgressIsSilent(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(command.Streams{Err: &out})
	p.begin("x")
	p.clear()
	if p.watch() != nil || out.Len() != 0 {
		t.Errorf("a pipe gets %q", out.String())
	}
	p = &progress{out: &out}
	p.begin("set-up fifo")
	p.watch()(1, 2)
	p.watch()(1, 2)
	p.clear()
	if got := out.String(); got != "\r\x1b[Kset-up fifo: 0% of the jobs\r\x1b[Kset-up fifo: 50% of the jobs\r\x1b[K" {
		t.Errorf("a terminal gets %q", got)
	}
}
