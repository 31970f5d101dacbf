package fair

// What undecided members are charged and what they will take. Both follow from
// what is allocated, so they are worked out anew when something changed: no
// history, nothing to correct.

import (
	"cmp"
	"slices"
)

// dear is one way of an alternative: the alternative and one of its models.
type dear struct{ alternative, model int }

// sortByCost orders the ways of a request by what they are worth, the dearest
// first; then by preference.
func (st *State) sortByCost(r *request) {
	for i, a := range r.alternatives {
		for _, m := range a.models {
			r.ways = append(r.ways, dear{i, m})
		}
	}
	worth := func(w dear) int64 { return satMul(r.alternatives[w.alternative].count, st.models[w.model].cost) }
	slices.SortStableFunc(r.ways, func(a, b dear) int { return cmp.Compare(worth(b), worth(a)) })
}

// settle brings charges and holds of undecided members up to date.
func (st *State) settle() {
	if !st.stale && st.now < st.settledTill {
		return
	}
	st.stale, st.settledTill = false, none
	st.round++
	for i := range st.models {
		st.models[i].hold = 0
	}
	for _, t := range st.tenants {
		if t.settled == 0 {
			continue
		}
		t.settled = 0
		for i := range t.rows {
			r := &t.rows[i]
			r.charge, r.hold, r.both, r.firmHold = 0, 0, 0, 0
		}
	}
	for _, e := range st.undecided {
		st.settleEntry(e)
	}
}

func (st *State) settleEntry(e *entry) {
	e.tenant.settled = st.round
	e.charge, e.hold, e.short = e.charge[:0], e.hold[:0], false
	needs := e.needs()
	for i := range needs {
		r := &needs[i]
		if r.claim != "" {
			c := e.tenant.claims[r.claim]
			if c.known || c.round == st.round {
				continue
			}
			c.round = st.round
		}
		st.chargeRequest(e, r)
		st.holdRequest(e, r)
	}
	for i := range st.models {
		charge, hold := e.charge.of(i), e.hold.of(i)
		row := &e.tenant.rows[i]
		row.both += max(charge, hold)
	}
}

// quotaRoom is what the tenant's limit leaves when it holds n.
func (t *tenant) quotaRoom(m int, n int64) int64 {
	switch r := &t.rows[m]; {
	case !t.limited || r.listed && r.limit == none:
		return none
	case !r.listed:
		return 0
	default:
		return r.limit - n
	}
}

// chargeRequest charges the dearest ways that are still possible: the limit
// has room and the fleet has as many.
func (st *State) chargeRequest(e *entry, r *request) {
	left := e.undecided()
	if r.claim != "" || e.shape.uniform {
		left = 1
	}
	for _, w := range r.ways {
		if left == 0 {
			return
		}
		row := &e.tenant.rows[w.model]
		_, size := e.shape.units(r, &r.alternatives[w.alternative], e.undecided())
		if st.models[w.model].capacity < size || !e.mayUse(w.model) {
			continue
		}
		if k := min(left, e.tenant.quotaRoom(w.model, row.alloc+row.charge)/size); k > 0 {
			left -= k
			row.charge += k * size
			e.charge = e.charge.add(w.model, k*size)
		}
	}
}

// holdRequest foresees what the scheduler will do: the first alternative with
// free devices, and those that the limit allows.
func (st *State) holdRequest(e *entry, r *request) {
	left := e.undecided()
	if r.claim != "" || e.shape.uniform {
		left = 1
	}
	for i := range r.alternatives {
		a := &r.alternatives[i]
		if at := satAdd(e.created, a.after); at > st.now {
			st.settledTill = min(st.settledTill, at)
			continue
		}
		_, size := e.shape.units(r, a, e.undecided())
		for _, m := range a.models {
			if left == 0 {
				return
			}
			row := &e.tenant.rows[m]
			k := min(left, st.models[m].free()/size, e.tenant.quotaRoom(m, row.alloc+row.hold)/size)
			if k <= 0 || !e.mayUse(m) {
				continue
			}
			left -= k
			st.models[m].hold += k * size
			row.hold += k * size
			if e.shape.firm {
				row.firmHold += k * size
			}
			e.hold = e.hold.add(m, k*size)
		}
	}
	e.short = e.short || left > 0
}

// scale of shares: this much is a share of 1 at weight 1.
const scale = 1_000_000_000_000

// shareOf is the tenant's dominant share divided by its weight: of each group
// of models, the worth of what it is charged over the worth of the fleet; the
// largest of them.
func (st *State) shareOf(t *tenant) int64 {
	var share int64
	for g := range st.groups {
		var held, all int64
		for i := range st.models {
			m := &st.models[i]
			if m.group != g {
				continue
			}
			held = satAdd(held, satMul(m.cost, t.rows[i].alloc+t.rows[i].charge))
			all = satAdd(all, satMul(m.cost, m.capacity))
		}
		share = max(share, mulDiv(held, scale, all))
	}
	return share / t.weight
}
