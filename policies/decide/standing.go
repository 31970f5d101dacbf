package decide

// How the fleet stands for one alternative, kept up to date by events.
//
// Most Pods differ in nothing that matters to their devices: they follow the
// same policy, and no node is refused for them. What the checks say of every
// node is then the same for all of them, and changes only where a device
// changed hands or its data. So it is kept: the nodes that serve, in the order
// of choice, and how many devices fall under each reason. A decision follows
// the changes since the last one and reads off the answer; its cost does not
// grow with the fleet.
//
// Everything here is found by the same functions that look at the whole fleet,
// applied to one node. What they would say differently of a fleet than of its
// nodes one by one is left to them: see [run.standing].

import (
	"cmp"
	"slices"
	"strconv"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	// maxStandings is how many alternatives are kept, those that were asked for
	// last. One takes some hundred bytes for each node.
	maxStandings = 64
	// maxTouched is how many changes are remembered. Standings that have not
	// followed so many are built anew.
	maxTouched = 1 << 14
)

// standings are all that are kept, and what they have to follow.
type standings struct {
	by map[string]*standing
	// structure counts changes of nodes, pools and slices, after which all are
	// built anew; touched are the nodes whose devices changed since then.
	structure uint64
	touched   []*node
	// followed is how many of touched some standing has followed.
	followed int
	// asked counts questions, to tell which standing was asked for last.
	asked uint64
	// noneRefused are as many nodes as there are, none of them refused.
	noneRefused []refusal
}

// standing is how the fleet stands for one alternative.
type standing struct {
	spread    bool
	structure uint64
	followed  int // of standings.touched
	asked     uint64

	nodes map[*node]*stand
	// order are the nodes that serve, in the order of choice.
	order []*stand
	// counts are the devices under each reason, those that pass under what
	// becomes of their node's; with are the slices that have some, in order.
	counts [numCodes]int32
	with   [numCodes][]*slice
	// models are those of the devices that pass: what becomes of how many.
	models map[modelKey]*[numCodes]int32
	// mixed is the number of nodes on which devices of several models pass.
	mixed int
	// hard is the number of nodes on which the search is long; see [run.standing].
	hard int
	// ever says whether some node could serve if everything were free.
	ever *prospect
}

// stand is how one node stands.
type stand struct {
	node   *node
	serves bool
	unmet  int
	passed []*device
	chosen []*device
	// code is what becomes of the devices that pass.
	code   code
	mixed  bool
	slices []sliceStand
	hard   bool
}

type sliceStand struct {
	slice  *slice
	counts []codeCount
}

// prospect is what a node could offer if everything were free.
type prospect struct {
	possible bool
	models   []modelKey
}

// restructure has all standings built anew.
func (st *State) restructure() {
	st.standings.structure++
	clear(st.standings.touched)
	st.standings.touched, st.standings.followed = st.standings.touched[:0], 0
}

// touch notes that a device changed hands or its taints.
func (st *State) touch(d *device) {
	if len(st.standings.by) == 0 {
		return
	}
	if len(d.counters) == 0 {
		st.touchHome(d.slice)
		return
	}
	for _, s := range d.pool().current {
		st.touchHome(s)
	}
}

func (st *State) touchHome(s *slice) {
	if s.reach == nil || s.reach.home == nil {
		return
	}
	t := &st.standings.touched
	if n := len(*t); n > st.standings.followed && (*t)[n-1] == s.reach.home {
		return // nobody has looked since
	}
	if len(*t) == maxTouched {
		st.restructure()
		return
	}
	*t = append(*t, s.reach.home)
}

// standingOf returns the standing for an alternative, up to date.
func (st *State) standingOf(r *run, a *alternative) *standing {
	all := &st.standings
	all.asked++
	key := standingKey(a, r.prob.ranking)
	s := all.by[key]
	if s == nil {
		if len(all.by) >= maxStandings {
			all.dropOldest()
		}
		s = &standing{spread: r.prob.ranking == v1alpha1.RankingSpread, structure: all.structure - 1}
		all.by[key] = s
	}
	s.asked = all.asked
	switch {
	case s.structure != all.structure:
		s.build(newProber(r, a))
	case s.followed < len(all.touched):
		p, seen := newProber(r, a), map[*node]bool{}
		for _, n := range all.touched[s.followed:] {
			if !seen[n] {
				seen[n] = true
				s.replace(p.stand(n))
			}
		}
	}
	s.structure, s.followed = all.structure, len(all.touched)
	all.followed = len(all.touched)
	return s
}

func (all *standings) dropOldest() {
	oldest := ""
	for key, s := range all.by {
		if oldest == "" || s.asked < all.by[oldest].asked {
			oldest = key
		}
	}
	delete(all.by, oldest)
}

// standingKey identifies everything about an alternative on which it depends
// how nodes stand for it, where it is the Pod's only request.
func standingKey(a *alternative, ranking v1alpha1.Ranking) string {
	b := make([]byte, 0, 256)
	text := func(parts ...string) {
		for _, p := range parts {
			b = strconv.AppendQuote(b, p)
		}
	}
	text(a.key, string(ranking), strconv.Itoa(a.count))
	for _, t := range a.tolerations {
		text("tolerates", t.Key, string(t.Operator), t.Value, string(t.Effect))
	}
	for _, k := range a.constraints {
		text("constraint", strconv.Itoa(int(k.kind)), k.attribute)
	}
	for _, k := range a.request.wishes {
		text("wish", k.attribute)
	}
	return string(b)
}

