package decide

// The search for a set of devices on one node: depth first, in the order of
// choice, exact. Two prunings keep it short without changing the answer: a
// branch is left when fewer devices fit than are still needed (what does not
// fit now will not fit deeper down), and a device is passed over when an equal
// one has just failed in its place.

import (
	"slices"
)

// The search is bounded, in steps and not in time, so that it ends in the same
// place on every machine. Slices of other drivers are not to be trusted: their
// counters can be made into a puzzle that nobody solves. A search that is given
// up counts as "not enough devices". Honest fleets stay far below: a step is
// one device chosen.
const (
	// maxSteps is what the search on one node may take,
	maxSteps = 20_000
	// as long as all searches of a run have taken no more than
	maxStepsOfRun = 200_000
	// and what it may take after that.
	fewSteps = 1_000
	// memoAfter is the number of steps after which failures are remembered.
	memoAfter = 100
)

// search looks for devices on one node. It is reused from node to node.
type search struct {
	r *run
	n *node
	// fixed is the alternative for each request; -1: any.
	fixed []int
	// wishes are attributes that the devices of their request must share now.
	wishes []*constraint
	// looseQuota and looseConstraints leave checks out, to find out which of
	// them is in the way.
	looseQuota, looseConstraints bool

	cands  [][]*device // by the alternative's place; nil: not looked up yet
	chosen []choice
	// left is what the choices leave of the counters of the pools in question.
	left   map[*pool]amounts
	steps  int
	limit  int
	failed map[string]struct{} // places where the search failed, see memoKey
}

// choice is a device chosen for an alternative.
type choice struct {
	alt   *alternative
	dev   *device
	takes quantities // of a device that is shared
	pays  bool       // it consumes counters; a shared device in use has paid
}

// start begins with another node.
func (s *search) start(n *node) {
	s.n = n
	if s.cands == nil {
		s.cands = make([][]*device, len(s.r.prob.alts))
		s.fixed = make([]int, len(s.r.prob.requests))
	}
	clear(s.cands)
	for i := range s.fixed {
		s.fixed[i] = -1
	}
	s.wishes, s.looseQuota, s.looseConstraints = nil, false, false
}

// solve searches under the present settings; chosen then holds the answer.
func (s *search) solve() bool {
	s.undo(0)
	s.steps, s.limit, s.failed = 0, maxSteps, nil
	if s.r.steps > maxStepsOfRun {
		s.limit = fewSteps
	}
	found := s.request(0)
	s.r.steps += s.steps
	s.r.most = max(s.r.most, s.steps)
	return found
}

func (s *search) request(i int) bool {
	if i == len(s.r.prob.requests) {
		return true
	}
	req := s.r.prob.requests[i]
	if f := s.fixed[i]; f >= 0 {
		return s.alternative(req.alts[f])
	}
	return slices.ContainsFunc(req.alts, s.alternative)
}

func (s *search) candidates(a *alternative) []*device {
	c := s.cands[a.place]
	if c == nil {
		if c = s.r.on(s.r.evaluate(a), s.n); c == nil {
			c = []*device{}
		}
		s.cands[a.place] = c
	}
	return c
}

func (s *search) alternative(a *alternative) bool {
	cands, need := s.candidates(a), a.count
	if a.all {
		count, ok := s.r.matchingOn(s.r.evaluate(a), s.n)
		if need = len(cands); !ok || need == 0 || need != count {
			return false
		}
	}
	if len(cands) < need || s.chosenFor(a.request.claim)+need > maxDevicesPerClaim {
		return false
	}
	return s.pick(a, cands, 0, need)
}

func (s *search) chosenFor(c *claimProblem) int {
	n := 0
	for i := range s.chosen {
		if s.chosen[i].alt.request.claim == c {
			n++
		}
	}
	return n
}

// pick chooses need more devices, from the place from on.
func (s *search) pick(a *alternative, cands []*device, from, need int) bool {
	if need == 0 {
		return s.request(a.request.index + 1)
	}
	if s.steps++; s.steps > s.limit {
		return false
	}
	if need > 1 && !a.all && !s.enough(a, cands[from:], need) {
		return false
	}
	key := ""
	if s.steps > memoAfter {
		key = s.memoKey(a, cands, from, need)
		if _, known := s.failed[key]; known {
			return false
		}
	}
	var tried []*device
	for i := from; i <= len(cands)-need && s.steps <= s.limit; i++ {
		d := cands[i]
		takes, ok := s.fits(a, d)
		switch {
		case !ok && a.all:
			return false
		case !ok, slices.ContainsFunc(tried, func(o *device) bool { return s.equal(a, o, d) }):
			continue
		}
		s.push(choice{alt: a, dev: d, takes: takes})
		if s.pick(a, cands, i+1, need-1) {
			return true
		}
		s.undo(len(s.chosen) - 1)
		if a.all {
			return false
		}
		tried = append(tried, d)
	}
	if key != "" && s.steps <= s.limit {
		if s.failed == nil {
			s.failed = map[string]struct{}{}
		}
		s.failed[key] = struct{}{}
	}
	return false
}

