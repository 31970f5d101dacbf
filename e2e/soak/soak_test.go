package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	testingclock "k8s.io/utils/clock/testing"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/replay"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func pace() Pace {
	return Pace{
		Arrival: time.Second, Life: time.Minute, Taint: 20 * time.Second, Tainted: 30 * time.Second,
		Loss: 30 * time.Second, Lost: time.Minute, Kill: 30 * time.Second,
	}
}

const half = 30 * time.Minute

func plan(seed uint64) []Action { return Plan(seed, half, pace(), Policies(), Places(Fleet())) }

func TestPlanComesFromTheSeed(t *testing.T) {
	a := plan(7)
	if !reflect.DeepEqual(a, plan(7)) {
		t.Error("one seed, two plans")
	}
	if reflect.DeepEqual(a, plan(8)) {
		t.Error("two seeds, one plan")
	}
}

func TestPlanIsPossible(t *testing.T) {
	devices := map[string]int{}
	for _, p := range Places(Fleet()) {
		devices[p.Node] = p.Devices
	}
	count := map[Kind]int{}
	there := map[string]bool{} // Pods, rules, and nodes that are lost
	policies, effects, losses, whole, early := map[string]int{}, map[string]int{}, map[Loss]int{}, 0, 0
	born := map[string]time.Duration{}
	var last time.Duration
	for _, a := range plan(7) {
		count[a.Kind]++
		if a.At < last || a.At >= half {
			t.Fatalf("%+v comes after %s of %s", a, last, half)
		}
		last = a.At
		switch a.Kind {
		case Arrive:
			policies[a.Policy]++
			born[a.Name] = a.At
		case Taint:
			effects[string(a.Effect)]++
			if a.Device == "" {
				whole++
			}
			var gpu int
			if n, _ := fmt.Sscanf(a.Device, "gpu-%d", &gpu); devices[a.Pool] == 0 || n == 1 && gpu >= devices[a.Pool] {
				t.Errorf("%+v is about a device that the fleet does not have", a)
			}
		case Lose:
			losses[a.Loss]++
			lost := 0
			for name := range devices {
				if there[name] {
					lost++
				}
			}
			if lost+1 > len(devices)/4 {
				t.Errorf("at %s %d of %d nodes are lost", a.At, lost+1, len(devices))
			}
		case Depart:
			if a.At == born[a.Name] {
				early++
			}
		case Kill:
			if a.At >= half/3 || a.Down >= longestDown {
				t.Errorf("a kill at %s, down for %s", a.At, a.Down)
			}
		case Untaint, Restore:
		}
		switch a.Kind {
		case Arrive, Taint, Lose:
			if there[a.Name] {
				t.Errorf("%+v comes twice", a)
			}
			there[a.Name] = true
		case Depart, Untaint, Restore:
			if !there[a.Name] {
				t.Errorf("%+v was never there", a)
			}
			there[a.Name] = false
		case Kill:
		}
	}
	// Half an hour of a second on the mean, and so on.
	if n := count[Arrive]; n < 1600 || n > 2000 {
		t.Errorf("%d Pods", n)
	}
	if count[Taint] < 60 || count[Lose] < 20 || count[Kill] < 8 || len(policies) != len(Policies()) || len(effects) != 2 || len(losses) != 2 || whole == 0 || early == 0 {
		t.Errorf("counts %v, policies %v, effects %v, losses %v, %d of whole nodes, %d Pods deleted at once", count, policies, effects, losses, whole, early)
	}
}

func TestPlanLeavesOutWhatHasNoPace(t *testing.T) {
	for _, a := range Plan(1, time.Minute, Pace{Arrival: time.Second, Life: time.Second}, Policies(), Places(Fleet())) {
		if a.Kind != Arrive && a.Kind != Depart {
			t.Errorf("%+v was not asked for", a)
		}
	}
}

// T4 is in the fleet so that a broken constraint is seen: no policy allows it.
func TestFleetHasDevicesThatNoPolicyAllows(t *testing.T) {
	if errs := Fleet().Validate(); len(errs) > 0 {
		t.Fatal(errs)
	}
	trap := Fleet().Groups[3]
	if trap.Board != "T4" || trap.Nodes == 0 {
		t.Errorf("the last group is %+v", trap)
	}
	for name, spec := range policies() {
		if spec.Constraints.MinMemory == nil || spec.Constraints.MinMemory.Value() <= 16<<30 {
			t.Errorf("policy %s allows a board of 16 GiB", name)
		}
		policy := &v1alpha1.AcceleratorPolicy{Spec: spec}
		policy.Default()
		if errs := policy.Spec.Validate(nil); len(errs) > 0 {
			t.Errorf("policy %s: %v", name, errs)
		}
	}
}

