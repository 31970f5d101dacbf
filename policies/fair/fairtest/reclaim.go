package fairtest

// The twin's reclaim: every set of victims is looked at.

import (
	"cmp"
	"slices"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// undo is the twin's view in a reclaim: what is free, what comes, who leaves.
type undo struct {
	p       *pass
	free    counts
	coming  counts
	orphans []*work
	actions []fair.Action
}

func byLine(a, b *work) int { return cmp.Or(a.deadline.Compare(b.deadline), byID(a, b)) }

// leaving devices of a tenant: deleted, or with notice, or in the set.
func (u *undo) leaving(tenant, model string, more []*work) int64 {
	var n int64
	for _, x := range u.p.w.work {
		if x.Tenant == tenant && (x.deleted || x.noticed || slices.Contains(more, x)) {
			n += u.p.b.freed[x.ID][model]
		}
	}
	return n
}

// short: an entry's tenant would be below its guarantee of a model that the
// entry holds.
func (u *undo) short(x *work, more []*work) bool {
	b := u.p.b
	for m, n := range b.freed[x.ID] {
		if n > 0 && b.alloc[x.Tenant][m]+b.hold[x.Tenant][m]-u.leaving(x.Tenant, m, more) < u.p.w.guaranteed(x.Tenant, m) {
			return true
		}
	}
	return false
}

func (u *undo) take(m string, n int64) int64 {
	k := min(n, u.free[m])
	u.free[m] -= k
	j := min(n-k, u.coming[m])
	u.coming[m] -= j
	return n - k - j
}

func (u *undo) come(x *work) {
	for m, n := range u.p.b.freed[x.ID] {
		u.coming[m] += n
	}
}

func (u *undo) cancel(x *work) {
	u.actions = append(u.actions, fair.Action{Kind: fair.Cancel, ID: x.ID, Tenant: x.Tenant, For: x.servant})
	x.noticed, x.servant = false, ""
}

// reclaim gives and withdraws notices and evicts, and asks for another round.
func (p *pass) reclaim() ([]fair.Action, bool) {
	if !p.w.shares() {
		return nil, false
	}
	u := &undo{p: p, free: counts{}, coming: counts{}}
	for m, n := range p.b.free {
		u.free[m] = max(n, 0)
	}
	served := func(id string) bool {
		return slices.ContainsFunc(p.entitled, func(c *candidate) bool { return c.x.ID == id })
	}
	pending := p.w.all(func(x *work) bool { return x.noticed && !x.going && !x.deleted })
	slices.SortFunc(pending, func(a, b *work) int { return byLine(b, a) })
	for _, x := range pending {
		s := p.w.work[x.servant]
		switch {
		case (s == nil || s.Tenant != x.Tenant) && u.short(x, nil):
			u.cancel(x)
		case !served(x.servant):
			u.orphans = append(u.orphans, x)
		}
	}
	slices.SortFunc(u.orphans, byLine)
	for _, x := range p.w.work {
		if x.deleted || x.going || x.noticed && served(x.servant) {
			u.come(x)
		}
	}
	for _, c := range p.entitled {
		u.serve(c)
	}
	for _, c := range p.turns {
		if !c.entitled && c.target != nil && c.x.Preempts == v1alpha1.PreemptsLowerPriority {
			u.takeBack(c, c.lack)
		}
	}
	for _, x := range u.orphans {
		u.cancel(x)
	}
	due := p.w.all(func(x *work) bool { return x.noticed && !x.going && !x.deleted && !x.deadline.After(p.w.now) })
	slices.SortFunc(due, byLine)
	for _, x := range due {
		x.going = true
		u.actions = append(u.actions, fair.Action{Kind: fair.Evict, ID: x.ID, Tenant: x.Tenant, For: x.servant})
	}
	again := len(u.actions) > 0
	for _, c := range p.entitled {
		servants := p.w.all(func(x *work) bool { return x.servant == c.x.ID })
		if c.x.promised != nil && len(servants) == 0 {
			c.x.promised, again = nil, true
		}
	}
	return u.actions, again
}

func (u *undo) serve(c *candidate) {
	lack := counts{}
	takes := c.x.Preempts != v1alpha1.PreemptsNever
	for _, m := range sorted(c.own) {
		n := u.take(m, c.own[m])
		if takes && c.x.promised == nil {
			u.orphans = slices.DeleteFunc(u.orphans, func(x *work) bool {
				if n == 0 || x.Tenant == c.x.Tenant || u.p.b.freed[x.ID][m] == 0 {
					return false
				}
				x.servant = c.x.ID
				u.come(x)
				n = u.take(m, n)
				return true
			})
		}
		if n > 0 {
			lack[m] = n
		}
	}
	if len(lack) > 0 && takes {
		u.takeBack(c, lack)
		for m, n := range lack {
			u.take(m, n)
		}
	}
}

// sorted lists the models that c counts, by name.
func sorted(c counts) []string {
	var out []string
	for m, n := range c {
		if n > 0 {
			out = append(out, m)
		}
	}
	slices.Sort(out)
	return out
}

func (u *undo) takeBack(c *candidate, lack counts) {
	var chosen []*work
	for _, m := range sorted(lack) {
		n := lack[m]
		for _, x := range chosen {
			n -= u.p.b.freed[x.ID][m]
		}
		if n <= 0 {
			continue
		}
		var more []*work
		ok := false
		for try := 0; try < 6 && !ok; try++ {
			more, ok = u.victims(c, m, n, chosen, try%2 == 1, try/2 == 0, try/2 == 1)
		}
		if !ok {
			return
		}
		chosen = append(chosen, more...)
	}
	if len(chosen) > 0 && !c.entitled {
		c.x.promised = c.target
	}
	deadline := u.p.w.now.Add(max(u.p.w.cfg.Notice, 0))
	for _, x := range chosen {
		x.noticed, x.servant, x.deadline = true, c.x.ID, deadline
		u.come(x)
		u.actions = append(u.actions, fair.Action{Kind: fair.Notice, ID: x.ID, Tenant: x.Tenant, For: c.x.ID, Deadline: deadline})
	}
}

// victims looks at every set. With own they are of what the tenant itself borrows;
// with borrow, entries of others that are inside their guarantees are left out.
func (u *undo) victims(c *candidate, m string, n int64, chosen []*work, pure, own, borrow bool) ([]*work, bool) {
	b, w := u.p.b, u.p.w
	spare := func(tenant string, more []*work) int64 {
		if tenant == c.x.Tenant {
			return 1 << 60
		}
		return b.alloc[tenant][m] + b.hold[tenant][m] - u.leaving(tenant, m, append(slices.Clone(chosen), more...)) - w.guaranteed(tenant, m)
	}
	can := w.all(func(x *work) bool {
		free := b.freed[x.ID]
		switch {
		case !x.opened || x.deleted || x.noticed || x.firm() || slices.Contains(chosen, x) || free[m] == 0:
			return false
		case pure && len(sorted(free)) > 1, borrow && x.inside != nil && x.Tenant != c.x.Tenant:
			return false
		case x.Tenant == c.x.Tenant && w.inTenant(c.x, x) > 0:
			return false
		case x.Tenant == c.x.Tenant && x.inside == nil && c.entitled && c.x.promised == nil:
			return true
		case x.Tenant == c.x.Tenant:
			return !own && c.x.Preempts == v1alpha1.PreemptsLowerPriority && x.Priority < c.x.Priority
		}
		return !own && c.entitled && c.x.promised == nil && spare(x.Tenant, []*work{x}) >= 0
	})
	lost := func(x *work) int64 {
		var worth int64
		for m, n := range x.own {
			worth += n * w.cost(m)
		}
		return worth * max(w.now.Sub(x.started), 0).Milliseconds()
	}
	slices.SortFunc(can, func(a, b *work) int {
		return cmp.Or(cmp.Compare(lost(a), lost(b)), b.Created.Compare(a.Created), byID(a, b))
	})
	var best []int
	var bestKey [3]int64
	for set := 1; set < 1<<len(can); set++ {
		var ranks []int
		var key [3]int64 // lost work, devices, entries
		var list []*work
		for i, x := range can {
			if set>>i&1 == 1 {
				ranks, list = append(ranks, i), append(list, x)
				key[0] += lost(x)
				key[1] += b.freed[x.ID][m]
				key[2]++
			}
		}
		if key[1] < n || slices.ContainsFunc(list, func(x *work) bool { return spare(x.Tenant, list) < 0 }) {
			continue
		}
		if best == nil || cmp.Or(slices.Compare(key[:], bestKey[:]), slices.Compare(ranks, best)) < 0 {
			best, bestKey = ranks, key
		}
	}
	var out []*work
	for _, i := range best {
		out = append(out, can[i])
	}
	bad := slices.ContainsFunc(out, func(x *work) bool {
		return x.Tenant != c.x.Tenant && u.short(x, append(slices.Clone(chosen), out...))
	})
	return out, best != nil && !bad
}
