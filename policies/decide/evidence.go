package decide

// Why the devices that pass alone were not taken: what they lack as a set.

import (
	"fmt"
	"slices"
	"strings"
)

// setVerdict is what became of the passed devices of one node.
type setVerdict struct {
	code   code
	detail string
}

// file counts the passed devices of one alternative under what became of them.
// The alternatives of earlier requests are fixed by chosen, which is nil where
// nothing was.
func (r *run) file(ev *evaluation, chosen *option) {
	known := make([]*setVerdict, len(r.nodes))
	on := func(place int) *setVerdict {
		if known[place] == nil {
			v := r.setVerdict(ev, r.nodes[place], chosen)
			known[place] = &v
		}
		return known[place]
	}
	for i, d := range ev.passed {
		var v setVerdict
		at := ""
		switch place := ev.placeOf[i]; {
		case chosen != nil && slices.ContainsFunc(chosen.chosen, func(c choice) bool { return c.dev == d && c.alt == ev.alt }):
			v, at = setVerdict{code: selected}, chosen.node.name
		case place >= 0:
			v, at = *on(int(place)), r.nodes[place].name
		default:
			v, at = r.sharedVerdict(d, on)
		}
		ev.counts[v.code]++
		if r.wants(ev, v.code) {
			ev.examples[v.code] = append(ev.examples[v.code], example{d, at, v.detail})
		}
	}
}

// sharedVerdict is the verdict of a device that several nodes reach: the best
// of theirs, lower rank before topology before quota before too few.
func (r *run) sharedVerdict(d *device, on func(int) *setVerdict) (best setVerdict, at string) {
	order := []code{lowerRank, topologyUnsatisfied, quotaExceeded, notEnoughDevices}
	best.code = notEnoughDevices
	place := len(order)
	for i, n := range r.nodes {
		if r.refused[i] != nodeOK || !r.st.reaches(d.reach, n) {
			continue
		}
		if v := on(i); slices.Index(order, v.code) < place {
			best, at, place = *v, n.name, slices.Index(order, v.code)
		}
	}
	return best, at
}

// setVerdict says what stands between the node's passed devices and the
// alternative.
func (r *run) setVerdict(ev *evaluation, n *node, chosen *option) setVerdict {
	a, s := ev.alt, &r.search
	if ev.serves != nil && ev.serves[n.index] {
		return setVerdict{code: lowerRank}
	}
	s.start(n)
	if chosen != nil {
		copy(s.fixed, chosen.vector[:a.request.index])
	}
	s.fixed[a.request.index] = a.index
	defer s.undo(0)
	if ev.serves == nil && s.solve() {
		return setVerdict{code: lowerRank}
	}
	if !a.all && len(s.candidates(a)) < a.count {
		return setVerdict{notEnoughDevices, fmt.Sprintf("%d eligible on the node, %d wanted", len(s.candidates(a)), a.count)}
	}
	s.looseConstraints, s.looseQuota = true, true
	if !s.solve() {
		what := "but not together with all that the Pod asks for"
		switch {
		case a.all:
			what = "all that match are wanted"
		case a.sameModel():
			what = fmt.Sprintf("not %d of one model together", a.count)
		}
		return setVerdict{notEnoughDevices, fmt.Sprintf("%d eligible on the node, %s", len(s.candidates(a)), what)}
	}
	s.looseConstraints = false
	if !s.solve() {
		return setVerdict{topologyUnsatisfied, r.constraintWords(a)}
	}
	return setVerdict{quotaExceeded, "the tenant's quota does not allow them together"}
}

// constraintWords names what the devices of the alternative must share.
func (r *run) constraintWords(a *alternative) string {
	var match, distinct []string
	for _, k := range a.constraints {
		switch k.kind {
		case matchValues:
			match = append(match, k.attribute)
		case distinctValues:
			distinct = append(distinct, k.attribute)
		}
	}
	var words []string
	if len(match) > 0 {
		words = append(words, "must share "+strings.Join(match, ", "))
	}
	if len(distinct) > 0 {
		words = append(words, "must differ in "+strings.Join(distinct, ", "))
	}
	if len(words) == 0 {
		return "the constraints of another request of the Pod do not hold"
	}
	return fmt.Sprintf("no %d devices on the node: they %s", max(a.count, 1), strings.Join(words, " and "))
}
