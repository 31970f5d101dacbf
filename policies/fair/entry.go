package fair

// Entries: what waits and what runs. Entries of one tenant that ask alike for
// the same share a shape and wait in one line.

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Entry is a unit of work: a Pod, or a gang of Pods that starts as one.
type Entry struct {
	// ID names the entry; it is the last word of every order.
	ID string
	// Tenant is whom it is charged to.
	Tenant string
	// Members is the number of Pods. Zero is one.
	Members int64
	// Uniform: all members take devices of one alternative and one model.
	Uniform bool
	// Requests are what the entry needs, all of them together.
	Requests []Request
	// Priority inside the tenant; higher goes first.
	Priority int32
	// Created is when the waiting began.
	Created time.Time
	// Preemptible: devices that the entry borrows can be taken back. Those of an
	// entry with a shared claim never are.
	Preemptible bool
	// Preempts says whose devices may be taken back for the entry. Empty: Never.
	Preempts v1alpha1.Preempts
	// Reclaims is how often devices of this work were taken back before it came
	// under this ID, and Reclaimed when that was last.
	Reclaims  int64
	Reclaimed time.Time
}

// Request is one need of an entry: any one of its alternatives.
type Request struct {
	// Claim is the UID of a claim that members, and other entries of the
	// tenant, share: charged once, not once for each member. Empty: every
	// member has its own.
	Claim string
	// Alternatives in the order of preference.
	Alternatives []Alternative
}

// Alternative is a tier: Count devices for each member, of these models.
type Alternative struct {
	// Models that serve. One after the other where no other order is known.
	Models []string
	// Count of devices for each member, or for the shared claim.
	Count int64
	// After is how long the entry must have waited.
	After time.Duration
}

// Bounds of what is read; far above any fleet, far below overflow.
const (
	maxMembers = 1_000_000
	maxCount   = 1_000_000
)

// phase is where an entry is in its life.
type phase int8

const (
	waiting   phase = iota
	opened          // the gate is open; members may still be undecided
	releasing       // gone, but the node has not released the devices
)

// notice is how far taking an entry's devices back has come.
type notice int8

const (
	unnoticed notice = iota
	noticed
	evicting
)

// entry is an Entry and where it stands.
type entry struct {
	id       string
	tenant   *tenant
	shape    *shape
	created  int64
	phase    phase
	decided  int64     // members with an allocation
	rest     []request // what is still to be had, where a part of the entry is decided
	since    int64     // the pass that first found it entitled, if the last one did
	alloc    vec
	charge   vec // of undecided members
	hold     vec // what undecided members will take
	started  int64
	notice   notice
	deadline int64
	servant  string  // the entry that the devices are taken back for
	promised []place // what is taken back for this entry outside its guarantee
	inside   vec     // what of it a pass has found to be covered by the guarantee; nil: it borrows
	settled  bool    // a pass has decided whether it is inside
	within   []int   // the models that it may use once it is opened; empty: any
	boundAt  int64   // since when it may use only those
	short    bool    // undecided members can't all be expected to find devices
	reclaims int64   // how often its devices were taken back
	cooled   int64   // until when it does not borrow
}

// shape is what entries of a tenant that ask alike have in common.
type shape struct {
	key      string
	members  int64
	uniform  bool
	priority int32
	firm     bool // what it holds can't be taken back
	preempts v1alpha1.Preempts
	requests []request
	line     []*entry // that wait, by age
	pass     int64    // the pass that last held an elder of the line back
	cursor   int
	listed   bool // the pass looks at one of the line
}

type request struct {
	claim        string
	alternatives []alternative
	ways         []dear // the dearest first
}

type alternative struct {
	models []int
	count  int64
	after  int64
}

// units is the number of equal parts that n members are placed in, and the
// devices of a part, by an alternative.
func (s *shape) units(r *request, a *alternative, members int64) (int64, int64) {
	if r.claim != "" {
		return 1, a.count
	}
	if s.uniform {
		return 1, a.count * members
	}
	return members, a.count
}

// byAge orders entries by age, then by ID.
func byAge(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.id, b.id))
}

// bySettling is the order in which undecided entries are expected to be served.
func bySettling(a, b *entry) int {
	return cmp.Or(cmp.Compare(b.shape.priority, a.shape.priority), byAge(a, b))
}

// mayUse says whether an opened entry may have devices of the model.
func (e *entry) mayUse(m int) bool { return len(e.within) == 0 || slices.Contains(e.within, m) }

