package fair

// What is not lent, and to whom. Reclaim is the price of lending, so it pays to
// lend less where it would soon be taken back: devices that their owner used a
// short time ago are kept for it, and work whose devices were taken back does
// not borrow again at once. The guarantee does not depend on either.

import (
	"math"
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
// pass, what tenants use of their guarantees, and which entries are inside them.
func (st *State) noteUse() {
	for _, t := range st.tenants {
		below := false
		for i := range t.rows {
			r := &t.rows[i]
			if r.guaranteed == 0 {
				continue
			}
			below = below || r.held() <= r.guaranteed
			used := min(r.held(), r.guaranteed)
			if used >= r.mark || satAdd(r.markAt, int64(st.cfg.LendAfter)) <= st.now {
				r.mark, r.markAt = used, st.now
			}
		}
		if !below {
			continue
		}
		for _, e := range t.running {
			if e.inside == nil && e.phase == opened {
				t.settleInside(e)
			}
		}
	}
}

// settleInside: what an entry holds is inside its tenant's guarantee once all
// that the tenant holds of these models is. From then on others are taken first.
func (t *tenant) settleInside(e *entry) {
	for _, held := range [...]vec{e.alloc, e.hold} {
		for _, a := range held {
			if r := &t.rows[a.model]; a.n > 0 && r.held() > r.guaranteed {
				return
			}
		}
	}
	e.inside = e.holds()
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
// is the one that lacks the least, of equals the preferred; a gang that no
// model's guarantee could hold is spread in order of preference.
func (st *State) keepInside(e *entry) {
	t := e.tenant
	var keep vec
	for i := range e.shape.requests {
		r := &e.shape.requests[i]
		if t.satisfied(r) {
			continue
		}
		left := e.shape.parts(r)
		best, lack := amount{}, int64(none)
		var spread vec
		for j := range r.alternatives {
			a := &r.alternatives[j]
			if satAdd(e.created, a.after) > st.now {
				continue
			}
			parts, size := e.shape.units(r, a, e.shape.members)
			for _, m := range a.models {
				row := &t.rows[m]
				whole := min(row.guaranteed, st.models[m].capacity)
				if need := parts*size + keep.of(m); need <= whole {
					room := row.guaranteed - row.held() - row.reserved - row.kept
					if l := max(need-room, 0); l < lack {
						best, lack = amount{m, parts * size}, l
					}
				}
				if k := min(left, (whole-keep.of(m)-spread.of(m))/size); k > 0 {
					left -= k
					spread = spread.add(m, k*size)
				}
			}
		}
		switch {
		case best.n > 0:
			keep = keep.add(best.model, best.n)
		case left > 0:
			return // larger than the guarantee
		default:
			for _, a := range spread {
				keep = keep.add(a.model, a.n)
			}
		}
	}
	for _, a := range keep {
		t.rows[a.model].kept += a.n
	}
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
