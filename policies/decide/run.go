package decide

// One evaluation of a problem: which nodes serve the Pod, and which devices
// pass the checks for each alternative.

import (
	"fmt"
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
	check  *nodeCheck
	budget *budget
	// relaxed asks what could ever be: every device free and untainted, nodes
	// usable, `after` elapsed, the tenant's usage zero.
	relaxed bool

	nodes    []*node   // in order of names
	refused  []refusal // by the node's place
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
	switch st.opts.NodeChecks {
	case ExternalNodeChecks:
		r.others = q.NodeRejections
		for i, n := range r.nodes {
			if _, refused := r.others[n.name]; refused {
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

// evaluation is what the checks of each device alone say for one alternative.
type evaluation struct {
	alt      *alternative
	counts   [numCodes]int32
	examples [numCodes][]example
	// passed are the devices that pass every check, in the order of choice,
	// and the places of their nodes; -1: reachable from several.
	passed  []*device
	placeOf []int32
	// byNode are the passed devices of one node each, at offsets by place;
	// shared are those reachable from several.
	byNode  []*device
	offsets []int32
	shared  []*device
	// matching are the devices that "all" means, by place and shared.
	matching       []int32
	matchingShared []*device
	// serves says which nodes can serve the alternative, by place; nil: not known.
	serves []bool
}

// example is a device that fell under a reason.
type example struct {
	device *device
	node   string
	detail string
}

// evaluate checks every device of the fleet against one alternative.
func (r *run) evaluate(a *alternative) *evaluation {
	if ev := r.evals[a.place]; ev != nil {
		return ev
	}
	ev := &evaluation{alt: a}
	r.evals[a.place] = ev
	if a.all {
		ev.matching = make([]int32, len(r.nodes))
	}
	notYet := !r.relaxed && r.now.Sub(r.prob.pod.obj.CreationTimestamp.Time) < a.after
	id := r.st.alternativeID(a)
	for _, p := range r.st.poolOrder {
		for _, s := range p.current {
			if p.problem != "" {
				r.countAll(ev, s, poolIncomplete, reachable{place: -1, node: s.local()})
				continue
			}
			at := reachable{}
			if s.reach != nil {
				if at = r.reach(s.reach); at.code != eligible {
					r.countAll(ev, s, at.code, at)
					continue
				}
			}
			v := r.st.verdictsOf(s, a, id)
			if v.ofTier == 0 && s.reach != nil && !r.wantsExamples(ev, v) {
				for _, c := range v.notOfTier {
					ev.counts[c.code] += c.count
				}
				continue
			}
			for i, d := range s.devices {
				if s.reach == nil {
					at = r.reach(d.reach)
				}
				r.checkDevice(ev, d, v.devices[i], at, notYet)
			}
		}
	}
	ev.index(len(r.nodes))
	return ev
}

// index sorts the passed devices by node.
func (ev *evaluation) index(nodes int) {
	ev.offsets = make([]int32, nodes+2)
	for _, place := range ev.placeOf {
		if place >= 0 {
			ev.offsets[place+2]++
		}
	}
	for i := 2; i < len(ev.offsets); i++ {
		ev.offsets[i] += ev.offsets[i-1]
	}
	ev.byNode = make([]*device, ev.offsets[nodes+1])
	for i, d := range ev.passed {
		place := ev.placeOf[i]
		if place < 0 {
			ev.shared = append(ev.shared, d)
			continue
		}
		ev.byNode[ev.offsets[place+1]] = d
		ev.offsets[place+1]++
	}
}

// checkDevice files one device under the first check that it fails.
func (r *run) checkDevice(ev *evaluation, d *device, v verdict, at reachable, notYet bool) {
	a := ev.alt
	c := eligible
	switch {
	case at.code != eligible:
		c = at.code
	case v.tier != eligible:
		c = v.tier
	case notYet:
		c = tierNotYetAllowed
	default:
		if a.all && v.hard == eligible {
			if at.place >= 0 {
				ev.matching[at.place]++
			} else {
				ev.matchingShared = append(ev.matchingShared, d)
			}
		}
		if c = r.useCheck(d, a); c == eligible {
			c = r.healthCheck(d, a)
		}
		if c == eligible {
			c = v.hard
		}
		if c == eligible && d.multi {
			if held, taken := r.heldByOthers(d); held && r.capacityShort(d, a, taken) != "" {
				c = capacityTooSmall
			}
		}
		if c == eligible && !a.admin && !r.budget.allows(d.model, a.charge()) {
			c = quotaExceeded
		}
	}
	if c != eligible {
		ev.counts[c]++
		r.addExample(ev, d, c, at.node)
		return
	}
	ev.passed = append(ev.passed, d)
	ev.placeOf = append(ev.placeOf, int32(at.place))
}

// charge is how many devices of one model the alternative takes at least, once
// it takes one.
func (a *alternative) charge() int {
	if a.sameModel() {
		return a.count
	}
	return 1
}

// useCheck: is the device free for the alternative?
func (r *run) useCheck(d *device, a *alternative) code {
	held := false
	if d.use != nil && !r.relaxed {
		c := eligible
		for _, h := range d.use.holds {
			if r.own(h) {
				continue
			}
			held = true
			switch {
			case a.admin, d.multi && h.share:
			case !h.reserved:
				c = inUse
			case c == eligible:
				c = reserved
			}
		}
		if c != eligible {
			return c
		}
	}
	if len(d.counters) > 0 && !(d.multi && held) {
		if left := r.countersOf(d.pool()); left.overdrawn() || !left.fits(d) {
			return countersExhausted
		}
	}
	return eligible
}

// healthCheck: do the device's taints and its own word allow it?
func (r *run) healthCheck(d *device, a *alternative) code {
	switch {
	case r.relaxed:
		return eligible
	case len(d.taints) > 0 && untolerated(d, a) != nil:
		return deviceTainted
	case d.unhealthy:
		return deviceUnhealthy
	}
	return eligible
}

// capacityShort says which capacity others have left too little of, or "".
func (r *run) capacityShort(d *device, a *alternative, taken []quantities) string {
	takes, err := consumption(a.capacity, d.spec)
	if err != nil {
		return err.Error()
	}
	return capacityLeft(takes, d.spec, taken...)
}

// countAll files a whole slice under one reason.
func (r *run) countAll(ev *evaluation, s *slice, c code, at reachable) {
	ev.counts[c] += int32(len(s.devices))
	for _, d := range s.devices {
		if !r.wants(ev, c) {
			return
		}
		r.addExample(ev, d, c, at.node)
	}
}

func (r *run) wants(ev *evaluation, c code) bool {
	return !r.relaxed && (r.st.opts.Examples < 0 || len(ev.examples[c]) < r.st.opts.Examples)
}

func (r *run) wantsExamples(ev *evaluation, v *verdicts) bool {
	for _, c := range v.notOfTier {
		if r.wants(ev, c.code) {
			return true
		}
	}
	return false
}

func (r *run) addExample(ev *evaluation, d *device, c code, at string) {
	if r.wants(ev, c) {
		ev.examples[c] = append(ev.examples[c], example{d, at, r.detail(ev.alt, d, c, at)})
	}
}

// detail says what was found and what was wanted.
func (r *run) detail(a *alternative, d *device, c code, at string) string {
	switch c {
	case poolIncomplete:
		return d.pool().problem
	case nodeMismatch:
		if at == "" {
			return "no node matches the device's node selection"
		}
		return "the node does not exist"
	case nodeUnsuitable:
		return r.refusalOf(at)
	case modelMismatch, selectorNotMatched, selectorError:
		if c2, detail := r.st.tierCheck(d, a); c2 == c {
			return detail
		}
		_, detail := r.st.hardCheck(d, a)
		return detail
	case tierNotYetAllowed:
		waited := r.now.Sub(r.prob.pod.obj.CreationTimestamp.Time)
		return fmt.Sprintf("waited %s of %s", max(waited, 0).Truncate(time.Second), a.after)
	case inUse, reserved:
		var holders []*hold
		for _, h := range d.use.holds {
			if !r.own(h) && (c == reserved || !h.reserved) {
				holders = append(holders, h)
			}
		}
		return slices.MinFunc(holders, compareHolds).by(r.prob.pod.key.Namespace)
	case countersExhausted:
		if s := d.pool().counters.shortage(r.countersOf(d.pool()), d); s != "" {
			return s
		}
		return "more is allocated of the pool's counters than it has"
	case deviceTainted:
		return taintDetail(untolerated(d, a))
	case deviceUnhealthy:
		return "reported unhealthy by the driver"
	case capacityTooSmall:
		if _, detail := r.st.hardCheck(d, a); detail != "" {
			return detail
		}
		_, taken := r.heldByOthers(d)
		return r.capacityShort(d, a, taken)
	case quotaExceeded:
		return r.budget.refuses(d.model, a.charge())
	default:
		_, detail := r.st.hardCheck(d, a)
		return detail
	}
}

// on returns the devices of a node that pass for the alternative, in the order
// of choice.
func (r *run) on(ev *evaluation, n *node) []*device {
	own := ev.byNode[ev.offsets[n.index]:ev.offsets[n.index+1]]
	if len(ev.shared) == 0 {
		return own
	}
	out := make([]*device, 0, len(own)+len(ev.shared))
	for _, d := range ev.shared {
		if !r.st.reaches(d.reach, n) {
			continue
		}
		for len(own) > 0 && compareDevices(own[0], d) < 0 {
			out, own = append(out, own[0]), own[1:]
		}
		out = append(out, d)
	}
	return append(out, own...)
}

// matchingOn is the number of devices that "all" means on a node; ok is false
// where a pool that the node reaches can't be used as it is.
func (r *run) matchingOn(ev *evaluation, n *node) (count int, ok bool) {
	for _, list := range [][]*slice{n.local, r.st.shared} {
		for _, s := range list {
			if s.pool.problem != "" && slices.ContainsFunc(s.devices, func(d *device) bool { return r.st.reaches(d.reach, n) }) {
				return 0, false
			}
		}
	}
	count = int(ev.matching[n.index])
	for _, d := range ev.matchingShared {
		if r.st.reaches(d.reach, n) {
			count++
		}
	}
	return count, true
}

// compareDevices is the order of choice inside a node.
func compareDevices(a, b *device) int {
	if a.slice != b.slice {
		return compareSlices(a.slice, b.slice)
	}
	switch {
	case a.id.device < b.id.device:
		return -1
	case a.id.device > b.id.device:
		return 1
	}
	return 0
}
