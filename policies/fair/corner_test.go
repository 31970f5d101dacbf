package fair_test

// The corner cases, one by one.

import (
	"fmt"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

func fleet(n int64, name string) fair.Event { return fair.CapacitySet{Model: name, Devices: n} }

func gang(id, tenant string, created int, members, count int64, models ...string) fair.Entry {
	e := pod(id, tenant, created, count, models...)
	e.Members = members
	return e
}

// run opens what can be opened and gives it the devices that were expected.
func run(t *testing.T, st *fair.State, now time.Time) []string {
	t.Helper()
	actions := st.Next(now)
	for _, a := range actions {
		if a.Kind != fair.Open {
			continue
		}
		ev := fair.Allocated{ID: a.ID}
		for _, p := range a.Placements {
			ev.Devices = append(ev.Devices, fair.Devices{Model: p.Model, Count: p.Count})
		}
		apply(t, st, now, ev)
	}
	return steps(actions)
}

func reason(t *testing.T, st *fair.State, id string, want fair.Reason) {
	t.Helper()
	x, err := st.Explain(id)
	if err != nil || x.Reason != want {
		t.Fatalf("%s: %+v, %v, want %s", id, x, err, want)
	}
}

func TestSharedClaimIsChargedOnce(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	shared := func(id string) fair.Entry {
		e := gang(id, "a", 0, 3, 1, "H100")
		e.Requests = append(e.Requests, fair.Request{Claim: "c", Alternatives: []fair.Alternative{{Models: []string{"L4"}, Count: 2}}})
		return e
	}
	apply(t, st, start, fleet(9, "H100"), fleet(2, "L4"), quota("a", mq("H100", 9, 9), mq("L4", 2, 2)))
	apply(t, st, start, arrive(shared("p"), shared("q"))...)
	expect(t, st, start, "Open p", "Open q")
	charged(t, st, "a", "L4", 2)
	charged(t, st, "a", "H100", 6)
	for _, id := range []string{"p", "q"} {
		apply(t, st, start, fair.Allocated{ID: id, Devices: []fair.Devices{{Model: "H100", Count: 3}, {Model: "L4", Count: 2, Claim: "c"}}})
	}
	charged(t, st, "a", "L4", 2)
	apply(t, st, start, fair.Finished{ID: "p"})
	charged(t, st, "a", "L4", 2)
	apply(t, st, start, fair.Finished{ID: "q"})
	charged(t, st, "a", "L4", 0)
}

func TestDeletedStaysChargedUntilReleased(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(1, "H100"), quota("a", mq("H100", 1, 1)))
	apply(t, st, start, arrive(pod("p", "a", 0, 1, "H100"), pod("q", "a", 1, 1, "H100"))...)
	run(t, st, start)
	apply(t, st, at(5), fair.Deleted{ID: "p"})
	expect(t, st, at(5))
	charged(t, st, "a", "H100", 1)
	reason(t, st, "p", fair.ReasonReleasing)
	reason(t, st, "q", fair.ReasonLimitReached)
	apply(t, st, at(9), fair.Released{ID: "p"})
	expect(t, st, at(9), "Open q")
	// Without an allocation there is nothing to release.
	apply(t, st, at(9), fair.Deleted{ID: "q"})
	charged(t, st, "a", "H100", 0)
}

func TestReclaimWithNotice(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(2, "H100"), quota("a", mq("H100", 1, -1)), quota("b", mq("H100", 1, -1)))
	apply(t, st, start, arrive(pod("old", "b", 0, 1, "H100"))...)
	run(t, st, start)
	apply(t, st, at(100), arrive(pod("new", "b", 100, 1, "H100"))...)
	run(t, st, at(100))
	apply(t, st, at(200), arrive(pod("mine", "a", 200, 1, "H100"))...)
	// The younger loses less work; one of the two stays, it is guaranteed.
	actions := st.Next(at(200))
	if got := fmt.Sprint(steps(actions)); got != "[Notice new for mine]" || !actions[0].Deadline.Equal(at(260)) {
		t.Fatalf("%v %v", got, actions)
	}
	reason(t, st, "mine", fair.ReasonAwaitingReclaim)
	if wake, ok := st.Wake(at(200)); !ok || !wake.Equal(at(260)) {
		t.Fatalf("wake %v %v", wake, ok)
	}
	expect(t, st, at(259))
	expect(t, st, at(260), "Evict new for mine")
	apply(t, st, at(261), fair.Deleted{ID: "new"})
	expect(t, st, at(261))
	apply(t, st, at(270), fair.Released{ID: "new"})
	expect(t, st, at(270), "Open mine")
}

