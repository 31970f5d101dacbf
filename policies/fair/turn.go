package fair

// Whose turn it is: the order of what waits, and the pass along it that opens
// one entry or finds that none can be opened.

import (
	"cmp"
	"slices"
	"time"
)

// Kind is what an Action asks for.
type Kind int

const (
	// Open the gate.
	Open Kind = iota
	// Notice: tell the entry that its devices will be taken back at Deadline.
	Notice
	// Evict: take them back now.
	Evict
	// Cancel: the notice is void, the devices are not needed or not borrowed any more.
	Cancel
	// Widen: the entry may use all models that it accepts from now on, since those
	// that its opening named are gone.
	Widen
)

// String names the kind.
func (k Kind) String() string {
	return [...]string{"Open", "Notice", "Evict", "Cancel", "Widen"}[k]
}

// Action is what has to be done. The State takes it as done; Requeued and
// ReclaimCancelled tell it where that was not possible.
type Action struct {
	Kind   Kind
	ID     string
	Tenant string
	// Placements are where an opened entry is expected to land.
	Placements []Placement
	// Models that an opened entry may use, by name; empty: any. Others that it
	// accepts are free, but set aside for others, and whoever places it must not
	// use those.
	Models []string
	// Guaranteed: an opened entry is inside its tenant's guarantee.
	Guaranteed bool
	// Since when an opened entry has been entitled without a break: how long
	// it has waited for what it is guaranteed. Zero: it was not.
	Since time.Time
	// For is the entry that the devices are taken back for.
	For string
	// Deadline of a notice.
	Deadline time.Time
}

// Placement is a part of an entry and where it lands.
type Placement struct {
	Request, Alternative int
	Model                string
	Count                int64
}

// item is a waiting entry in a pass.
type item struct {
	e      *entry
	hi, lo int64 // the turn; the lower goes first
	since  int64 // the turn among the entitled: since when,
	age    int64 // then when it came
	index  int   // in the tenant's order
	// entitled entries have own devices set aside; fit: they are there.
	entitled, fit bool
	places        []place // inside the guarantee, or promised
	own           vec
	verdict       verdict
	landing       []place
	// target is what would have to be taken back for it outside the guarantee
	// to serve it, lack what is missing of that.
	target []place
	lack   vec
	// held: it is opened for the models of places only.
	held bool
}

func byTurn(a, b *item) int {
	return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo), cmp.Compare(a.e.tenant.name, b.e.tenant.name), cmp.Compare(a.index, b.index))
}

func byEntitlement(a, b *item) int {
	return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.age, b.age), cmp.Compare(a.e.tenant.name, b.e.tenant.name), cmp.Compare(a.index, b.index))
}

// Next returns what has to be done now, in order. Asked again at the same time
// without a new event, it returns nothing.
func (st *State) Next(now time.Time) []Action {
	st.advance(now)
	actions := st.widen()
	for {
		for st.mayOpen() {
			st.look(true)
			it := st.choose(false)
			if it == nil {
				break
			}
			actions = append(actions, st.carryOut(it))
		}
		more, again := st.reclaim()
		actions = append(actions, more...)
		if !again {
			return actions
		}
	}
}

// mayOpen is false where a pass would find nothing: the quick way out of the
// many events that free nothing.
func (st *State) mayOpen() bool {
	st.order, st.needy = st.order[:0], st.needy[:0]
	if st.waiting == 0 {
		return false
	}
	st.settle()
	if st.sharers > 0 || st.cfg.Mode.shares() && (st.servers > 0 || len(st.noticed) > 0) {
		return true
	}
	for i := range st.models {
		if st.models[i].free() > 0 {
			return true
		}
	}
	return false
}

// rank is the priority that counts now: what has waited long is among the highest.
func (st *State) rank(s *shape, e *entry) int64 { return st.rankOf(s.priority, e.created) }

func (st *State) rankOf(priority int32, created int64) int64 {
	if st.longSince(created, st.cfg.PriorityAging) {
		return none
	}
	return int64(priority)
}

