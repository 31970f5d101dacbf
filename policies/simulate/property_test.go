package simulate

// What holds in every history: no device twice, none lost, no limit passed, all
// that fits ends, the order of rows is no matter, and the short cut past the
// decision engine never differs from it.

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/fair"
)

// drawInput is a small fleet, a few tenants and up to forty jobs that keep it busy.
func drawInput(t *rapid.T) Input {
	in := Input{Fleet: fleetOf(
		nodes(rapid.IntRange(1, 3).Draw(t, "h100"), rapid.IntRange(1, 4).Draw(t, "gpus"), "H100"),
		nodes(rapid.IntRange(1, 2).Draw(t, "l4"), rapid.IntRange(1, 3).Draw(t, "l4 gpus"), "L4"),
	)}
	for _, name := range []string{"a", "b", "c"}[:rapid.IntRange(0, 3).Draw(t, "quotas")] {
		q := quotaOf(name, int32(rapid.IntRange(0, 2).Draw(t, "guaranteed")), "H100", "L4")
		if rapid.Bool().Draw(t, "limited") {
			limited(q, int32(rapid.IntRange(2, 6).Draw(t, "limit")))
		}
		in.Quotas = append(in.Quotas, q)
	}
	policy := ladderOf("H100", "L4")
	policy.Spec.Preempts = rapid.SampledFrom([]v1alpha1.Preempts{v1alpha1.PreemptsNever, v1alpha1.PreemptsBorrowed, v1alpha1.PreemptsLowerPriority}).Draw(t, "preempts")
	policy.Spec.Ranking = rapid.SampledFrom([]v1alpha1.Ranking{v1alpha1.RankingPacked, v1alpha1.RankingSpread}).Draw(t, "ranking")
	if rapid.Bool().Draw(t, "after") {
		policy.Spec.Tiers[1].After = &metav1.Duration{Duration: msDuration(45_000)}
	}
	in.Policies = []*v1alpha1.AcceleratorPolicy{policy}
	in.Options.Release = msDuration(int64(rapid.SampledFrom([]int{0, 0, 7000}).Draw(t, "release")))
	in.Options.Checkpoint = msDuration(int64(rapid.SampledFrom([]int{0, 30_000}).Draw(t, "checkpoint")))
	in.Options.KeepAfter = msDuration(int64(rapid.SampledFrom([]int{0, 60_000}).Draw(t, "keep after")))
	in.Options.ReserveAfter = msDuration(int64(rapid.SampledFrom([]int{0, 60_000}).Draw(t, "reserve after")))
	var rows []row
	for range rapid.IntRange(1, 40).Draw(t, "jobs") {
		rows = append(rows, row{
			rapid.IntRange(0, 300).Draw(t, "at"), rapid.IntRange(0, 200).Draw(t, "seconds"),
			rapid.SampledFrom([]int{1, 1, 1, 2, 3, 4, 6}).Draw(t, "gpus"),
			rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "tenant"), int32(rapid.IntRange(0, 2).Draw(t, "priority")),
		})
	}
	in.Trace = traceOf(rows...)
	return in
}

// watch checks a run at every decision and after every instant.
type watch struct {
	holder map[string]int32 // by node and device
}

func (w *watch) hooks() hooks {
	return hooks{
		decided: func(job int32, d *decide.Decision) error {
			for i := range d.Devices {
				key := d.Devices[i].Pool + "/" + d.Devices[i].Device
				if other, taken := w.holder[key]; taken {
					return fmt.Errorf("job %d gets %s, which job %d has", job, key, other)
				}
				w.holder[key] = job
			}
			return nil
		},
		released: func(job int32) {
			for key, holder := range w.holder {
				if holder == job {
					delete(w.holder, key)
				}
			}
		},
		instant: func(r *run) error {
			if err := w.conserved(r); err != nil {
				return err
			}
			return shortcut(r)
		},
	}
}

