package growth

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/e2e/measure"
	"gpuladder.dev/ladder/e2e/replay"
)

func options() Options {
	return Options{Nodes: []int{100, 300, 1000}, Pods: 200, Single: 50, Runs: 2}
}

func TestFleetHasRoom(t *testing.T) {
	for _, nodes := range []int{4, 100, 300, 1000} {
		f := Fleet(nodes)
		if errs := f.Validate(); len(errs) > 0 {
			t.Fatalf("%d nodes: %v", nodes, errs)
		}
		if f.NodeCount() != nodes || f.Groups[0].Nodes*gpusPerNode < nodes*gpusPerNode/2 {
			t.Errorf("%d nodes, %d with H100, want %d and half", f.NodeCount(), f.Groups[0].Nodes, nodes)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"--nodes []":            func(o *Options) { o.Nodes = nil },
		"--nodes [300 100]":     func(o *Options) { o.Nodes = []int{300, 100} },
		"--nodes [100 100]":     func(o *Options) { o.Nodes = []int{100, 100} },
		"--nodes [2]":           func(o *Options) { o.Nodes = []int{2} },
		"--pods 400":            func(o *Options) { o.Pods = 400 },
		"--pods 0":              func(o *Options) { o.Pods = 0 },
		"--single 0, --runs 2":  func(o *Options) { o.Single = 0 },
		"--single 50, --runs 0": func(o *Options) { o.Runs = 0 },
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
}

// result grows as the logarithm does, times a factor.
func result(factor float64) *Result {
	r := &Result{
		Idles:  []Idle{{Nodes: 100, SchedulerCPU: 1.5, APIServerCPU: 20, Served: 7}},
		Replay: replay.Result{Journals: 3, Decisions: 2250, Twin: replay.Twin{Asked: 20, Skipped: 2230}},
	}
	for _, nodes := range options().Nodes {
		grown := 1.0
		if nodes > 100 {
			grown = factor * math.Log(float64(nodes)) / math.Log(100)
		}
		for run := 1; run <= 2; run++ {
			r.Runs = append(r.Runs, Run{
				Nodes: nodes, Run: run, Wait: 20, Attempt: 10 * grown, Wall: 25, Decision: 2 * grown, Engine: 0.1, FirstTier: 200,
				SchedulerCPU: 6, APIServerCPU: 18, Calls: measure.Calls{Reads: 0.5, Writes: 4},
				Served: map[string]float64{"POST pods binding": 1, "PATCH pods status": 2, "LIST nodes": 0.01},
			})
		}
	}
	return r
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		result func() *Result
		want   string // part of the error; empty: none
	}{
		"no growth":                  {func() *Result { return result(0.7) }, ""},
		"a hair below the logarithm": {func() *Result { return result(0.999) }, ""},
		"faster than the logarithm":  {func() *Result { return result(1.1) }, "from 100 to 1000 nodes the time of a decision, all Pods at once grew to 1.65 times, want at most 1.50"},
		"attempts alone": {func() *Result {
			r := result(0.9)
			for i := range r.Runs {
				if r.Runs[i].Nodes == 300 {
					r.Runs[i].Attempt *= 3
				}
			}
			return r
		}, "from 100 to 300 nodes the time of an attempt"},
		"a first choice missed": {func() *Result { r := result(0.9); r.Runs[3].FirstTier = 199; return r }, "300 nodes, run 2: 199 of 200"},
		"a size is missing":     {func() *Result { r := result(0.9); r.Runs = r.Runs[:4]; return r }, "2 of 3 sizes"},
		"nothing was told": {func() *Result {
			r := result(0.9)
			r.Runs[5].Decision = math.NaN()
			r.Runs[4].Decision = math.NaN()
			return r
		}, "grew to – times"},
		"decided otherwise":    {func() *Result { r := result(0.9); r.Replay.Differ = 1; return r }, "2250 decisions replayed, 1 differ"},
		"nothing was measured": {func() *Result { return &Result{} }, "0 of 3 sizes"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(options(), tc.result())
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
	if err := Report(&out, options(), result(0.9), "Other work ran beside it."); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"50 Pods of one GPU each", "then 200 at once", "2 runs on each fleet", "Other work ran beside it.",
		"| time of a Pod, ms | 100 nodes | 300 nodes | 1000 nodes |",
		"| the scheduler's attempt in that, binding included | 10.0 | 11.1 | 13.5 |",
		"| log(nodes), the most that they may grow | 1.00 | 1.24 | 1.50 |",
		"| a decision, all Pods at once | 1.00 | 1.11 | 1.35 |",
		"| writes of the scheduler | 4.00 | 4.00 | 4.00 |", "on 1000 nodes, by what they are: PATCH pods status 2.0, POST pods binding 1.0.",
		"| 100 nodes | 1.5 | 20.0 | 7.0 |", "200 of 200",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := Report(&out, options(), &Result{}, ""); err != nil || !strings.Contains(out.String(), "Nothing was measured") {
		t.Errorf("of nothing: %v, %s", err, out.String())
	}
}

// What the cluster costs anyway is taken off.
func TestCostOfAPod(t *testing.T) {
	reading := func(at time.Duration, text string) measure.Reading {
		m, err := measure.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return measure.Reading{
			At:      time.Unix(0, 0).Add(at),
			Metrics: map[string]measure.Metrics{"ladder-scheduler": m, "kube-apiserver": m},
			Processes: map[string]measure.Process{
				"ladder-scheduler": {PID: 1, CPU: at / 10}, "kube-apiserver": {PID: 2, CPU: at / 2},
			},
		}
	}
	const leases, requests = "apiserver_request_total{verb=\"PUT\",resource=\"leases\"} ", "rest_client_requests_total{method=\"POST\"} "
	idle := reading(20*time.Second, leases+"20\n").Since(reading(0, leases+"0\n"))
	busy := reading(10*time.Second, leases+"10\n"+requests+"300\napiserver_request_total{verb=\"POST\",resource=\"pods\"} 100\n").
		Since(reading(0, leases+"0\n"))
	end := busy.To.Processes["ladder-scheduler"]
	end.CPU += 600 * time.Millisecond
	busy.To.Processes["ladder-scheduler"] = end

	var run Run
	run.cost(100, 2*time.Second, busy, idle)
	if math.Abs(run.SchedulerCPU-6) > 1e-6 || run.APIServerCPU != 0 || run.Wall != 20 {
		t.Errorf("CPU of the scheduler %v ms, of the API server %v ms, wall %v ms, want 6, 0, 20", run.SchedulerCPU, run.APIServerCPU, run.Wall)
	}
	if run.Calls.Writes != 3 || run.Served["POST pods"] != 1 || run.Served["PUT leases"] != 0 {
		t.Errorf("calls %+v, served %v", run.Calls, run.Served)
	}
	if !math.IsNaN(run.Decision) {
		t.Errorf("a decision that was not told took %v", run.Decision)
	}
}
