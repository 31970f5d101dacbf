// Package fairtest tests the fairness engine: a twin that keeps only facts and
// works everything out anew for every answer, and generators of histories.
//
// The twin follows docs/fair.md, section by section. It has no index, no cache
// and no incremental count, so that where both agree neither forgot to update.
package fairtest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// counts of devices by model.
type counts map[string]int64

// Twin is the naive engine. Its configuration must have all times set.
type Twin struct {
	cfg    fair.Config
	now    time.Time
	fleet  counts
	quotas map[string]fair.Quota
	work   map[string]*work
	claims map[string]counts // by tenant and UID, as allocated
	marks  map[string]mark   // by tenant and model
}

// mark is the most that a tenant used of what it is guaranteed of a model, and
// since when it has used less.
type mark struct {
	n  int64
	at time.Time
}

// work is an entry and the facts about it.
type work struct {
	fair.Entry
	opened, deleted bool
	decided         int64
	own             counts // allocated, without shared claims
	started         time.Time
	noticed, going  bool
	deadline        time.Time
	servant         string
	promised        []fair.Placement
	since           time.Time // entitled in every pass since; zero: not
	inside          counts    // found to be covered by the guarantee; nil: it borrows
	settled         bool      // a pass has decided about that
	bound           time.Time // since when it may use only some models
	within          []string  // the models that it may use; empty: any
	reclaims        int64
	cooled          time.Time
}

// NewTwin returns an empty twin.
func NewTwin(cfg fair.Config) *Twin {
	return &Twin{cfg: cfg, fleet: counts{}, quotas: map[string]fair.Quota{}, work: map[string]*work{}, claims: map[string]counts{}, marks: map[string]mark{}}
}

// Apply takes a fact that the engine took.
func (w *Twin) Apply(now time.Time, ev fair.Event) {
	w.tick(now)
	switch ev := ev.(type) {
	case fair.Arrived:
		if w.work[ev.Entry.ID] == nil {
			e := ev.Entry
			e.Members = max(e.Members, 1)
			e.Preempts = cmp.Or(e.Preempts, v1alpha1.PreemptsNever)
			w.work[e.ID] = w.cool(&work{Entry: e, own: counts{}, reclaims: e.Reclaims}, e.Reclaimed)
		}
	case fair.Opened:
		x := w.work[ev.ID]
		if !x.opened {
			w.open(x)
		}
		if len(ev.Models) > 0 {
			x.within, x.bound = ev.Models, w.now
		}
	case fair.Allocated:
		w.allocate(ev)
	case fair.Finished:
		w.end(ev.ID)
	case fair.Released:
		w.end(ev.ID)
	case fair.Deleted:
		if x := w.work[ev.ID]; x.decided > 0 {
			x.deleted = true
		} else {
			w.end(ev.ID)
		}
	case fair.Requeued:
		x := w.work[ev.ID]
		if x.opened {
			w.end(ev.ID)
			y := &work{Entry: x.Entry, own: counts{}, reclaims: x.reclaims, cooled: x.cooled}
			if x.going {
				y.reclaims++
				w.cool(y, w.now)
			}
			w.work[y.ID] = y
		}
	case fair.QuotaSet:
		q := ev.Quota
		q.Weight = max(q.Weight, 1)
		w.quotas[q.Tenant] = q
	case fair.QuotaRemoved:
		delete(w.quotas, ev.Tenant)
	case fair.CapacitySet:
		w.fleet[ev.Model] = ev.Devices
	case fair.ReclaimNoticed:
		if x := w.work[ev.ID]; !x.noticed {
			x.noticed, x.servant, x.deadline = true, ev.For, ev.Deadline
		}
	case fair.ReclaimExpired:
		w.work[ev.ID].going = true
	case fair.ReclaimCancelled:
		if x := w.work[ev.ID]; x.opened && !x.deleted {
			x.noticed, x.going, x.servant = false, false, ""
		}
	}
}

func (w *Twin) tick(now time.Time) {
	if now.After(w.now) {
		w.now = now
	}
}

func (w *Twin) open(x *work) {
	x.opened, x.promised, x.since, x.inside, x.settled, x.within = true, nil, time.Time{}, nil, false, nil
}

// mayUse: the entry may have devices of the model.
func (x *work) mayUse(model string) bool {
	return len(x.within) == 0 || slices.Contains(x.within, model)
}

// cool starts a cool-down, if devices of the entry were ever taken back.
func (w *Twin) cool(x *work, since time.Time) *work {
	if d := w.cfg.CooldownAfter(x.reclaims); d > 0 {
		x.cooled = since.Add(d)
	}
	return x
}

// cooling: the entry does not borrow.
func (w *Twin) cooling(x *work) bool { return w.shares() && w.now.Before(x.cooled) }

