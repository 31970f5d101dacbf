package fair

// What is not lent, and to whom. Reclaim is the price of lending, so it pays to
// lend less where it would soon be taken back: devices that their owner used a
// short time ago are kept for it, and work whose devices were taken back does
// not borrow again at once. The guarantee does not depend on either.

import (
	"maps"
	"math"
	"slices"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// maxCooldown ends the doubling of cool-downs.
const maxCooldown = 24 * time.Hour

// CooldownAfter is how long work does not borrow after the n-th time that its
// devices were taken back: Cooldown, doubled each time up to a day.
func (c *Config) CooldownAfter(n int64) time.Duration {
	d := c.Cooldown
	defaultTime(&d, DefaultCooldown)
	if d < 0 || n < 1 {
		return 0
	}
	for ; n > 1 && d < maxCooldown; n-- {
		d = min(2*d, maxCooldown)
	}
	return d
}

// MaxReclaims is how often the devices of one entry can be taken back for other
// tenants within a span of time: the largest k for which the first k-1
// cool-downs fit into it. docs/fair.md says of which entries it holds.
func (c *Config) MaxReclaims(span time.Duration) int64 {
	for k := int64(1); ; k++ {
		d := c.CooldownAfter(k)
		switch {
		case d == 0:
			return math.MaxInt64
		case d > span:
			return k
		}
		span -= d
	}
}

// coolSince starts the cool-down of an entry whose devices were taken back.
func (st *State) coolSince(e *entry, at int64) {
	if d := st.cfg.CooldownAfter(e.reclaims); d > 0 {
		e.cooled = satAdd(at, int64(d))
		st.cooled[e.id] = e
	}
}

// cooling: the entry does not borrow for now.
func (st *State) cooling(e *entry) bool { return e.cooled > st.now && st.cfg.Mode.shares() }

// noteUse notes, with what is allocated and expected at the beginning of a
// pass, what tenants use of their guarantees.
func (st *State) noteUse() {
	for _, t := range st.tenants {
		for i := range t.rows {
			r := &t.rows[i]
			if r.guaranteed == 0 {
				continue
			}
			used := min(r.held(), r.guaranteed)
			if used >= r.mark || satAdd(r.markAt, int64(st.cfg.LendAfter)) <= st.now {
				r.mark, r.markAt = used, st.now
			}
		}
	}
}

// borrowers counts what the tenant holds inside its guarantee, and returns the
// running entries that are not, in the order in which they come to be: first those
// that go before all that wait, each part in the tenant's own order.
func (st *State) borrowers(t *tenant) []*entry {
	for i := range t.rows {
		t.rows[i].inside = 0
	}
	for _, c := range t.claims {
		for _, a := range c.alloc {
			t.rows[a.model].inside += a.n
		}
	}
	var list []*entry
	for _, e := range t.running {
		switch {
		case e.inside != nil:
			for _, a := range e.holds() {
				t.rows[a.model].inside += a.n
			}
		case e.phase == opened:
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int {
		if before := a.comesFirst() && !b.comesFirst(); before || a.comesFirst() == b.comesFirst() && st.before(a, b) {
			return -1
		}
		return 1
	})
	return list
}

// comesFirst: an entry that runs goes before all that wait, since it can't be taken
// back, or ran before the State was told of it and has no notice.
func (e *entry) comesFirst() bool { return e.shape.firm || !e.settled && e.notice == unnoticed }

// settleInside goes along borrowers up to the one that comes after the next
// waiting entry of its tenant; next is nil behind the last. What finds room in the
// guarantee is inside it, and borrows no more: others of its tenant that come
// later are taken back first. It returns the borrowers that are left.
func (st *State) settleInside(t *tenant, list []*entry, next *entry, stamp bool) []*entry {
	for len(list) > 0 && (next == nil || list[0].comesFirst() || st.before(list[0], next)) {
		e := list[0]
		list = list[1:]
		e.settled = e.settled || stamp
		holds := e.holds()
		if len(holds) == 0 || slices.ContainsFunc(holds, func(a amount) bool {
			r := &t.rows[a.model]
			return r.inside+r.reserved+r.kept+a.n > r.guaranteed
		}) {
			continue
		}
		for _, a := range holds {
			t.rows[a.model].inside += a.n
		}
		if stamp {
			e.inside = holds
		}
	}
	return list
}

// stray: an entry that got other devices than expected is not inside any more,
// until a pass finds it so again.
func (e *entry) stray() {
	for _, a := range e.alloc {
		if a.n > e.inside.of(a.model) {
			e.inside = nil
		}
	}
}

// keepWarm keeps from others what tenants used of their guarantees within
// LendAfter and what is not set aside for their entitled entries already.
func (st *State) keepWarm() {
	for _, t := range st.tenants {
		for i := range t.rows {
			r := &t.rows[i]
			r.warm = 0
			if st.cfg.LendAfter > 0 {
				r.warm = max(min(r.mark, r.guaranteed)-r.held()-r.reserved, 0)
				st.models[i].reserved += r.warm
			}
		}
	}
}

// keepInside keeps a part of the guarantee for an entry that is not entitled
// yet, since what it needs is in use: younger ones of its tenant are entitled
// only to what is left. Of the ways that fit into the guarantee as a whole it
// is the one that lacks the least, of equals the preferred. What is larger than
// the guarantee of each model keeps nothing: it would keep that of several from
// all others of its tenant, for as long as the longest that runs there.
func (st *State) keepInside(e *entry) {
	t := e.tenant
	var keep vec
	for i := range e.shape.requests {
		r := &e.shape.requests[i]
		if t.satisfied(r) {
			continue
		}
		best, lack := amount{}, int64(none)
		for j := range r.alternatives {
			a := &r.alternatives[j]
			if satAdd(e.created, a.after) > st.now {
				continue
			}
			parts, size := e.shape.units(r, a, e.shape.members)
			for _, m := range a.models {
				row := &t.rows[m]
				need := parts*size + keep.of(m)
				if need > min(row.guaranteed, st.models[m].capacity) {
					continue
				}
				room := row.guaranteed - row.inside - row.reserved - row.kept
				if l := max(need-room, 0); l < lack {
					best, lack = amount{m, parts * size}, l
				}
			}
		}
		if best.n == 0 {
			return
		}
		keep = keep.add(best.model, best.n)
	}
	for _, a := range keep {
		t.rows[a.model].kept += a.n
	}
}

// hold notes since when an entry may use some models only.
func (st *State) hold(e *entry) {
	e.boundAt = st.now
	st.bound[e.id] = e
}

// boundTill is from when on an opened entry that has not got the models that it is
// held to may use any, should they not be free. False: it is not held, or for good.
func (st *State) boundTill(e *entry) (int64, bool) {
	return satAdd(e.boundAt, int64(st.cfg.HoldFor)), st.cfg.HoldFor >= 0 && len(e.within) > 0 && e.undecided() > 0 && e.notice == unnoticed
}

// widen lets those use any model for which those that they are held to are gone:
// they failed, or went to somebody else.
func (st *State) widen() (actions []Action) {
	if len(st.bound) == 0 {
		return nil
	}
	st.settle()
	for _, id := range slices.Sorted(maps.Keys(st.bound)) {
		e := st.bound[id]
		if len(e.within) == 0 || e.undecided() == 0 {
			delete(st.bound, id)
		} else if at, ok := st.boundTill(e); ok && at <= st.now && e.short {
			delete(st.bound, id)
			e.within, st.stale = nil, true
			actions = append(actions, Action{Kind: Widen, ID: id, Tenant: e.tenant.name})
		}
	}
	return actions
}

// waited: the entry has waited so long that one of the times of the
// configuration counts for it; a negative one never does.
func (st *State) waited(e *entry, after time.Duration) bool { return st.longSince(e.created, after) }

func (st *State) longSince(created int64, after time.Duration) bool {
	return st.cfg.Mode == Ladder && after >= 0 && satAdd(created, int64(after)) <= st.now
}

// waitFor settles what an entry waits for, where it may have devices taken
// back or set aside, and keeps those from entries whose turn is later.
func (st *State) waitFor(it *item) {
	reserves := st.waited(it.e, st.cfg.ReserveAfter)
	if !reserves && it.e.shape.preempts != v1alpha1.PreemptsLowerPriority {
		return
	}
	target, limit, ok := st.plan(it.e)
	if !ok {
		return
	}
	it.target = target
	for _, a := range sum(target) {
		it.lack = it.lack.add(a.model, st.lacks(it.e, a.model, a.n))
		if st.lent(it.e, a.model) < a.n {
			it.target = nil // no reclaim would help
		}
	}
	if !reserves {
		return
	}
	for _, a := range sum(target) {
		row := &it.e.tenant.rows[a.model]
		row.reserved += a.n
		if !limit {
			// What is kept for the tenant is set aside already.
			own := min(row.warm, a.n)
			row.warm -= own
			st.models[a.model].reserved += a.n - own
		}
	}
}
