package fair

// Why an entry waits.

import (
	"fmt"
	"time"
)

// Reason is a typed reason. Codes are a contract and never renamed.
type Reason string

// The reasons, of an entry and of one way to serve it.
const (
	// ReasonOpened: the gate is open, members have no devices yet.
	ReasonOpened Reason = "Opened"
	// ReasonAllocated: all members have devices.
	ReasonAllocated Reason = "Allocated"
	// ReasonReleasing: deleted; the nodes have not released the devices.
	ReasonReleasing Reason = "Releasing"
	// ReasonReady: can be opened at once; the next Next does.
	ReasonReady Reason = "Ready"
	// ReasonModelNotInQuota: the tenant's quota does not list the model.
	ReasonModelNotInQuota Reason = "ModelNotInQuota"
	// ReasonNeverFits: more than the limit, or than the fleet has.
	ReasonNeverFits Reason = "NeverFits"
	// ReasonTierNotYetAllowed: has not waited as long as the tier's `after`.
	ReasonTierNotYetAllowed Reason = "TierNotYetAllowed"
	// ReasonLimitReached: the tenant's limit, less what it holds, has no room.
	ReasonLimitReached Reason = "LimitReached"
	// ReasonNoFreeDevices: too few devices are free.
	ReasonNoFreeDevices Reason = "NoFreeDevices"
	// ReasonNotLent: what is free is guaranteed to others, and the entry's
	// devices could not be taken back.
	ReasonNotLent Reason = "NotLent"
	// ReasonSetAside: what is free is set aside for those whose turn is earlier.
	ReasonSetAside Reason = "SetAside"
	// ReasonBehind: an entry of the same kind, or with FIFO any other, is first.
	ReasonBehind Reason = "Behind"
	// ReasonAwaitingReclaim: devices are being taken back for the entry.
	ReasonAwaitingReclaim Reason = "AwaitingReclaim"
	// ReasonCoolingDown: its devices were taken back a short time ago. It does
	// not borrow for now; its guarantee serves it at any time.
	ReasonCoolingDown Reason = "CoolingDown"
)

var reasons = [...]Reason{
	fits: ReasonReady, notAllowed: ReasonModelNotInQuota, neverFits: ReasonNeverFits, tierNotYetAllowed: ReasonTierNotYetAllowed,
	limitReached: ReasonLimitReached, noFreeDevices: ReasonNoFreeDevices, notLent: ReasonNotLent, setAside: ReasonSetAside, heldBack: ReasonBehind,
}

// Explanation says where an entry stands.
type Explanation struct {
	ID     string
	Reason Reason
	Detail string
	// Entitled: its tenant's guarantee has room for it.
	Entitled bool
	// Ahead is how many waiting entries of its tenant go first.
	Ahead int
	// Turn of a waiting entry: when it came, plus what its tenant's share
	// counts as. The earlier goes first.
	Turn time.Time
	// Ways are the models of each alternative that have no room, with the reason.
	Ways []Way
}

// Way is one model of one alternative.
type Way struct {
	Request, Alternative int
	// Model; empty where the reason holds for all of the alternative.
	Model string
	// Needed for one member, or for all where they go together.
	Needed int64
	Reason Reason
}

// Explain says why an entry waits, at the time of the latest event or answer.
func (st *State) Explain(id string) (Explanation, error) {
	e, err := st.entry(id)
	if err != nil {
		return Explanation{}, fmt.Errorf("explaining, %w", err)
	}
	x := Explanation{ID: id}
	switch {
	case e.phase == releasing:
		x.Reason, x.Detail = ReasonReleasing, "deleted, not released by its nodes"
		return x, nil
	case e.phase == opened && e.undecided() == 0:
		x.Reason, x.Detail = ReasonAllocated, "all members have devices"
		return x, nil
	case e.phase == opened && e.rest != nil:
		x.Reason, x.Detail = ReasonOpened, "a part of it has devices"
		return x, nil
	case e.phase == opened:
		x.Reason, x.Detail = ReasonOpened, fmt.Sprintf("%d of %d members have devices", e.decided, e.shape.members)
		return x, nil
	}
	for _, s := range e.tenant.shapes {
		for _, o := range s.line {
			if o != e && st.before(o, e) {
				x.Ahead++
			}
		}
	}
	st.look(false)
	st.choose(true)
	turn, _ := st.turn(e)
	x.Turn, x.Reason, x.Detail = instant(turn), ReasonBehind, "others of its kind are older"
	if st.cooling(e) {
		x.Reason, x.Detail = ReasonCoolingDown, fmt.Sprintf("its devices were taken back %d times; it does not borrow before %s", e.reclaims, instant(e.cooled).Format(time.RFC3339))
	}
	for _, it := range st.order {
		if it.e == e {
			st.explain(it, &x)
		}
	}
	return x, nil
}

// Rank is the priority that counts now of work of a priority that came at a
// time: the higher goes first in its tenant. What has waited long is among the
// highest.
func (st *State) Rank(priority int32, created time.Time) int64 {
	return st.rankOf(priority, created.UnixNano())
}

// before is the tenant's own order.
func (st *State) before(a, b *entry) bool {
	if x, y := st.rank(a.shape, a), st.rank(b.shape, b); x != y {
		return x > y
	}
	return byAge(a, b) < 0
}

func (st *State) explain(it *item, x *Explanation) {
	x.Entitled, x.Reason = it.inside(), reasons[it.verdict]
	y := try{st: st, e: it.e, own: it.own, entitled: it.inside(), note: func(request, alternative, model int, size int64, v verdict) {
		w := Way{Request: request, Alternative: alternative, Needed: size, Reason: reasons[v]}
		if model >= 0 {
			w.Model = st.models[model].name
		}
		x.Ways = append(x.Ways, w)
	}}
	y.land()
	coming := 0
	for _, v := range st.noticed {
		if v.servant == it.e.id {
			coming++
		}
	}
	switch {
	case it.verdict == fits:
		x.Detail = "can be opened"
	case coming > 0:
		x.Reason, x.Detail = ReasonAwaitingReclaim, fmt.Sprintf("devices of %d entries are being taken back for it", coming)
	case it.verdict == heldBack:
		x.Detail = "others go first"
	default:
		x.Detail = fmt.Sprintf("%d ways to serve it have no room", len(x.Ways))
	}
}