// conserved: every device is free or held once, the books say the same, and no
// tenant is above its limit.
func (w *watch) conserved(r *run) error {
	free := make([]int64, len(r.sim.nodes))
	held := make([][]int64, len(r.sim.tenants))
	var all, queued int64
	for i := range r.sim.nodes {
		free[i] = r.sim.nodes[i].gpus
	}
	for t := range held {
		held[t] = make([]int64, len(r.sim.models))
	}
	for i := range r.states[:r.arrived] {
		st, t := &r.states[i], r.tenant(int32(i))
		for _, p := range st.placed {
			for _, h := range p.holds {
				free[p.node] -= h.n
				held[t][h.model] += h.n
				all += h.n
			}
		}
		k := r.kind(int32(i))
		if st.ended == unfinished && k.policy != nil && r.sim.canFit(k, &r.sim.tenants[t]) {
			queued += (k.members - int64(len(st.placed))) * k.perPod
		}
	}
	if !slices.Equal(free, r.free) || int64(len(w.holder)) != all || all != r.books.all || queued != r.books.asked {
		return fmt.Errorf("at %d free %v, counted %v; %d devices held, %d decided, %d in the books; %d queued, %d in the books",
			r.now, free, r.free, all, len(w.holder), r.books.all, queued, r.books.asked)
	}
	for t := range held {
		for m, n := range held[t] {
			if n != r.books.held[t][m] || n > r.sim.tenants[t].most(r.sim.models[m]) {
				return fmt.Errorf("at %d tenant %s holds %d %s, %d in the books, limit %d", r.now, r.sim.tenants[t].name, n, r.sim.models[m],
					r.books.held[t][m], r.sim.tenants[t].most(r.sim.models[m]))
			}
		}
	}
	return nil
}

// shortcut: where mayServe says no, so does the engine.
func shortcut(r *run) error {
	for _, i := range r.stuck {
		if r.mayServe(i) {
			continue
		}
		member := int32(len(r.states[i].placed))
		key := r.podName(i, member)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: r.kind(i).labels, CreationTimestamp: metav1.NewTime(r.job(i).Created)}}
		if err := r.decider.Put(pod); err != nil {
			return err
		}
		d, err := r.decider.Decide(decide.Query{Pod: types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, Now: instant(r.now)})
		if err != nil {
			return err
		}
		if d.Outcome == v1alpha1.OutcomeAllocated {
			return fmt.Errorf("at %d job %d is not looked at, but would get %s", r.now, i, d.Message)
		}
		r.states[i].put = max(r.states[i].put, member+1)
	}
	return nil
}

func TestEveryHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		mode := rapid.SampledFrom(modes).Draw(t, "mode")
		s := newSimulation(t, in)
		w := &watch{holder: map[string]int32{}}
		o, err := s.run(t.Context(), mode, w.hooks())
		if err != nil {
			t.Fatal(err)
		}
		if len(w.holder) > 0 {
			t.Errorf("devices are held when all is over: %v", w.holder)
		}
		for i := range s.jobs {
			fits := s.kinds[s.kindOf[i]].policy != nil && s.canFit(s.kinds[s.kindOf[i]], &s.tenants[s.tenantOf[i]])
			switch wait := s.wait(o, i); {
			case (wait == unfinished) == fits:
				t.Errorf("job %d (%+v) fits: %t, waits %d", i, s.jobs[i], fits, wait)
			case fits && wait < 0:
				t.Errorf("job %d ended before it could: %d", i, wait)
			}
		}
	})
}

// The same jobs in another order of rows give the same bytes, and so do two runs.
func TestOrderOfRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		mode := rapid.SampledFrom(modes).Draw(t, "mode")
		var first []byte
		for n := range 2 {
			s := newSimulation(t, in)
			p, err := s.Private(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			o, err := s.Run(t.Context(), mode)
			if err != nil {
				t.Fatal(err)
			}
			got := jsonOf(t, s.Report(p, o))
			if n == 0 {
				first = got
				in.Trace = &Trace{Format: in.Trace.Format, Jobs: rapid.Permutation(in.Trace.Jobs).Draw(t, "order")}
			} else if !bytes.Equal(first, got) {
				t.Fatalf("the order matters:\n%s\n%s", first, got)
			}
		}
	})
}

