package tenants

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Arrival is one Pod of the load.
type Arrival struct {
	// At is when it is created.
	At     time.Duration
	Tenant int
	Name   string
	Policy string
	// Life is how long it keeps its devices.
	Life time.Duration
	// Patience is after how long it is deleted if it waits still; zero: never.
	Patience time.Duration
}

// Kill is one kill of a part of Ladder.
type Kill struct {
	At time.Duration
	// Scheduler: it is ladder-scheduler, otherwise ladder-controller.
	Scheduler bool
	// Down is how long it stays away.
	Down time.Duration
}

// Change is one change of a tenant's quota.
type Change struct {
	At     time.Duration
	Tenant int
	// Model is changed, by its place in the quota.
	Model int
	// Limit is the new one; Weight too.
	Limit, Weight int32
}

// Plan is the load and the trouble, each in the order of time.
type Plan struct {
	Arrivals []Arrival
	Kills    []Kill
	Changes  []Change
}

const (
	// crowd is how many times the fleet the load asks for, so that Pods wait.
	crowd = 1.3
	// longestDown is how long a part that was killed may stay away.
	longestDown = 3 * time.Second
	// impatient is the part of the Pods that do not wait for ever.
	impatient = 0.08
)

// NewPlan draws the load from the seed.
func NewPlan(o *Options) Plan {
	draw := rand.New(rand.NewPCG(o.Seed, 1))
	names := policies()
	within := func(from, to time.Duration) time.Duration { return from + time.Duration(draw.Int64N(int64(to-from)+1)) }
	// Pods of the mean life keep the fleet as full as it is to be.
	life := time.Duration(crowd * float64(o.deviceCount()) * float64(o.Duration) / float64(o.Pods))
	var p Plan
	for i := range o.Pods {
		a := Arrival{
			At: within(0, o.Duration), Tenant: o.someTenant(draw), Name: fmt.Sprintf("p-%04d", i),
			Policy: names[draw.IntN(len(names))].Name, Life: within(life/4, life*7/4),
		}
		if draw.Float64() < impatient {
			a.Patience = within(time.Millisecond, life/2)
		}
		p.Arrivals = append(p.Arrivals, a)
	}
	for i := range o.Kills {
		p.Kills = append(p.Kills, Kill{
			// Both are killed about as often.
			At: within(o.Duration/20, o.Duration), Scheduler: (i+draw.IntN(2))%2 == 0, Down: within(0, longestDown),
		})
	}
	for range o.Changes {
		c := Change{At: within(0, o.Duration), Tenant: draw.IntN(o.Tenants), Model: draw.IntN(len(models)), Weight: 1 + draw.Int32N(4)}
		usual := int32(2)
		if limit := o.quota(c.Tenant).Spec.Models[c.Model].Limit; limit != nil {
			usual = *limit
		}
		// From almost nothing to half as much again: mostly below what is in use.
		c.Limit = 1 + draw.Int32N(usual*3/2)
		p.Changes = append(p.Changes, c)
	}
	slices.SortStableFunc(p.Arrivals, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(p.Kills, func(a, b Kill) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(p.Changes, func(a, b Change) int { return cmp.Compare(a.At, b.At) })
	return p
}

// someTenant draws a tenant. Of five neighbours the last asks for five times as
// much as the first, so that some are above what they are guaranteed and others
// are not.
func (o *Options) someTenant(draw *rand.Rand) int {
	sum := 0
	for i := range o.Tenants {
		sum += 1 + i%5
	}
	at := draw.IntN(sum)
	for i := range o.Tenants {
		if at -= 1 + i%5; at < 0 {
			return i
		}
	}
	return o.Tenants - 1
}

// apply makes the change in a quota.
func (c *Change) apply(q *v1alpha1.TenantQuota) {
	part := &q.Spec.Models[c.Model]
	limit, weight := c.Limit, c.Weight
	part.Limit, q.Spec.Weight = &limit, &weight
	part.Guaranteed = min(part.Guaranteed, limit)
}