func TestNoticeIsCancelled(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []fair.Event
		want   []string
	}{
		{"a device became free", []fair.Event{fair.Finished{ID: "b1"}}, []string{"Open a1", "Cancel b2 for a1"}},
		{"the work went away", []fair.Event{fair.Deleted{ID: "a1"}}, []string{"Cancel b2 for a1"}},
		{"the guarantee went away", []fair.Event{quota("a", mq("H100", 0, -1))}, []string{"Cancel b2 for a1"}},
		{"the devices became guaranteed", []fair.Event{quota("b", mq("H100", 2, -1))}, []string{"Cancel b2 for a1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := newState(t, fair.Config{Models: models})
			apply(t, st, start, fleet(2, "H100"), quota("a", mq("H100", 1, -1)), quota("b", mq("H100", 0, -1)))
			apply(t, st, start, arrive(pod("b1", "b", 0, 1, "H100"), pod("b2", "b", 1, 1, "H100"))...)
			run(t, st, at(1))
			apply(t, st, at(2), arrive(pod("a1", "a", 2, 1, "H100"))...)
			expect(t, st, at(2), "Notice b2 for a1")
			apply(t, st, at(3), c.events...)
			expect(t, st, at(3), c.want...)
		})
	}
}

func TestNeverTakesNobodysDevices(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	mine := pod("mine", "a", 1, 1, "H100")
	mine.Preempts = ""
	apply(t, st, start, fleet(1, "H100"), quota("a", mq("H100", 1, -1)), quota("b", mq("H100", 0, -1)))
	apply(t, st, start, arrive(pod("b1", "b", 0, 1, "H100"))...)
	run(t, st, start)
	apply(t, st, at(1), arrive(mine, pod("b2", "b", 0, 1, "H100"))...)
	expect(t, st, at(1))
	// But what becomes free is its own, whoever has waited longer.
	apply(t, st, at(2), fair.Finished{ID: "b1"})
	expect(t, st, at(2), "Open mine")
}

func TestLowerPriorityOfTheSameTenant(t *testing.T) {
	st := newState(t, fair.Config{Models: models, ReserveAfter: -1})
	high := func(id string, priority int32, preempts v1alpha1.Preempts) fair.Entry {
		e := pod(id, "a", 10, 1, "H100")
		e.Priority, e.Preempts = priority, preempts
		return e
	}
	apply(t, st, start, fleet(2, "H100"), quota("a", mq("H100", 0, 1)), quota("b", mq("H100", 0, -1)))
	apply(t, st, start, arrive(pod("low", "a", 0, 1, "H100"), pod("b1", "b", 0, 1, "H100"))...)
	run(t, st, start)
	apply(t, st, at(10), arrive(high("polite", 5, v1alpha1.PreemptsBorrowed), high("same", 0, v1alpha1.PreemptsLowerPriority))...)
	expect(t, st, at(10))
	apply(t, st, at(11), arrive(high("high", 5, v1alpha1.PreemptsLowerPriority))...)
	expect(t, st, at(11), "Notice low for high")
	apply(t, st, at(12), arrive(pod("b2", "b", 0, 1, "H100"))...)
	expect(t, st, at(71), "Evict low for high")
	apply(t, st, at(72), fair.Requeued{ID: "low"})
	// What was taken back for it goes to it, though others' turn is earlier.
	expect(t, st, at(72), "Open high")
}

func TestWhatCantBeTakenBackIsNotLent(t *testing.T) {
	for _, lend := range []bool{false, true} {
		st := newState(t, fair.Config{Models: models, LendFirmly: lend})
		firm := pod("firm", "b", 0, 2, "H100")
		firm.Preemptible = false
		apply(t, st, start, fleet(4, "H100"), quota("a", mq("H100", 3, -1)), quota("b", mq("H100", 0, -1)))
		apply(t, st, start, arrive(firm)...)
		if lend {
			expect(t, st, start, "Open firm")
			continue
		}
		expect(t, st, start)
		reason(t, st, "firm", fair.ReasonNotLent)
		soft := pod("soft", "b", 0, 2, "H100")
		apply(t, st, start, arrive(soft)...)
		expect(t, st, start, "Open soft")
	}
}

func TestReclaimNeverGoesBelowAGuarantee(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(16, "H100"), quota("a", mq("H100", 8, -1)), quota("b", mq("H100", 8, -1)))
	apply(t, st, start, arrive(gang("big", "b", 0, 1, 12, "H100"))...)
	run(t, st, start)
	// Of the twelve, eight are guaranteed, and a part of it cannot be evicted.
	apply(t, st, at(1), arrive(pod("a1", "a", 1, 8, "H100"))...)
	expect(t, st, at(1))
	apply(t, st, at(1), arrive(pod("a2", "a", 2, 4, "H100"))...)
	reason(t, st, "a1", fair.ReasonNoFreeDevices)
	apply(t, st, at(2), fair.Finished{ID: "big"})
	expect(t, st, at(2), "Open a1", "Open a2")
}

