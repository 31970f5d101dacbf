package fair_test

// Who is inside a guarantee: decided in the tenant's own order, as if it were alone.

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fair/fairtest"
)

// What goes first in its tenant has the guarantee that comes free, not what has
// borrowed meanwhile; and if devices lack, its own tenant's borrowers go first.
func TestOwnBorrowersAreTakenBackFirst(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(4, "H100"), quota("a", mq("H100", 2, -1)), quota("c", mq("H100", 0, -1)))
	apply(t, st, start, arrive(pod("a1", "a", 0, 1, "H100"), pod("a2", "a", 1, 1, "H100"), pod("a3", "a", 2, 1, "H100"))...)
	run(t, st, at(2))
	apply(t, st, at(40), arrive(pod("c1", "c", 40, 1, "H100"))...)
	run(t, st, at(40)) // the youngest of those that borrow: it would lose the least
	large := pod("large", "a", 41, 2, "H100")
	large.Priority = 5
	apply(t, st, at(41), arrive(large)...)
	expect(t, st, at(41))
	apply(t, st, at(60), fair.Finished{ID: "a1"}, fair.Finished{ID: "a2"}, fleet(3, "H100"))
	expect(t, st, at(60), "Notice a3 for large")
	expect(t, st, at(120), "Evict a3 for large")
	apply(t, st, at(120), fair.Requeued{ID: "a3"})
	expect(t, st, at(120), "Open large")
}

// What came before stays: the guarantee is used up in the tenant's order.
func TestWhatBorrowedFirstIsInsideFirst(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(3, "H100"), quota("a", mq("H100", 1, -1)), quota("b", mq("H100", 2, -1)))
	apply(t, st, start, arrive(pod("a1", "a", 0, 1, "H100"), pod("a2", "a", 1, 1, "H100"))...)
	run(t, st, at(1))
	apply(t, st, at(10), arrive(pod("a3", "a", 10, 2, "H100"), pod("a4", "a", 11, 1, "H100"))...)
	run(t, st, at(11))
	apply(t, st, at(20), fair.Finished{ID: "a1"}) // a2 is inside now, a4 borrows
	run(t, st, at(20))
	apply(t, st, at(21), arrive(pod("b1", "b", 21, 2, "H100"))...)
	expect(t, st, at(21), "Notice a4 for b1")
}

// An entry behind one that its guarantee has no room for keeps its place among
// the entitled of all tenants.
func TestWhatIsNotEntitledDelaysNobody(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(3, "H100"), quota("a", mq("H100", 1, -1)), quota("c", mq("H100", 1, -1)))
	apply(t, st, start, arrive(pod("x1", "x", 0, 1, "H100"), pod("x2", "x", 1, 1, "H100"), pod("x3", "x", 2, 1, "H100"))...)
	run(t, st, at(2))
	apply(t, st, at(5), arrive(pod("large", "a", 5, 2, "H100"), pod("small", "a", 10, 1, "H100"))...)
	expect(t, st, at(10), "Notice x3 for small")
	apply(t, st, at(20), arrive(pod("c1", "c", 20, 1, "H100"))...)
	expect(t, st, at(20), "Notice x2 for c1")
	apply(t, st, at(30), fair.Finished{ID: "x1"})
	if got := steps(st.Next(at(30))); !slices.Contains(got, "Open small") || slices.Contains(got, "Open c1") {
		t.Fatal(got)
	}
}

