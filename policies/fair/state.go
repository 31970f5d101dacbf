package fair

// The State: everything that an opening or a reclaim depends on but the time,
// kept in the indexes that make the next answer cheap.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxDevices of one model in one event.
const maxDevices = 1 << 40

// State holds tenants, capacity and entries. It is not safe for concurrent use.
type State struct {
	cfg        Config
	now        int64 // the latest time that was told
	models     []model
	modelIndex map[string]int
	groups     []string
	tenants    []*tenant // by name
	tenantOf   map[string]*tenant
	entries    map[string]*entry
	undecided  []*entry // opened, with members that have no allocation
	waiting    int
	servers    int // waiting entries whose policy lets devices be taken back
	sharers    int // waiting entries with a shared claim
	noticed    map[string]*entry
	cooled     map[string]*entry // that may be cooling
	bound      map[string]*entry // that may be held to some models

	// What settle keeps; see ledger.go.
	stale       bool
	settledTill int64
	round       int64

	// What a pass keeps; see turn.go.
	coming map[string]vec // what is taken back for an entry, by ID
	pass   int64
	items  []item
	order  []*item // by turn
	needy  []*item // the entitled, by age
	taken  []int64
	pool   []supply // what reclaim counts on
}

// model is a model of devices.
type model struct {
	name     string
	cost     int64
	group    int
	capacity int64
	alloc    int64 // allocated, whoever holds them
	hold     int64 // that undecided members are expected to take
	reserved int64 // set aside in this pass
	pending  int64 // of that, for the entitled who wait for what lacks to come
	surplus  int64 // beyond all guarantees
	lent     int64 // that may still be held without being taken back, beyond guarantees
	lentPass int64 // the pass that lent is of
}

// free devices: negative where more is held than there is.
func (m *model) free() int64 { return m.capacity - m.alloc - m.hold }

// tenant is a tenant with its rows, one for each model.
type tenant struct {
	name    string
	limited bool // has a quota
	weight  int64
	rows    []row
	shapes  []*shape // with waiting entries, by key
	byKey   map[string]*shape
	running []*entry // opened or releasing, by ID
	claims  map[string]*claim
	waiting int
	settled int64 // the round whose sums the rows hold
	share   int64
}

// row is a tenant's count of one model.
type row struct {
	listed     bool
	guaranteed int64
	limit      int64 // none: no limit
	alloc      int64 // really allocated
	firm       int64 // of those, what can't be taken back
	// Of undecided members: what they are charged, what they are expected to
	// take, the larger of the two for each entry, and what of it is firm.
	charge, hold, both, firmHold int64
	reserved                     int64 // set aside in this pass
	inside                       int64 // held by entries inside the guarantee, in this pass
	leaving                      int64 // held by entries that are going or have notice
	// See lend.go: the most of its guarantee that the tenant used, since when it
	// has used less, what is kept for it in this pass, and what its older
	// entries keep from the younger ones.
	mark, markAt, warm, kept int64
}

// committed is what limits are compared with when more is opened.
func (r *row) committed() int64 { return r.alloc + r.both }

// held is what guarantees are compared with: allocated, or expected to be taken.
func (r *row) held() int64 { return r.alloc + r.hold }

// claim is a claim that entries of a tenant share.
type claim struct {
	users int // opened or releasing
	known bool
	alloc vec
	round int64 // the settling that has counted it
}

// New returns an empty State.
func New(cfg Config) (*State, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("reading the configuration, %w", err)
	}
	cfg.Models = slices.Clone(cfg.Models)
	st := &State{
		cfg:        cfg,
		modelIndex: map[string]int{},
		tenantOf:   map[string]*tenant{},
		entries:    map[string]*entry{},
		noticed:    map[string]*entry{},
		cooled:     map[string]*entry{},
		bound:      map[string]*entry{},
		coming:     map[string]vec{},
		now:        minTime,
	}
	for _, m := range cfg.Models {
		st.model(m.Name)
	}
	return st, nil
}

// minTime is before every time that is told.
const minTime = -1 << 63

// Apply tells the State what happened. Of events at one instant the order does
// not matter beyond what each of them needs to have gone before. On an error
// the State is as it was.
func (st *State) Apply(now time.Time, ev Event) error {
	if !inRange(now) {
		return fmt.Errorf("time %v, %w", now, ErrInvalid)
	}
	st.advance(now)
	return ev.apply(st)
}

