package fairtest

// Histories: random but possible sequences of events, drawn while they are
// played against an engine.

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// Models of the histories, with their costs.
func Models() []fair.Model {
	return []fair.Model{{Name: "A100", Cost: 50}, {Name: "H100", Cost: 100}, {Name: "L4", Cost: 10}}
}

// Start of every history.
var Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Options of a history.
type Options struct {
	// Plain entries ask for one device, for themselves, with no shared claim
	// and no `after`, can be evicted, and take borrowed devices back.
	Plain bool
	// Single: a request has one alternative.
	Single bool
	// Whims: capacity shrinks, quotas change, placing differs from what was expected.
	Whims bool
	// Reserve says whether a tenant may be given devices, as the scheduler's
	// does. With plain entries any alternative for which it says yes is given,
	// as from a scheduler that goes its own way.
	Reserve func(tenant string, devices []fair.Devices) bool
}

// Configs draws a configuration.
func Configs() *rapid.Generator[fair.Config] {
	return rapid.Custom(func(t *rapid.T) fair.Config {
		c := fair.Config{
			Mode:          rapid.SampledFrom([]fair.Mode{fair.Ladder, fair.Ladder, fair.Ladder, fair.LadderWithoutAging, fair.PriorityOnly, fair.FIFO}).Draw(t, "mode"),
			Models:        Models(),
			Aging:         rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(t, "aging"),
			ReserveAfter:  rapid.SampledFrom([]time.Duration{-1, 1, time.Minute}).Draw(t, "reserve"),
			KeepAfter:     rapid.SampledFrom([]time.Duration{-1, 1, time.Minute}).Draw(t, "keep"),
			PriorityAging: rapid.SampledFrom([]time.Duration{-1, time.Minute}).Draw(t, "raise"),
			Notice:        rapid.SampledFrom([]time.Duration{-1, 30 * time.Second}).Draw(t, "notice"),
			Cooldown:      rapid.SampledFrom([]time.Duration{-1, 20 * time.Second}).Draw(t, "cooldown"),
			HoldFor:       rapid.SampledFrom([]time.Duration{-1, 10 * time.Second}).Draw(t, "hold for"),
			LendAfter:     rapid.SampledFrom([]time.Duration{0, 30 * time.Second}).Draw(t, "lend after"),
			LendFirmly:    rapid.Bool().Draw(t, "lend"),
		}
		for i := range c.Models {
			c.Models[i].Group = rapid.SampledFrom([]string{"", "", c.Models[i].Name}).Draw(t, "group")
		}
		return c
	})
}

// Player plays a history.
type Player struct {
	Now     time.Time
	Opts    Options
	Entries map[string]*Played
	Quotas  map[string]fair.Quota
	Fleet   map[string]int64
	next    int
}

// Played is what the player knows of an entry.
type Played struct {
	fair.Entry
	Opened, Deleted bool
	Placements      []fair.Placement
	Done            int64 // members with an allocation
}

// NewPlayer returns a player at the start.
func NewPlayer(opts Options) *Player {
	return &Player{Now: Start, Opts: opts, Entries: map[string]*Played{}, Quotas: map[string]fair.Quota{}, Fleet: map[string]int64{}}
}

var tenants = []string{"t1", "t2", "t3"}

// Found draws the events that a history begins with.
func (p *Player) Found(t *rapid.T) []fair.Event {
	var events []fair.Event
	for _, m := range Models() {
		p.Fleet[m.Name] = rapid.Int64Range(0, 5).Draw(t, "capacity")
		events = append(events, fair.CapacitySet{Model: m.Name, Devices: p.Fleet[m.Name]})
	}
	for _, name := range tenants {
		if rapid.IntRange(0, 5).Draw(t, "has quota") > 0 || p.Opts.Plain {
			events = append(events, p.quota(t, name))
		}
	}
	return events
}

// quota draws one; together the tenants are mostly guaranteed no more than there is.
func (p *Player) quota(t *rapid.T, name string) fair.Event {
	q := fair.Quota{Tenant: name, Weight: rapid.Int64Range(1, 3).Draw(t, "weight")}
	for _, m := range Models() {
		if rapid.IntRange(0, 4).Draw(t, "listed") == 0 {
			continue
		}
		mq := fair.ModelQuota{Model: m.Name}
		rest := p.Fleet[m.Name]
		for _, o := range tenants {
			if o != name {
				rest -= guaranteed(p.Quotas[o], m.Name)
			}
		}
		mq.Guaranteed = rapid.Int64Range(0, max(rest, 0)).Draw(t, "guaranteed")
		if rapid.Bool().Draw(t, "limited") {
			limit := mq.Guaranteed + rapid.Int64Range(0, 3).Draw(t, "limit")
			mq.Limit = &limit
		}
		q.Models = append(q.Models, mq)
	}
	p.Quotas[name] = q
	return fair.QuotaSet{Quota: q}
}

