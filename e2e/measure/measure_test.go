package measure

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const before = `# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="h",method="GET"} 10
rest_client_requests_total{code="201",host="h",method="POST"} 5
# TYPE scheduler_scheduling_attempt_duration_seconds histogram
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="0.001"} 1
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="0.002"} 1
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="+Inf"} 1
scheduler_scheduling_attempt_duration_seconds_sum{profile="p",result="scheduled"} 0.001
scheduler_scheduling_attempt_duration_seconds_count{profile="p",result="scheduled"} 1
# TYPE go_goroutines gauge
go_goroutines 42
`

const after = `# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="h",method="GET"} 11
rest_client_requests_total{code="409",host="h",method="POST"} 1
rest_client_requests_total{code="201",host="h",method="POST"} 7
rest_client_requests_total{code="200",host="h",method="PATCH"} 4
# TYPE apiserver_request_total counter
apiserver_request_total{verb="PATCH",resource="pods",subresource="status"} 4
apiserver_request_total{verb="APPLY",resource="pods",subresource=""} 2
apiserver_request_total{verb="LIST",resource="pods",subresource=""} 9
# TYPE scheduler_scheduling_attempt_duration_seconds histogram
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="0.001"} 1
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="0.002"} 11
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="+Inf"} 11
scheduler_scheduling_attempt_duration_seconds_sum{profile="p",result="scheduled"} 0.017
scheduler_scheduling_attempt_duration_seconds_count{profile="p",result="scheduled"} 11
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="unschedulable",le="0.001"} 3
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="unschedulable",le="+Inf"} 3
scheduler_scheduling_attempt_duration_seconds_sum{profile="p",result="unschedulable"} 0.001
scheduler_scheduling_attempt_duration_seconds_count{profile="p",result="unschedulable"} 3
`

const attempts = "scheduler_scheduling_attempt_duration_seconds"

// told is a cluster with one part, "scheduler", that is this process.
type told struct{ text string }

func (c told) Metrics(context.Context, string) ([]byte, error) { return []byte(c.text), nil }

func (c told) PID(component string) (int, error) {
	if component != "scheduler" {
		return 0, errors.New("no such part")
	}
	return os.Getpid(), nil
}

