package fair_test

// What is not lent: cool-downs, marks, and the order inside a guarantee.

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fair/fairtest"
)

func TestCooldownDoubles(t *testing.T) {
	hour, day := time.Hour, 24*time.Hour
	for _, c := range []struct {
		base time.Duration
		n    int64
		want time.Duration
	}{
		{0, 1, fair.DefaultCooldown},
		{hour, 0, 0},
		{hour, 1, hour},
		{hour, 2, 2 * hour},
		{hour, 5, 16 * hour},
		{hour, 6, day},
		{hour, math.MaxInt64, day},
		{2 * day, 3, 2 * day},
		{-1, 3, 0},
	} {
		cfg := fair.Config{Cooldown: c.base}
		if got := cfg.CooldownAfter(c.n); got != c.want {
			t.Errorf("after %d times with %v: %v, want %v", c.n, c.base, got, c.want)
		}
	}
}

func TestMaxReclaims(t *testing.T) {
	hour, day := time.Hour, 24*time.Hour
	for _, c := range []struct {
		base, span time.Duration
		want       int64
	}{
		{hour, 0, 1},
		{hour, hour - 1, 1},
		{hour, hour, 2},
		{hour, 3*hour - 1, 2},
		{hour, 3 * hour, 3},
		{hour, 31 * hour, 6},
		{hour, 31*hour + 10*day, 16},
		{-1, hour, math.MaxInt64},
	} {
		cfg := fair.Config{Cooldown: c.base}
		if got := cfg.MaxReclaims(c.span); got != c.want {
			t.Errorf("in %v with %v: %d, want %d", c.span, c.base, got, c.want)
		}
	}
}

// taken is a state in which devices of b2 were taken back for a1 at 70 s.
func taken(t *testing.T, cfg fair.Config) *fair.State {
	t.Helper()
	cfg.Models = models
	st := newState(t, cfg)
	apply(t, st, start, fleet(2, "H100"), quota("a", mq("H100", 1, -1)), quota("b", mq("H100", 1, -1)))
	apply(t, st, start, arrive(pod("b1", "b", 0, 1, "H100"), pod("b2", "b", 1, 1, "H100"))...)
	run(t, st, at(1))
	apply(t, st, at(10), arrive(pod("a1", "a", 10, 1, "H100"))...)
	expect(t, st, at(10), "Notice b2 for a1")
	expect(t, st, at(70), "Evict b2 for a1")
	apply(t, st, at(70), fair.Requeued{ID: "b2"})
	if got := fmt.Sprint(run(t, st, at(70))); got != "[Open a1]" {
		t.Fatal(got)
	}
	return st
}

// Who was evicted does not borrow for a while, and those behind it in its line
// neither; others do, and the guarantee serves it at once.
func TestCooldown(t *testing.T) {
	borrows := func(t *testing.T, st *fair.State, tenant string) {
		t.Helper()
		apply(t, st, at(80), fair.Finished{ID: "a1"})
		apply(t, st, at(80), arrive(pod("next", tenant, 80, 1, "H100"))...)
	}
	t.Run("waits", func(t *testing.T) {
		st := taken(t, fair.Config{Cooldown: 10 * time.Minute})
		apply(t, st, at(80), fair.Finished{ID: "a1"})
		expect(t, st, at(80))
		reason(t, st, "b2", fair.ReasonCoolingDown)
		if wake, ok := st.Wake(at(620)); !ok || !wake.Equal(at(670)) {
			t.Fatalf("wake %v, %v", wake, ok)
		}
		expect(t, st, at(669))
		expect(t, st, at(670), "Open b2")
	})
	t.Run("others borrow", func(t *testing.T) {
		st := taken(t, fair.Config{Cooldown: 10 * time.Minute})
		borrows(t, st, "c")
		expect(t, st, at(80), "Open next")
	})
	t.Run("its line waits with it", func(t *testing.T) {
		st := taken(t, fair.Config{Cooldown: 10 * time.Minute})
		borrows(t, st, "b")
		expect(t, st, at(80))
		reason(t, st, "next", fair.ReasonBehind)
		expect(t, st, at(670), "Open b2")
	})
	t.Run("is guaranteed", func(t *testing.T) {
		st := taken(t, fair.Config{Cooldown: 10 * time.Minute})
		apply(t, st, at(80), fair.Finished{ID: "b1"})
		expect(t, st, at(80), "Open b2")
	})
	t.Run("twice as long", func(t *testing.T) {
		st := taken(t, fair.Config{Cooldown: 10 * time.Minute})
		apply(t, st, at(80), fair.Finished{ID: "a1"})
		run(t, st, at(700))
		apply(t, st, at(701), arrive(pod("a2", "a", 701, 1, "H100"))...)
		run(t, st, at(701))
		expect(t, st, at(761), "Evict b2 for a2")
		apply(t, st, at(761), fair.Requeued{ID: "b2"})
		run(t, st, at(761))
		apply(t, st, at(770), fair.Finished{ID: "a2"})
		expect(t, st, at(761+1199))
		expect(t, st, at(761+1200), "Open b2")
	})
	t.Run("none", func(t *testing.T) {
		st := taken(t, fair.Config{Cooldown: -1})
		borrows(t, st, "b")
		expect(t, st, at(80), "Open b2")
	})
}

