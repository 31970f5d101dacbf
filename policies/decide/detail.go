package decide

// Examples: which devices fell under a reason, and what was found and wanted.

import (
	"fmt"
	"slices"
	"time"
)

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
		return fmt.Sprintf("waited %s of %s", r.waited().Truncate(time.Second), a.after)
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
	case groupNotServed:
		return r.group.why(a)
	case quotaExceeded:
		return r.budget.refuses(d.model, a.charge())
	default:
		_, detail := r.st.hardCheck(d, a)
		return detail
	}
}