func cost(t *testing.T) Cost {
	t.Helper()
	parts := Parts{Processes: []string{"scheduler"}, Metrics: []string{"scheduler"}}
	at := time.Unix(100, 0)
	now := func() time.Time { at = at.Add(time.Minute); return at }
	first, err := Read(t.Context(), told{before}, parts, now)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Read(t.Context(), told{after}, parts, now)
	if err != nil {
		t.Fatal(err)
	}
	return second.Since(first)
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestCost(t *testing.T) {
	c := cost(t)
	if c.Took() != time.Minute {
		t.Errorf("took %s", c.Took())
	}
	if calls := c.Calls("scheduler"); calls != (Calls{Reads: 1, Writes: 7}) || calls.Total() != 8 {
		t.Errorf("calls %+v, want 1 read and 7 writes", calls)
	}
	if got := c.ServedWrites("scheduler"); !maps.Equal(got, map[string]float64{"PATCH pods status": 4, "APPLY pods": 2}) {
		t.Errorf("served writes %v", got)
	}
	if got := c.Served("scheduler"); got["LIST pods"] != 9 {
		t.Errorf("served %v", got)
	}
	h := c.Histogram("scheduler", attempts, Labels{"result": "scheduled"})
	if h.Count != 10 || !near(h.Mean(), 0.0016) {
		t.Errorf("%+v: %v on the mean, want 10 of 1.6 ms", h, h.Mean())
	}
	// All ten lie between one and two milliseconds.
	if q := h.Quantile(0.5); !near(q, 0.0015) {
		t.Errorf("p50 %v, want 1.5 ms", q)
	}
	if all := c.Histogram("scheduler", attempts, nil); all.Count != 13 {
		t.Errorf("%v attempts in all, want 13", all.Count)
	}
	if none := c.Histogram("scheduler", "nothing", nil); none.Count != 0 || !math.IsNaN(none.Mean()) || !math.IsNaN(none.Quantile(0.5)) {
		t.Errorf("a histogram that is not there is %+v", none)
	}
	if c.CPU("scheduler") < 0 {
		t.Errorf("CPU %s", c.CPU("scheduler"))
	}
	if got := PerMinute(30, 2*time.Minute); got != 15 {
		t.Errorf("30 in two minutes are %v a minute", got)
	}
}

func TestReadRefuses(t *testing.T) {
	now := func() time.Time { return time.Unix(0, 0) }
	if _, err := Read(t.Context(), told{}, Parts{Processes: []string{"other"}}, now); err == nil {
		t.Error("a part that is not there is read")
	}
	if _, err := Read(t.Context(), told{"what is this {"}, Parts{Metrics: []string{"scheduler"}}, now); err == nil || !strings.Contains(err.Error(), "scheduler") {
		t.Errorf("metrics that are none: %v", err)
	}
}

// A part that was started again has used all of its time since.
func TestCPUOfANewProcess(t *testing.T) {
	old := Process{PID: 7, CPU: 50 * time.Second, start: 1}
	if got := (Process{PID: 7, CPU: 53 * time.Second, start: 1}).since(old); got != 3*time.Second {
		t.Errorf("the same process used %s, want 3s", got)
	}
	if got := (Process{PID: 7, CPU: 2 * time.Second, start: 9}).since(old); got != 2*time.Second {
		t.Errorf("another one of the same number used %s, want 2s", got)
	}
}

func TestReadProcess(t *testing.T) {
	spent := time.Now().Add(200 * time.Millisecond)
	for time.Now().Before(spent) { // some processor time
	}
	p, err := ReadProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if p.CPU < 20*time.Millisecond || p.RSS < 1<<20 {
		t.Errorf("this process is %+v", p)
	}
	if _, err := ReadProcess(1 << 30); err == nil {
		t.Error("a process that is not there is read")
	}
}

func TestFigures(t *testing.T) {
	for _, tc := range []struct {
		values      []float64
		median, p90 float64
	}{
		{[]float64{3}, 3, 3},
		{[]float64{4, 1, 3, 2}, 2.5, 4},
		{[]float64{9, 1, 5}, 5, 9},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5.5, 9},
	} {
		given := slices.Clone(tc.values)
		if m, q := Median(tc.values), Quantile(tc.values, 0.9); m != tc.median || q != tc.p90 {
			t.Errorf("%v: median %v, p90 %v, want %v, %v", tc.values, m, q, tc.median, tc.p90)
		}
		if !slices.Equal(given, tc.values) {
			t.Error("the values were put into another order")
		}
	}
	if !math.IsNaN(Median(nil)) || !math.IsNaN(Quantile(nil, 0.5)) {
		t.Error("of nothing there is a median")
	}
}

func TestTrend(t *testing.T) {
	line := func(f func(i int) float64) []float64 {
		var all []float64
		for i := range 30 {
			all = append(all, f(i))
		}
		return all
	}
	for name, tc := range map[string]struct {
		samples []float64
		flat    bool
	}{
		"the same throughout":      {line(func(int) float64 { return 100 }), true},
		"up and down":              {line(func(i int) float64 { return 100 + 50*float64(i%2) }), true},
		"growing at first":         {line(func(i int) float64 { return min(float64(i)*20, 200) }), true},
		"growing all the time":     {line(func(i int) float64 { return 10 + float64(i)*10 }), false},
		"growing at the end":       {line(func(i int) float64 { return 100 + max(0, float64(i)-15)*10 }), false},
		"too short to tell":        {[]float64{1, 1, 1, 1, 1, 1, 1, 1}, false},
		"nothing":                  {nil, false},
		"one outlier is no growth": {line(func(i int) float64 { return 100 + 900*float64(i/29) }), true},
	} {
		if trend := TrendOf(tc.samples); trend.Flat(1.2) != tc.flat {
			t.Errorf("%s: flat is %v, ratio %v", name, trend.Flat(1.2), trend.Ratio())
		}
	}
}

func TestTable(t *testing.T) {
	table := NewTable("nodes", "time")
	table.Row("100", Number(1.2345, 2))
	table.Row("a|b", Number(math.NaN(), 2))
	want := "| nodes | time |\n|---|---|\n| 100 | 1.23 |\n| a\\|b | – |\n\n"
	if got := table.String(); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
	if got := Largest(map[string]float64{"a": 1, "c": 5, "b": 5, "d": 0.1}, 3, 0.5); !slices.Equal(got, []string{"b", "c", "a"}) {
		t.Errorf("the largest are %v", got)
	}
	if got := Seconds(time.Second, 500*time.Millisecond); !slices.Equal(got, []float64{1, 0.5}) {
		t.Errorf("seconds %v", got)
	}
}
