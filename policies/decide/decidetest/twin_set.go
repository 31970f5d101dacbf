package decidetest

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// pick is one device for one request.
type pick struct {
	ask         *ask
	alternative *alternative
	device      *device
}

func (p pick) decided() v1alpha1.DecidedDevice {
	return v1alpha1.DecidedDevice{
		Driver: p.device.id.Driver, Pool: p.device.id.Pool, Device: p.device.id.Device,
		Claim: p.ask.claimRef, Request: p.alternative.result, Model: modelOf(p.device),
	}
}

// strictness says what of a set is left out of the search, to find out what it
// fails for: match and distinct constraints, or what of the tenant's quota
// speaks of several devices together.
type strictness struct{ noConstraints, noQuota bool }

var strict strictness

// serve looks for the first combination of the node's devices, in the order of
// devices, that gives every request what its alternative wants.
func (w *world) serve(node string, asks []*ask, vector []int, how strictness) ([]pick, bool) {
	s := &search{world: w, node: node, asks: asks, vector: vector, how: how}
	return s.from(nil, 0, 0, 0)
}

// serveWishing looks for a combination that meets as many of the wishes as
// possible, whichever they are, and of those for the first in the order of
// devices.
func (w *world) serveWishing(node string, asks []*ask, vector []int) ([]pick, int, bool) {
	wisher := max(slices.IndexFunc(asks, func(a *ask) bool { return len(a.wishes) > 0 }), 0)
	wishes := asks[wisher].wishes
	for n := len(wishes); n >= 0; n-- {
		var best []pick
		found := false
		for set := range 1 << len(wishes) {
			if bits.OnesCount(uint(set)) != n {
				continue
			}
			wished := *asks[wisher]
			wished.constraints = slices.Clone(wished.constraints)
			for i, attribute := range wishes {
				if set&(1<<i) != 0 {
					wished.constraints = append(wished.constraints, match(attribute))
				}
			}
			wishing := slices.Clone(asks)
			wishing[wisher] = &wished
			if picks, ok := w.serve(node, wishing, vector, strict); ok && (!found || w.before(picks, best)) {
				best, found = picks, true
			}
		}
		if found {
			return best, n, true
		}
	}
	return nil, 0, false
}

// before: the devices of one choice come before those of another.
func (w *world) before(a, b []pick) bool {
	return slices.CompareFunc(a, b, func(x, y pick) int {
		return cmp.Compare(slices.Index(w.devices, x.device), slices.Index(w.devices, y.device))
	}) < 0
}

type search struct {
	*world
	node   string
	asks   []*ask
	vector []int
	how    strictness
}

// from continues with the given request, of which taken devices are chosen
// already; the next one stands at or after the index start.
func (s *search) from(picks []pick, request, taken, start int) ([]pick, bool) {
	if request == len(s.asks) {
		return picks, true
	}
	a := s.asks[request]
	alt := a.alternatives[s.vector[request]]
	if alt.all {
		return s.all(picks, request)
	}
	if taken == alt.count {
		return s.from(picks, request+1, 0, 0)
	}
	for i := start; i < len(s.devices); i++ {
		d := s.devices[i]
		if !s.usableHere(d) || s.judge(d, alt) != "" || !s.fits(picks, a, alt, d) {
			continue
		}
		longer := append(slices.Clone(picks), pick{a, alt, d})
		if found, ok := s.from(longer, request, taken+1, i+1); ok {
			return found, true
		}
	}
	return nil, false
}

func (s *search) usableHere(d *device) bool {
	return !d.pool.broken && slices.Contains(d.reach, s.node)
}

// all takes every device of the node that the selectors mean and that is big
// enough, or fails. A pool in doubt fails too.
func (s *search) all(picks []pick, request int) ([]pick, bool) {
	a := s.asks[request]
	alt := a.alternatives[s.vector[request]]
	picks = slices.Clone(picks)
	some := false
	for _, d := range s.devices {
		if !slices.Contains(d.reach, s.node) {
			continue
		}
		if d.pool.broken {
			return nil, false
		}
		if selected(d, alt.selectors) != "" {
			continue
		}
		if _, fits := consumption(d, alt.capacity); !fits {
			continue
		}
		if s.judge(d, alt) != "" || !s.fits(picks, a, alt, d) {
			return nil, false
		}
		picks = append(picks, pick{a, alt, d})
		some = true
	}
	if !some {
		return nil, false
	}
	return s.from(picks, request+1, 0, 0)
}

