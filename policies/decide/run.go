package decide

// One evaluation of a problem: which nodes serve the Pod, and which devices
// pass the checks for each alternative.

import (
	"slices"
	"time"

	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// run is one evaluation of one problem.
type run struct {
	st     *State
	prob   *problem
	now    time.Time
	others map[string]string // nodes that others refused
	group  *GroupTier
	check  *nodeCheck
	budget *budget
	// relaxed asks what could ever be: every device free and untainted, nodes
	// usable, `after` elapsed, the tenant's usage zero, the Pod's turn for any model.
	relaxed bool

	nodes    []*node   // in order of names
	refused  []refusal // by the node's place
	stands   []*standing
	most     int // steps of the longest search
	reached  map[*reach]reachable
	counters map[*pool]amounts
	evals    []*evaluation // by the alternative's place
	steps    int           // of all searches of this run
	search   search
	offer    option // the one being yielded
}

// reachable is what a run knows of a node selection.
type reachable struct {
	code  code // eligible: a node that serves the Pod can use the device
	place int  // of the only node; -1: several
	node  string
}

func (st *State) newRun(prob *problem, q *Query, relaxed bool) *run {
	r := &run{
		st: st, prob: prob, now: q.Now, relaxed: relaxed,
		budget: st.budgetOf(prob.pod, relaxed),
		nodes:  st.nodeOrder,
		evals:  make([]*evaluation, len(prob.alts)),
	}
	r.search.r = r
	r.refused = make([]refusal, len(r.nodes))
	if relaxed {
		return r
	}
	r.group = q.Group
	switch st.opts.NodeChecks {
	case ExternalNodeChecks:
		r.others = q.NodeRejections
		for name := range r.others {
			if i := r.placeOf(name); i >= 0 {
				r.refused[i] = refusedByOthers
			}
		}
	default:
		r.check = newNodeCheck(prob.pod)
		for i, n := range r.nodes {
			r.refused[i] = r.check.refuses(n)
		}
	}
	for _, sel := range allocatedSelectors(prob) {
		for i, n := range r.nodes {
			if match, err := sel.Match(n.obj); r.refused[i] == nodeOK && (!match || err != nil) {
				r.refused[i] = claimElsewhere
			}
		}
	}
	return r
}

// allocatedSelectors are the node selections of the claims that are allocated
// already. One that can't be parsed matches nothing.
func allocatedSelectors(prob *problem) []*nodeaffinity.LazyErrorNodeSelector {
	var out []*nodeaffinity.LazyErrorNodeSelector
	for _, c := range prob.claims {
		if c.allocated != nil && c.allocated.NodeSelector != nil {
			out = append(out, nodeaffinity.NewLazyErrorNodeSelector(c.allocated.NodeSelector))
		}
	}
	return out
}

// placeOf is the place of the node of this name, or -1.
func (r *run) placeOf(name string) int {
	if n := r.st.nodes[name]; n != nil && n.obj != nil {
		return n.index
	}
	return -1
}

// reach says whether a node that serves the Pod can use devices of this
// selection.
func (r *run) reach(of *reach) reachable {
	if of.node != "" {
		i := -1
		if of.home == nil {
			i = r.placeOf(of.node)
		} else if of.home.obj != nil {
			i = of.home.index
		}
		switch {
		case i < 0:
			return reachable{nodeMismatch, -1, of.node}
		case r.refused[i] != nodeOK:
			return reachable{nodeUnsuitable, i, of.node}
		}
		return reachable{eligible, i, of.node}
	}
	if known, ok := r.reached[of]; ok {
		return known
	}
	out := reachable{code: nodeMismatch, place: -1}
	for i, n := range r.nodes {
		if !r.st.reaches(of, n) {
			continue
		}
		if r.refused[i] == nodeOK {
			out = reachable{code: eligible, place: -1}
			break
		}
		if out.code == nodeMismatch {
			out = reachable{nodeUnsuitable, -1, n.name}
		}
	}
	if r.reached == nil {
		r.reached = map[*reach]reachable{}
	}
	r.reached[of] = out
	return out
}

// refusalOf explains why the node does not serve the Pod.
func (r *run) refusalOf(name string) string {
	i := r.placeOf(name)
	if i < 0 {
		return "the node does not exist"
	}
	if r.refused[i] == refusedByOthers {
		return r.others[name]
	}
	if r.check == nil {
		return (&nodeCheck{pod: r.prob.pod}).words(r.nodes[i], r.refused[i])
	}
	return r.check.words(r.nodes[i], r.refused[i])
}

// own says whether a hold is what was assumed for the Pod itself, which counts
// as free for it.
func (r *run) own(h *hold) bool { return h.claim == "" && h.pod == r.prob.pod.key }

// countersOf is what is left of a pool's counters.
func (r *run) countersOf(p *pool) amounts {
	if r.relaxed {
		return p.counters.total
	}
	a := r.prob.pod.assumed
	if a == nil {
		return p.countersLeft()
	}
	if left, ok := r.counters[p]; ok {
		return left
	}
	left := slices.Clone(p.countersLeft())
	for _, h := range a.holds {
		if d := h.use.device; d != nil && d.pool() == p && len(h.use.holds) == 1 {
			left.release(d)
		}
	}
	if r.counters == nil {
		r.counters = map[*pool]amounts{}
	}
	r.counters[p] = left
	return left
}

// heldByOthers says whether anybody but the Pod itself holds the device, and
// what shares of its capacity they hold.
func (r *run) heldByOthers(d *device) (held bool, takes []quantities) {
	if d.use == nil || r.relaxed {
		return false, nil
	}
	for _, h := range d.use.holds {
		if !r.own(h) {
			held = true
			if h.takes != nil {
				takes = append(takes, h.takes)
			}
		}
	}
	return held, takes
}