// push adds a choice and charges what it takes.
func (s *search) push(c choice) {
	if !c.alt.admin {
		s.r.budget.take(c.dev.model, 1)
	}
	if c.pays = len(c.dev.counters) > 0 && !s.paid(c.dev); c.pays {
		s.leftOf(c.dev.pool()).consume(c.dev)
	}
	s.chosen = append(s.chosen, c)
}

// undo takes back all but the first n choices.
func (s *search) undo(n int) {
	for _, c := range s.chosen[n:] {
		if !c.alt.admin {
			s.r.budget.take(c.dev.model, -1)
		}
		if c.pays {
			s.leftOf(c.dev.pool()).release(c.dev)
		}
	}
	clear(s.chosen[n:])
	s.chosen = s.chosen[:n]
}

// paid: a shared device that is in use consumes no counters again.
func (s *search) paid(d *device) bool {
	if !d.multi {
		return false
	}
	held, _ := s.r.heldByOthers(d)
	return held || slices.ContainsFunc(s.chosen, func(c choice) bool { return c.dev == d })
}

// leftOf is what the choices leave of the counters of a pool.
func (s *search) leftOf(p *pool) amounts {
	left, ok := s.left[p]
	if !ok {
		if s.left == nil {
			s.left = map[*pool]amounts{}
		}
		left = slices.Clone(s.r.countersOf(p))
		s.left[p] = left
	}
	return left
}

// enough: that many devices fit as things stand.
func (s *search) enough(a *alternative, cands []*device, need int) bool {
	for i, d := range cands {
		if len(cands)-i < need {
			return false
		}
		if _, ok := s.fits(a, d); ok {
			if need--; need == 0 {
				return true
			}
		}
	}
	return false
}

// fits says whether the device can join what is chosen, and what it takes of
// the device's capacity where the device is shared.
func (s *search) fits(a *alternative, d *device) (quantities, bool) {
	again := false
	for i := range s.chosen {
		c := &s.chosen[i]
		if c.dev != d {
			continue
		}
		if !d.multi && (!a.admin || c.alt.request.claim == a.request.claim) {
			return nil, false
		}
		again = true
	}
	if !s.joins(a, d) {
		return nil, false
	}
	if !a.admin && !s.looseQuota && !s.r.budget.allows(d.model, 1) {
		return nil, false
	}
	if len(d.counters) > 0 && !s.paid(d) && (s.r.countersOf(d.pool()).overdrawn() || !s.leftOf(d.pool()).fits(d)) {
		return nil, false
	}
	if !d.multi {
		return nil, true
	}
	takes, err := consumption(a.capacity, d.spec)
	if err != nil {
		return nil, false
	}
	_, taken := s.r.heldByOthers(d)
	if again {
		for i := range s.chosen {
			if s.chosen[i].dev == d {
				taken = append(taken, s.chosen[i].takes)
			}
		}
	}
	return takes, capacityLeft(takes, d.spec, taken...) == ""
}

// joins: the constraints hold between the device and those chosen.
func (s *search) joins(a *alternative, d *device) bool {
	for _, k := range a.constraints {
		if s.looseConstraints && k.kind != sameModel {
			continue
		}
		if !s.holds(k, a, d) {
			return false
		}
	}
	if len(a.request.wishes) > 0 {
		for _, k := range s.wishes {
			if !s.holds(k, a, d) {
				return false
			}
		}
	}
	return true
}

func (s *search) holds(k *constraint, a *alternative, d *device) bool {
	v := k.valueOf(d)
	if v.kind == 0 {
		return false
	}
	for i := range s.chosen {
		c := &s.chosen[i]
		if c.alt.request.claim != a.request.claim || !k.appliesTo(c.alt) {
			continue
		}
		if !k.allows(v, k.valueOf(c.dev)) {
			return false
		}
		if k.kind != distinctValues {
			break // the others have the same value
		}
	}
	return true
}

// vector finds the first vector of alternatives, lexicographically, that the
// node can serve, given those fixed already; fixed then holds it.
func (s *search) vector() bool {
	for i := range s.fixed {
		if s.fixed[i] >= 0 {
			continue
		}
		found := false
		for j := range s.r.prob.requests[i].alts {
			s.fixed[i] = j
			if s.solve() {
				found = true
				break
			}
		}
		if !found {
			s.fixed[i] = -1
			return false
		}
	}
	return len(s.fixed) == 0 || s.solve()
}