// What may not borrow, and would land on what it prefers to its guarantee, is held
// to the models of its guarantee, also by a State that starts anew.
func TestHeldToItsGuarantee(t *testing.T) {
	cfg := fair.Config{Models: models, Cooldown: 10 * time.Minute}
	quotas := []fair.Event{fleet(1, "H100"), fleet(1, "L4"), quota("a", mq("H100", 0, -1), mq("L4", 1, -1)), quota("b", mq("H100", 1, -1))}
	st := newState(t, cfg)
	apply(t, st, start, quotas...)
	apply(t, st, start, arrive(pod("a1", "a", 0, 1, "H100", "L4"))...)
	if got := st.Next(start); len(got) != 1 || got[0].Models != nil || got[0].Guaranteed || got[0].Placements[0].Model != "H100" {
		t.Fatalf("%+v", got) // what it prefers, borrowed
	}
	apply(t, st, start, allocated("a1", "H100", 1))
	apply(t, st, at(10), arrive(pod("b1", "b", 10, 1, "H100"))...)
	expect(t, st, at(10), "Notice a1 for b1")
	expect(t, st, at(70), "Evict a1 for b1")
	apply(t, st, at(70), fair.Requeued{ID: "a1"}, fair.Deleted{ID: "b1"})
	reason(t, st, "a1", fair.ReasonReady)
	got := st.Next(at(70))
	if len(got) != 1 || got[0].Kind != fair.Open || !slices.Equal(got[0].Models, []string{"L4"}) || !got[0].Guaranteed {
		t.Fatalf("%+v", got)
	}
	again := newState(t, cfg)
	apply(t, again, at(70), quotas...)
	apply(t, again, at(70), arrive(pod("a1", "a", 0, 1, "H100", "L4"))...)
	apply(t, again, at(70), fair.Opened{ID: "a1", Models: got[0].Models})
	for _, st := range []*fair.State{st, again} {
		charged(t, st, "a", "L4", 1) // not the H100, which is dearer
		charged(t, st, "a", "H100", 0)
		if capacity, free := st.Capacity("H100"); capacity != 1 || free != 1 {
			t.Errorf("%d of %d H100 are free", free, capacity)
		}
		apply(t, st, at(71), arrive(pod("b2", "b", 71, 1, "H100"))...)
		expect(t, st, at(71), "Open b2")
	}
}

// What no model's guarantee could hold keeps nothing from the others of its tenant.
func TestLargerThanEachGuaranteeKeepsNothing(t *testing.T) {
	for members, keeps := range map[int64]bool{4: true, 6: false} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			st := newState(t, fair.Config{Models: models, KeepAfter: time.Minute, ReserveAfter: -1})
			apply(t, st, start, fleet(4, "H100"), fleet(4, "L4"), quota("a", mq("H100", 4, -1), mq("L4", 4, -1)))
			apply(t, st, start, arrive(gang("first", "a", 0, 5, 1, "H100", "L4"))...)
			run(t, st, start) // four H100, one L4
			apply(t, st, at(1), arrive(gang("large", "a", 1, members, 1, "L4", "H100"))...)
			expect(t, st, at(1))
			apply(t, st, at(100), arrive(pod("small", "a", 100, 1, "L4"))...)
			got := st.Next(at(100))
			if len(got) != 1 || got[0].ID != "small" || got[0].Guaranteed == keeps {
				t.Fatalf("%+v", got)
			}
		})
	}
}

// The models that it is held to may fail meanwhile: it is not held for ever.
func TestNotHeldForEver(t *testing.T) {
	for name, c := range map[string]struct {
		given []fair.Event
		want  []string
	}{
		"not placed":       {nil, []string{"Widen a1"}},
		"placed":           {[]fair.Event{allocated("a1", "L4", 1)}, []string{}},
		"gone":             {[]fair.Event{fair.Deleted{ID: "a1"}}, []string{}},
		"opened once more": {[]fair.Event{fair.Requeued{ID: "a1"}, fair.Opened{ID: "a1"}}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			st := newState(t, fair.Config{Models: models, HoldFor: 10 * time.Minute})
			apply(t, st, start, fleet(1, "H100"), quota("a", mq("H100", 0, -1), mq("L4", 1, -1)))
			apply(t, st, start, arrive(pod("a1", "a", 0, 1, "L4", "H100"))...)
			apply(t, st, start, fair.Opened{ID: "a1", Models: []string{"L4"}})
			charged(t, st, "a", "H100", 0)
			apply(t, st, start, c.given...)
			if wake, ok := st.Wake(at(1)); ok != (name == "not placed") || ok && !wake.Equal(at(600)) {
				t.Fatalf("wake %v, %v", wake, ok)
			}
			expect(t, st, at(599))
			expect(t, st, at(600), c.want...)
			if name == "not placed" {
				charged(t, st, "a", "H100", 1)
			}
		})
	}
}