func (st *State) advance(now time.Time) { st.now = max(st.now, now.UnixNano()) }

// model is the index of a model, which it makes known.
func (st *State) model(name string) int {
	if i, ok := st.modelIndex[name]; ok {
		return i
	}
	m := model{name: name, cost: 1}
	group := ""
	for _, known := range st.cfg.Models {
		if known.Name == name {
			m.cost, group = known.Cost, known.Group
		}
	}
	m.group = slices.Index(st.groups, group)
	if m.group < 0 {
		m.group = len(st.groups)
		st.groups = append(st.groups, group)
	}
	i := len(st.models)
	st.modelIndex[name] = i
	st.models = append(st.models, m)
	st.taken = append(st.taken, 0)
	for _, t := range st.tenants {
		t.rows = append(t.rows, row{limit: none})
	}
	return i
}

// tenant is the tenant of this name, which it makes known.
func (st *State) tenant(name string) *tenant {
	if t := st.tenantOf[name]; t != nil {
		return t
	}
	t := &tenant{name: name, weight: 1, byKey: map[string]*shape{}, claims: map[string]*claim{}}
	for range st.models {
		t.rows = append(t.rows, row{limit: none})
	}
	st.tenantOf[name] = t
	at, _ := slices.BinarySearchFunc(st.tenants, name, func(t *tenant, name string) int { return strings.Compare(t.name, name) })
	st.tenants = slices.Insert(st.tenants, at, t)
	return t
}

func (st *State) entry(id string) (*entry, error) {
	if e := st.entries[id]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("entry %q, %w", id, ErrUnknownEntry)
}

func (ev Arrived) apply(st *State) error {
	x := ev.Entry
	x.normal()
	if err := x.check(); err != nil {
		return err
	}
	key := x.key()
	if old := st.entries[x.ID]; old != nil {
		if old.tenant.name == x.Tenant && old.shape.key == key && old.created == x.Created.UnixNano() {
			return nil
		}
		return fmt.Errorf("entry %q is known as another, %w", x.ID, ErrConflict)
	}
	t := st.tenant(x.Tenant)
	e := &entry{id: x.ID, tenant: t, created: x.Created.UnixNano(), shape: t.byKey[key]}
	if e.shape == nil {
		e.shape = st.shapeOf(&x, key)
	}
	st.entries[e.id] = e
	if e.reclaims = x.Reclaims; e.reclaims > 0 {
		st.coolSince(e, x.Reclaimed.UnixNano())
	}
	st.enqueue(e)
	return nil
}

// shapeOf interns what the entry asks for.
func (st *State) shapeOf(x *Entry, key string) *shape {
	s := &shape{key: key, members: x.Members, uniform: x.Uniform, priority: x.Priority, firm: x.firm(), preempts: x.Preempts}
	s.requests = st.requestsOf(x.Requests)
	return s
}

// requestsOf reads requests.
func (st *State) requestsOf(list []Request) []request {
	var requests []request
	for _, r := range list {
		own := request{claim: r.Claim}
		for _, a := range r.Alternatives {
			alt := alternative{count: a.Count, after: int64(a.After)}
			for _, name := range a.Models {
				alt.models = append(alt.models, st.model(name))
			}
			own.alternatives = append(own.alternatives, alt)
		}
		st.sortByCost(&own)
		requests = append(requests, own)
	}
	return requests
}

// enqueue puts an entry into its line.
func (st *State) enqueue(e *entry) {
	t, s := e.tenant, e.shape
	e.phase = waiting
	if len(s.line) == 0 {
		if other := t.byKey[s.key]; other != nil {
			s, e.shape = other, other
		} else {
			t.byKey[s.key] = s
			at, _ := slices.BinarySearchFunc(t.shapes, s, byShape)
			t.shapes = slices.Insert(t.shapes, at, s)
		}
	}
	at, _ := slices.BinarySearchFunc(s.line, e, byAge)
	s.line = slices.Insert(s.line, at, e)
	st.count(e, 1)
}