// world notes what is done to it.
type world struct {
	mu    sync.Mutex
	done  []string
	fails Kind
}

func (w *world) note(kind Kind, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, string(kind)+" "+name)
	if w.fails == kind {
		return errors.New("not today")
	}
	return nil
}

func (w *world) Arrive(_ context.Context, pod, policy string) error {
	return w.note(Arrive, pod+" "+policy)
}
func (w *world) Depart(_ context.Context, pod string) error        { return w.note(Depart, pod) }
func (w *world) Taint(_ context.Context, a Action) error           { return w.note(Taint, a.Name) }
func (w *world) Untaint(_ context.Context, rule string) error      { return w.note(Untaint, rule) }
func (w *world) Lose(_ context.Context, n string, l Loss) error    { return w.note(Lose, n+" "+string(l)) }
func (w *world) Restore(_ context.Context, n string, _ Loss) error { return w.note(Restore, n) }
func (w *world) Kill(_ context.Context, d time.Duration) error     { return w.note(Kill, d.String()) }
func (w *world) State() string                                     { return "all is well" }

// ticking steps a clock on whenever somebody waits for it.
func ticking(t *testing.T) *testingclock.FakeClock {
	c := testingclock.NewFakeClock(time.Unix(0, 0))
	stop := make(chan struct{})
	var stepping sync.WaitGroup
	stepping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if c.HasWaiters() {
					c.Step(100 * time.Millisecond)
				}
			}
		}
	})
	t.Cleanup(func() { close(stop); stepping.Wait() })
	return c
}

func actions() []Action {
	return []Action{
		{At: time.Second, Kind: Arrive, Name: "a", Policy: "p"},
		{At: 2 * time.Second, Kind: Kill, Down: time.Second},
		{At: 2 * time.Second, Kind: Taint, Name: "r"},
		{At: 3 * time.Second, Kind: Lose, Name: "n", Loss: Removed},
		{At: 40 * time.Second, Kind: Restore, Name: "n", Loss: Removed},
		{At: 41 * time.Second, Kind: Untaint, Name: "r"},
		{At: 42 * time.Second, Kind: Depart, Name: "a"},
	}
}

func TestRun(t *testing.T) {
	w, c := &world{}, ticking(t)
	var progress bytes.Buffer
	done, err := Run(t.Context(), c, actions(), time.Minute, w, &progress)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.done) != len(actions()) || w.done[0] != "Arrive a p" || w.done[len(w.done)-1] != "Depart a" {
		t.Errorf("done %q", w.done)
	}
	if done.Took < time.Minute || done.Removed != 1 || done.Drained != 0 || done.Actions[Kill] != 1 || done.Latest > time.Second {
		t.Errorf("done %+v", done)
	}
	if !strings.Contains(progress.String(), "of 1m0s: all is well; 1 Pods came") {
		t.Errorf("it says %q", progress.String())
	}
}