func TestLeastLostWork(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(10, "H100"), quota("a", mq("H100", 10, -1)), quota("b", mq("H100", 0, -1)), quota("c", mq("H100", 0, -1)))
	// Lost after 100 s, in device seconds: x 4*60=240, y 3*100=300, z 3*10=30.
	for _, e := range []struct {
		id     string
		tenant string
		at     int
		n      int64
	}{{"y", "b", 0, 3}, {"x", "c", 40, 4}, {"z", "b", 90, 3}} {
		apply(t, st, at(e.at), arrive(pod(e.id, e.tenant, e.at, e.n, "H100"))...)
		run(t, st, at(e.at))
	}
	apply(t, st, at(100), arrive(pod("mine", "a", 100, 6, "H100"))...)
	// z and x free seven for 270; y and z free six but cost 330.
	expect(t, st, at(100), "Notice z for mine", "Notice x for mine")
}

func TestStreamOfSmallJobsDoesNotStarveALargeOne(t *testing.T) {
	for mode, starves := range map[fair.Mode]bool{fair.Ladder: false, fair.LadderWithoutAging: true, fair.PriorityOnly: true, fair.FIFO: false} {
		t.Run(mode.String(), func(t *testing.T) {
			st := newState(t, fair.Config{Mode: mode, Models: models, Aging: time.Hour, ReserveAfter: 10 * time.Minute})
			apply(t, st, start, fleet(8, "H100"))
			opened := -1
			var ends []struct {
				at int
				id string
			}
			for s := 0; s < 3*3600 && opened < 0; s += 10 {
				for len(ends) > 0 && ends[0].at <= s {
					apply(t, st, at(s), fair.Finished{ID: ends[0].id})
					ends = ends[1:]
				}
				if s == 100 {
					apply(t, st, at(s), arrive(gang("large", "a", s, 1, 8, "H100"))...)
				}
				apply(t, st, at(s), arrive(pod(fmt.Sprintf("small-%06d", s), fmt.Sprintf("t%d", s%50), s, 1, "H100"))...)
				for _, id := range run(t, st, at(s)) {
					if id = id[len("Open "):]; id == "large" {
						opened = s
					}
					ends = append(ends, struct {
						at int
						id string
					}{s + 75, id})
				}
			}
			if starves != (opened < 0) {
				t.Fatalf("the large job was opened after %d s", opened)
			}
			if mode == fair.Ladder && opened > 100+600+3600+2*75 {
				t.Errorf("the large job waited until %d s, above the bound", opened)
			}
		})
	}
}

func TestSharesWeighModels(t *testing.T) {
	// Who holds an H100 has more of the fleet than who holds three T4.
	known := []fair.Model{{Name: "H100", Cost: 100}, {Name: "T4", Cost: 5}}
	st := newState(t, fair.Config{Models: known})
	apply(t, st, start, fleet(2, "H100"), fleet(40, "T4"))
	apply(t, st, start, arrive(pod("a1", "a", 0, 1, "H100"), pod("b1", "b", 0, 3, "T4"))...)
	run(t, st, start)
	apply(t, st, at(1), arrive(pod("a2", "a", 0, 1, "H100"), pod("b2", "b", 1, 1, "H100"))...)
	expect(t, st, at(1), "Open b2")
	a, b := st.Usage("a"), st.Usage("b")
	if a.Share != 0.25 || b.Share <= a.Share {
		t.Errorf("shares %v and %v", a.Share, b.Share)
	}
}

func TestWaitingRaisesATurn(t *testing.T) {
	for _, c := range []struct {
		aging time.Duration
		want  string
	}{{time.Hour, "Open b2"}, {time.Minute, "Open a2"}} {
		st := newState(t, fair.Config{Models: models, Aging: c.aging})
		apply(t, st, start, fleet(2, "H100"), fleet(1, "A100"))
		apply(t, st, start, arrive(pod("a1", "a", 0, 1, "H100"), pod("a2", "a", 0, 2, "H100"), pod("x", "c", 0, 1, "H100"))...)
		run(t, st, start)
		apply(t, st, at(100), arrive(pod("b2", "b", 100, 2, "H100"))...)
		apply(t, st, at(100), fair.Finished{ID: "x"})
		expect(t, st, at(100))
		apply(t, st, at(101), fleet(3, "H100"))
		expect(t, st, at(101), c.want)
	}
}

func TestFirstInFirstOutHoldsBackAndPriorityPassesOver(t *testing.T) {
	for mode, want := range map[fair.Mode][]string{fair.FIFO: {"Open p"}, fair.PriorityOnly: {"Open s", "Open p", "Open r"}} {
		st := newState(t, fair.Config{Mode: mode, Models: models})
		apply(t, st, start, fleet(4, "H100"))
		s := pod("s", "b", 3, 1, "H100")
		s.Priority = 1
		apply(t, st, at(9), arrive(pod("p", "a", 0, 1, "H100"), pod("q", "a", 1, 4, "H100"), pod("r", "b", 2, 1, "H100"), s)...)
		expect(t, st, at(9), want...)
		if mode == fair.FIFO {
			reason(t, st, "r", fair.ReasonBehind)
		}
	}
}