// Work that comes back under another ID brings its cool-down along.
func TestCooldownIsTold(t *testing.T) {
	st := newState(t, fair.Config{Models: models, Cooldown: 10 * time.Minute})
	apply(t, st, start, fleet(1, "H100"), quota("b", mq("H100", 0, -1)))
	e := pod("b2", "b", 0, 1, "H100")
	e.Reclaims, e.Reclaimed = 2, at(-600)
	apply(t, st, start, arrive(e)...)
	expect(t, st, at(599))
	expect(t, st, at(600), "Open b2")
	e.ID, e.Reclaims = "b3", -1
	if err := st.Apply(start, fair.Arrived{Entry: e}); err == nil {
		t.Error("a negative number of reclaims is taken")
	}
}

// What its owner used a short time ago is kept for it; others may use what it
// has left unused, and the owner all of it.
func TestLendAfter(t *testing.T) {
	build := func(t *testing.T) *fair.State {
		t.Helper()
		st := newState(t, fair.Config{Models: models, LendAfter: 10 * time.Minute})
		apply(t, st, start, fleet(3, "H100"), quota("a", mq("H100", 3, -1)), quota("b", mq("H100", 0, -1)))
		apply(t, st, start, arrive(pod("a1", "a", 0, 1, "H100"), pod("a2", "a", 0, 1, "H100"))...)
		run(t, st, start)
		apply(t, st, at(50), arrive(pod("b1", "b", 50, 1, "H100"), pod("b2", "b", 51, 1, "H100"))...)
		if got := fmt.Sprint(run(t, st, at(60))); got != "[Open b1]" {
			t.Fatal(got) // the third device was never used by a
		}
		apply(t, st, at(100), fair.Finished{ID: "a2"})
		expect(t, st, at(100))
		reason(t, st, "b2", fair.ReasonSetAside)
		return st
	}
	t.Run("lent in the end", func(t *testing.T) {
		st := build(t)
		// A pass at 60 s saw two in use.
		if wake, ok := st.Wake(at(652)); !ok || !wake.Equal(at(660)) {
			t.Fatalf("wake %v, %v", wake, ok)
		}
		expect(t, st, at(659))
		expect(t, st, at(660), "Open b2")
	})
	t.Run("used again", func(t *testing.T) {
		st := build(t)
		apply(t, st, at(200), arrive(pod("a3", "a", 200, 1, "H100"))...)
		expect(t, st, at(200), "Open a3")
	})
	t.Run("guaranteed no more", func(t *testing.T) {
		st := build(t)
		apply(t, st, at(200), quota("a", mq("H100", 1, -1)))
		expect(t, st, at(200), "Open b2")
	})
}