// dequeue takes an entry out of its line.
func (st *State) dequeue(e *entry) {
	t, s := e.tenant, e.shape
	at, _ := slices.BinarySearchFunc(s.line, e, byAge)
	s.line = slices.Delete(s.line, at, at+1)
	if len(s.line) == 0 {
		delete(t.byKey, s.key)
		i, _ := slices.BinarySearchFunc(t.shapes, s, byShape)
		t.shapes = slices.Delete(t.shapes, i, i+1)
	}
	st.count(e, -1)
}

func byShape(a, b *shape) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), strings.Compare(a.key, b.key))
}

func (st *State) count(e *entry, by int) {
	st.waiting += by
	e.tenant.waiting += by
	if takesBack(e.shape.preempts) {
		st.servers += by
	}
	if slices.ContainsFunc(e.shape.requests, func(r request) bool { return r.claim != "" }) {
		st.sharers += by
	}
}

func byID(a, b *entry) int { return strings.Compare(a.id, b.id) }

// open moves an entry from its line to those that hold something.
func (st *State) open(e *entry) {
	st.dequeue(e)
	e.phase, e.promised, e.since = opened, nil, 0
	e.inside, e.settled, e.within = nil, false, nil
	at, _ := slices.BinarySearchFunc(e.tenant.running, e, byID)
	e.tenant.running = slices.Insert(e.tenant.running, at, e)
	at, _ = slices.BinarySearchFunc(st.undecided, e, bySettling)
	st.undecided = slices.Insert(st.undecided, at, e)
	for _, r := range e.shape.requests {
		if r.claim == "" {
			continue
		}
		c := e.tenant.claims[r.claim]
		if c == nil {
			c = &claim{}
			e.tenant.claims[r.claim] = c
		}
		c.users++
	}
	st.stale = true
}

// settleMembers takes an entry from the undecided, if none of its members is,
// and puts it there if one is again.
func (st *State) settleMembers(e *entry) {
	st.stale = true
	at, found := slices.BinarySearchFunc(st.undecided, e, bySettling)
	switch undecided := e.undecided() > 0; {
	case found && !undecided:
		st.undecided = slices.Delete(st.undecided, at, at+1)
		e.charge, e.hold = nil, nil
	case !found && undecided:
		st.undecided = slices.Insert(st.undecided, at, e)
	}
}

// vacate gives back all that an entry holds.
func (st *State) vacate(e *entry) {
	e.phase = waiting
	st.settleMembers(e)
	for _, a := range e.alloc {
		st.allocate(e.tenant, a.model, -a.n, e.shape.firm)
	}
	e.alloc, e.decided, e.rest, e.started = nil, 0, nil, 0
	e.inside = nil
	st.unnotice(e)
	at, _ := slices.BinarySearchFunc(e.tenant.running, e, byID)
	e.tenant.running = slices.Delete(e.tenant.running, at, at+1)
	for _, r := range e.shape.requests {
		c := e.tenant.claims[r.claim]
		if r.claim == "" {
			continue
		}
		if c.users--; c.users == 0 {
			st.allocateClaim(e.tenant, c, nil)
			delete(e.tenant.claims, r.claim)
		}
	}
}

// allocate counts devices that are really held.
func (st *State) allocate(t *tenant, m int, n int64, firm bool) {
	st.models[m].alloc += n
	t.rows[m].alloc += n
	if firm {
		t.rows[m].firm += n
	}
}

// allocateClaim replaces what a shared claim holds. It can't be taken back.
func (st *State) allocateClaim(t *tenant, c *claim, to vec) {
	for _, a := range c.alloc {
		st.allocate(t, a.model, -a.n, true)
	}
	for _, a := range to {
		st.allocate(t, a.model, a.n, true)
	}
	c.alloc = to
}

func (st *State) unnotice(e *entry) {
	e.notice, e.servant, e.deadline = unnoticed, "", 0
	delete(st.noticed, e.id)
}

func (ev Opened) apply(st *State) error {
	e, err := st.entry(ev.ID)
	switch {
	case err != nil:
		return err
	case e.phase == releasing:
		return fmt.Errorf("entry %q is deleted, %w", ev.ID, ErrConflict)
	case e.phase == waiting:
		st.open(e)
	}
	if len(ev.Models) > 0 {
		e.within = nil
		for _, name := range ev.Models {
			e.within = append(e.within, st.model(name))
		}
		st.hold(e)
		st.stale = true
	}
	return nil
}

