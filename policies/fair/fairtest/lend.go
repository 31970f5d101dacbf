package fairtest

// The twin's view of what is not lent: what owners used a short time ago, and
// what older entries keep inside their tenant's guarantee.

import (
	"slices"
	"strings"
)

// noteUse moves the marks.
func (p *pass) noteUse() {
	w := p.w
	for tenant, q := range w.quotas {
		for _, m := range q.Models {
			if m.Guaranteed == 0 {
				continue
			}
			key, used := tenant+"/"+m.Model, min(p.held(tenant, m.Model), m.Guaranteed)
			if old := w.marks[key]; used >= old.n || !w.now.Before(old.at.Add(w.cfg.LendAfter)) {
				w.marks[key] = mark{used, w.now}
			}
		}
	}
}

// borrowers counts what a tenant holds inside its guarantee, and returns what runs
// outside of it: first what goes before all that wait, then in the tenant's own
// order.
func (p *pass) borrowers(tenant string) []*work {
	if !p.w.shares() {
		return nil
	}
	for key, c := range p.w.claims {
		if owner, _, _ := strings.Cut(key, "/"); owner == tenant {
			for m, n := range c {
				add(p.within, tenant, m, n)
			}
		}
	}
	running := p.w.all(func(x *work) bool { return x.Tenant == tenant && x.opened })
	for _, x := range running {
		if x.inside != nil {
			for m, n := range p.b.freed[x.ID] {
				add(p.within, tenant, m, n)
			}
		}
	}
	running = slices.DeleteFunc(running, func(x *work) bool { return x.inside != nil || x.deleted })
	slices.SortFunc(running, p.w.inTenant)
	slices.SortStableFunc(running, func(x, y *work) int {
		switch first := x.comesFirst(); {
		case first == y.comesFirst():
			return 0
		case first:
			return -1
		}
		return 1
	})
	return running
}

// comesFirst: an entry that runs goes before all that wait.
func (x *work) comesFirst() bool { return x.firm() || !x.settled && !x.noticed }

// settle lets those inside the guarantee for which it has room, up to the one that
// comes after the next that waits.
func (p *pass) settle(list []*work, next *work) []*work {
	for len(list) > 0 && (next == nil || list[0].comesFirst() || p.w.inTenant(list[0], next) < 0) {
		x, covered := list[0], true
		x.settled = true
		list = list[1:]
		inside := counts{}
		for m, n := range p.b.freed[x.ID] {
			if n > 0 {
				inside[m] = n
				covered = covered && p.within[x.Tenant][m]+p.kept[x.Tenant][m]+p.inner[x.Tenant][m]+n <= p.w.guaranteed(x.Tenant, m)
			}
		}
		if covered && len(inside) > 0 {
			x.inside = inside
			for m, n := range inside {
				add(p.within, x.Tenant, m, n)
			}
		}
	}
	return list
}

// keepWarm sets aside what tenants used of their guarantees within LendAfter
// and neither hold nor have set aside for the entitled.
func (p *pass) keepWarm() {
	if p.w.cfg.LendAfter == 0 {
		return
	}
	for tenant, q := range p.w.quotas {
		for _, m := range q.Models {
			name := m.Model
			if n := min(p.w.marks[tenant+"/"+name].n, m.Guaranteed) - p.held(tenant, name) - p.kept[tenant][name]; n > 0 {
				add(p.warm, tenant, name, n)
				p.aside[name] += n
			}
		}
	}
}

// keepInside keeps what an entry that is not entitled needs of the guarantee: the
// way that lacks the least there. What no model's guarantee could hold keeps nothing.
func (p *pass) keepInside(x *work) {
	keep := counts{}
	for _, r := range x.Requests {
		if p.satisfied(x, r) {
			continue
		}
		best, lack := part{}, int64(0)
		for _, a := range r.Alternatives {
			if !p.w.allowed(x, a) {
				continue
			}
			all, size := x.parts(r, a, x.Members)
			for _, m := range a.Models {
				guaranteed, need := p.w.guaranteed(x.Tenant, m), all*size+keep[m]
				if need > min(guaranteed, p.w.fleet[m]) {
					continue
				}
				l := max(need-(guaranteed-p.within[x.Tenant][m]-p.kept[x.Tenant][m]-p.inner[x.Tenant][m]), 0)
				if best.Count == 0 || l < lack {
					best, lack = part{Model: m, Count: all * size}, l
				}
			}
		}
		if best.Count == 0 {
			return
		}
		keep[best.Model] += best.Count
	}
	for m, n := range keep {
		add(p.inner, x.Tenant, m, n)
	}
}