func TestRunEndsWithTheFirstError(t *testing.T) {
	for _, kind := range []Kind{Arrive, Depart, Taint, Untaint, Lose, Restore, Kill} {
		w, c := &world{fails: kind}, ticking(t)
		_, err := Run(t.Context(), c, actions(), time.Minute, w, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "not today") {
			t.Errorf("where %s fails: %v", kind, err)
		}
	}
	if _, err := Run(t.Context(), ticking(t), []Action{{Kind: "Dance"}}, time.Second, &world{}, io.Discard); !errors.Is(err, errUnknown) {
		t.Errorf("an unknown kind: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, testingclock.NewFakeClock(time.Unix(0, 0)), actions(), time.Minute, &world{}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("broken off: %v", err)
	}
}

// grown are samples of a process whose memory at the end is a factor of what it
// had in the middle.
func grown(factor float64) []Sample {
	var all []Sample
	for i := range 30 {
		s := Sample{At: time.Duration(i) * time.Second, RSS: 100 << 20, Heap: 40 << 20, Live: 20 << 20, Goroutines: 150}
		if i >= 20 {
			s.RSS *= factor
		}
		all = append(all, s)
	}
	return all
}

func limits() Limits {
	return Limits{Slack: 3 * time.Second, RecordWithin: 90 * time.Second, Growth: 1.2, Processes: []string{"ladder-scheduler", "ladder-controller"}}
}

func good() *Result {
	r := &Result{
		Seed: 7, Done: Done{Actions: map[Kind]int{Arrive: 1200, Kill: 14}, Removed: 9, Drained: 11, Latest: 1500 * time.Millisecond, Took: half},
		Seen:    Seen{Pods: 1200, Bound: 1100, ByTier: map[string]int{"h100": 700, "a100": 400}, Records: 1300, Rebuilt: 2},
		Samples: Samples{"ladder-scheduler": grown(1.1), "ladder-controller": grown(1)},
		Replay:  &replay.Result{Journals: 15, Decisions: 2400, Twin: replay.Twin{Asked: 2300, Unsupported: 100}},
	}
	for _, name := range []string{"I1 a", "I2 b", "I4 c"} {
		r.Verdicts = append(r.Verdicts, invariants.Report{Invariant: name, Verdict: invariants.Pass, Checked: 1100, Unjudged: 3})
	}
	return r
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Result)
		want   string // part of the error; empty: none
	}{
		"as it should be": {func(*Result) {}, ""},
		"an invariant broke": {func(r *Result) {
			r.Verdicts[1].Verdict, r.Verdicts[1].Findings = invariants.Fail, []string{"t4 was taken"}
		}, "t4 was taken"},
		"too little seen": {func(r *Result) { r.Verdicts[2].Verdict = invariants.Inconclusive }, "I4 c: INCONCLUSIVE"},
		"many findings": {func(r *Result) {
			r.Verdicts[0].Verdict, r.Verdicts[0].Findings = invariants.Fail, []string{"1", "2", "3", "4", "5", "6", "7"}
		}, "and 2 more"},
		"none of what is rare": {func(r *Result) { r.Verdicts[2].Verdict, r.Verdicts[2].Rare = invariants.Inconclusive, true }, ""},
		"what is rare broke":   {func(r *Result) { r.Verdicts[2].Verdict, r.Verdicts[2].Rare = invariants.Fail, true }, "I4 c: FAIL"},
		"decided otherwise":    {func(r *Result) { r.Replay.Differ = 1 }, "2400 decisions replayed, 1 differ"},
		"the twin contradicts": {func(r *Result) { r.Replay.Twin.Differ = 2 }, "2300 put to the twin, 2 differ"},
		"nothing replayed":     {func(r *Result) { r.Replay = nil }, "no decision was replayed"},
		"nothing judged":       {func(r *Result) { r.Verdicts = nil }, "nothing was judged"},
		"memory grows":         {func(r *Result) { r.Samples["ladder-controller"] = grown(1.3) }, "ladder-controller, resident memory, MiB: 100.0 in the second third and 130.0 in the last"},
		"too short":            {func(r *Result) { r.Samples["ladder-scheduler"] = grown(1)[:8] }, "ladder-scheduler, goroutines: 8 samples are too few"},
		"one was never looked": {func(r *Result) { delete(r.Samples, "ladder-scheduler") }, "0 samples"},
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			tc.change(r)
			err := limits().Check(r)
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
	r := good()
	r.Verdicts[1].Verdict, r.Verdicts[1].Findings = invariants.Fail, []string{"1", "2", "3", "4", "5", "6", "7"}
	r.Verdicts[2].Verdict, r.Verdicts[2].Rare, r.Verdicts[2].Findings = invariants.Inconclusive, true, []string{"none was lost"}
	r.Samples["ladder-controller"] = grown(1.3)
	var out bytes.Buffer
	err := Report(&out, About{Pace: pace(), Duration: half, Every: 5 * time.Second, Beside: "Other work ran beside it."}, limits(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"30m0s of arrivals", "on 14 nodes with 48 devices", "seed 7", "by kwok. Other work ran beside it.", "a Pod came every 1s and stayed 1m0s",
		"| Pods created | 1200 | Pods | 1200 |", "| rules created | 0 | by tier | a100 400, h100 700 |", "| nodes drained | 11 |", "| 1300, 2 |", "| 1.5 |",
		"| I1 a | PASS | 1100 | 3 |", "| I2 b | FAIL | 1100 | 3 |", "- I2 b: 5\n- and 2 more\n", "| I4 c | INCONCLUSIVE |", "- I4 c: none was lost\n",
		"## Decided again", "2400 decisions replayed, 0 differ; 2300 put to the twin, 0 differ",
		"| ladder-scheduler | heap after a collection, MiB | 30 | 20.0 | 20.0 | 1.00 | +0.0 | flat |",
		"| ladder-scheduler | resident memory, MiB | 30 | 100.0 | 110.0 | 1.10 |  | flat |", "| ladder-controller | resident memory, MiB | 30 | 100.0 | 130.0 | 1.30 |  | grows |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

// Of nothing all invariants say that nothing was seen, in the order in which
// they are promised.
func TestJudge(t *testing.T) {
	var names []string
	for _, r := range limits().Judge(nil) {
		names = append(names, strings.Fields(r.Invariant)[0])
		if r.Verdict != invariants.Inconclusive {
			t.Errorf("of nothing: %s", r.String())
		}
	}
	if got := strings.Join(names, " "); got != "I1 I2 I4 I6 I6 I8 I11 I11" {
		t.Errorf("judged by %s", got)
	}
}

// The line goes through all samples from the second third on, so that neither
// what comes and goes nor the first third decides.
func TestHeapIsJudgedByItsSlope(t *testing.T) {
	const n = 360 // half an hour, every five seconds
	for name, tc := range map[string]struct {
		live func(i int) float64 // MiB
		want string              // part of the error; empty: none
	}{
		"flat":                    {func(int) float64 { return 20 }, ""},
		"up and down":             {func(i int) float64 { return 20 + 4*math.Sin(float64(i)/7) }, ""},
		"filling in the first":    {func(i int) float64 { return 20 - 19*math.Exp(-float64(i)/30) }, ""},
		"one window high":         {func(i int) float64 { return 20 + 20*float64(i/330)*float64(1-i/340) }, ""},
		"a busy last sixth":       {func(i int) float64 { return 20 + 6*float64(i/300) }, ""},
		"a tenth a third":         {func(i int) float64 { return 20 + 2*float64(i)/120 }, ""},
		"leaking steadily":        {func(i int) float64 { return 20 + 8*float64(i)/120 }, "32.0 in the second third and 40.0 in the last"},
		"leaking under the waves": {func(i int) float64 { return 20 + 8*float64(i)/120 + 4*math.Sin(float64(i)/7) }, "heap after a collection"},
		"not told":                {func(int) float64 { return 0 }, "heap after a collection, MiB: 0 in the second third: it is not told"},
	} {
		t.Run(name, func(t *testing.T) {
			var all []Sample
			for i := range n {
				all = append(all, Sample{At: time.Duration(i) * 5 * time.Second, RSS: 1, Goroutines: 1, Live: tc.live(i) * (1 << 20)})
			}
			err := Samples{"p": all}.Check(1.2, "p")
			if tc.want == "" && err != nil {
				t.Fatal(err)
			}
			if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("got %v, want something about %q", err, tc.want)
			}
		})
	}
	leaking := Samples{"p": nil}
	for i := range n {
		leaking["p"] = append(leaking["p"], Sample{At: time.Duration(i) * 5 * time.Second, Live: float64(i)})
	}
	if got := leaking.hourly("p", figures[1]); math.Abs(got-720) > 1e-6 {
		t.Errorf("one byte each 5 s is %v an hour, want 720", got)
	}
}

// told is a process that is this one.
type told struct{ fails bool }

func (c *told) Metrics(context.Context, string) ([]byte, error) {
	if c.fails {
		return nil, errors.New("it is down")
	}
	return []byte("go_goroutines 12\ngo_memstats_heap_alloc_bytes 1.048576e+06\ngo_gc_heap_live_bytes 524288\n"), nil
}

func (c *told) PID(string) (int, error) { return 1, nil }

func TestSampler(t *testing.T) {
	c := &told{}
	clk := testingclock.NewFakeClock(time.Unix(0, 0))
	s := NewSampler(c, clk, "ladder-scheduler")
	clk.Step(5 * time.Second)
	s.look(t.Context())
	c.fails = true
	s.look(t.Context())
	samples, missed := s.Samples()
	got := samples["ladder-scheduler"]
	if len(got) != 1 || missed != 1 || got[0].Goroutines != 12 || got[0].Heap != 1<<20 || got[0].Live != 1<<19 || got[0].At != 5*time.Second {
		t.Errorf("samples %+v, %d missed", samples, missed)
	}
}

func TestEffectsAreThoseOfTheAPI(t *testing.T) {
	for _, a := range plan(3) {
		if a.Kind == Taint && a.Effect != resourcev1.DeviceTaintEffectNoSchedule && a.Effect != resourcev1.DeviceTaintEffectNoExecute {
			t.Errorf("%+v", a)
		}
	}
}
