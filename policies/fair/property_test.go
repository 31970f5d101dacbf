package fair_test

// What must hold of every history.

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fair/fairtest"
)

// play draws a history and calls each with the state before and after an answer.
func play(t *rapid.T, cfg fair.Config, opts fairtest.Options, steps int, tell func(time.Time, fair.Event), each func(*fair.State, *fairtest.Player, []fair.Action)) {
	st, err := fair.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := fairtest.NewPlayer(opts)
	say := func(ev fair.Event) {
		if err := st.Apply(p.Now, ev); err != nil {
			t.Fatalf("%T %+v: %v", ev, ev, err)
		}
		tell(p.Now, ev)
	}
	for _, ev := range p.Found(t) {
		say(ev)
	}
	for range steps {
		p.Now = p.Now.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 1, 20, 60}).Draw(t, "seconds")) * time.Second)
		if ev := p.Step(t); ev != nil {
			say(ev)
		}
		if !rapid.Bool().Draw(t, "ask") {
			continue
		}
		actions := st.Next(p.Now)
		each(st, p, actions)
		if more := st.Next(p.Now); len(more) > 0 {
			t.Fatalf("asked again: %+v", more)
		}
		for _, ev := range p.Take(t, actions) {
			say(ev)
		}
	}
}

// TestEngineEqualsTwin: the same actions, in the same order, with the same places.
func TestEngineEqualsTwin(t *testing.T) {
	seen := map[fair.Kind]int{}
	rapid.Check(t, func(t *rapid.T) {
		cfg := fairtest.Configs().Draw(t, "config")
		w := fairtest.NewTwin(cfg)
		play(t, cfg, fairtest.Options{Whims: true}, rapid.IntRange(20, 60).Draw(t, "steps"), w.Apply,
			func(_ *fair.State, p *fairtest.Player, got []fair.Action) {
				if want := w.Next(p.Now); !reflect.DeepEqual(got, want) {
					t.Fatalf("engine: %+v\ntwin:   %+v", got, want)
				}
				for _, a := range got {
					seen[a.Kind]++
				}
			})
	})
	t.Logf("actions by kind: %v", seen)
	if seen[fair.Open] == 0 || seen[fair.Notice] == 0 {
		t.Error("no history led to a notice")
	}
}

// within fails where a tenant is charged more than its limit.
func within(t *rapid.T, st *fair.State, when string) {
	for _, name := range st.Tenants() {
		for _, m := range st.Usage(name).Models {
			if m.Limit != nil && m.Charged > *m.Limit {
				t.Fatalf("%s: %s is charged %+v, above %d", when, name, m, *m.Limit)
			}
		}
	}
}

// TestNoTenantAboveItsLimit: at every step, whichever of its alternatives the
// scheduler chooses, and for gangs and shared claims that land as expected.
func TestNoTenantAboveItsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := fairtest.Configs().Draw(t, "config")
		opts := fairtest.Options{}
		var st *fair.State
		if rapid.Bool().Draw(t, "own way") {
			opts.Plain = true
		}
		// As the scheduler's Reserve does, by what is really allocated.
		opts.Reserve = func(tenant string, devices []fair.Devices) bool {
			need := map[string]int64{}
			for _, d := range devices {
				need[d.Model] += d.Count
			}
			for _, d := range devices {
				var all int64
				for _, name := range st.Tenants() {
					u := st.Usage(name)
					all += u.Of(d.Model).Allocated
				}
				capacity, _ := st.Capacity(d.Model)
				u := st.Usage(tenant)
				m := u.Of(d.Model)
				if all+need[d.Model] > capacity || m.Limit != nil && m.Allocated+need[d.Model] > *m.Limit {
					return false
				}
			}
			return true
		}
		var err error
		if st, err = fair.New(cfg); err != nil {
			t.Fatal(err)
		}
		p := fairtest.NewPlayer(opts)
		say := func(ev fair.Event) {
			if err := st.Apply(p.Now, ev); err != nil {
				t.Fatalf("%T %+v: %v", ev, ev, err)
			}
			within(t, st, "after an event")
		}
		for _, ev := range p.Found(t) {
			say(ev)
		}
		for range 40 {
			p.Now = p.Now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			if ev := p.Step(t); ev != nil {
				say(ev)
			}
			actions := st.Next(p.Now)
			within(t, st, "after an answer")
			for _, ev := range p.Take(t, actions) {
				say(ev)
			}
		}
	})
}

// crowd is a state full of plain entries that run or wait.
type crowd struct {
	st      *fair.State
	now     time.Time
	entries map[string]fair.Entry
	running map[string]string // model by ID
	evicted map[string][]time.Time
	cfg     fair.Config
}