// undecided is the number of members without an allocation.
func (e *entry) undecided() int64 {
	if e.phase != opened {
		return 0
	}
	return e.shape.members - e.decided
}

// needs are the requests of undecided members.
func (e *entry) needs() []request {
	if e.rest != nil {
		return e.rest
	}
	return e.shape.requests
}

// check refuses what no entry can be.
func (x *Entry) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("entry %q: %s, %w", x.ID, fmt.Sprintf(format, args...), ErrInvalid)
	}
	switch {
	case x.ID == "" || x.Tenant == "":
		return bad("ID and tenant must be set")
	case x.Members < 0 || x.Members > maxMembers:
		return bad("%d members", x.Members)
	case !inRange(x.Created):
		return bad("created %v", x.Created)
	case len(x.Requests) == 0:
		return bad("no request")
	case x.Reclaims < 0 || x.Reclaims > maxCount || x.Reclaims > 0 && !inRange(x.Reclaimed):
		return bad("%d reclaims, the last at %v", x.Reclaims, x.Reclaimed)
	}
	switch x.Preempts {
	case "", v1alpha1.PreemptsNever, v1alpha1.PreemptsBorrowed, v1alpha1.PreemptsLowerPriority:
	default:
		return bad("preempts %q", x.Preempts)
	}
	if wrong := wrongRequest(x.Requests); wrong != "" {
		return bad("%s", wrong)
	}
	return nil
}

// wrongRequest says which of the requests can't be one, and why; "" if all can.
func wrongRequest(requests []Request) string {
	for i, r := range requests {
		if len(r.Alternatives) == 0 {
			return fmt.Sprintf("request %d has no alternative", i)
		}
		if r.Claim != "" && slices.ContainsFunc(requests[:i], func(o Request) bool { return o.Claim == r.Claim }) {
			return fmt.Sprintf("request %d names claim %s again", i, r.Claim)
		}
		for j, a := range r.Alternatives {
			if a.Count < 1 || a.Count > maxCount || a.After < 0 || len(a.Models) == 0 || slices.Contains(a.Models, "") {
				return fmt.Sprintf("request %d, alternative %d: %+v", i, j, a)
			}
		}
	}
	return ""
}

// inRange: the time can be counted in nanoseconds.
func inRange(t time.Time) bool { return t.Year() > 1700 && t.Year() < 2250 }

// key tells shapes apart.
func (x *Entry) key() string {
	var b strings.Builder
	b.Grow(64)
	num := func(n int64) {
		b.WriteString(strconv.FormatInt(n, 10))
		b.WriteByte(' ')
	}
	num(x.Members)
	num(int64(x.Priority))
	b.WriteString(strconv.FormatBool(x.Uniform))
	b.WriteString(strconv.FormatBool(x.Preemptible))
	b.WriteString(string(x.Preempts))
	for _, r := range x.Requests {
		b.WriteByte('/')
		b.WriteString(strconv.Quote(r.Claim))
		for _, a := range r.Alternatives {
			b.WriteByte('|')
			num(a.Count)
			num(int64(a.After))
			for _, m := range a.Models {
				b.WriteString(strconv.Quote(m))
			}
		}
	}
	return b.String()
}

// firm: nothing that the entry holds can be taken back. A shared claim would
// not become free with one of its users.
func (x *Entry) firm() bool {
	return !x.Preemptible || slices.ContainsFunc(x.Requests, func(r Request) bool { return r.Claim != "" })
}

// normal fills in the defaults, so that equal entries look equal.
func (x *Entry) normal() {
	if x.Members == 0 {
		x.Members = 1
	}
	if x.Preempts == "" {
		x.Preempts = v1alpha1.PreemptsNever
	}
}

// amount is a number of devices of a model.
type amount struct {
	model int
	n     int64
}

// vec is an amount for each of some models.
type vec []amount

func (v vec) of(model int) int64 {
	for _, a := range v {
		if a.model == model {
			return a.n
		}
	}
	return 0
}

// add returns v with n more of the model.
func (v vec) add(model int, n int64) vec {
	for i := range v {
		if v[i].model == model {
			v[i].n += n
			return v
		}
	}
	return append(v, amount{model, n})
}

// takesBack: devices may be taken back for entries of this policy.
func takesBack(p v1alpha1.Preempts) bool { return p != v1alpha1.PreemptsNever }