func guaranteed(q fair.Quota, model string) int64 {
	for _, m := range q.Models {
		if m.Model == model {
			return m.Guaranteed
		}
	}
	return 0
}

// Entry draws one that arrives.
func (p *Player) Entry(t *rapid.T) fair.Entry {
	p.next++
	e := fair.Entry{
		ID:          fmt.Sprintf("e%02d", p.next),
		Tenant:      rapid.SampledFrom(tenants).Draw(t, "tenant"),
		Members:     1,
		Created:     p.Now.Add(-time.Duration(rapid.IntRange(0, 2).Draw(t, "age")) * 20 * time.Second),
		Priority:    int32(rapid.IntRange(0, 2).Draw(t, "priority")),
		Preemptible: true,
		Preempts:    v1alpha1.PreemptsBorrowed,
	}
	requests := 1
	if !p.Opts.Plain {
		e.Members = rapid.SampledFrom([]int64{1, 1, 1, 2, 3}).Draw(t, "members")
		e.Uniform = rapid.Bool().Draw(t, "uniform")
		e.Preemptible = rapid.IntRange(0, 4).Draw(t, "preemptible") > 0
		e.Preempts = rapid.SampledFrom([]v1alpha1.Preempts{v1alpha1.PreemptsNever, v1alpha1.PreemptsBorrowed, v1alpha1.PreemptsBorrowed, v1alpha1.PreemptsLowerPriority, v1alpha1.PreemptsLowerPriority}).Draw(t, "preempts")
		requests = rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "requests")
		if rapid.IntRange(0, 7).Draw(t, "reclaimed before") == 0 {
			e.Reclaims, e.Reclaimed = rapid.Int64Range(1, 3).Draw(t, "reclaims"), p.Now
		}
	}
	for i := range requests {
		r := fair.Request{Alternatives: p.alternatives(t)}
		if i == 0 && !p.Opts.Plain && rapid.IntRange(0, 5).Draw(t, "shared") == 0 {
			r.Claim = "claim"
			r.Alternatives = []fair.Alternative{{Models: []string{"L4"}, Count: 1}}
		}
		e.Requests = append(e.Requests, r)
	}
	return e
}

func (p *Player) alternatives(t *rapid.T) []fair.Alternative {
	names := rapid.Permutation([]string{"A100", "H100", "L4"}).Draw(t, "tiers")[:rapid.IntRange(1, 3).Draw(t, "depth")]
	if p.Opts.Single {
		names = names[:1]
	}
	var out []fair.Alternative
	for i, name := range names {
		a := fair.Alternative{Models: []string{name}, Count: 1}
		if !p.Opts.Plain {
			a.Count = rapid.SampledFrom([]int64{1, 1, 2, 3}).Draw(t, "count")
			if rapid.IntRange(0, 5).Draw(t, "wide") == 0 {
				a.Models = append(a.Models, names[(i+1)%len(names)])
				slices.Sort(a.Models)
				a.Models = slices.Compact(a.Models)
			}
			if rapid.IntRange(0, 5).Draw(t, "later") == 0 {
				a.After = 45 * time.Second
			}
		}
		out = append(out, a)
	}
	return out
}

// Take follows the engine's actions and returns the events that answer them.
func (p *Player) Take(t *rapid.T, actions []fair.Action) []fair.Event {
	var events []fair.Event
	for _, a := range actions {
		e := p.Entries[a.ID]
		switch a.Kind {
		case fair.Open:
			e.Opened, e.Placements = true, a.Placements
		case fair.Evict:
			events = append(events, p.leave(t, e))
		case fair.Notice, fair.Cancel:
		}
	}
	return events
}

// leave: an evicted entry waits again, or goes.
func (p *Player) leave(t *rapid.T, e *Played) fair.Event {
	again := rapid.Bool().Draw(t, "again")
	if again {
		e.Opened, e.Done, e.Placements = false, 0, nil
		return fair.Requeued{ID: e.ID}
	}
	if e.Done == 0 {
		delete(p.Entries, e.ID)
	} else {
		e.Deleted = true
	}
	return fair.Deleted{ID: e.ID}
}