// What is told adds up: all work that was asked for was done, what was lost
// was held on top, and tenants' parts are the whole.
func TestSumsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		in.Policies[0].Spec.Tiers = in.Policies[0].Spec.Tiers[:1] // one device of the job is one device
		s := newSimulation(t, in)
		o, err := s.Run(t.Context(), rapid.SampledFrom(modes).Draw(t, "mode"))
		if err != nil {
			t.Fatal(err)
		}
		u := s.Report(nil, o).Setups[0]
		var held, lost, work, drawn, gangs int64
		for i := range s.jobs {
			lost += o.states[i].lost
			if o.states[i].ended != unfinished {
				work += int64(s.jobs[i].GPUs) * s.jobs[i].Duration.Milliseconds()
			}
			gangs += s.kinds[s.kindOf[i]].members - 1
		}
		for t := range s.tenants {
			for _, v := range o.books.heldFor[t] {
				held += v
			}
			for _, v := range o.books.used[t] {
				drawn += v
			}
		}
		// Gangs that wait for members, and devices that are being released, are
		// held without work.
		if held < work+lost || s.options.Release == 0 && gangs == 0 && held != work+lost {
			t.Errorf("held %v, work %v, lost %v", held, work, lost)
		}
		if drawn != held {
			t.Errorf("the timeline has %v, the sums %v", drawn, held)
		}
		jobs, left, evictions := 0, 0, 0
		for i := range u.Tenants {
			jobs += u.Tenants[i].Jobs
			left += u.Tenants[i].Unfinished
			evictions += u.Tenants[i].Evictions
		}
		if jobs != u.Jobs || left != u.Unfinished || evictions != u.Evictions {
			t.Errorf("tenants have %d jobs, %d unfinished, %d evictions; all %d, %d, %d", jobs, left, evictions, u.Jobs, u.Unfinished, u.Evictions)
		}
	})
}

// The invariant of sharing, where docs/fair.md says that it holds: one model,
// jobs of one GPU, no two created at once, guarantees that the fleet covers, and
// no cool-down or devices that are released at once. No
// job begins its last run later than in a private cluster where each job takes
// the bound longer, by more than the bound.
func TestNotLaterThanAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var quotas []*v1alpha1.TenantQuota
		gpus := 0
		for _, name := range []string{"a", "b", "c"} {
			n := rapid.IntRange(1, 3).Draw(t, "guaranteed")
			gpus += n
			quotas = append(quotas, quotaOf(name, int32(n), "H100"))
		}
		var rows []row
		at := 0
		for range rapid.IntRange(1, 60).Draw(t, "jobs") {
			at += rapid.IntRange(1, 90).Draw(t, "gap")
			rows = append(rows, row{at, rapid.IntRange(1, 900).Draw(t, "seconds"), 1, rapid.SampledFrom([]string{"a", "a", "b", "c"}).Draw(t, "tenant"), 0})
		}
		in := Input{
			Fleet: fleetOf(nodes(1, gpus, "H100")), Quotas: quotas, Trace: traceOf(rows...), Policies: []*v1alpha1.AcceleratorPolicy{ladderOf("H100")},
			Options: Options{Release: msDuration(int64(rapid.SampledFrom([]int{0, 5000}).Draw(t, "release")))},
		}
		if in.Options.Release > 0 {
			in.Options.Cooldown = -msDuration(1) // else those behind may pass while it is released
		}
		s := newSimulation(t, in)
		p, err := s.Private(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o, err := s.Run(t.Context(), rapid.SampledFrom([]fair.Mode{fair.Ladder, fair.LadderWithoutAging}).Draw(t, "mode"))
		if err != nil {
			t.Fatal(err)
		}
		if e := s.Report(p, o).Setups[0].Private; e.Jobs != len(rows) || e.OverBeyond != 0 {
			t.Errorf("of %d jobs %d are later than alone, the worst by %v s", e.Jobs, e.OverBeyond, e.BeyondSeconds)
		}
	})
}
