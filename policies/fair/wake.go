package fair

// When to ask again although nothing has happened.

import (
	"slices"
	"time"
)

// Wake is the next time at which Next may have something to do without a new
// event: a notice is up, an alternative becomes allowed, work has waited long
// enough to reserve or to be raised, a cool-down is over, an entry may use more
// models, or what its owner has left unused is lent. False: never.
func (st *State) Wake(now time.Time) (time.Time, bool) {
	st.advance(now)
	at := int64(none)
	soonest := func(t int64) {
		if t > st.now {
			at = min(at, t)
		}
	}
	for _, e := range st.noticed {
		if e.notice == noticed {
			soonest(e.deadline)
		}
	}
	for _, t := range st.tenants {
		for _, s := range t.shapes {
			head := s.line[0]
			for _, after := range [...]time.Duration{st.cfg.ReserveAfter, st.cfg.KeepAfter, st.cfg.PriorityAging} {
				if st.cfg.Mode == Ladder && after >= 0 {
					soonest(satAdd(head.created, int64(after)))
				}
			}
			for _, r := range s.requests {
				for _, a := range r.alternatives {
					if a.after > 0 {
						soonest(s.allowed(a.after, st.now))
					}
				}
			}
		}
	}
	st.settle()
	soonest(st.settledTill)
	for id, e := range st.cooled {
		switch {
		case e.cooled <= st.now:
			delete(st.cooled, id)
		case e.phase == waiting && st.cooling(e):
			soonest(e.cooled)
		}
	}
	for _, e := range st.bound {
		if till, ok := st.boundTill(e); ok {
			soonest(till)
		}
	}
	if st.waiting > 0 && st.cfg.Mode.shares() && st.cfg.LendAfter > 0 {
		for _, t := range st.tenants {
			for i := range t.rows {
				if r := &t.rows[i]; min(r.mark, r.guaranteed) > r.held() {
					soonest(satAdd(r.markAt, int64(st.cfg.LendAfter)))
				}
			}
		}
	}
	return instant(at), at != none
}

// allowed is the next time at which an alternative is allowed to one of the line.
func (s *shape) allowed(after, now int64) int64 {
	i, _ := slices.BinarySearchFunc(s.line, now, func(e *entry, now int64) int {
		if satAdd(e.created, after) <= now {
			return -1
		}
		return 1
	})
	if i == len(s.line) {
		return none
	}
	return satAdd(s.line[i].created, after)
}