// What is guaranteed and lacks devices keeps what comes free from those who were
// promised devices for their priority alone.
func TestPromisedLeavesWhatIsGuaranteed(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(1, "H100"), fleet(2, "L4"), quota("a", mq("L4", 2, -1)), quota("b", mq("H100", 0, -1), mq("L4", 0, -1)))
	apply(t, st, start, arrive(pod("y", "b", 0, 1, "H100"), pod("x", "x", 1, 1, "L4"))...)
	run(t, st, at(1))
	pair := pod("pair", "a", 10, 2, "L4")
	pair.Preempts = v1alpha1.PreemptsNever
	apply(t, st, at(10), arrive(pair)...)
	expect(t, st, at(10))
	urgent := pod("urgent", "b", 20, 1, "H100", "L4")
	urgent.Priority, urgent.Preempts = 5, v1alpha1.PreemptsLowerPriority
	apply(t, st, at(20), arrive(urgent)...)
	expect(t, st, at(20), "Notice y for urgent")
	apply(t, st, at(30), fair.Finished{ID: "x"})
	expect(t, st, at(30), "Open pair")
}

// Who would take more of the model that it is held to, as a tier before wants more
// of them, is not opened.
func TestNotHeldWhereItWouldTakeMore(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(4, "H100"), quota("a", mq("H100", 1, -1)), quota("b", mq("H100", 3, -1)))
	apply(t, st, start, arrive(pod("x1", "x", 0, 2, "H100"), pod("x2", "x", 1, 1, "H100"), pod("x3", "x", 2, 1, "H100"))...)
	run(t, st, at(2))
	either := pod("either", "a", 3, 2, "H100", "H100")
	either.Requests[0].Alternatives[1].Count, either.Preempts = 1, v1alpha1.PreemptsNever
	apply(t, st, at(3), arrive(either, pod("b1", "b", 4, 3, "H100"))...)
	st.Next(at(4))
	apply(t, st, at(10), fair.Finished{ID: "x1"})
	for _, a := range st.Next(at(10)) {
		if a.Kind == fair.Open {
			t.Fatalf("%+v", a)
		}
	}
}

// What runs when a State is told of it comes before all that wait; what has notice
// for another of its tenant does not, so the notice holds over a restart.
func TestNoticeForItsOwnHoldsOverARestart(t *testing.T) {
	for noticed, want := range map[bool][]string{true: {"Evict y for urgent"}, false: {}} {
		told := []fair.Event{fleet(2, "H100"), quota("a", mq("H100", 2, -1))}
		urgent := pod("urgent", "a", 20, 1, "H100")
		urgent.Priority = 5
		told = append(told, arrive(pod("x", "a", 0, 1, "H100"), pod("y", "a", 1, 1, "H100"), urgent)...)
		told = append(told, allocated("x", "H100", 1), allocated("y", "H100", 1))
		if noticed {
			told = append(told, fair.ReclaimNoticed{ID: "y", For: "urgent", Deadline: at(90)})
		}
		cfg := fair.Config{Models: models}
		st := newState(t, cfg)
		cfg.Mode, cfg.Aging, cfg.ReserveAfter, cfg.KeepAfter = fair.Ladder, fair.DefaultAging, fair.DefaultReserveAfter, fair.DefaultKeepAfter
		cfg.PriorityAging, cfg.Notice, cfg.Cooldown, cfg.HoldFor = fair.DefaultPriorityAging, fair.DefaultNotice, fair.DefaultCooldown, fair.DefaultHoldFor
		twin := fairtest.NewTwin(cfg)
		for _, ev := range told {
			apply(t, st, at(30), ev)
			twin.Apply(at(30), ev)
		}
		for i, want := range [][]string{{}, want} {
			now := at(30 + 60*i)
			got, same := steps(st.Next(now)), steps(twin.Next(now))
			if !slices.Equal(got, same) || !slices.Equal(got, want) {
				t.Fatalf("noticed %v, %v: the engine does %q, the twin %q, want %q", noticed, now, got, same, want)
			}
		}
	}
}