// look starts a pass: it lists what may be opened, in order of the turns. With
// stamp it notes since when the entitled are.
func (st *State) look(stamp bool) {
	st.settle()
	st.pass++
	st.items = st.items[:0]
	for i := range st.models {
		st.models[i].reserved = 0
	}
	clear(st.coming)
	for _, v := range st.noticed {
		for _, a := range v.holds() {
			st.coming[v.servant] = st.coming[v.servant].add(a.model, a.n)
		}
	}
	if stamp && st.cfg.Mode.shares() {
		st.noteUse()
	}
	for _, t := range st.tenants {
		for i := range t.rows {
			t.rows[i].reserved, t.rows[i].kept, t.rows[i].warm = 0, 0, 0
		}
		if t.waiting == 0 {
			if st.cfg.Mode.shares() {
				st.settleInside(t, st.borrowers(t), nil, stamp)
			}
			continue
		}
		switch st.cfg.Mode {
		case Ladder, LadderWithoutAging:
			t.share = st.shareOf(t)
			st.lookAt(t, stamp)
		case PriorityOnly, FIFO:
			for _, s := range t.shapes {
				st.items = append(st.items, item{e: s.line[0]})
			}
		}
	}
	st.order = st.order[:0]
	for i := range st.items {
		it := &st.items[i]
		switch st.cfg.Mode {
		case PriorityOnly:
			it.hi, it.lo = -int64(it.e.shape.priority), it.e.created
		case FIFO:
			it.hi = it.e.created
		}
		st.order = append(st.order, it)
	}
	if !st.cfg.Mode.shares() {
		slices.SortFunc(st.order, func(a, b *item) int {
			return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo), cmp.Compare(a.e.id, b.e.id))
		})
		return
	}
	slices.SortFunc(st.order, byTurn)
}

// lookAt lists a tenant's entries in the tenant's own order: what is entitled,
// and of those alike that are not the oldest. What runs is looked at in the same
// order, so that the guarantee is used up as if the tenant were alone.
func (st *State) lookAt(t *tenant, stamp bool) {
	last := item{hi: minTime, lo: minTime}
	since, age := int64(minTime), int64(minTime) // of the entitled so far
	borrowers := st.borrowers(t)
	guaranteed := t.mayBeEntitled()
	for _, s := range t.shapes {
		s.cursor, s.listed = 0, false
	}
	for index := 0; ; index++ {
		var next *shape
		for _, s := range t.shapes {
			if s.cursor >= 0 && s.cursor < len(s.line) && (next == nil || st.goesFirst(s, next)) {
				next = s
			}
		}
		if next == nil {
			st.settleInside(t, borrowers, nil, stamp)
			return
		}
		e := next.line[next.cursor]
		borrowers = st.settleInside(t, borrowers, e, stamp)
		it := item{e: e, index: index}
		if e.promised != nil {
			it.entitled, it.places = true, e.promised
		} else if guaranteed {
			it.places, it.entitled = st.entitled(e)
		}
		if it.entitled {
			// What is not entitled stands in nobody's way here.
			own := e.since
			if own == 0 {
				own = st.now
			}
			if stamp {
				e.since = own
			}
			since, age = max(since, own), max(age, e.created)
			it.since, it.age = since, age
			it.own = sum(it.places)
			for _, a := range it.own {
				t.rows[a.model].reserved += a.n
			}
			next.cursor++
		} else {
			if stamp {
				e.since = 0
			}
			if guaranteed && st.waited(e, st.cfg.KeepAfter) {
				st.keepInside(e)
			}
			next.cursor = -1
			if next.listed || st.cooling(e) {
				continue // one alike is looked at already, or none may borrow
			}
		}
		next.listed = true
		it.hi, it.lo = st.turn(e)
		// The tenant's own order holds inside the order of all.
		if it.hi < last.hi || it.hi == last.hi && it.lo < last.lo {
			it.hi, it.lo = last.hi, last.lo
		}
		last = it
		st.items = append(st.items, it)
	}
}

// goesFirst compares the lines of two shapes of a tenant by whose turn it is.
func (st *State) goesFirst(a, b *shape) bool {
	x, y := a.line[a.cursor], b.line[b.cursor]
	return cmp.Or(cmp.Compare(st.rank(b, y), st.rank(a, x)), byAge(x, y)) < 0
}

// mayBeEntitled is false where a guarantee is used up or there is none. With
// shared claims there can be entries that need nothing more.
func (t *tenant) mayBeEntitled() bool {
	for i := range t.rows {
		if r := &t.rows[i]; r.guaranteed > r.inside {
			return true
		}
	}
	return len(t.claims) > 0
}

// turn of an entry: when it came, plus what its tenant's share counts as.
func (st *State) turn(e *entry) (int64, int64) {
	if st.cfg.Mode == LadderWithoutAging {
		return e.tenant.share, e.created
	}
	return satAdd(e.created, mulDiv(int64(st.cfg.Aging), e.tenant.share, scale)), e.created
}

