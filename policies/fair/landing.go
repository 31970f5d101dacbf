package fair

// Where an entry lands when it is opened, what its guarantee covers, and what
// it would take to serve it.

import "slices"

// verdict is why an entry, or one way to serve it, has to wait. The later in
// the list, the nearer to being served.
type verdict int8

const (
	fits verdict = iota
	notAllowed
	neverFits
	tierNotYetAllowed
	limitReached
	noFreeDevices
	notLent
	setAside
	heldBack
)

// place is where a part of an entry lands.
type place struct {
	request, alternative, model int
	n                           int64
}

// try is one attempt to find a place for an entry.
type try struct {
	st *State
	e  *entry
	// own is what this pass has set aside for the entry itself.
	own vec
	// force: also what is set aside for others or not lent, which is where who
	// places the entry would put it.
	force bool
	// entitled: of what is set aside for others or not lent it leaves only what is
	// for the entitled who wait for what lacks to come.
	entitled bool
	// within are the models that may be used; nil: any.
	within vec
	// note is called with the verdict of each way that has no room; may be nil.
	note func(request, alternative, model int, size int64, v verdict)

	worst verdict // the nearest to success of those that failed
}

// satisfied: others hold the shared claim already.
func (t *tenant) satisfied(r *request) bool {
	if r.claim == "" {
		return false
	}
	c := t.claims[r.claim]
	return c != nil && c.users > 0
}

// members to be placed for a request, in equal parts.
func (s *shape) parts(r *request) int64 {
	if r.claim != "" || s.uniform {
		return 1
	}
	return s.members
}

// fail notes a way that did not serve.
func (y *try) fail(request, alternative, model int, size int64, v verdict) {
	y.worst = max(y.worst, v)
	if y.note != nil {
		y.note(request, alternative, model, size, v)
	}
}

// land finds the places of all requests, or says why there are none.
func (y *try) land() ([]place, verdict) {
	var places []place
	defer func() {
		for _, p := range places {
			y.st.taken[p.model] = 0
		}
	}()
	for i := range y.e.shape.requests {
		r := &y.e.shape.requests[i]
		if y.e.tenant.satisfied(r) {
			continue
		}
		y.worst = fits
		left := y.e.shape.parts(r)
		for j := range r.alternatives {
			a := &r.alternatives[j]
			_, size := y.e.shape.units(r, a, y.e.shape.members)
			if satAdd(y.e.created, a.after) > y.st.now {
				y.fail(i, j, -1, size, tierNotYetAllowed)
				continue
			}
			for _, m := range a.models {
				if left == 0 {
					break
				}
				k, v := y.room(m, size, left)
				if v != fits {
					y.fail(i, j, m, size, v)
				}
				if k < 0 {
					return places, v
				}
				if k > 0 {
					left -= k
					y.st.taken[m] += k * size
					places = append(places, place{i, j, m, k * size})
				}
			}
		}
		if left > 0 {
			return places, y.worst
		}
	}
	return places, fits
}

// room is how many of the parts a model has room for, and what stands against
// more. Negative: none, and whoever places the entry would take what it must not.
func (y *try) room(m int, size, parts int64) (int64, verdict) {
	st, t := y.st, y.e.tenant
	if y.within != nil && y.within.of(m) == 0 {
		return 0, notAllowed
	}
	model, row, own, taken := &st.models[m], &t.rows[m], y.own.of(m), st.taken[m]
	quota := t.quotaRoom(m, row.committed()+row.reserved-own+taken)
	if quota < size {
		switch {
		case t.limited && !row.listed:
			return 0, notAllowed
		case row.limit < size:
			return 0, neverFits
		}
		return 0, limitReached
	}
	free := model.free() - taken
	k, v := min(parts, quota/size, free/size), fits
	switch {
	case k <= 0 && model.capacity < size:
		return 0, neverFits
	case k <= 0:
		return 0, noFreeDevices
	case k < parts && free/size <= k:
		v = noFreeDevices
	case k < parts:
		v = limitReached
	}
	if y.force {
		return k, v
	}
	allowed, why := max(free-model.reserved+own+row.warm, 0)/size, setAside
	if y.entitled {
		allowed = max(free-model.pending+own, 0) / size
	} else if lent := (st.lent(y.e, m) - taken) / size; lent < allowed {
		allowed, why = max(lent, 0), notLent
	}
	if allowed < k {
		return -1, why
	}
	return k, v
}

// lent is how many more devices of the model an entry may hold that can't be
// taken back: what the tenant's guarantee leaves, and what nobody is guaranteed.
func (st *State) lent(e *entry, m int) int64 {
	if !st.cfg.Mode.shares() || st.cfg.LendFirmly || !e.shape.firm {
		return none
	}
	model := &st.models[m]
	if model.lentPass != st.pass {
		model.lentPass = st.pass
		var guaranteed, firm int64
		for _, t := range st.tenants {
			row := &t.rows[m]
			guaranteed = satAdd(guaranteed, row.guaranteed)
			firm += max(row.firm+row.firmHold-row.guaranteed, 0)
		}
		model.surplus = max(satSub(model.capacity, guaranteed), 0)
		model.lent = model.surplus - firm
	}
	row := &e.tenant.rows[m]
	return max(row.guaranteed-row.firm-row.firmHold, 0) + max(model.lent, 0)
}