func (w *Twin) allocate(ev fair.Allocated) {
	x := w.work[ev.ID]
	started := ev.Started
	if started.IsZero() {
		started = w.now
	}
	if !x.opened {
		w.open(x)
	}
	if x.decided == 0 || started.Before(x.started) {
		x.started = started
	}
	if ev.Members == 0 {
		x.own, x.decided = counts{}, x.Members
	}
	x.decided += ev.Members
	shared := map[string]counts{}
	for _, d := range ev.Devices {
		if d.Claim == "" {
			x.own[d.Model] += d.Count
			continue
		}
		key := x.Tenant + "/" + d.Claim
		if shared[key] == nil {
			shared[key] = counts{}
		}
		shared[key][d.Model] += d.Count
	}
	maps.Copy(w.claims, shared)
	for m, n := range x.own {
		if n > x.inside[m] {
			x.inside = nil
		}
	}
}

// end forgets an entry, and claims that nobody uses any more.
func (w *Twin) end(id string) {
	x := w.work[id]
	delete(w.work, id)
	for _, r := range x.Requests {
		if r.Claim != "" && !w.used(x.Tenant, r.Claim) {
			delete(w.claims, x.Tenant+"/"+r.Claim)
		}
	}
}

// used: an entry with an open gate shares the claim.
func (w *Twin) used(tenant, claim string) bool {
	for _, x := range w.work {
		if x.opened && x.Tenant == tenant && slices.ContainsFunc(x.Requests, func(r fair.Request) bool { return r.Claim == claim }) {
			return true
		}
	}
	return false
}

// limit of a tenant for a model; none is a very large one.
func (w *Twin) limit(tenant, model string) int64 {
	q, limited := w.quotas[tenant]
	if !limited {
		return math.MaxInt64
	}
	for _, m := range q.Models {
		if m.Model == model {
			if m.Limit == nil {
				return math.MaxInt64
			}
			return *m.Limit
		}
	}
	return 0
}

func (w *Twin) guaranteed(tenant, model string) int64 {
	for _, m := range w.quotas[tenant].Models {
		if m.Model == model {
			return m.Guaranteed
		}
	}
	return 0
}

func (w *Twin) cost(model string) int64 {
	for _, m := range w.cfg.Models {
		if m.Name == model {
			return m.Cost
		}
	}
	return 1
}

func (w *Twin) group(model string) string {
	for _, m := range w.cfg.Models {
		if m.Name == model {
			return m.Group
		}
	}
	return ""
}

func (x *work) undecided() int64 {
	if !x.opened || x.deleted {
		return 0
	}
	return x.Members - x.decided
}

// parts of a request for n members, and the devices of each part.
func (x *work) parts(r fair.Request, a fair.Alternative, n int64) (parts, size int64) {
	switch {
	case r.Claim != "":
		return 1, a.Count
	case x.Uniform:
		return 1, n * a.Count
	}
	return n, a.Count
}

func (x *work) firm() bool {
	return !x.Preemptible || slices.ContainsFunc(x.Requests, func(r fair.Request) bool { return r.Claim != "" })
}

// allowed: the entry has waited as long as the alternative asks for.
func (w *Twin) allowed(x *work, a fair.Alternative) bool {
	return !w.now.Before(x.Created.Add(a.After))
}

func (x *work) alike(y *work) bool {
	return x.Tenant == y.Tenant && x.Members == y.Members && x.Uniform == y.Uniform && x.Priority == y.Priority &&
		x.Preemptible == y.Preemptible && x.Preempts == y.Preempts && fmt.Sprint(x.Requests) == fmt.Sprint(y.Requests)
}

func byAge(a, b *work) int { return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID)) }

func byID(a, b *work) int { return strings.Compare(a.ID, b.ID) }