func TestPriorityInsideATenant(t *testing.T) {
	st := newState(t, fair.Config{Models: models, PriorityAging: time.Hour})
	apply(t, st, start, fleet(1, "H100"))
	high := func(id string, created int) fair.Entry {
		e := pod(id, "a", created, 1, "H100")
		e.Priority = 1000
		return e
	}
	apply(t, st, at(10), arrive(pod("low", "a", 0, 1, "H100"), high("h1", 10))...)
	expect(t, st, at(10), "Open h1")
	apply(t, st, at(3599), fair.Finished{ID: "h1"}, fair.Arrived{Entry: high("h2", 11)})
	expect(t, st, at(3599), "Open h2")
	// An hour raises it among the highest, and there it is the oldest.
	apply(t, st, at(3600), fair.Finished{ID: "h2"}, fair.Arrived{Entry: high("h3", 12)})
	expect(t, st, at(3600), "Open low")
}

func TestLaterTier(t *testing.T) {
	st := newState(t, fair.Config{Models: models, ReserveAfter: 1})
	e := pod("p", "a", 0, 1, "H100", "L4")
	e.Requests[0].Alternatives[1].After = 10 * time.Minute
	apply(t, st, start, fleet(1, "H100"), fleet(1, "L4"))
	apply(t, st, start, arrive(pod("big", "z", -1, 1, "H100"), e)...)
	run(t, st, at(1))
	if x, _ := st.Explain("p"); len(x.Ways) != 2 || x.Ways[1].Reason != fair.ReasonTierNotYetAllowed || x.Ways[0].Reason != fair.ReasonNoFreeDevices {
		t.Fatalf("%+v", x)
	}
	if wake, ok := st.Wake(at(1)); !ok || !wake.Equal(at(600)) {
		t.Fatalf("wake %v %v", wake, ok)
	}
	expect(t, st, at(600), "Open p")
}

func TestWhatIsSetAsideHoldsTheGateOfAnother(t *testing.T) {
	// Two H100 are set aside for the large job; the small one would take one,
	// although its second tier is free.
	st := newState(t, fair.Config{Models: models, ReserveAfter: 1})
	apply(t, st, start, fleet(4, "H100"), fleet(4, "L4"))
	apply(t, st, start, arrive(pod("first", "b", -9, 2, "H100"))...)
	run(t, st, start)
	apply(t, st, at(60), arrive(pod("large", "a", 0, 4, "H100"), pod("small", "c", 59, 1, "H100", "L4"))...)
	expect(t, st, at(60))
	reason(t, st, "small", fair.ReasonSetAside)
}

func TestLimitsAreExplained(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(4, "H100"), fleet(4, "L4"), quota("a", mq("H100", 0, 2), mq("A100", 0, 9)))
	apply(t, st, start, arrive(pod("p", "a", 0, 3, "H100"), pod("q", "a", 0, 1, "L4"), pod("r", "a", 0, 1, "A100"))...)
	expect(t, st, start)
	reason(t, st, "p", fair.ReasonNeverFits)
	reason(t, st, "q", fair.ReasonModelNotInQuota)
	reason(t, st, "r", fair.ReasonNeverFits)
	// A limit that is raised is seen at once.
	apply(t, st, at(1), quota("a", mq("H100", 0, 3), mq("L4", 0, 1)))
	expect(t, st, at(1), "Open p", "Open q")
}

func TestRestartTellsTheSameStory(t *testing.T) {
	build := func(events ...fair.Event) *fair.State {
		st := newState(t, fair.Config{Models: models})
		apply(t, st, start, fleet(2, "H100"), quota("a", mq("H100", 1, -1)), quota("b", mq("H100", 0, -1)))
		apply(t, st, at(2), arrive(pod("b1", "b", 0, 1, "H100"), pod("b2", "b", 1, 1, "H100"), pod("a1", "a", 2, 1, "H100"))...)
		apply(t, st, at(2), events...)
		return st
	}
	began := func(id string, second int) fair.Event {
		return fair.Allocated{ID: id, Devices: []fair.Devices{{Model: "H100", Count: 1}}, Started: at(second)}
	}
	first := build(began("b1", 0), began("b2", 1))
	expect(t, first, at(2), "Notice b2 for a1")
	again := build(fair.Opened{ID: "b2"}, began("b2", 1), began("b1", 0), fair.ReclaimNoticed{ID: "b2", For: "a1", Deadline: at(62)})
	expect(t, again, at(30))
	expect(t, again, at(62), "Evict b2 for a1")
}