// choose goes along the turns and returns the first entry that can be opened.
// With dry it goes to the end, for the verdicts alone.
func (st *State) choose(dry bool) *item {
	if st.cfg.Mode.shares() {
		if it := st.chooseEntitled(dry); it != nil {
			return it
		}
	}
	if st.cfg.Mode.shares() {
		st.keepWarm()
	}
	stopped := false
	for _, it := range st.order {
		if it.inside() {
			continue
		}
		if stopped || it.e.shape.pass == st.pass {
			it.verdict = heldBack
			continue
		}
		if st.try(it) {
			if !dry {
				return it
			}
			continue
		}
		it.e.shape.pass = st.pass
		stopped = st.cfg.Mode == FIFO && it.verdict == noFreeDevices
		if !it.entitled && st.cfg.Mode.shares() {
			st.waitFor(it)
		}
	}
	// Those whose guarantee has room come last: what they prefer to it and is
	// free goes to those that have nothing else.
	for _, it := range st.order {
		if it.inside() && st.try(it) && !dry {
			return it
		}
	}
	return nil
}

// inside: the tenant's guarantee has room for the entry.
func (it *item) inside() bool { return it.entitled && it.e.promised == nil }

// try finds where an entry would land, and is true if it may be opened for that.
// One that has own devices set aside, and would land on those of others or may not
// borrow, is held to its own.
func (st *State) try(it *item) bool {
	it.verdict = setAside
	if !it.inside() || !st.cooling(it.e) {
		y := try{st: st, e: it.e, own: it.own, entitled: it.inside() || it.fit}
		it.landing, it.verdict = y.land()
	}
	if it.verdict != fits && it.fit && len(it.own) > 0 {
		// Held to these models it must not take more of them, or above the limit.
		y := try{st: st, e: it.e, own: it.own, force: true, within: it.own}
		landing, v := y.land()
		if v != fits {
			landing = it.places
		}
		if sum(landing).same(it.own) && it.e.tenant.mayHold(it.own) {
			it.landing, it.verdict, it.held = landing, fits, true
		}
	}
	return it.verdict == fits
}

// chooseEntitled sets aside what the entitled are guaranteed, in order of age,
// and returns the first that lands there. One that would land outside the
// guarantee leaves that to all others first, with its own devices set aside.
func (st *State) chooseEntitled(dry bool) *item {
	st.needy = st.needy[:0]
	for i := range st.models {
		st.models[i].pending = 0
	}
	for _, it := range st.order {
		if it.entitled {
			st.needy = append(st.needy, it)
		}
	}
	slices.SortFunc(st.needy, byEntitlement)
	for _, it := range st.needy {
		it.fit = true
		for _, a := range it.own {
			m := &st.models[a.model]
			it.fit = it.fit && m.free()-m.reserved >= a.n
			m.reserved += a.n
		}
		if !it.fit && (st.coming[it.e.id] != nil || !takesBack(it.e.shape.preempts)) {
			for _, a := range it.own {
				st.models[a.model].pending += a.n
			}
		}
		if !it.fit || dry || it.e.shape.pass == st.pass {
			continue
		}
		y := try{st: st, e: it.e, own: it.own, force: true}
		if landing, v := y.land(); v == fits && sum(landing).same(it.own) {
			it.landing = landing
			return it
		}
		it.e.shape.pass = st.pass
	}
	// Those that are held back here still have their turn among all.
	for _, it := range st.needy {
		it.e.shape.pass = 0
	}
	return nil
}

// carryOut opens the entry's gate.
func (st *State) carryOut(it *item) Action {
	e := it.e
	a := Action{Kind: Open, ID: e.id, Tenant: e.tenant.name, Guaranteed: e.tenant.limited && it.inside() && sum(it.landing).same(it.own)}
	for _, p := range it.landing {
		a.Placements = append(a.Placements, Placement{p.request, p.alternative, st.models[p.model].name, p.n})
	}
	if it.inside() {
		a.Since = instant(e.since)
	}
	st.open(e)
	e.settled = true
	if a.Guaranteed {
		e.inside = slices.Clone(it.own)
	}
	if it.held {
		for _, m := range sum(it.landing) {
			e.within = append(e.within, m.model)
			a.Models = append(a.Models, st.models[m.model].name)
		}
		slices.Sort(a.Models)
		st.hold(e)
	}
	return a
}

func instant(ns int64) time.Time { return time.Unix(0, ns).UTC() }
