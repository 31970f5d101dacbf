package tenants

// What the Pods of a gang ask for and hold together.

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// wish is what the Pods of a gang that follow one revision ask for.
type wish struct {
	alternatives []fair.Alternative
	// pods ask for it; rest of them have no devices yet.
	pods, rest int64
}

// gathering adds up the Pods of a gang.
type gathering struct {
	wishes map[string]*wish // by the template
	// held and restHeld are devices of claims that no policy speaks of: of all
	// Pods, and of those without devices of their policy.
	held, restHeld map[string]int64
	shared         map[string]fair.Request
	devices        map[fair.Devices]int64 // with a count of 0
}

// gather is the work of a gang. Who is let in with it is asked for together: one
// tier and one model of it for all that follow the same revision, as the
// scheduler gives them one tier, or each its own where the policy mixes tiers.
func (m *Mirror) gather(g *gang, now time.Time) (w *work, blocked fair.Reason) {
	sums := gathering{
		wishes: map[string]*wish{}, held: map[string]int64{}, restHeld: map[string]int64{},
		shared: map[string]fair.Request{}, devices: map[fair.Devices]int64{},
	}
	var absent []fair.Request // of Pods that are missing: taken to be like the first
	var models [][]string     // that those without devices may use
	var undecided []string
	for i, id := range g.core {
		pod := m.pods[id]
		one, why := m.read(id, pod, now)
		if i == 0 {
			w = &work{entry: one.entry, phase: waiting, pods: g.core}
			w.entry.ID, w.entry.Requests, w.entry.Preempts = g.id, nil, v1alpha1.PreemptsLowerPriority
		}
		blocked = cmp.Or(blocked, why)
		w.entry.Priority = min(w.entry.Priority, one.entry.Priority)
		w.entry.Preemptible = w.entry.Preemptible && one.entry.Preemptible
		if one.policy {
			w.entry.Preempts = weaker(w.entry.Preempts, one.entry.Preempts)
		}
		if i == min(g.need, len(g.core))-1 {
			w.entry.Created = one.entry.Created // when it was complete
		}
		if one.decided && !one.started.IsZero() && (w.started.IsZero() || one.started.Before(w.started)) {
			w.started = one.started
		}
		w.served = append(w.served, one.served...)
		sums.add(one, templateOf(pod))
		if !one.decided {
			models, undecided = append(models, m.mayUse(g, id)), append(undecided, id)
		}
		if i == 0 && one.policy {
			absent = m.together(templateOf(pod), one.entry.Requests[0].Alternatives, int64(g.missing))
		}
	}
	if w.models = either(models...); len(w.models) == 0 {
		// Some say otherwise where that was being taken off when a controller ended.
		// One that came by a turn of its own can't be told from them.
		for _, id := range undecided {
			m.widen(id)
		}
	}
	if g.open {
		w.phase = open
	}
	w.entry.Requests, w.rest = m.requests(&sums)
	w.entry.Requests, w.rest = append(w.entry.Requests, absent...), append(w.rest, absent...)
	w.decided = len(w.rest) == 0
	for _, d := range slices.SortedFunc(maps.Keys(sums.devices), func(a, b fair.Devices) int {
		return cmp.Or(cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Model, b.Model))
	}) {
		d.Count = sums.devices[d]
		w.devices = append(w.devices, d)
	}
	if len(w.devices) == 0 {
		w.rest = nil // all of the entry is
	}
	return w, blocked
}

// add counts a Pod.
func (s *gathering) add(one *work, template string) {
	requests := one.entry.Requests
	if one.policy {
		x := s.wishes[template]
		if x == nil {
			x = &wish{alternatives: requests[0].Alternatives}
			s.wishes[template] = x
		}
		x.pods++
		if !one.decided {
			x.rest++
		}
		requests = requests[1:]
	}
	for _, r := range requests {
		if r.Claim != "" {
			s.shared[r.Claim] = r
			continue
		}
		a := r.Alternatives[0]
		s.held[a.Models[0]] += a.Count
		if !one.decided {
			s.restHeld[a.Models[0]] += a.Count
		}
	}
	for _, d := range one.devices {
		key := fair.Devices{Model: d.Model, Claim: d.Claim}
		switch {
		case d.Claim != "":
			s.devices[key] = d.Count
		case one.decided:
			s.devices[key] += d.Count
		}
	}
}

// requests are what the gang asks for, and what of it is still to be had.
func (m *Mirror) requests(s *gathering) (all, rest []fair.Request) {
	for _, template := range slices.Sorted(maps.Keys(s.wishes)) {
		x := s.wishes[template]
		all = append(all, m.together(template, x.alternatives, x.pods)...)
		rest = append(rest, m.together(template, x.alternatives, x.rest)...)
	}
	all, rest = append(all, held(s.held)...), append(rest, held(s.restHeld)...)
	for _, uid := range slices.Sorted(maps.Keys(s.shared)) {
		all = append(all, s.shared[uid])
	}
	return all, rest
}

// together is what so many Pods of a revision ask for.
func (m *Mirror) together(template string, alternatives []fair.Alternative, pods int64) []fair.Request {
	if pods == 0 {
		return nil
	}
	if revision := m.revisions[template]; revision != nil && revision.Spec.PolicySpec.MixTiers == v1alpha1.MixTiersWithinGroup {
		return slices.Repeat([]fair.Request{{Alternatives: alternatives}}, int(pods))
	}
	scaled := slices.Clone(alternatives)
	for i := range scaled {
		scaled[i].Count *= pods
	}
	return []fair.Request{{Alternatives: scaled}}
}

// weaker is what both policies allow to be taken back.
func weaker(a, b v1alpha1.Preempts) v1alpha1.Preempts {
	for _, p := range []v1alpha1.Preempts{"", v1alpha1.PreemptsNever, v1alpha1.PreemptsBorrowed} {
		if a == p || b == p {
			return p
		}
	}
	return a
}

// tooLarge: the fleet and the tenant's limits have too few devices for a gang,
// if all of them were free. It is a lower bound: some that can't be served
// either are not found out.
func (m *Mirror) tooLarge(w *work) bool {
	usage := m.state.Usage(w.entry.Tenant)
	var fewest, most int64
	seen := map[string]bool{}
	for _, r := range w.entry.Requests {
		if r.Claim != "" {
			continue
		}
		least := r.Alternatives[0].Count
		for _, a := range r.Alternatives {
			least = min(least, a.Count)
			for _, model := range a.Models {
				if !seen[model] {
					seen[model] = true
					most += m.mostOf(&usage, model)
				}
			}
		}
		fewest += least
	}
	return fewest > most
}

// mostOf a model that a tenant can ever have.
func (m *Mirror) mostOf(usage *fair.Usage, model string) int64 {
	devices, _ := m.state.Capacity(model)
	if limit := usage.Of(model).Limit; limit != nil {
		return min(devices, *limit)
	}
	for _, part := range m.given[usage.Tenant].Models {
		if part.Model == model {
			return devices
		}
	}
	return 0
}