func newCrowd(t *rapid.T) *crowd {
	cfg := fairtest.Configs().Draw(t, "config")
	cfg.Mode, cfg.Notice = fair.Ladder, 30*time.Second
	st, err := fair.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{st: st, now: fairtest.Start, entries: map[string]fair.Entry{}, running: map[string]string{}, evicted: map[string][]time.Time{}, cfg: cfg}
	return c
}

func (c *crowd) say(t *rapid.T, ev fair.Event) {
	if err := c.st.Apply(c.now, ev); err != nil {
		t.Fatalf("%T %+v: %v", ev, ev, err)
	}
}

// ask carries out what there is to do; what is evicted waits again at once.
// It returns the number of evictions.
func (c *crowd) ask(t *rapid.T) int {
	evicted := 0
	for {
		actions := c.st.Next(c.now)
		if len(actions) == 0 {
			return evicted
		}
		for _, a := range actions {
			switch a.Kind {
			case fair.Open:
				ev := fair.Allocated{ID: a.ID}
				for _, q := range a.Placements {
					ev.Devices = append(ev.Devices, fair.Devices{Model: q.Model, Count: q.Count})
					c.running[a.ID] = q.Model
				}
				c.say(t, ev)
			case fair.Evict:
				delete(c.running, a.ID)
				c.say(t, fair.Requeued{ID: a.ID})
				c.evicted[a.ID] = append(c.evicted[a.ID], c.now)
				evicted++
			case fair.Notice, fair.Cancel:
			}
		}
	}
}

// TestGuaranteedIsServedWithinTheBound: no entry waits longer than the notice
// while it is the first of its tenant for which the guarantee has room. The fleet
// has what it guarantees, nodes release at once, entries ask for one device and
// may be evicted. They have no choice of models: one that lands outside its
// guarantee first can take a device that is set aside for another.
func TestGuaranteedIsServedWithinTheBound(t *testing.T) {
	reclaimed := 0
	rapid.Check(t, func(t *rapid.T) {
		c := newCrowd(t)
		p := fairtest.NewPlayer(fairtest.Options{Plain: true, Single: true})
		for _, ev := range p.Found(t) {
			c.say(t, ev)
		}
		since := map[string]time.Time{}
		look := func() {
			// The first of its tenant for which the guarantee has room.
			first := map[string]fair.Entry{}
			for id, e := range c.entries {
				if x, err := c.st.Explain(id); err != nil || !x.Entitled {
					continue
				}
				f, ok := first[e.Tenant]
				order := cmp.Or(-cmp.Compare(c.st.Rank(e.Priority, e.Created), c.st.Rank(f.Priority, f.Created)), e.Created.Compare(f.Created), strings.Compare(id, f.ID))
				if !ok || order < 0 {
					first[e.Tenant] = e
				}
			}
			for id, e := range c.entries {
				if first[e.Tenant].ID != id {
					delete(since, id)
				} else if at, ok := since[id]; !ok {
					since[id] = c.now
				} else if c.now.Sub(at) > 30*time.Second {
					x, _ := c.st.Explain(id)
					t.Fatalf("%s waits since %v with a free guarantee, it is %v: %+v", id, at, c.now, x)
				}
			}
		}
		for range 40 {
			until := c.now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			for {
				at, ok := c.st.Wake(c.now)
				if !ok || at.After(until) {
					break
				}
				c.now = at
				reclaimed += c.ask(t)
				look()
			}
			c.now = until
			p.Now = until
			if len(c.running) > 0 && rapid.IntRange(0, 3).Draw(t, "finish") == 0 {
				id := rapid.SampledFrom(sortedKeys(c.running)).Draw(t, "which")
				c.say(t, fair.Finished{ID: id})
				delete(c.running, id)
				delete(c.entries, id)
			} else if len(c.entries)-len(c.running) < 8 {
				e := p.Entry(t)
				c.entries[e.ID] = e
				c.say(t, fair.Arrived{Entry: e})
			}
			reclaimed += c.ask(t)
			look()
		}
	})
	if reclaimed == 0 {
		t.Error("no history led to a reclaim")
	}
}

