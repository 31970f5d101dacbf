package decide

// What makes the search short: devices that are equal, and places that are.

import (
	"encoding/binary"
	"maps"
	"slices"
)

// equal: choosing one device or the other makes no difference to what can be
// chosen after, so that where one has failed the other fails too.
func (s *search) equal(a *alternative, x, y *device) bool {
	if x.multi || y.multi || x.model != y.model {
		return false
	}
	if len(x.counters)+len(y.counters) > 0 && (x.pool() != y.pool() || !slices.Equal(x.counters, y.counters)) {
		return false
	}
	same := func(list []*constraint) bool {
		return !slices.ContainsFunc(list, func(k *constraint) bool { return k.valueOf(x) != k.valueOf(y) })
	}
	if !same(a.constraints) || !same(s.wishes) {
		return false
	}
	for _, req := range s.r.prob.requests[a.request.index+1:] {
		for _, later := range req.alts {
			cands := s.candidates(later)
			if slices.Contains(cands, x) != slices.Contains(cands, y) || !same(later.constraints) {
				return false
			}
		}
	}
	return true
}

// memoKey describes everything on which the rest of the search depends: the
// place, and of what is chosen only what still matters.
func (s *search) memoKey(a *alternative, cands []*device, from, need int) string {
	var b []byte
	num := func(n int) { b = binary.AppendVarint(b, int64(n)) }
	text := func(t string) { num(len(t)); b = append(b, t...) }
	num(a.place)
	num(from)
	num(need)
	rest := s.r.prob.requests[a.request.index+1:]
	// Devices that come up again: later in a later request.
	for i := range s.chosen {
		c := &s.chosen[i]
		num(c.alt.place)
		again := c.dev.multi
		for _, req := range rest {
			for _, later := range req.alts {
				again = again || slices.Contains(s.candidates(later), c.dev)
			}
		}
		if again {
			text(c.dev.id.String())
		}
		for _, k := range c.alt.constraints {
			v := k.valueOf(c.dev)
			num(int(v.kind))
			text(v.text)
			num(int(v.n))
		}
		if s.r.budget != nil {
			num(s.r.budget.place(c.dev.model))
		}
		for _, k := range s.wishes {
			v := k.valueOf(c.dev)
			num(int(v.kind))
			text(v.text)
			num(int(v.n))
		}
	}
	// Counters that something still to come consumes.
	matters := map[*pool][]bool{}
	note := func(list []*device) {
		for _, d := range list {
			for _, u := range d.counters {
				if matters[d.pool()] == nil {
					matters[d.pool()] = make([]bool, len(d.pool().counters.names))
				}
				matters[d.pool()][u.at] = true
			}
		}
	}
	note(cands[from:])
	for _, req := range rest {
		for _, later := range req.alts {
			note(s.candidates(later))
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(matters), func(x, y *pool) int { return comparePoolKeys(x.key, y.key) }) {
		left := s.leftOf(p)
		for at, matter := range matters[p] {
			if matter {
				b = binary.AppendVarint(b, left[at])
			}
		}
	}
	return string(b)
}