// lendable is the most that may ever be lent so.
func (st *State) lendable(e *entry, m int) int64 {
	if st.lent(e, m) == none {
		return none
	}
	return satAdd(e.tenant.rows[m].guaranteed, st.models[m].surplus)
}

// entitled is where the entry would land inside its tenant's guarantee, and
// whether all of it fits there: on free devices if it can, else on those with
// what is being taken back for it, else on any.
func (st *State) entitled(e *entry) ([]place, bool) {
	places, ok := st.inside(e, st.free)
	if coming := st.coming[e.id]; !ok && coming != nil {
		places, ok = st.inside(e, func(m int) int64 { return max(st.free(m), 0) + coming.of(m) })
	}
	if !ok {
		places, ok = st.inside(e, func(int) int64 { return none })
	}
	return places, ok
}

// free devices of a model: negative where more is held than there is.
func (st *State) free(m int) int64 { return st.models[m].free() }

// inside is where the entry would land there with as many devices of each model.
func (st *State) inside(e *entry, devices func(model int) int64) ([]place, bool) {
	t := e.tenant
	var places []place
	var own vec
	for i := range e.shape.requests {
		r := &e.shape.requests[i]
		if t.satisfied(r) {
			continue
		}
		left := e.shape.parts(r)
		for j := range r.alternatives {
			a := &r.alternatives[j]
			if satAdd(e.created, a.after) > st.now {
				continue
			}
			_, size := e.shape.units(r, a, e.shape.members)
			for _, m := range a.models {
				row := &t.rows[m]
				room := min(row.guaranteed-row.inside-row.reserved-row.kept, st.models[m].capacity, t.quotaRoom(m, row.committed()+row.reserved))
				room = min(room, satSub(devices(m), row.reserved))
				if k := min(left, (room-own.of(m))/size); k > 0 {
					left -= k
					own = own.add(m, k*size)
					places = append(places, place{i, j, m, k * size})
				}
			}
		}
		if left > 0 {
			return nil, false
		}
	}
	return places, true
}

// plan is where to wait for devices: of the ways that could serve the entry
// whole, the one that lacks the fewest, then the preferred. It says whether
// the tenant's own limit is among what lacks.
func (st *State) plan(e *entry) (places []place, limit, ok bool) {
	var target vec
	for i := range e.shape.requests {
		r := &e.shape.requests[i]
		if e.tenant.satisfied(r) {
			continue
		}
		var best place
		lack := int64(none)
		parts := e.shape.parts(r)
		for j := range r.alternatives {
			a := &r.alternatives[j]
			if satAdd(e.created, a.after) > st.now {
				continue
			}
			_, size := e.shape.units(r, a, e.shape.members)
			for _, m := range a.models {
				need := parts*size + target.of(m)
				if need > min(st.models[m].capacity, e.tenant.quotaRoom(m, 0), st.lendable(e, m)) {
					continue
				}
				if l := st.lacks(e, m, need); l < lack {
					best, lack = place{i, j, m, parts * size}, l
				}
			}
		}
		if best.n > 0 {
			places = append(places, best)
		} else if places, ok = st.spread(e, i, places); !ok {
			return nil, false, false
		}
		target = sum(places)
	}
	for _, a := range sum(places) {
		row := &e.tenant.rows[a.model]
		limit = limit || a.n > e.tenant.quotaRoom(a.model, row.committed()+row.reserved)
	}
	return places, limit, true
}

// lacks is how many of the devices are missing, by the limit or by the fleet.
func (st *State) lacks(e *entry, m int, need int64) int64 {
	row := &e.tenant.rows[m]
	free := max(st.models[m].free()-st.models[m].reserved+row.warm, 0)
	room := max(e.tenant.quotaRoom(m, row.committed()+row.reserved), 0)
	return max(need-free, need-room, 0)
}

// spread plans a gang that no single model could hold.
func (st *State) spread(e *entry, request int, places []place) ([]place, bool) {
	r := &e.shape.requests[request]
	left := e.shape.parts(r)
	for j := range r.alternatives {
		a := &r.alternatives[j]
		if satAdd(e.created, a.after) > st.now {
			continue
		}
		_, size := e.shape.units(r, a, e.shape.members)
		for _, m := range a.models {
			room := min(st.models[m].capacity, e.tenant.quotaRoom(m, 0), st.lendable(e, m)) - sum(places).of(m)
			if k := min(left, room/size); k > 0 {
				left -= k
				places = append(places, place{request, j, m, k * size})
			}
		}
	}
	return places, left == 0
}

// sum adds up places by model.
func sum(places []place) vec {
	var v vec
	for _, p := range places {
		v = v.add(p.model, p.n)
	}
	return v
}

// mayHold: the tenant's limit has room for it all.
func (t *tenant) mayHold(v vec) bool {
	return !slices.ContainsFunc(v, func(a amount) bool { return t.quotaRoom(a.model, t.rows[a.model].committed()) < a.n })
}

// same amounts, in any order.
func (v vec) same(o vec) bool {
	return len(v) == len(o) && !slices.ContainsFunc(v, func(a amount) bool { return o.of(a.model) != a.n })
}