func (ev Allocated) apply(st *State) error {
	e, err := st.entry(ev.ID)
	if err != nil {
		return err
	}
	started := st.now
	if !ev.Started.IsZero() {
		if !inRange(ev.Started) {
			return fmt.Errorf("entry %q started %v, %w", ev.ID, ev.Started, ErrInvalid)
		}
		started = ev.Started.UnixNano()
	}
	if e.phase == releasing {
		return fmt.Errorf("entry %q is deleted, %w", ev.ID, ErrConflict)
	}
	if ev.Members < 0 || ev.Members > e.shape.members-e.decided {
		return fmt.Errorf("entry %q has %d of %d members decided, %d more, %w", ev.ID, e.decided, e.shape.members, ev.Members, ErrConflict)
	}
	if len(ev.Rest) > 0 {
		wrong := wrongRequest(ev.Rest)
		if slices.ContainsFunc(ev.Rest, func(r Request) bool { return r.Claim != "" }) {
			wrong = "it names a claim"
		}
		if e.shape.members != 1 || ev.Members != 0 {
			wrong = "its members are counted"
		}
		if wrong != "" {
			return fmt.Errorf("the rest of entry %q: %s, %w", ev.ID, wrong, ErrInvalid)
		}
	}
	for _, d := range ev.Devices {
		if d.Model == "" || d.Count < 0 || d.Count > maxDevices {
			return fmt.Errorf("entry %q has %d devices of model %q, %w", ev.ID, d.Count, d.Model, ErrInvalid)
		}
		if d.Claim != "" && !slices.ContainsFunc(e.shape.requests, func(r request) bool { return r.claim == d.Claim }) {
			return fmt.Errorf("entry %q does not use claim %s, %w", ev.ID, d.Claim, ErrInvalid)
		}
		if i, ok := st.modelIndex[d.Model]; ok && satAdd(st.models[i].alloc, d.Count) > maxDevices<<16 {
			return fmt.Errorf("more than %d devices of model %s, %w", int64(maxDevices)<<16, d.Model, ErrInvalid)
		}
	}
	if e.phase == waiting {
		st.open(e)
	}
	st.take(e, &ev, started)
	st.settleMembers(e)
	return nil
}

// take books an allocation that has been checked.
func (st *State) take(e *entry, ev *Allocated, started int64) {
	if e.decided == 0 || started < e.started {
		e.started = started
	}
	if ev.Members == 0 {
		for _, a := range e.alloc {
			st.allocate(e.tenant, a.model, -a.n, e.shape.firm)
		}
		e.alloc, e.decided, e.rest = nil, e.shape.members, nil
	}
	e.decided += ev.Members
	if len(ev.Rest) > 0 {
		e.decided, e.rest = 0, st.requestsOf(ev.Rest)
	}
	shared := map[string]vec{}
	for _, d := range ev.Devices {
		m := st.model(d.Model)
		if d.Claim != "" {
			shared[d.Claim] = shared[d.Claim].add(m, d.Count)
			continue
		}
		e.alloc = e.alloc.add(m, d.Count)
		st.allocate(e.tenant, m, d.Count, e.shape.firm)
	}
	for _, uid := range slices.Sorted(maps.Keys(shared)) {
		c := e.tenant.claims[uid]
		c.known = true
		st.allocateClaim(e.tenant, c, shared[uid])
	}
	e.stray()
}

func (ev Finished) apply(st *State) error { return st.end(ev.ID) }

// end forgets an entry and frees what it held.
func (st *State) end(id string) error {
	e, err := st.entry(id)
	if err != nil {
		return err
	}
	if e.phase == waiting {
		st.dequeue(e)
	} else {
		st.vacate(e)
	}
	delete(st.entries, id)
	delete(st.cooled, id)
	delete(st.bound, id)
	st.drop(e.tenant)
	return nil
}

// drop forgets a tenant that has no quota, no work and no claims any more.
func (st *State) drop(t *tenant) {
	if t.limited || t.waiting > 0 || len(t.running) > 0 || len(t.claims) > 0 {
		return
	}
	delete(st.tenantOf, t.name)
	st.tenants = slices.DeleteFunc(st.tenants, func(known *tenant) bool { return known == t })
}