// fits says whether a device can join what is picked already.
func (s *search) fits(picks []pick, a *ask, alt *alternative, d *device) bool {
	if !d.shared() && slices.ContainsFunc(picks, func(p pick) bool {
		return p.device == d && (!alt.admin || p.ask.claim == a.claim)
	}) {
		return false
	}
	if !s.countersAllow(picks, d) || !s.sharesAllow(picks, alt, d) || !(s.how.noQuota || s.quotaAllows(picks, alt, d)) {
		return false
	}
	if alt.oneModel && slices.ContainsFunc(picks, func(p pick) bool {
		return p.ask == a && (modelOf(p.device) != modelOf(d) || modelOf(d) == "")
	}) {
		return false
	}
	return s.how.noConstraints || constraintsAllow(picks, a, alt, d)
}

// countersAllow adds up what allocated and picked devices consume of the
// pool's counters, and the device itself.
func (w *world) countersAllow(picks []pick, d *device) bool {
	if len(d.spec.ConsumesCounters) == 0 {
		return true
	}
	consumers := []*device{}
	add := func(x *device) {
		if x.pool == d.pool && !slices.Contains(consumers, x) {
			consumers = append(consumers, x)
		}
	}
	for _, x := range w.devices {
		if _, shared := w.shares[x.id]; shared || w.held[x.id] {
			add(x)
		}
	}
	// A device that is picked with admin access though it is allocated pays once
	// more, as with the in-tree allocator; a further share of a device does not.
	for _, p := range picks {
		if p.device.shared() {
			add(p.device)
		} else if p.device.pool == d.pool {
			consumers = append(consumers, p.device)
		}
	}
	if d.shared() && slices.Contains(consumers, d) {
		return true
	}
	sums := map[string]resource.Quantity{}
	charge := func(x *device) {
		for _, c := range x.spec.ConsumesCounters {
			for name, counter := range c.Counters {
				sum := sums[c.CounterSet+"/"+name].DeepCopy()
				sum.Add(counter.Value)
				sums[c.CounterSet+"/"+name] = sum
			}
		}
	}
	for _, x := range consumers {
		charge(x)
	}
	charge(d)
	for set, counters := range d.pool.counters {
		for name, limit := range counters {
			if sum := sums[set+"/"+name]; sum.Cmp(limit) > 0 {
				return false
			}
		}
	}
	return true
}

// sharesAllow adds up what is consumed of a device that allows several allocations.
func (w *world) sharesAllow(picks []pick, alt *alternative, d *device) bool {
	if !d.shared() {
		return true
	}
	need, fits := consumption(d, alt.capacity)
	if !fits {
		return false
	}
	sum := w.shares[d.id].plus(need)
	for _, p := range picks {
		if p.device == d {
			more, _ := consumption(d, p.alternative.capacity)
			sum = sum.plus(more)
		}
	}
	return fitsIn(sum, d)
}

func (w *world) quotaAllows(picks []pick, alt *alternative, d *device) bool {
	if alt.admin {
		return true
	}
	mine, _ := w.charged(d)
	n := 1
	for _, p := range picks {
		if theirs, counts := w.charged(p.device); counts && !p.alternative.admin && theirs == mine {
			n++
		}
	}
	return w.mayTake(d, n)
}

func constraintsAllow(picks []pick, a *ask, alt *alternative, d *device) bool {
	for _, c := range a.constraints {
		if !binds(c, a, alt) {
			continue
		}
		name := c.MatchAttribute
		if name == nil {
			name = c.DistinctAttribute
		}
		domain, id, _ := strings.Cut(string(*name), "/")
		mine := d.attribute(domain, id)
		if mine == nil {
			return false
		}
		for _, p := range picks {
			if p.ask.claim != a.claim || !binds(c, p.ask, p.alternative) {
				continue
			}
			same := equal(mine, p.device.attribute(domain, id))
			if (c.MatchAttribute != nil) != same {
				return false
			}
		}
	}
	return true
}

// binds says whether a constraint means the request, or the chosen alternative.
func binds(c resourceapi.DeviceConstraint, a *ask, alt *alternative) bool {
	return len(c.Requests) == 0 || slices.Contains(c.Requests, a.request) || slices.Contains(c.Requests, alt.result)
}

func equal(a, b *resourceapi.DeviceAttribute) bool {
	switch {
	case a.StringValue != nil:
		return b.StringValue != nil && *a.StringValue == *b.StringValue
	case a.IntValue != nil:
		return b.IntValue != nil && *a.IntValue == *b.IntValue
	case a.BoolValue != nil:
		return b.BoolValue != nil && *a.BoolValue == *b.BoolValue
	case a.VersionValue != nil:
		return b.VersionValue != nil && *a.VersionValue == *b.VersionValue
	}
	return false
}
