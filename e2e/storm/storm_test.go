package storm

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/e2e/measure"
	"gpuladder.dev/ladder/e2e/replay"
)

func options() Options {
	return Options{
		Nodes: 60, Served: 200, Storm: 2000, Waiting: 50, Rounds: 2, Runs: 3, Idle: 11 * time.Minute,
		Limits: Limits{Ratio: 1.2, IdleCPU: time.Second, IdleWrites: 6},
	}
}

func TestFleetHasRoomForThoseThatCanBeServed(t *testing.T) {
	for _, nodes := range []int{4, 10, 60, 500} {
		o := options()
		o.Nodes, o.Served = nodes, nodes/2*gpusPerNode
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		f := o.Fleet()
		if errs := f.Validate(); len(errs) > 0 {
			t.Fatalf("%d nodes: %v", nodes, errs)
		}
		if f.NodeCount() != nodes {
			t.Errorf("%d nodes, want %d", f.NodeCount(), nodes)
		}
		if h100 := f.Groups[0].Nodes * gpusPerNode; h100 < o.Served {
			t.Errorf("%d H100 for %d Pods", h100, o.Served)
		}
		if l4 := f.Groups[2].Nodes * gpusPerNode; l4 != o.held() {
			t.Errorf("%d L4, and %d Pods to hold them", l4, o.held())
		}
	}
	if o := options(); o.waiting() != 1000 {
		t.Errorf("%d of 2000 wait for devices, want half", o.waiting())
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"--nodes 3":      func(o *Options) { o.Nodes, o.Served = 3, 8 },
		"--pods 241":     func(o *Options) { o.Served = 241 },
		"--pods 0":       func(o *Options) { o.Served = 0 },
		"--storm 0":      func(o *Options) { o.Storm = 0 },
		"--waiting 101":  func(o *Options) { o.Waiting = 101 },
		"--rounds 0":     func(o *Options) { o.Rounds = 0 },
		"--idle 10ms":    func(o *Options) { o.Idle = 10 * time.Millisecond },
		"--rounds 2, --": func(o *Options) { o.Runs = 0 },
	} {
		o := options()
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %q", err, want)
		}
	}
	if err := options().Validate(); err != nil {
		t.Error(err)
	}
	for idle, want := range map[time.Duration]string{5 * time.Minute: "want 6m0s or more", 6 * time.Minute: ""} {
		o := options()
		o.Idle = idle
		if err := o.ValidateIdle(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s of idling: %v, want something about %q", idle, err, want)
		}
	}
}

// result is as it should be: the storm costs a tenth more, and nothing at rest.
func result() *Result {
	r := &Result{
		ComingSeconds: []float64{61.2, 58},
		Before:        Idle{Seconds: 60, SchedulerCPU: 0.05},
		Under:         Idle{Seconds: 660, SchedulerCPU: 0.2, Writes: 0.3, AttemptsInAll: 2000, Attempts: 181.8, ServedAll: 14, ServedLargest: "PUT leases 14.0"},
		Replay:        &replay.Result{Journals: 1, Decisions: 9000, Twin: replay.Twin{Asked: 4000, Skipped: 5000}},
	}
	for round := 1; round <= 2; round++ {
		for run, seconds := range []float64{4.1, 4.0, 4.3} {
			r.Runs = append(r.Runs, Run{Round: round, Run: run + 1, Seconds: seconds}, Run{Round: round, Run: run + 1, Storm: true, Seconds: seconds * 1.1, Vain: 2})
		}
	}
	return r
}

func TestCheck(t *testing.T) {
	limits := options().Limits
	for name, tc := range map[string]struct {
		change func(*Result)
		want   string // part of the error; empty: none
	}{
		"as promised": {func(*Result) {}, ""},
		"slower beside the storm": {func(r *Result) {
			for i := range r.Runs {
				if r.Runs[i].Storm {
					r.Runs[i].Seconds *= 1.2
				}
			}
		}, "1.32 times as long"},
		"one slow run":            {func(r *Result) { r.Runs[1].Seconds = 1000 }, ""},
		"busy at rest":            {func(r *Result) { r.Under.SchedulerCPU = 1.5 }, "1.50 s of processor time"},
		"writing at rest":         {func(r *Result) { r.Under.Writes = 2000 }, "wrote 2000.0 times"},
		"nothing measured":        {func(r *Result) { r.Runs = nil }, "took – times"},
		"idle was not measured":   {func(r *Result) { r.Under.SchedulerCPU = math.NaN() }, "processor time"},
		"busy before is no sin":   {func(r *Result) { r.Before.SchedulerCPU = 30 }, ""},
		"decided otherwise":       {func(r *Result) { r.Replay.Differ = 1 }, "9000 decisions replayed, 1 differ"},
		"nothing replayed":        {func(r *Result) { r.Replay = nil }, "no decision was replayed"},
		"writes were not counted": {func(r *Result) { r.Under.Writes = math.NaN() }, "wrote – times"},
	} {
		t.Run(name, func(t *testing.T) {
			r := result()
			tc.change(r)
			err := limits.Check(r)
			if tc.want == "" && err != nil {
				t.Fatal(err)
			}
			if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("got %v, want something about %q", err, tc.want)
			}
		})
	}
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	if err := Report(&out, options(), result(), "Other work ran beside it."); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"200 Pods of one GPU each", "2000 others", "1000 ask for models", "1000 wait for devices", "60 nodes", "on. Other work ran beside it.",
		"| alone | 6 | 4.10 s | 4.00 – 4.30 s |", "| beside the storm | 6 | 4.51 s |", "**1.10 times**", "at most 1.20",
		"| processor time of the scheduler, s | 0.05 | 0.20 | 1.0 |", "| writes that the scheduler sends | 0.0 | 0.3 | 6 |",
		"mostly PUT leases 14.0", "| 2 | 3 | yes | 4.73 |", "61, 58 s",
		"and 660 s under the storm", "2000 attempts to schedule a Pod fell into the latter", "9000 decisions replayed, 0 differ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

// What the scheduler tells of itself becomes figures for a minute.
func TestIdleOf(t *testing.T) {
	read := func(at time.Duration, text string) measure.Reading {
		m, err := measure.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return measure.Reading{At: time.Unix(0, 0).Add(at), Metrics: map[string]measure.Metrics{"ladder-scheduler": m, "kube-apiserver": m}}
	}
	attempts := func(n int) string {
		const name = "scheduler_scheduling_attempt_duration_seconds"
		return fmt.Sprintf("# TYPE %[1]s histogram\n%[1]s_bucket{result=\"unschedulable\",le=\"+Inf\"} %[2]d\n%[1]s_sum{result=\"unschedulable\"} 1\n%[1]s_count{result=\"unschedulable\"} %[2]d\n", name, n)
	}
	before := read(0, "rest_client_requests_total{method=\"PATCH\"} 10\n"+attempts(5))
	after := read(2*time.Minute, `rest_client_requests_total{method="PATCH"} 14
rest_client_requests_total{method="GET"} 20
apiserver_request_total{verb="PUT",resource="leases"} 60
apiserver_request_total{verb="WATCH",resource="pods"} 60
`+attempts(13))
	got := idleOf(after.Since(before))
	if got.Writes != 2 || got.Reads != 10 || got.ServedAll != 30 || got.ServedLargest != "PUT leases 30.0" || got.Seconds != 120 || got.Attempts != 4 || got.AttemptsInAll != 8 {
		t.Errorf("idle %+v", got)
	}
}