// TestReclaimEnds: with no event but that evicted entries wait again, reclaim
// comes to rest, and no tenant is taken below its guarantee on the way.
func TestReclaimEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCrowd(t)
		p := fairtest.NewPlayer(fairtest.Options{})
		for _, ev := range p.Found(t) {
			c.say(t, ev)
		}
		for range rapid.IntRange(0, 14).Draw(t, "entries") {
			c.say(t, fair.Arrived{Entry: p.Entry(t)})
			if rapid.Bool().Draw(t, "ask") {
				c.ask(t)
			}
		}
		for round := 0; ; round++ {
			if round > 400 {
				t.Fatal("reclaim does not come to rest")
			}
			at, ok := c.st.Wake(c.now)
			if !ok {
				return
			}
			c.now = at
			if n := c.ask(t); round > 395 {
				t.Logf("round %d: %d evictions, %v", round, n, c.running)
			}
		}
	})
}

// TestEvictionsSpareGuarantees: after each eviction the tenant that lost has
// what it is guaranteed, unless it lost to a higher priority of its own.
func TestEvictionsSpareGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := fairtest.Configs().Draw(t, "config")
		owner := map[string]string{}
		play(t, cfg, fairtest.Options{}, 50, func(_ time.Time, ev fair.Event) {
			if a, ok := ev.(fair.Arrived); ok {
				owner[a.Entry.ID] = a.Entry.Tenant
			}
		}, func(st *fair.State, p *fairtest.Player, actions []fair.Action) {
			for _, a := range actions {
				if a.Kind != fair.Evict || owner[a.For] == a.Tenant {
					continue
				}
				u := st.Usage(a.Tenant)
				if slices.ContainsFunc(u.Models, func(m fair.ModelUsage) bool { return m.Undecided > 0 }) {
					continue // what it will take is not known
				}
				for _, m := range u.Models {
					// What leaves is not the tenant's any more; what it deletes itself is its own affair.
					if deleted := deletedOf(p, a.Tenant); !deleted && m.Leaving > 0 && m.Allocated-m.Leaving < m.Guaranteed {
						t.Fatalf("evicting %s leaves %s with %+v", a.ID, a.Tenant, m)
					}
				}
			}
		})
	})
}

// TestOrderOfEventsAtOneInstant: what happens at one instant may be told in any
// order.
func TestOrderOfEventsAtOneInstant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := fairtest.Configs().Draw(t, "config")
		a, err := fair.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := fair.New(cfg)
		p := fairtest.NewPlayer(fairtest.Options{Whims: true})
		batch := tellBoth(t, p.Now, p.Found(t), a, b)
		for range 12 {
			moved := map[string]bool{}
			for range rapid.IntRange(0, 6).Draw(t, "events") {
				ev := p.Step(t)
				id := subject(ev)
				if ev == nil || moved[id] {
					// The second event of an entry has to come after the first.
					batch = tellBoth(t, p.Now, batch, a, b)
					clear(moved)
				}
				if ev != nil {
					moved[id] = true
					batch = append(batch, ev)
				}
			}
			tellBoth(t, p.Now, batch, a, b)
			x, y := a.Next(p.Now), b.Next(p.Now)
			if !reflect.DeepEqual(x, y) {
				t.Fatalf("one order: %+v\nanother: %+v", x, y)
			}
			for _, name := range a.Tenants() {
				if x, y := a.Usage(name), b.Usage(name); !reflect.DeepEqual(x, y) {
					t.Fatalf("one order: %+v\nanother: %+v", x, y)
				}
			}
			batch = p.Take(t, x)
			p.Now = p.Now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			batch = tellBoth(t, p.Now, batch, a, b)
		}
	})
}

// tellBoth tells one engine the events as they are and the other shuffled.
func tellBoth(t *rapid.T, now time.Time, batch []fair.Event, a, b *fair.State) []fair.Event {
	for _, ev := range batch {
		if err := a.Apply(now, ev); err != nil {
			t.Fatal(err)
		}
	}
	if len(batch) > 0 {
		for _, ev := range rapid.Permutation(batch).Draw(t, "order") {
			if err := b.Apply(now, ev); err != nil {
				t.Fatal(err)
			}
		}
	}
	return nil
}

// subject is what an event is about.
func subject(ev fair.Event) string {
	switch ev := ev.(type) {
	case fair.Arrived:
		return ev.Entry.ID
	case fair.Allocated:
		return ev.ID
	case fair.Finished:
		return ev.ID
	case fair.Deleted:
		return ev.ID
	case fair.Released:
		return ev.ID
	case fair.Requeued:
		return ev.ID
	case fair.QuotaSet:
		return ev.Quota.Tenant
	case fair.CapacitySet:
		return ev.Model
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// deletedOf: the tenant has entries that are deleted and not released.
func deletedOf(p *fairtest.Player, tenant string) bool {
	for _, e := range p.Entries {
		if e.Deleted && e.Tenant == tenant {
			return true
		}
	}
	return false
}