func (ev Deleted) apply(st *State) error {
	e, err := st.entry(ev.ID)
	switch {
	case err != nil:
		return err
	case e.phase == waiting || e.decided == 0 && e.rest == nil:
		return st.end(ev.ID)
	}
	e.phase = releasing
	st.settleMembers(e)
	return nil
}

func (ev Released) apply(st *State) error {
	e, err := st.entry(ev.ID)
	switch {
	case err != nil:
		return err
	case e.phase != releasing:
		return fmt.Errorf("entry %q is not deleted, %w", ev.ID, ErrConflict)
	}
	return st.end(ev.ID)
}

func (ev Requeued) apply(st *State) error {
	e, err := st.entry(ev.ID)
	switch {
	case err != nil:
		return err
	case e.phase == waiting:
		return nil
	}
	evicted := e.notice == evicting
	st.vacate(e)
	if evicted {
		e.reclaims++
		st.coolSince(e, st.now)
	}
	st.enqueue(e)
	return nil
}

func (ev QuotaSet) apply(st *State) error {
	q := ev.Quota
	if q.Weight == 0 {
		q.Weight = 1
	}
	if q.Tenant == "" || q.Weight < 1 || q.Weight > 1_000_000 {
		return fmt.Errorf("quota of tenant %q, weight %d, %w", q.Tenant, q.Weight, ErrInvalid)
	}
	for i, m := range q.Models {
		limit := int64(maxDevices)
		if m.Limit != nil {
			limit = *m.Limit
		}
		again := slices.ContainsFunc(q.Models[:i], func(o ModelQuota) bool { return o.Model == m.Model })
		if m.Model == "" || again || m.Guaranteed < 0 || m.Guaranteed > limit || limit > maxDevices {
			return fmt.Errorf("quota of tenant %q, model %q: guaranteed %d, limit %d, %w", q.Tenant, m.Model, m.Guaranteed, limit, ErrInvalid)
		}
	}
	t := st.tenant(q.Tenant)
	st.clearQuota(t)
	t.limited, t.weight = true, q.Weight
	for _, m := range q.Models {
		r := &t.rows[st.model(m.Model)]
		r.listed, r.guaranteed, r.limit = true, m.Guaranteed, none
		if m.Limit != nil {
			r.limit = *m.Limit
		}
	}
	return nil
}

func (ev QuotaRemoved) apply(st *State) error {
	if t := st.tenantOf[ev.Tenant]; t != nil {
		st.clearQuota(t)
		st.drop(t)
	}
	return nil
}

func (st *State) clearQuota(t *tenant) {
	t.limited, t.weight = false, 1
	for i := range t.rows {
		r := &t.rows[i]
		r.listed, r.guaranteed, r.limit = false, 0, none
	}
	st.stale = true
}

func (ev CapacitySet) apply(st *State) error {
	if ev.Model == "" || ev.Devices < 0 || ev.Devices > maxDevices {
		return fmt.Errorf("capacity of %d devices of model %q, %w", ev.Devices, ev.Model, ErrInvalid)
	}
	st.models[st.model(ev.Model)].capacity = ev.Devices
	st.stale = true
	return nil
}

func (ev ReclaimNoticed) apply(st *State) error {
	e, err := st.entry(ev.ID)
	switch {
	case err != nil:
		return err
	case !inRange(ev.Deadline):
		return fmt.Errorf("deadline %v, %w", ev.Deadline, ErrInvalid)
	case e.phase != opened:
		return fmt.Errorf("entry %q holds nothing to take back, %w", ev.ID, ErrConflict)
	case e.notice == unnoticed:
		st.notify(e, ev.For, ev.Deadline.UnixNano())
	}
	return nil
}

func (st *State) notify(e *entry, servant string, deadline int64) {
	e.notice, e.servant, e.deadline = noticed, servant, deadline
	st.noticed[e.id] = e
}

func (ev ReclaimExpired) apply(st *State) error {
	e, err := st.entry(ev.ID)
	switch {
	case err != nil:
		return err
	case e.notice == unnoticed:
		return fmt.Errorf("entry %q had no notice, %w", ev.ID, ErrConflict)
	}
	e.notice = evicting
	return nil
}

func (ev ReclaimCancelled) apply(st *State) error {
	e, err := st.entry(ev.ID)
	if err != nil {
		return err
	}
	if e.phase == opened {
		st.unnotice(e)
	}
	return nil
}
