package decide

// The order of choice over nodes.

import (
	"cmp"
	"iter"
	"slices"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// option is what one node can offer. Those that a sequence yields are valid
// only until the next one; keep makes one's own.
type option struct {
	node   *node
	vector []int // the alternative for each request
	unmet  int   // wishes that the devices do not meet
	rank   int   // eligible devices on the node: Packed fewest, Spread most
	chosen []choice
}

func (o *option) keep() *option {
	return &option{node: o.node, vector: slices.Clone(o.vector), unmet: o.unmet, rank: o.rank, chosen: slices.Clone(o.chosen)}
}

// compareOptions is the published total order: the vector of alternatives,
// unmet wishes, free eligible devices on the node, the node's name.
func (r *run) compareOptions(a, b *option) int {
	byRank := cmp.Compare(a.rank, b.rank)
	if r.prob.ranking == v1alpha1.RankingSpread {
		byRank = -byRank
	}
	return cmp.Or(slices.Compare(a.vector, b.vector), cmp.Compare(a.unmet, b.unmet), byRank, compareNodes(a.node, b.node))
}

// rounds yields, from best to worst, groups of offers that come before those of
// later groups: tier by tier where the Pod has one request, so that a lower
// tier is not even looked at before it is asked for; else one group. Offers that
// are not known in the order of choice already go through order.
func (r *run) rounds(order func(iter.Seq[*option]) iter.Seq[*option]) iter.Seq[iter.Seq[*option]] {
	return func(yield func(iter.Seq[*option]) bool) {
		if len(r.prob.requests) != 1 {
			yield(order(r.offers()))
			return
		}
		for _, a := range r.prob.requests[0].alts {
			if r.group.bars(a) {
				continue
			}
			var offers iter.Seq[*option]
			if s := r.answering(a); s != nil {
				offers = r.offersBy(s, a)
			} else {
				offers = order(r.offersOf(a))
			}
			if !yield(offers) {
				return
			}
		}
	}
}

// offersOf yields what each node offers for one alternative of the only request.
func (r *run) offersOf(a *alternative) iter.Seq[*option] {
	return func(yield func(*option) bool) {
		ev, s := r.evaluate(a), &r.search
		ev.serves = make([]bool, len(r.nodes))
		if len(ev.passed) == 0 {
			return
		}
		for i, n := range r.nodes {
			if r.refused[i] != nodeOK || !r.any(ev, n) {
				continue
			}
			s.start(n)
			s.fixed[0] = a.index
			unmet, ok := s.settle()
			if ev.serves[i] = ok; ok && !yield(r.option(unmet)) {
				break
			}
		}
		s.undo(0)
	}
}

// offers yields each node's first vector of alternatives.
func (r *run) offers() iter.Seq[*option] {
	return func(yield func(*option) bool) {
		s := &r.search
		for _, a := range r.prob.alts {
			r.evaluate(a) // before the search charges anything
		}
		for i, n := range r.nodes {
			if r.refused[i] != nodeOK {
				continue
			}
			s.start(n)
			if !s.vector() {
				continue
			}
			if unmet, ok := s.settle(); ok && !yield(r.option(unmet)) {
				break
			}
		}
		s.undo(0)
	}
}

// any: some device of the node passes for the alternative.
func (r *run) any(ev *evaluation, n *node) bool {
	return len(ev.shared) > 0 || ev.offsets[n.index+1] > ev.offsets[n.index]
}

// option describes what the search has just found.
func (r *run) option(unmet int) *option {
	s := &r.search
	r.offer = option{node: s.n, vector: s.fixed, unmet: unmet, rank: r.rank(), chosen: s.chosen}
	return &r.offer
}

// rank is the number of devices on the node that are eligible for any of the
// chosen alternatives.
func (r *run) rank() int {
	s := &r.search
	if len(r.prob.requests) == 1 {
		return len(s.candidates(r.prob.requests[0].alts[s.fixed[0]]))
	}
	seen := map[*device]bool{}
	for i, req := range r.prob.requests {
		for _, d := range s.candidates(req.alts[s.fixed[i]]) {
			seen[d] = true
		}
	}
	return len(seen)
}

// choose returns the first option in the order of choice, or nil.
func (r *run) choose() *option {
	for round := range r.rounds(r.best) {
		for o := range round {
			return o
		}
	}
	return nil
}

// best yields the first of some offers in the order of choice alone.
func (r *run) best(offers iter.Seq[*option]) iter.Seq[*option] {
	return func(yield func(*option) bool) {
		var best *option
		for o := range offers {
			if best == nil || r.compareOptions(o, best) < 0 {
				best = o.keep()
			}
		}
		if best != nil {
			yield(best)
		}
	}
}

// inOrder sorts offers by the order of choice. They may be kept.
func (r *run) inOrder(offers iter.Seq[*option]) iter.Seq[*option] {
	var all []*option
	for o := range offers {
		all = append(all, o.keep())
	}
	slices.SortFunc(all, r.compareOptions)
	return slices.Values(all)
}

// asTheyCome leaves offers in the order of the nodes.
func asTheyCome(offers iter.Seq[*option]) iter.Seq[*option] { return offers }

// possible: some node can serve the Pod.
func (r *run) possible() bool {
	for round := range r.rounds(asTheyCome) {
		for range round {
			return true
		}
	}
	return false
}

// Candidate is one place where the Pod could go.
type Candidate struct {
	Node      string
	Tier      string
	TierIndex int32
	Devices   []v1alpha1.DecidedDevice
	// Shared are those of the devices that can be reached from other nodes too, as
	// "driver/pool/device", in order.
	Shared []string
}

// Candidates yields, for each node that can serve the Pod, its best candidate,
// in the total order of choice. Decide chooses the first one. Lower tiers are
// looked at only when the higher ones' nodes have been taken from the
// sequence. The State must not be changed, nor asked anything else, while the
// sequence is being read; it can be read once.
func (st *State) Candidates(q Query) (iter.Seq[Candidate], error) {
	prob, parked, err := st.read(&q)
	if err != nil {
		return nil, err
	}
	return func(yield func(Candidate) bool) {
		if parked != nil {
			return
		}
		r := st.newRun(prob, &q, false)
		if r.allocatedProblem() != nil {
			return
		}
		done := map[*node]bool{}
		for round := range r.rounds(r.inOrder) {
			for o := range round {
				if done[o.node] {
					continue
				}
				done[o.node] = true
				if !yield(r.candidate(o)) {
					return
				}
			}
		}
	}, nil
}

func (r *run) candidate(o *option) Candidate {
	c := Candidate{Node: o.node.name, Devices: r.devices(o)}
	if a := r.mainAlternative(o); a != nil {
		c.Tier, c.TierIndex = a.tierName(), int32(a.index)
	}
	for i := range o.chosen {
		if d := o.chosen[i].dev; d.reach.node == "" {
			c.Shared = append(c.Shared, d.id.String())
		}
	}
	slices.Sort(c.Shared)
	return c
}
