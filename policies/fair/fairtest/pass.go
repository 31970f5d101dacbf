package fairtest

// The twin's pass: the turns, the openings, and where entries land.

import (
	"cmp"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// part of an entry and where it lands.
type part = fair.Placement

// candidate is a waiting entry that a pass looks at.
type candidate struct {
	x             *work
	turn, then    *big.Int
	since, age    time.Time
	index         int
	entitled, fit bool
	inside        []part
	own           counts
	target        []part
	lack          counts
}

// pass is one look at all that waits.
type pass struct {
	w        *Twin
	b        *book
	aside    counts            // set aside, of the fleet
	kept     map[string]counts // set aside, of tenants' quotas
	warm     map[string]counts // of aside, what is kept for tenants that used it
	inner    map[string]counts // kept for older entries inside their tenants' guarantees
	pending  counts            // of aside, for the entitled who wait for what lacks to come
	within   map[string]counts // held by entries inside their tenants' guarantees
	turns    []*candidate
	entitled []*candidate
}

// Next answers as the engine must.
func (w *Twin) Next(now time.Time) []fair.Action {
	w.tick(now)
	var actions []fair.Action
	b := w.book()
	for _, x := range w.all(func(x *work) bool { return len(x.within) > 0 && x.undecided() > 0 && !x.noticed }) {
		if w.cfg.HoldFor >= 0 && b.short[x.ID] && !w.now.Before(x.bound.Add(w.cfg.HoldFor)) {
			x.within = nil
			actions = append(actions, fair.Action{Kind: fair.Widen, ID: x.ID, Tenant: x.Tenant})
		}
	}
	for {
		p := w.look()
		for {
			c, parts, held := p.choose()
			if c == nil {
				break
			}
			open := fair.Action{Kind: fair.Open, ID: c.x.ID, Tenant: c.x.Tenant, Placements: parts}
			if c.entitled && c.x.promised == nil {
				_, limited := w.quotas[c.x.Tenant]
				open.Since, open.Guaranteed = c.x.since, limited && same(sumOf(parts), c.own)
			}
			if held {
				open.Models = sorted(sumOf(parts))
			}
			actions = append(actions, open)
			w.open(c.x)
			c.x.within, c.x.bound, c.x.settled = open.Models, w.now, true
			if open.Guaranteed {
				c.x.inside = maps.Clone(c.own)
			}
			p = w.look()
		}
		more, again := p.reclaim()
		actions = append(actions, more...)
		if !again {
			return actions
		}
	}
}

func (w *Twin) shares() bool {
	return w.cfg.Mode == fair.Ladder || w.cfg.Mode == fair.LadderWithoutAging
}

// look lists what the pass looks at, by turn.
func (w *Twin) look() *pass {
	p := &pass{w: w, b: w.book(), aside: counts{}, kept: map[string]counts{}, warm: map[string]counts{}, inner: map[string]counts{}, within: map[string]counts{}, pending: counts{}}
	line := w.all(func(x *work) bool { return !x.opened })
	if len(line) == 0 || p.idle(line) {
		return p
	}
	if w.shares() {
		p.noteUse()
	}
	tenants := map[string][]*work{}
	for _, x := range line {
		tenants[x.Tenant] = append(tenants[x.Tenant], x)
	}
	names := counts{}
	for _, x := range w.work {
		names[x.Tenant] = 1
	}
	for _, name := range sorted(names) {
		p.lookAt(name, tenants[name])
	}
	slices.SortFunc(p.turns, func(a, b *candidate) int {
		order := cmp.Or(a.turn.Cmp(b.turn), a.then.Cmp(b.then))
		if !w.shares() {
			return cmp.Or(order, byID(a.x, b.x))
		}
		return cmp.Or(order, strings.Compare(a.x.Tenant, b.x.Tenant), cmp.Compare(a.index, b.index))
	})
	for _, c := range p.turns {
		if c.entitled {
			p.entitled = append(p.entitled, c)
		}
	}
	slices.SortFunc(p.entitled, func(a, b *candidate) int {
		return cmp.Or(a.since.Compare(b.since), a.age.Compare(b.age), strings.Compare(a.x.Tenant, b.x.Tenant), cmp.Compare(a.index, b.index))
	})
	return p
}

// idle: nothing is free, nobody has devices taken back, no notice is out and
// no shared claim is waited for, so a pass is not made.
func (p *pass) idle(line []*work) bool {
	for _, n := range p.b.free {
		if n > 0 {
			return false
		}
	}
	for _, x := range p.w.work {
		if x.noticed && p.w.shares() {
			return false
		}
	}
	return !slices.ContainsFunc(line, func(x *work) bool {
		shared := slices.ContainsFunc(x.Requests, func(r fair.Request) bool { return r.Claim != "" })
		return shared || p.w.shares() && x.Preempts != v1alpha1.PreemptsNever
	})
}

// raised: the entry has waited so long that it counts as of the highest priority.
func (w *Twin) raised(x *work) bool {
	return w.cfg.Mode == fair.Ladder && w.cfg.PriorityAging >= 0 && !w.now.Before(x.Created.Add(w.cfg.PriorityAging))
}

// inTenant is a tenant's own order.
func (w *Twin) inTenant(x, y *work) int {
	switch {
	case w.raised(x) && w.raised(y):
		return byAge(x, y)
	case w.raised(x):
		return -1
	case w.raised(y):
		return 1
	}
	return cmp.Or(cmp.Compare(y.Priority, x.Priority), byAge(x, y))
}

// lookAt goes along a tenant's own order.
func (p *pass) lookAt(tenant string, line []*work) {
	w := p.w
	slices.SortFunc(line, w.inTenant)
	share := big.NewInt(w.share(p.b, tenant))
	borrowers := p.borrowers(tenant)
	defer func() { p.settle(borrowers, nil) }()
	var last *candidate
	first := &candidate{} // the last of the entitled so far
	var waits, seen []*work
	alike := func(list []*work, x *work) bool { return slices.ContainsFunc(list, x.alike) }
	for index, x := range line {
		if alike(waits, x) {
			continue
		}
		borrowers = p.settle(borrowers, x)
		c := &candidate{x: x, index: index, age: x.Created}
		if w.shares() {
			switch {
			case x.promised != nil:
				c.entitled, c.inside = true, x.promised
			default:
				c.inside, c.entitled = p.guaranteed(x)
			}
			c.own = sumOf(c.inside)
		}
		if !c.entitled {
			x.since = time.Time{}
			if w.keeps(x) {
				p.keepInside(x)
			}
			waits = append(waits, x)
			if alike(seen, x) || w.cooling(x) {
				continue
			}
		} else {
			if x.since.IsZero() {
				x.since = w.now
			}
			c.since = x.since
			if c.since.Before(first.since) {
				c.since = first.since
			}
			if c.age.Before(first.age) {
				c.age = first.age
			}
			first = c
			for m, n := range c.own {
				add(p.kept, tenant, m, n)
			}
		}
		seen = append(seen, x)
		created := big.NewInt(x.Created.UnixNano())
		switch w.cfg.Mode {
		case fair.FIFO:
			c.turn, c.then = created, new(big.Int)
		case fair.PriorityOnly:
			c.turn, c.then = big.NewInt(-int64(x.Priority)), created
		case fair.LadderWithoutAging:
			c.turn, c.then = share, created
		case fair.Ladder:
			later := new(big.Int).Mul(share, big.NewInt(int64(w.cfg.Aging)))
			c.turn, c.then = later.Add(created, later.Div(later, big.NewInt(1_000_000_000_000))), created
			if end := big.NewInt(math.MaxInt64); c.turn.Cmp(end) > 0 {
				c.turn = end
			}
		}
		if last != nil && w.shares() {
			if cmp.Or(c.turn.Cmp(last.turn), c.then.Cmp(last.then)) < 0 {
				c.turn, c.then = last.turn, last.then
			}
		}
		last = c
		p.turns = append(p.turns, c)
	}
}

// satisfied: the request shares a claim that is held already.
func (p *pass) satisfied(x *work, r fair.Request) bool {
	return r.Claim != "" && p.w.used(x.Tenant, r.Claim)
}

func (p *pass) committed(tenant, model string) int64 {
	return p.b.alloc[tenant][model] + p.b.both[tenant][model]
}

func (p *pass) held(tenant, model string) int64 {
	return p.b.alloc[tenant][model] + p.b.hold[tenant][model]
}

// guaranteed is where an entry fits inside its tenant's guarantee: on free devices,
// else with those that are taken back for it, else on any.
func (p *pass) guaranteed(x *work) ([]part, bool) {
	coming, more := counts{}, counts{}
	for _, v := range p.w.work {
		if v.noticed && v.servant == x.ID {
			for m, n := range p.b.freed[v.ID] {
				coming[m] += n
			}
		}
	}
	for m := range p.w.models() {
		coming[m] += max(p.b.free[m], 0)
		more[m] = 1 << 50
	}
	out, ok := p.inside(x, p.b.free)
	if !ok {
		out, ok = p.inside(x, coming)
	}
	if !ok {
		out, ok = p.inside(x, more)
	}
	return out, ok
}

// inside is where it fits there with as many devices.
func (p *pass) inside(x *work, devices counts) ([]part, bool) {
	var out []part
	own := counts{}
	for i, r := range x.Requests {
		if p.satisfied(x, r) {
			continue
		}
		left, _ := x.parts(r, r.Alternatives[0], x.Members)
		for j, a := range r.Alternatives {
			_, size := x.parts(r, a, x.Members)
			for _, m := range a.Models {
				room := p.w.guaranteed(x.Tenant, m) - p.within[x.Tenant][m] - p.kept[x.Tenant][m] - p.inner[x.Tenant][m]
				room = min(room, p.w.fleet[m], devices[m]-p.kept[x.Tenant][m], p.room(x, m)) - own[m]
				if k := min(left, room/size); k > 0 && p.w.allowed(x, a) {
					left -= k
					own[m] += k * size
					out = append(out, part{Request: i, Alternative: j, Model: m, Count: k * size})
				}
			}
		}
		if left > 0 {
			return nil, false
		}
	}
	return out, true
}

func sumOf(parts []part) counts {
	c := counts{}
	for _, q := range parts {
		c[q.Model] += q.Count
	}
	return c
}

// same amounts.
func same(a, b counts) bool {
	for _, c := range []counts{a, b} {
		for m := range c {
			if a[m] != b[m] {
				return false
			}
		}
	}
	return true
}

// choose returns the first that can be opened, where it lands, and whether it is
// held to that.
func (p *pass) choose() (*candidate, []part, bool) {
	var behind []*work
	for _, c := range p.entitled {
		c.fit = true
		for m, n := range c.own {
			c.fit = c.fit && p.b.free[m]-p.aside[m] >= n
		}
		served := slices.ContainsFunc(p.w.all(func(x *work) bool { return x.noticed }), func(x *work) bool { return x.servant == c.x.ID })
		for m, n := range c.own {
			p.aside[m] += n
			if !c.fit && (served || c.x.Preempts == v1alpha1.PreemptsNever) {
				p.pending[m] += n
			}
		}
		if !c.fit || slices.ContainsFunc(behind, c.x.alike) {
			continue
		}
		if parts, ok, _ := p.land(c, true, nil); ok && same(sumOf(parts), c.own) {
			return c, parts, false
		}
		behind = append(behind, c.x)
	}
	behind = nil
	if p.w.shares() {
		p.keepWarm()
	}
	for _, c := range p.turns {
		if c.entitled && c.x.promised == nil || slices.ContainsFunc(behind, c.x.alike) {
			continue
		}
		parts, ok, devices := p.land(c, false, nil)
		if ok {
			return c, parts, false
		}
		if parts, ok := p.heldTo(c); ok {
			return c, parts, true
		}
		behind = append(behind, c.x)
		if p.w.cfg.Mode == fair.FIFO && devices {
			return nil, nil, false
		}
		if p.w.shares() && !c.entitled {
			p.waitFor(c)
		}
	}
	for _, c := range p.turns {
		if !c.entitled || c.x.promised != nil {
			continue
		}
		if parts, ok, _ := p.land(c, false, nil); ok && !p.w.cooling(c.x) {
			return c, parts, false
		}
		if parts, ok := p.heldTo(c); ok {
			return c, parts, true
		}
	}
	return nil, nil, false
}

// heldTo is where an entry lands that may use the models of its own devices only:
// on these, or nowhere.
func (p *pass) heldTo(c *candidate) ([]part, bool) {
	if !c.fit || len(sorted(c.own)) == 0 {
		return nil, false
	}
	parts, ok, _ := p.land(c, true, c.own)
	if !ok {
		parts, ok = c.inside, true
	}
	for m, n := range c.own {
		ok = ok && p.w.limit(c.x.Tenant, m)-p.committed(c.x.Tenant, m) >= n
	}
	return parts, ok && same(sumOf(parts), c.own)
}

// land finds places; else it says whether only devices were missing. With all it
// is where who places the entry would put it, whatever is set aside for others. It
// may be held to the models of within.
func (p *pass) land(c *candidate, all bool, within counts) (out []part, ok, devices bool) {
	w, x := p.w, c.x
	taken := counts{}
	for i, r := range x.Requests {
		if p.satisfied(x, r) {
			continue
		}
		devices = false
		left, _ := x.parts(r, r.Alternatives[0], x.Members)
		for j, a := range r.Alternatives {
			if !w.allowed(x, a) {
				continue
			}
			_, size := x.parts(r, a, x.Members)
			for _, m := range a.Models {
				if left == 0 {
					break
				}
				if within != nil && within[m] == 0 {
					continue
				}
				quota := w.limit(x.Tenant, m) - p.committed(x.Tenant, m) - p.kept[x.Tenant][m] + c.own[m] - taken[m]
				free := p.b.free[m] - taken[m]
				k := min(left, quota/size, free/size)
				if k < left && quota >= size && w.fleet[m] >= size && free/size <= k {
					devices = true
				}
				if k <= 0 {
					continue
				}
				mine := min(max(free-p.aside[m]+c.own[m]+p.warm[x.Tenant][m], 0)/size, max(p.lent(x, m)-taken[m], 0)/size)
				if c.entitled && (c.x.promised == nil || c.fit) {
					mine = max(free-p.pending[m]+c.own[m], 0) / size
				}
				if !all && mine < k {
					return nil, false, false
				}
				left -= k
				taken[m] += k * size
				out = append(out, part{Request: i, Alternative: j, Model: m, Count: k * size})
			}
		}
		if left > 0 {
			return nil, false, devices
		}
	}
	return out, true, false
}

// lent is how much an entry may hold that can't be taken back.
func (p *pass) lent(x *work, m string) int64 {
	if !p.w.shares() || p.w.cfg.LendFirmly || !x.firm() {
		return 1 << 60
	}
	rest := p.w.fleet[m]
	for tenant := range p.w.quotas {
		rest -= p.w.guaranteed(tenant, m)
	}
	rest = max(rest, 0)
	for tenant, c := range p.b.firm {
		rest -= max(c[m]-p.w.guaranteed(tenant, m), 0)
	}
	return max(rest, 0) + max(p.w.guaranteed(x.Tenant, m)-p.b.firm[x.Tenant][m], 0)
}

// waitFor says what an entry waits for and keeps it from later turns.
func (p *pass) waitFor(c *candidate) {
	w, x := p.w, c.x
	keeps := w.reserves(x)
	if !keeps && x.Preempts != v1alpha1.PreemptsLowerPriority {
		return
	}
	target, ok := p.plan(x)
	if !ok {
		return
	}
	c.target, c.lack = target, counts{}
	limit := false
	for m, n := range sumOf(target) {
		c.lack[m] = p.lacks(x, m, n)
		limit = limit || n > p.room(x, m)
		if p.lent(x, m) < n {
			c.target = nil
		}
	}
	for m, n := range sumOf(target) {
		if keeps {
			add(p.kept, x.Tenant, m, n)
		}
		if keeps && !limit {
			warm := min(p.warm[x.Tenant][m], n)
			add(p.warm, x.Tenant, m, -warm)
			p.aside[m] += n - warm
		}
	}
}

// reserves: the entry has waited so long that devices are set aside for it.
func (w *Twin) reserves(x *work) bool {
	return w.cfg.Mode == fair.Ladder && w.cfg.ReserveAfter >= 0 && !w.now.Before(x.Created.Add(w.cfg.ReserveAfter))
}

// keeps: the entry has waited so long that its part of the guarantee is kept.
func (w *Twin) keeps(x *work) bool {
	return w.cfg.Mode == fair.Ladder && w.cfg.KeepAfter >= 0 && !w.now.Before(x.Created.Add(w.cfg.KeepAfter))
}

func (p *pass) room(x *work, m string) int64 {
	return p.w.limit(x.Tenant, m) - p.committed(x.Tenant, m) - p.kept[x.Tenant][m]
}

func (p *pass) lacks(x *work, m string, n int64) int64 {
	return max(n-max(p.b.free[m]-p.aside[m]+p.warm[x.Tenant][m], 0), n-max(p.room(x, m), 0), 0)
}

// most of a model that an entry could ever hold.
func (p *pass) most(x *work, m string) int64 {
	most := min(p.w.fleet[m], p.w.limit(x.Tenant, m))
	if !p.w.cfg.LendFirmly && x.firm() {
		rest := p.w.fleet[m]
		for tenant := range p.w.quotas {
			rest -= p.w.guaranteed(tenant, m)
		}
		most = min(most, max(rest, 0)+p.w.guaranteed(x.Tenant, m))
	}
	return most
}

// plan chooses what lacks the fewest devices, else spreads a gang.
func (p *pass) plan(x *work) ([]part, bool) {
	var out []part
	for i, r := range x.Requests {
		if p.satisfied(x, r) {
			continue
		}
		best, lack := part{}, int64(0)
		left, _ := x.parts(r, r.Alternatives[0], x.Members)
		var spread []part
		for j, a := range r.Alternatives {
			if !p.w.allowed(x, a) {
				continue
			}
			all, size := x.parts(r, a, x.Members)
			for _, m := range a.Models {
				taken := sumOf(out)[m]
				if need := all*size + taken; need <= p.most(x, m) {
					if l := p.lacks(x, m, need); best.Count == 0 || l < lack {
						best, lack = part{Request: i, Alternative: j, Model: m, Count: all * size}, l
					}
				}
				if k := min(left, (p.most(x, m)-taken-sumOf(spread)[m])/size); k > 0 {
					left -= k
					spread = append(spread, part{Request: i, Alternative: j, Model: m, Count: k * size})
				}
			}
		}
		switch {
		case best.Count > 0:
			out = append(out, best)
		case left > 0:
			return nil, false
		default:
			out = append(out, spread...)
		}
	}
	return out, true
}
