package fairtest

// The twin's view of what is not lent: what owners used a short time ago, and
// what older entries keep inside their tenant's guarantee.

// noteUse moves the marks and finds out which entries are inside their guarantees.
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
	for _, x := range w.work {
		if !x.opened || x.deleted || x.inside != nil {
			continue
		}
		covered, inside := true, counts{}
		for m, n := range p.b.freed[x.ID] {
			if n > 0 {
				inside[m] = n
				covered = covered && p.held(x.Tenant, m) <= w.guaranteed(x.Tenant, m)
			}
		}
		if covered && len(inside) > 0 {
			x.inside = inside
		}
	}
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

// keepInside keeps what an entry that is not entitled needs of the guarantee:
// the way that lacks the least there, else a gang's parts in order.
func (p *pass) keepInside(x *work) {
	keep := counts{}
	for _, r := range x.Requests {
		if p.satisfied(x, r) {
			continue
		}
		left, _ := x.parts(r, r.Alternatives[0], x.Members)
		best, lack, spread := part{}, int64(0), counts{}
		for _, a := range r.Alternatives {
			if !p.w.allowed(x, a) {
				continue
			}
			all, size := x.parts(r, a, x.Members)
			for _, m := range a.Models {
				guaranteed := p.w.guaranteed(x.Tenant, m)
				whole := min(guaranteed, p.w.fleet[m])
				if need := all*size + keep[m]; need <= whole {
					l := max(need-(guaranteed-p.held(x.Tenant, m)-p.kept[x.Tenant][m]-p.inner[x.Tenant][m]), 0)
					if best.Count == 0 || l < lack {
						best, lack = part{Model: m, Count: all * size}, l
					}
				}
				if k := min(left, (whole-keep[m]-spread[m])/size); k > 0 {
					left -= k
					spread[m] += k * size
				}
			}
		}
		switch {
		case best.Count > 0:
			keep[best.Model] += best.Count
		case left > 0:
			return
		default:
			for m, n := range spread {
				keep[m] += n
			}
		}
	}
	for m, n := range keep {
		add(p.inner, x.Tenant, m, n)
	}
}