// Step draws one event that can happen now; nil where the draw finds none.
func (p *Player) Step(t *rapid.T) fair.Event {
	var open, run, gone, wait []*Played
	for _, e := range p.Entries {
		switch {
		case e.Deleted:
			gone = append(gone, e)
		case e.Opened && e.Done < e.Members:
			open = append(open, e)
		case e.Opened:
			run = append(run, e)
		default:
			wait = append(wait, e)
		}
	}
	pick := func(from []*Played) *Played {
		slices.SortFunc(from, func(a, b *Played) int { return slices.Compare([]byte(a.ID), []byte(b.ID)) })
		if len(from) == 0 {
			return nil
		}
		return rapid.SampledFrom(from).Draw(t, "entry")
	}
	switch kind := rapid.SampledFrom([]string{
		"arrive", "arrive", "arrive", "arrive", "arrive", "arrive", "allocate", "allocate", "allocate", "allocate", "allocate",
		"finish", "finish", "delete", "release", "release", "requeue", "withdraw", "quota", "capacity",
	}).Draw(t, "event"); kind {
	case "arrive":
		if len(wait) < 8 && len(open)+len(run) < 12 {
			e := p.Entry(t)
			p.Entries[e.ID] = &Played{Entry: e}
			return fair.Arrived{Entry: e}
		}
	case "allocate":
		if e := pick(open); e != nil {
			return p.Allocate(t, e)
		}
	case "finish", "requeue":
		e := pick(append(run, open...))
		switch {
		case e == nil:
		case kind == "finish":
			delete(p.Entries, e.ID)
			return fair.Finished{ID: e.ID}
		case !p.Opts.Plain:
			e.Opened, e.Done, e.Placements = false, 0, nil
			return fair.Requeued{ID: e.ID}
		}
	case "delete":
		if e := pick(append(run, open...)); e != nil {
			e.Deleted = true
			if e.Done == 0 {
				delete(p.Entries, e.ID)
			}
			return fair.Deleted{ID: e.ID}
		}
	case "release":
		if e := pick(gone); e != nil {
			delete(p.Entries, e.ID)
			return fair.Released{ID: e.ID}
		}
	case "withdraw":
		if e := pick(wait); e != nil {
			delete(p.Entries, e.ID)
			return fair.Deleted{ID: e.ID}
		}
	case "quota":
		if p.Opts.Whims {
			return p.quota(t, rapid.SampledFrom(tenants).Draw(t, "tenant"))
		}
	case "capacity":
		if p.Opts.Whims {
			m := rapid.SampledFrom(Models()).Draw(t, "model").Name
			p.Fleet[m] = rapid.Int64Range(0, 6).Draw(t, "capacity")
			return fair.CapacitySet{Model: m, Devices: p.Fleet[m]}
		}
	}
	return nil
}

// Allocate gives an entry what was expected, or on a whim any other alternative.
func (p *Player) Allocate(t *rapid.T, e *Played) fair.Event {
	ev := fair.Allocated{ID: e.ID}
	if p.Opts.Whims && e.Members > 1 && rapid.Bool().Draw(t, "one member") {
		ev.Members = 1
	}
	e.Done += ev.Members
	if ev.Members == 0 {
		e.Done = e.Members
	}
	whim := p.Opts.Whims && rapid.IntRange(0, 2).Draw(t, "whim") == 0
	if p.Opts.Reserve != nil && p.Opts.Plain {
		return p.reserve(t, e)
	}
	if !whim && ev.Members == 0 {
		for _, q := range e.Placements {
			ev.Devices = append(ev.Devices, fair.Devices{Model: q.Model, Count: q.Count, Claim: e.Requests[q.Request].Claim})
		}
		if p.Opts.Reserve != nil && !p.Opts.Reserve(e.Tenant, ev.Devices) {
			e.Done = 0
			return nil
		}
		return ev
	}
	for _, r := range e.Requests {
		a := rapid.SampledFrom(r.Alternatives).Draw(t, "alternative")
		d := fair.Devices{Model: a.Models[0], Count: a.Count, Claim: r.Claim}
		if r.Claim == "" && ev.Members == 0 {
			d.Count *= e.Members
		}
		ev.Devices = append(ev.Devices, d)
	}
	return ev
}

func (p *Player) reserve(t *rapid.T, e *Played) fair.Event {
	var can []fair.Event
	for _, a := range e.Requests[0].Alternatives {
		devices := []fair.Devices{{Model: a.Models[0], Count: a.Count}}
		if p.lists(e.Tenant, a.Models[0]) && p.Opts.Reserve(e.Tenant, devices) {
			can = append(can, fair.Allocated{ID: e.ID, Devices: devices})
		}
	}
	if len(can) == 0 {
		e.Done = 0
		return nil
	}
	return rapid.SampledFrom(can).Draw(t, "alternative")
}

// lists: the tenant's quota, if it has one, lists the model.
func (p *Player) lists(tenant, model string) bool {
	q, ok := p.Quotas[tenant]
	return !ok || slices.ContainsFunc(q.Models, func(m fair.ModelQuota) bool { return m.Model == model })
}
