package simulate

// This file makes the result by tenant and over time.

import "time"

// Tenant is what became of a tenant in one set-up.
type Tenant struct {
	Name        string `json:"name"`
	Jobs        int    `json:"jobs"`
	Unfinished  int    `json:"unfinished"`
	WaitSeconds Spread `json:"waitSeconds"`
	OverDay     int    `json:"overDay"`
	// DeviceSeconds that were held, by model.
	DeviceSeconds     map[string]float64 `json:"deviceSeconds"`
	LostDeviceSeconds float64            `json:"lostDeviceSeconds"`
	Evictions         int                `json:"evictions"`
	// FallbackRate is the part of the jobs that did not get their first tier.
	FallbackRate float64 `json:"fallbackRate"`
	// JobsOnModel counts jobs by the models that they ran on in the end; a gang
	// on two counts for both.
	JobsOnModel map[string]int `json:"jobsOnModel"`
	// Guaranteed devices, by model.
	Guaranteed map[string]int64 `json:"guaranteed"`
	// Entitlement is the part of the fleet, by worth, that is the tenant's due:
	// what is guaranteed, and by weight a part of the rest. Share is the part of
	// all that was held, by worth and time, that the tenant held.
	Entitlement float64 `json:"entitlement"`
	Share       float64 `json:"share"`
	// Served is what part of its due the tenant got, in devices over time: due
	// is what it asked for, up to its entitlement. What it got beyond, lent by
	// others, does not count.
	Served float64 `json:"served"`
	// LongestBareSeconds is the longest time in which the tenant had work
	// waiting and held nothing.
	LongestBareSeconds float64 `json:"longestBareSeconds"`
	// Promise says how long jobs waited for what they were guaranteed.
	Promise            Promise   `json:"promise"`
	FinishTimeFairness *Fairness `json:"finishTimeFairness,omitempty"`
	Private            *Excess   `json:"private,omitempty"`
}

// Timeline says over time what tenants held and waited for. Each value is the
// mean of one step.
type Timeline struct {
	Start       time.Time    `json:"start"`
	StepSeconds float64      `json:"stepSeconds"`
	Tenants     []TenantLine `json:"tenants"`
}

// TenantLine is one tenant's.
type TenantLine struct {
	Name string `json:"name"`
	// Due is the number of devices that the tenant is entitled to.
	Due float64 `json:"due"`
	// Held devices, and GPUs that waiting jobs ask for, by step.
	Held   []float64 `json:"held"`
	Queued []float64 `json:"queued"`
}

// tenant sums up one tenant.
func (s *Simulation) tenant(o *Outcome, private *Private, t int32) Tenant {
	a, b, of := s.sample(o, private, &t), o.books, &s.tenants[t]
	out := Tenant{
		Name: of.name, Jobs: a.jobs, Unfinished: a.unfinished, WaitSeconds: spread(a.waits, 1000), OverDay: a.overDay,
		DeviceSeconds: map[string]float64{}, JobsOnModel: map[string]int{}, Guaranteed: map[string]int64{},
		LostDeviceSeconds: seconds(a.lost), Evictions: a.evictions, FallbackRate: ratio(int64(a.fallbacks), int64(len(a.waits))),
		Entitlement: round(s.entitlement(of)), Share: round(s.share(b, t)), Served: ratio(b.got[t], b.due[t]),
		LongestBareSeconds: seconds(b.longest[t]), Promise: a.promise(s.options.Bound()), FinishTimeFairness: a.fairness(false), Private: a.excess(s.options.Bound()),
	}
	for m, model := range s.models {
		if n := b.heldFor[t][m]; n > 0 {
			out.DeviceSeconds[model] = seconds(n)
		}
		if n := a.modelJobs[m]; n > 0 {
			out.JobsOnModel[model] = n
		}
		if n := of.guaranteed[m]; n > 0 {
			out.Guaranteed[model] = n
		}
	}
	return out
}

// worth of devices, by model.
func (s *Simulation) worth(devices []int64) float64 {
	var w float64
	for m, n := range devices {
		w += float64(n) * float64(s.options.cost(s.models[m]))
	}
	return w
}

// entitlement is the part of the fleet's worth that is a tenant's due.
func (s *Simulation) entitlement(of *tenant) float64 {
	all := s.worth(s.capacity)
	var guaranteed float64
	var weights int64
	for i := range s.tenants {
		guaranteed += s.worth(s.tenants[i].guaranteed)
		weights += s.tenants[i].weight
	}
	rest := max(all-guaranteed, 0) * float64(of.weight) / float64(weights)
	return (s.worth(of.guaranteed) + rest) / all
}

// share is the part of all that was held that a tenant held, by worth.
func (s *Simulation) share(b *books, t int32) float64 {
	var all float64
	for i := range b.heldFor {
		all += s.worth(b.heldFor[i])
	}
	if all == 0 {
		return 0
	}
	return s.worth(b.heldFor[t]) / all
}

// timeline turns sums into means.
func (s *Simulation) timeline(b *books) Timeline {
	l := Timeline{Start: instant(b.first), StepSeconds: seconds(b.step)}
	mean := func(sums []int64) []float64 {
		out := make([]float64, b.steps)
		for i := range out {
			span := min(b.step, b.last-b.first-int64(i)*b.step)
			out[i] = hundredths(sums[i], span)
		}
		return out
	}
	for t := range s.tenants {
		l.Tenants = append(l.Tenants, TenantLine{
			Name: s.tenants[t].name, Due: float64(s.tenants[t].entitled) / 1000, Held: mean(b.used[t]), Queued: mean(b.wanted[t]),
		})
	}
	return l
}

// hundredths is a over b with two digits.
func hundredths(a, b int64) float64 {
	return float64((a*100+b/2)/b) / 100
}
