package fair

// Taking devices back: what is borrowed, for those whom it is guaranteed, and
// what lower priorities of the same tenant hold.

import (
	"cmp"
	"maps"
	"slices"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// supply of a model: what is free, and what will be, since those who hold it
// are going or have notice.
type supply struct{ free, coming int64 }

// take uses up to n and returns what is missing.
func (s *supply) take(n int64) int64 {
	k := min(n, s.free)
	s.free -= k
	n -= k
	k = min(n, s.coming)
	s.coming -= k
	return n - k
}

// holds is what eviction of an entry frees.
func (e *entry) holds() vec {
	var v vec
	for _, held := range [...]vec{e.alloc, e.hold} {
		for _, a := range held {
			if a.n > 0 {
				v = v.add(a.model, a.n)
			}
		}
	}
	return v
}

// byName orders amounts by the names of the models.
func (st *State) byName(v vec) vec {
	v = slices.Clone(v)
	slices.SortFunc(v, func(a, b amount) int { return cmp.Compare(st.models[a.model].name, st.models[b.model].name) })
	return v
}

// byLine is the order in which notices are looked at.
func byLine(a, b *entry) int { return cmp.Or(cmp.Compare(a.deadline, b.deadline), byID(a, b)) }

// reclaim follows the last pass: it gives and withdraws notices and evicts
// where the time is up. It asks for another round where that changed the turns.
func (st *State) reclaim() (actions []Action, again bool) {
	if !st.cfg.Mode.shares() || st.servers == 0 && len(st.noticed) == 0 {
		return nil, false
	}
	st.settle()
	orphans := st.countComing(&actions)
	for _, it := range st.needy {
		st.serve(it, &orphans, &actions)
	}
	for _, it := range st.order {
		if !it.entitled && it.target != nil && it.e.shape.preempts == v1alpha1.PreemptsLowerPriority {
			st.takeBack(it, it.lack, &actions)
		}
	}
	for _, v := range orphans {
		actions = append(actions, st.cancel(v))
	}
	for _, v := range slices.SortedFunc(maps.Values(st.noticed), byLine) {
		if v.notice == noticed && v.phase == opened && v.deadline <= st.now {
			v.notice = evicting
			actions = append(actions, Action{Kind: Evict, ID: v.id, Tenant: v.tenant.name, For: v.servant})
		}
	}
	return actions, st.dropPromises() || len(actions) > 0
}

// countComing withdraws notices that would now go below a guarantee, counts
// what is coming, and returns those with notice for nobody.
func (st *State) countComing(actions *[]Action) (orphans []*entry) {
	st.pool = st.pool[:0]
	for i := range st.models {
		st.pool = append(st.pool, supply{free: max(st.models[i].free(), 0)})
	}
	for _, t := range st.tenants {
		for i := range t.rows {
			t.rows[i].leaving = 0
		}
		for _, e := range t.running {
			if e.phase == releasing || e.notice != unnoticed {
				t.leave(e.holds(), 1)
			}
		}
	}
	served := map[string]bool{}
	for _, it := range st.needy {
		served[it.e.id] = true
	}
	for _, v := range slices.SortedFunc(maps.Values(st.noticed), func(a, b *entry) int { return byLine(b, a) }) {
		if v.notice != noticed || v.phase != opened {
			continue
		}
		if s := st.entries[v.servant]; s == nil || s.tenant != v.tenant {
			if v.tenant.short(v.holds()) {
				v.tenant.leave(v.holds(), -1)
				*actions = append(*actions, st.cancel(v))
				continue
			}
		}
		if !served[v.servant] {
			orphans = append(orphans, v)
		}
	}
	for _, t := range st.tenants {
		for _, e := range t.running {
			if e.phase == releasing || e.notice == evicting || e.notice == noticed && served[e.servant] {
				st.come(e)
			}
		}
	}
	slices.SortFunc(orphans, byLine)
	return orphans
}

// leave counts devices that will be gone.
func (t *tenant) leave(v vec, sign int64) {
	for _, a := range v {
		t.rows[a.model].leaving += sign * a.n
	}
}

// short: without those who leave, the tenant is below its guarantee of one of
// these models.
func (t *tenant) short(v vec) bool {
	for _, a := range v {
		if r := &t.rows[a.model]; r.held()-r.leaving < r.guaranteed {
			return true
		}
	}
	return false
}

func (st *State) come(e *entry) {
	for _, a := range e.holds() {
		st.pool[a.model].coming += a.n
	}
}

func (st *State) cancel(v *entry) Action {
	a := Action{Kind: Cancel, ID: v.id, Tenant: v.tenant.name, For: v.servant}
	st.unnotice(v)
	return a
}

// serve lets an entitled entry count on what is free and coming, then on
// notices that serve nobody any more, then has devices taken back.
func (st *State) serve(it *item, orphans *[]*entry, actions *[]Action) {
	var lack vec
	for _, a := range st.byName(it.own) {
		n := st.pool[a.model].take(a.n)
		if n > 0 && takesBack(it.e.shape.preempts) && it.e.promised == nil {
			*orphans = slices.DeleteFunc(*orphans, func(v *entry) bool {
				if n == 0 || v.tenant == it.e.tenant || v.holds().of(a.model) == 0 {
					return false
				}
				v.servant = it.e.id
				st.come(v)
				n = st.pool[a.model].take(n)
				return true
			})
		}
		if n > 0 {
			lack = lack.add(a.model, n)
		}
	}
	if lack != nil && takesBack(it.e.shape.preempts) {
		st.takeBack(it, lack, actions)
		for _, a := range lack {
			st.pool[a.model].take(a.n)
		}
	}
}

// takeBack gives notice to those who lose least, if all that lacks can be had.
func (st *State) takeBack(it *item, lack vec, actions *[]Action) {
	var victims []*entry
	for _, a := range st.byName(lack) {
		n := a.n
		for _, v := range victims {
			n -= v.holds().of(a.model)
		}
		if n <= 0 {
			continue
		}
		more, ok := st.cheapest(it, a.model, n)
		if !ok {
			for _, v := range victims {
				v.tenant.leave(v.holds(), -1)
				v.notice = unnoticed
			}
			return
		}
		for _, v := range more {
			v.tenant.leave(v.holds(), 1)
			v.notice = noticed
		}
		victims = append(victims, more...)
	}
	if len(victims) == 0 {
		return
	}
	if !it.entitled {
		it.e.promised = it.target
	}
	deadline := satAdd(st.now, int64(max(st.cfg.Notice, 0)))
	for _, v := range victims {
		st.notify(v, it.e.id, deadline)
		st.come(v)
		*actions = append(*actions, Action{Kind: Notice, ID: v.id, Tenant: v.tenant.name, For: it.e.id, Deadline: instant(deadline)})
	}
}

// dropPromises forgets what was promised to entries that nothing comes for.
func (st *State) dropPromises() bool {
	dropped := false
	coming := map[string]bool{}
	for _, v := range st.noticed {
		coming[v.servant] = true
	}
	for _, it := range st.needy {
		if it.e.phase == waiting && it.e.promised != nil && !coming[it.e.id] {
			it.e.promised, dropped = nil, true
		}
	}
	return dropped
}

// victim is an entry that could be evicted, and what that would lose.
type victim struct {
	e    *entry
	n    int64 // devices of the model in question
	lost int64
}

// choice is whose entries may be taken back for an entitled one.
type choice struct {
	own    bool // only what its own tenant borrows
	borrow bool // of others only what borrows
	pure   bool // only what holds no other model
}

// cheapest victims: those that its own tenant borrows, if they are enough, then
// with those that others borrow, else any that can be spared; in each case such as
// hold no other model where others would go below a guarantee of that.
func (st *State) cheapest(it *item, m int, n int64) (victims []*entry, ok bool) {
	for _, c := range [...]choice{{own: true}, {own: true, pure: true}, {borrow: true}, {borrow: true, pure: true}, {}, {pure: true}} {
		if victims, ok = st.victims(it, m, n, c); ok {
			return victims, true
		}
	}
	return nil, false
}

// victims are those with the least lost work that free n devices of a model
// for an entry: where it is entitled, of what its own tenant borrows in entries
// that come later and of what other tenants can spare; of lower priorities of its
// own tenant where its policy says so.
func (st *State) victims(it *item, m int, n int64, c choice) ([]*entry, bool) {
	var groups []group
	inside := it.inside()
	lower := it.e.shape.preempts == v1alpha1.PreemptsLowerPriority
	for _, t := range st.tenants {
		own := t == it.e.tenant
		g := group{budget: none}
		if !own {
			r := &t.rows[m]
			g.budget = r.held() - r.leaving - r.guaranteed
		}
		if g.budget <= 0 || !own && (!inside || c.own) {
			continue
		}
		for _, e := range t.running {
			switch {
			case e.phase != opened || e.notice != unnoticed || e.shape.firm:
				continue
			case !own && c.borrow && e.inside != nil:
				continue
			case own && !st.before(it.e, e):
				continue
			case own && !(inside && e.inside == nil) && (c.own || !lower || e.shape.priority >= it.e.shape.priority):
				continue
			}
			holds := e.holds()
			if k := holds.of(m); k > 0 && k <= g.budget && (!c.pure || len(holds) == 1) {
				g.victims = append(g.victims, victim{e, k, st.lost(e)})
			}
		}
		groups = append(groups, g)
	}
	chosen := cover(groups, n)
	if chosen == nil {
		return nil, false
	}
	// What else they hold must not go below a guarantee either.
	for _, v := range chosen {
		v.tenant.leave(v.holds(), 1)
	}
	ok := !slices.ContainsFunc(chosen, func(v *entry) bool { return v.tenant != it.e.tenant && v.tenant.short(v.holds()) })
	for _, v := range chosen {
		v.tenant.leave(v.holds(), -1)
	}
	return chosen, ok
}

// lost is the work that eviction loses: milliseconds since the start, times
// what the devices are worth.
func (st *State) lost(e *entry) int64 {
	var worth int64
	for _, a := range e.alloc {
		worth = satAdd(worth, satMul(a.n, st.models[a.model].cost))
	}
	return satMul(worth, max(st.now-e.started, 0)/1_000_000)
}
