package fair

// What a tenant holds, borrows and waits for.

import (
	"slices"
	"strings"
	"time"
)

// Usage is what a tenant holds and waits for.
type Usage struct {
	Tenant string
	// Models that the tenant holds or that its quota lists, by name.
	Models []ModelUsage
	// Share is the weighted dominant share: the largest part of a group of
	// models, by worth, divided by the weight.
	Share float64
	// Waiting entries, and when the oldest of them began to wait.
	Waiting int
	Oldest  time.Time
}

// ModelUsage is what a tenant holds of a model.
type ModelUsage struct {
	Model string
	// Allocated really, and charged on top for members that have no devices yet.
	Allocated, Undecided int64
	// Charged is both together; Borrowed what of it is above the guarantee.
	Charged, Borrowed int64
	Guaranteed        int64
	// Limit, or nil.
	Limit *int64
	// Leaving devices are held by entries that are deleted or have notice.
	Leaving int64
}

// Tenants lists the tenants that are known, by name.
func (st *State) Tenants() []string {
	var names []string
	for _, t := range st.tenants {
		names = append(names, t.name)
	}
	return names
}

// Usage of a tenant. Of one that is not known it is empty.
func (st *State) Usage(tenant string) Usage {
	st.settle()
	u := Usage{Tenant: tenant}
	t := st.tenantOf[tenant]
	if t == nil {
		return u
	}
	u.Share = float64(st.shareOf(t)) / scale
	u.Waiting = t.waiting
	for _, s := range t.shapes {
		if at := instant(s.line[0].created); u.Oldest.IsZero() || at.Before(u.Oldest) {
			u.Oldest = at
		}
	}
	leaving := make([]int64, len(st.models))
	for _, e := range t.running {
		if e.phase == releasing || e.notice != unnoticed {
			for _, a := range e.holds() {
				leaving[a.model] += a.n
			}
		}
	}
	for i := range t.rows {
		r := &t.rows[i]
		if !r.listed && r.alloc+r.charge == 0 {
			continue
		}
		m := ModelUsage{
			Model: st.models[i].name, Allocated: r.alloc, Undecided: r.charge, Charged: r.alloc + r.charge,
			Guaranteed: r.guaranteed, Leaving: leaving[i],
		}
		m.Borrowed = max(m.Charged-r.guaranteed, 0)
		if r.listed && r.limit != none {
			limit := r.limit
			m.Limit = &limit
		}
		u.Models = append(u.Models, m)
	}
	slices.SortFunc(u.Models, func(a, b ModelUsage) int { return strings.Compare(a.Model, b.Model) })
	return u
}

// Of a model; zero where the tenant has nothing of it.
func (u *Usage) Of(model string) ModelUsage {
	for _, m := range u.Models {
		if m.Model == model {
			return m
		}
	}
	return ModelUsage{Model: model}
}

// Capacity of a model, and how much of it is free: neither held nor expected
// to be taken by entries whose gates are open.
func (st *State) Capacity(model string) (devices, free int64) {
	st.settle()
	i, ok := st.modelIndex[model]
	if !ok {
		return 0, 0
	}
	m := &st.models[i]
	return m.capacity, m.free()
}
