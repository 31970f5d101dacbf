package decide

// The checks of every device of the fleet against one alternative.

import (
	"slices"
	"time"
)

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
	// only is the node whose devices alone were checked; nil: the fleet's.
	only *node
}

// example is a device that fell under a reason.
type example struct {
	device *device
	node   string
	detail string
}

// waited is how long the Pod has waited. Clocks differ between machines: a Pod
// that was created later than now has waited for no time, not for less; and so
// has one that was never created, in a manifest.
func (r *run) waited() time.Duration {
	created := r.prob.pod.obj.CreationTimestamp
	if created.IsZero() {
		return 0
	}
	return max(r.now.Sub(created.Time), 0)
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
	notYet := !r.relaxed && r.waited() < a.after
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
	a, c := ev.alt, at.code
	if c == eligible {
		c = r.codeOf(d, a, v, notYet)
		if a.all && v.tier == eligible && !notYet && v.hard == eligible {
			if at.place >= 0 {
				ev.matching[at.place]++
			} else {
				ev.matchingShared = append(ev.matchingShared, d)
			}
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

// codeOf is the first check that the device fails on a node that serves the Pod.
func (r *run) codeOf(d *device, a *alternative, v verdict, notYet bool) code {
	switch {
	case v.tier != eligible:
		return v.tier
	case notYet:
		return tierNotYetAllowed
	}
	c := r.useCheck(d, a)
	if c == eligible {
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
	if c == eligible && r.group.bars(a) {
		c = groupNotServed
	}
	return c
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

// on returns the devices of a node that pass for the alternative, in the order
// of choice.
func (r *run) on(ev *evaluation, n *node) []*device {
	if ev.only != nil {
		return ev.passed
	}
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