// all entries that a question is true of, by ID.
func (w *Twin) all(is func(*work) bool) []*work {
	var out []*work
	for _, x := range w.work {
		if is(x) {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, byID)
	return out
}

// book is what everybody holds, counted from the facts.
type book struct {
	alloc, charge, hold, both, firm map[string]counts // by tenant
	freed                           map[string]counts // what eviction of an entry frees, by ID
	free                            counts
	short                           map[string]bool // undecided members that find no devices, by ID
}

func add(m map[string]counts, key, model string, n int64) {
	if m[key] == nil {
		m[key] = counts{}
	}
	m[key][model] += n
}

// book counts allocations, then charges and holds of the undecided.
func (w *Twin) book() *book {
	b := &book{map[string]counts{}, map[string]counts{}, map[string]counts{}, map[string]counts{}, map[string]counts{}, map[string]counts{}, maps.Clone(w.fleet), map[string]bool{}}
	for _, x := range w.work {
		for m, n := range x.own {
			add(b.alloc, x.Tenant, m, n)
			add(b.freed, x.ID, m, n)
			b.free[m] -= n
			if x.firm() {
				add(b.firm, x.Tenant, m, n)
			}
		}
	}
	for key, c := range w.claims {
		tenant, _, _ := strings.Cut(key, "/")
		for m, n := range c {
			add(b.alloc, tenant, m, n)
			add(b.firm, tenant, m, n)
			b.free[m] -= n
		}
	}
	undecided := w.all(func(x *work) bool { return x.undecided() > 0 })
	slices.SortFunc(undecided, func(x, y *work) int { return cmp.Or(cmp.Compare(y.Priority, x.Priority), byAge(x, y)) })
	settled := map[string]bool{}
	for _, x := range undecided {
		charge, hold := counts{}, counts{}
		for _, r := range x.Requests {
			if key := x.Tenant + "/" + r.Claim; r.Claim != "" {
				if _, known := w.claims[key]; known || settled[key] {
					continue
				}
				settled[key] = true
			}
			w.charge(b, x, r, charge)
			w.hold(b, x, r, hold)
		}
		for m := range w.models() {
			if n := max(charge[m], hold[m]); n > 0 {
				add(b.both, x.Tenant, m, n)
			}
		}
	}
	return b
}

// models that anybody speaks of.
func (w *Twin) models() map[string]bool {
	out := map[string]bool{}
	for m := range w.fleet {
		out[m] = true
	}
	for _, x := range w.work {
		for _, r := range x.Requests {
			for _, a := range r.Alternatives {
				for _, m := range a.Models {
					out[m] = true
				}
			}
		}
	}
	return out
}

// charge: the dearest ways that are possible.
func (w *Twin) charge(b *book, x *work, r fair.Request, charge counts) {
	type way struct {
		a     fair.Alternative
		model string
	}
	var ways []way
	for _, a := range r.Alternatives {
		for _, m := range a.Models {
			ways = append(ways, way{a, m})
		}
	}
	slices.SortStableFunc(ways, func(p, q way) int {
		return cmp.Compare(q.a.Count*w.cost(q.model), p.a.Count*w.cost(p.model))
	})
	left, _ := x.parts(r, r.Alternatives[0], x.undecided())
	for _, p := range ways {
		_, size := x.parts(r, p.a, x.undecided())
		room := (w.limit(x.Tenant, p.model) - b.alloc[x.Tenant][p.model] - b.charge[x.Tenant][p.model]) / size
		if k := min(left, room); k > 0 && w.fleet[p.model] >= size && x.mayUse(p.model) {
			left -= k
			charge[p.model] += k * size
			add(b.charge, x.Tenant, p.model, k*size)
		}
	}
}

// hold: what the scheduler is expected to take.
func (w *Twin) hold(b *book, x *work, r fair.Request, hold counts) {
	left, _ := x.parts(r, r.Alternatives[0], x.undecided())
	for _, a := range r.Alternatives {
		if !w.allowed(x, a) {
			continue
		}
		_, size := x.parts(r, a, x.undecided())
		for _, m := range a.Models {
			room := (w.limit(x.Tenant, m) - b.alloc[x.Tenant][m] - b.hold[x.Tenant][m]) / size
			if k := min(left, room, b.free[m]/size); k > 0 && x.mayUse(m) {
				left -= k
				b.free[m] -= k * size
				hold[m] += k * size
				add(b.hold, x.Tenant, m, k*size)
				add(b.freed, x.ID, m, k*size)
				if x.firm() {
					add(b.firm, x.Tenant, m, k*size)
				}
			}
		}
	}
	b.short[x.ID] = b.short[x.ID] || left > 0
}

// share of a tenant: dominant over groups, by worth, divided by the weight.
func (w *Twin) share(b *book, tenant string) int64 {
	held, all := map[string]*big.Int{}, map[string]*big.Int{}
	sum := func(to map[string]*big.Int, model string, n int64) {
		g := w.group(model)
		if to[g] == nil {
			to[g] = new(big.Int)
		}
		to[g].Add(to[g], new(big.Int).Mul(big.NewInt(w.cost(model)), big.NewInt(n)))
	}
	for m := range w.models() {
		sum(held, m, b.alloc[tenant][m]+b.charge[tenant][m])
		sum(all, m, w.fleet[m])
	}
	var share int64
	for g, h := range held {
		switch {
		case h.Sign() == 0:
		case all[g].Sign() == 0:
			share = math.MaxInt64
		default:
			share = max(share, new(big.Int).Div(new(big.Int).Mul(h, big.NewInt(1_000_000_000_000)), all[g]).Int64())
		}
	}
	return share / max(w.quotas[tenant].Weight, 1)
}