// build looks at every node.
func (s *standing) build(p *prober) {
	s.nodes, s.order, s.models, s.mixed, s.hard, s.ever = map[*node]*stand{}, nil, map[modelKey]*[numCodes]int32{}, 0, 0, nil
	s.counts, s.with = [numCodes]int32{}, [numCodes][]*slice{}
	counted := map[*slice][]codeCount{}
	for _, pool := range p.st.poolOrder {
		for _, sl := range pool.current {
			home := sl.reach.home
			if s.nodes[home] == nil {
				n := p.stand(home)
				s.nodes[home] = n
				for i := range n.slices {
					counted[n.slices[i].slice] = n.slices[i].counts
				}
				if n.serves {
					s.order = append(s.order, n)
				}
				s.tally(n, 1)
			}
			for _, c := range counted[sl] {
				s.with[c.code] = append(s.with[c.code], sl)
			}
		}
	}
	slices.SortFunc(s.order, s.compare)
}

// compare is the order of choice between nodes for one alternative.
func (s *standing) compare(a, b *stand) int {
	byRank := cmp.Compare(len(a.passed), len(b.passed))
	if s.spread {
		byRank = -byRank
	}
	return cmp.Or(cmp.Compare(a.unmet, b.unmet), byRank, compareNodes(a.node, b.node))
}

// replace puts a node's new standing in the place of the old one.
func (s *standing) replace(n *stand) {
	old := s.nodes[n.node]
	if old != nil {
		if old.serves {
			s.order = removeSorted(s.order, old, s.compare)
		}
		s.tally(old, -1)
		for i := range old.slices {
			for _, c := range old.slices[i].counts {
				s.with[c.code] = removeSorted(s.with[c.code], old.slices[i].slice, compareSlices)
			}
		}
	}
	s.nodes[n.node] = n
	if n.serves {
		s.order = insertSorted(s.order, n, s.compare)
	}
	s.tally(n, 1)
	for i := range n.slices {
		for _, c := range n.slices[i].counts {
			s.with[c.code] = insertSorted(s.with[c.code], n.slices[i].slice, compareSlices)
		}
	}
}

// tally counts a node's devices in or out.
func (s *standing) tally(n *stand, by int) {
	for i := range n.slices {
		for _, c := range n.slices[i].counts {
			s.counts[c.code] += c.count * int32(by)
		}
	}
	for _, d := range n.passed {
		counts := s.models[d.model]
		if counts == nil {
			counts = &[numCodes]int32{}
			s.models[d.model] = counts
		}
		if counts[n.code] += int32(by); *counts == [numCodes]int32{} {
			delete(s.models, d.model)
		}
	}
	if n.hard {
		s.hard += by
	}
	if n.mixed {
		s.mixed += by
	}
}

// prober looks at single nodes for an alternative, as for a Pod whose tenant
// has no limits and to which no node is refused.
type prober struct {
	*run
	a  *alternative
	id int
}

func newProber(r *run, a *alternative) *prober {
	all := &r.st.standings
	if len(all.noneRefused) < len(r.nodes) {
		all.noneRefused = make([]refusal, len(r.nodes))
	}
	p := &prober{a: a, id: r.st.alternativeID(a), run: &run{
		st: r.st, prob: r.prob, now: r.now, nodes: r.nodes,
		refused: all.noneRefused[:len(r.nodes)], evals: make([]*evaluation, len(r.prob.alts)),
	}}
	p.search.r = p.run
	return p
}

// evaluateOn checks the devices of one node, and makes the search use these.
func (p *prober) evaluateOn(n *node, count func(s *slice, c code, devices int)) *evaluation {
	ev := &evaluation{alt: p.a, only: n}
	p.evals[p.a.place] = ev
	for _, s := range n.local {
		switch {
		case s.pool.problem != "":
			count(s, poolIncomplete, len(s.devices))
			continue
		case n.obj == nil:
			count(s, nodeMismatch, len(s.devices))
			continue
		}
		v := p.st.verdictsOf(s, p.a, p.id)
		if v.ofTier == 0 {
			for _, c := range v.notOfTier {
				count(s, c.code, int(c.count))
			}
			continue
		}
		for i, d := range s.devices {
			c := p.codeOf(d, p.a, v.devices[i], false)
			count(s, c, 1)
			if c == eligible {
				ev.passed = append(ev.passed, d)
			}
		}
	}
	return ev
}

// stand finds out how a node stands.
func (p *prober) stand(n *node) *stand {
	out := &stand{node: n}
	tallies := make([][numCodes]int32, len(n.local))
	at := -1
	ev := p.evaluateOn(n, func(s *slice, c code, devices int) {
		if at < 0 || n.local[at] != s {
			at = slices.Index(n.local, s)
		}
		tallies[at][c] += int32(devices)
	})
	out.passed = ev.passed
	out.mixed = slices.ContainsFunc(ev.passed, func(d *device) bool { return d.model != ev.passed[0].model })
	if len(ev.passed) > 0 {
		p.most = 0
		s := &p.search
		s.start(n)
		s.fixed[0] = p.a.index
		if out.unmet, out.serves = s.settle(); out.serves {
			out.code = lowerRank
			for i := range s.chosen {
				out.chosen = append(out.chosen, s.chosen[i].dev)
			}
		}
		s.undo(0)
		if !out.serves {
			out.code = p.setVerdict(ev, n, nil).code
		}
		out.hard = p.most > fewSteps
	}
	for i, tally := range tallies {
		tally[out.code] += tally[eligible]
		ss := sliceStand{slice: n.local[i]}
		for c := eligible + 1; c < numCodes; c++ {
			if tally[c] > 0 {
				ss.counts = append(ss.counts, codeCount{c, tally[c]})
			}
		}
		out.slices = append(out.slices, ss)
	}
	return out
}
