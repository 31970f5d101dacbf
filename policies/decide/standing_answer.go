package decide

// Answers read off a standing.

import (
	"iter"
	"slices"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// standing returns how the fleet stands for an alternative, or nil where every
// device has to be looked at:
//
//   - the nodes are judged here, Pod by Pod, or all examples are wanted;
//   - the Pod asks for several things, has devices already, or has some assumed,
//     which count as free for it alone;
//   - it wants all devices of a node, or has admin access;
//   - some devices can be reached from several nodes;
//   - the search on some node is so long that it might be given up, and where
//     that is depends on what was searched before.
func (r *run) standing(a *alternative) *standing {
	if !r.ordinary() || a.all || a.admin {
		return nil
	}
	if r.stands == nil {
		r.stands = make([]*standing, len(r.prob.alts))
	}
	s := r.stands[a.place]
	if s == nil {
		s = r.st.standingOf(r, a)
		r.stands[a.place] = s
	}
	if s.hard > 0 {
		return nil
	}
	return s
}

func (r *run) ordinary() bool {
	if r.st.opts.NodeChecks != ExternalNodeChecks || r.st.opts.Examples < 0 || r.st.opts.WholeFleet ||
		r.relaxed || len(r.prob.requests) != 1 || len(r.st.shared) > 0 || r.prob.pod.assumed != nil {
		return false
	}
	return !slices.ContainsFunc(r.prob.claims, func(c *claimProblem) bool { return c.allocated != nil })
}

// answering is standing where it answers for this Pod as well: the tier may be
// used by now and is that of its group, and what the tenant may not have is
// whole nodes.
func (r *run) answering(a *alternative) *standing {
	if r.waited() < a.after || r.group.bars(a) {
		return nil
	}
	s := r.standing(a)
	if s == nil {
		return nil
	}
	for m := range s.models {
		// Devices that the tenant may have one by one, but not all that are
		// wanted, are told by a search.
		if barred := r.barred(a, m); barred && s.mixed > 0 || !barred && !r.budget.allows(m, a.count) {
			return nil
		}
	}
	return s
}

// barred: the tenant's quota leaves no room for devices of the model, or the Pod's
// turn is for others.
func (r *run) barred(a *alternative, m modelKey) bool { return !r.budget.allows(m, a.charge()) }

// refusedHome: the slice's node is refused to the Pod, which counts before
// whatever the checks say of the devices.
func (r *run) refusedHome(s *slice) bool {
	home := s.reach.home
	return s.pool.problem == "" && home.obj != nil && r.refused[home.index] != nodeOK
}

// offersBy yields what the nodes offer, in the order of choice.
func (r *run) offersBy(s *standing, a *alternative) iter.Seq[*option] {
	return func(yield func(*option) bool) {
		for _, n := range s.order {
			if r.refused[n.node.index] != nodeOK || r.barred(a, n.passed[0].model) {
				continue
			}
			o := &option{node: n.node, vector: []int{a.index}, unmet: n.unmet, rank: len(n.passed)}
			for _, d := range n.chosen {
				o.chosen = append(o.chosen, choice{alt: a, dev: d})
			}
			if !yield(o) {
				return
			}
		}
	}
}

// evidenceBy counts the devices of the fleet for an alternative; chosen is the
// answer, or nil.
func (r *run) evidenceBy(s *standing, a *alternative, chosen *option) []v1alpha1.Rejection {
	ev := &evaluation{alt: a, counts: s.counts}
	refused := r.refusedSlices()
	for _, sl := range refused {
		for _, c := range s.countsOf(sl) {
			ev.counts[c.code] -= c.count
		}
		ev.counts[nodeUnsuitable] += int32(len(sl.devices))
	}
	for m, counts := range s.models {
		if r.barred(a, m) {
			for c, n := range counts {
				ev.counts[c] -= n
				ev.counts[quotaExceeded] += n
			}
		}
	}
	// What passes on refused nodes was counted twice.
	for _, n := range r.refusedNodes() {
		if stand := s.nodes[n]; stand != nil && len(stand.passed) > 0 && r.barred(a, stand.passed[0].model) {
			ev.counts[stand.code] += int32(len(stand.passed))
			ev.counts[quotaExceeded] -= int32(len(stand.passed))
		}
	}
	taken := map[*device]bool{}
	if chosen != nil && chosen.vector[a.request.index] == a.index {
		for i := range chosen.chosen {
			taken[chosen.chosen[i].dev] = true
		}
		ev.counts[lowerRank] -= int32(len(taken))
		ev.counts[selected] += int32(len(taken))
	}
	p := newProber(r, a)
	for c := range ev.counts {
		if ev.counts[c] == 0 {
			continue
		}
		switch c := code(c); c {
		case nodeUnsuitable:
			for _, sl := range refused {
				r.countExamples(ev, sl, c)
			}
		case selected:
			for i := range chosen.chosen {
				ev.exemplify(r, chosen.chosen[i].dev, c, chosen.node.name, "")
			}
		case quotaExceeded:
			r.barredExamples(s, ev)
		default:
			r.examplesBy(s, p, ev, c, taken)
		}
	}
	return ev.rejections()
}

// refusedNodes are the nodes that others refused.
func (r *run) refusedNodes() []*node {
	var out []*node
	for name := range r.others {
		if n := r.st.nodes[name]; n != nil && n.obj != nil {
			out = append(out, n)
		}
	}
	return out
}

// refusedSlices are the slices of refused nodes, in the order of choice.
func (r *run) refusedSlices() []*slice {
	var out []*slice
	for _, n := range r.refusedNodes() {
		for _, sl := range n.local {
			if r.refusedHome(sl) {
				out = append(out, sl)
			}
		}
	}
	slices.SortFunc(out, compareSlices)
	return out
}

func (s *standing) countsOf(sl *slice) []codeCount {
	for _, ss := range s.nodes[sl.reach.home].slices {
		if ss.slice == sl {
			return ss.counts
		}
	}
	return nil
}

// countExamples names devices of a slice that all fall under one reason.
func (r *run) countExamples(ev *evaluation, sl *slice, c code) {
	for _, d := range sl.devices {
		if !r.wants(ev, c) {
			return
		}
		r.addExample(ev, d, c, sl.local())
	}
}

// examplesBy names the first devices under a reason.
func (r *run) examplesBy(s *standing, p *prober, ev *evaluation, c code, taken map[*device]bool) {
	for _, sl := range s.with[c] {
		if !r.wants(ev, c) {
			return
		}
		if r.refusedHome(sl) {
			continue
		}
		n := s.nodes[sl.reach.home]
		switch {
		case c == poolIncomplete, c == nodeMismatch && (n.node.obj == nil || sl.pool.problem != ""):
			r.countExamples(ev, sl, c)
			continue
		}
		v := r.st.verdictsOf(sl, ev.alt, p.id)
		for i, d := range sl.devices {
			switch found := p.codeOf(d, ev.alt, v.devices[i], false); {
			case found == c:
				r.addExample(ev, d, c, n.node.name)
			case found == eligible && n.code == c && !taken[d] && !r.barred(ev.alt, d.model) && r.wants(ev, c):
				ev.exemplify(r, d, c, n.node.name, p.setDetail(n))
			}
		}
	}
}

// barredExamples names the first devices of models that the tenant may not have.
// They pass otherwise, so they stand under what becomes of those that pass.
func (r *run) barredExamples(s *standing, ev *evaluation) {
	var found []*device
	for c := range numCodes {
		here := 0
		for _, sl := range s.with[c] {
			n := s.nodes[sl.reach.home]
			if here == r.st.opts.Examples {
				break
			}
			if n.code != c || len(n.passed) == 0 || r.refusedHome(sl) || !r.barred(ev.alt, n.passed[0].model) {
				continue
			}
			for _, d := range n.passed {
				if d.slice == sl && here < r.st.opts.Examples {
					found = append(found, d)
					here++
				}
			}
		}
	}
	slices.SortFunc(found, compareDevices)
	for _, d := range found {
		r.addExample(ev, d, quotaExceeded, d.slice.local())
	}
}

// exemplify names a device under what became of it as one of a set.
func (ev *evaluation) exemplify(r *run, d *device, c code, node, detail string) {
	if r.wants(ev, c) {
		ev.examples[c] = append(ev.examples[c], example{d, node, detail})
	}
}

// setDetail says what the devices that pass on a node lack as a set.
func (p *prober) setDetail(n *stand) string {
	if n.serves {
		return ""
	}
	ev := p.evaluateOn(n.node, func(*slice, code, int) {})
	v := p.setVerdict(ev, n.node, nil)
	return v.detail
}

// couldEver says whether a node could serve the alternative if everything were
// free, as far as the standing can tell.
func (r *run) couldEver(s *standing, a *alternative, q *Query) (possible, known bool) {
	if s.ever == nil {
		relaxed := r.st.newRun(r.prob, q, true)
		relaxed.budget, relaxed.others = nil, nil
		s.ever = &prospect{}
		for o := range relaxed.offersOf(a) {
			s.ever.possible = true
			for i := range o.chosen {
				s.ever.models = append(s.ever.models, o.chosen[i].dev.model)
			}
			break
		}
	}
	if !s.ever.possible {
		return false, true
	}
	fresh := r.st.budgetOf(r.prob.pod, true)
	for _, m := range s.ever.models {
		if !fresh.allows(m, a.count) {
			return false, false
		}
	}
	return true, true
}

// knownPossible says whether it is known, without looking at the fleet, that
// the Pod could be served if everything were free.
func (r *run) knownPossible(q *Query) bool {
	if len(r.prob.requests) != 1 {
		return false
	}
	return slices.ContainsFunc(r.prob.requests[0].alts, func(a *alternative) bool {
		s := r.standing(a)
		if s == nil {
			return false
		}
		possible, known := r.couldEver(s, a, q)
		return possible && known
	})
}