// A stream of small guaranteed work of its own tenant does not starve a large
// one, whose guarantee has room for it as a whole.
func TestOrderInsideAGuarantee(t *testing.T) {
	for mode, starves := range map[fair.Mode]bool{fair.Ladder: false, fair.LadderWithoutAging: true} {
		t.Run(mode.String(), func(t *testing.T) {
			st := newState(t, fair.Config{Mode: mode, Models: models, KeepAfter: 10 * time.Minute})
			apply(t, st, start, fleet(4, "H100"), quota("a", mq("H100", 4, 4)))
			opened := -1
			var ends []string // those that end, one every ten seconds
			for s := 0; s < 3*3600 && opened < 0; s += 10 {
				if len(ends) > 3 || s > 700 && len(ends) > 0 {
					apply(t, st, at(s), fair.Finished{ID: ends[0]})
					ends = ends[1:]
				}
				if s == 100 {
					apply(t, st, at(s), arrive(pod("large", "a", s, 4, "H100"))...)
				}
				apply(t, st, at(s), arrive(pod(fmt.Sprintf("small-%06d", s), "a", s, 1, "H100"))...)
				for _, step := range run(t, st, at(s)) {
					if id := step[len("Open "):]; id == "large" {
						opened = s
					} else {
						ends = append(ends, id)
					}
				}
			}
			if starves != (opened < 0) {
				t.Fatalf("the large one was opened after %d s", opened)
			}
			if !starves && opened > 100+600+100 {
				t.Errorf("the large one was opened after %d s", opened)
			}
		})
	}
}

// Work that came to be inside its guarantee is not evicted while others of its
// tenant borrow, although it would lose less.
func TestWhatIsInsideIsTakenLast(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, fleet(4, "H100"), quota("a", mq("H100", 1, -1)), quota("b", mq("H100", 1, -1)))
	apply(t, st, start, arrive(pod("b1", "b", 0, 1, "H100"))...)
	run(t, st, start)
	apply(t, st, at(60), arrive(pod("b2", "b", 60, 3, "H100"))...)
	run(t, st, at(60))
	apply(t, st, at(100), arrive(pod("a1", "a", 100, 1, "H100"))...)
	// b1 would lose 100 device seconds, b2 120.
	expect(t, st, at(100), "Notice b2 for a1")
}

// TestReclaimsOfAnEntryAreBounded: the devices of an entry that asks for one
// are taken back no more often than MaxReclaims says, where it has no choice of
// models, however often its tenants' neighbours come and go.
func TestReclaimsOfAnEntryAreBounded(t *testing.T) {
	most := 0
	rapid.Check(t, func(t *rapid.T) {
		c := newCrowd(t)
		p := fairtest.NewPlayer(fairtest.Options{Plain: true, Single: true})
		for _, ev := range p.Found(t) {
			c.say(t, ev)
		}
		look := func() {
			for id, times := range c.evicted {
				k := c.cfg.MaxReclaims(times[len(times)-1].Sub(times[0]))
				if n := len(times); int64(n) > k {
					t.Fatalf("%s was evicted %d times, at %v, more than %d", id, n, times, k)
				} else if c.cfg.Cooldown > 0 {
					most = max(most, n)
				}
			}
		}
		for range 60 {
			until := c.now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
			for {
				at, ok := c.st.Wake(c.now)
				if !ok || at.After(until) {
					break
				}
				c.now = at
				c.ask(t)
				look()
			}
			c.now, p.Now = until, until
			if len(c.running) > 0 && rapid.Bool().Draw(t, "finish") {
				id := rapid.SampledFrom(sortedKeys(c.running)).Draw(t, "which")
				c.say(t, fair.Finished{ID: id})
				delete(c.running, id)
				delete(c.entries, id)
			} else if len(c.entries)-len(c.running) < 8 {
				e := p.Entry(t)
				c.entries[e.ID] = e
				c.say(t, fair.Arrived{Entry: e})
			}
			c.ask(t)
			look()
		}
	})
	if most == 0 {
		t.Error("no entry was evicted")
	}
}
