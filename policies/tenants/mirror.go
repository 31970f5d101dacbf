package tenants

// The Mirror: the objects that are there, and what the engine was told of them.

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/selector"
)

// Mirror holds the objects that count and the engine that is told of them. It
// is not safe for concurrent use. Objects that it was given must not change.
type Mirror struct {
	state       *fair.State
	costs       map[string]int64
	expressions *cel.Cache

	fleet     fleet
	quotas    map[string]*v1alpha1.TenantQuota
	owner     map[string]string // of a namespace
	revisions map[string]*v1alpha1.PolicyRevision
	tiers     map[string]*tiers
	pods      map[string]*corev1.Pod // by the engine's ID
	podAt     map[types.NamespacedName]string
	podOf     map[types.UID]string
	claims    map[types.NamespacedName]*resourceapi.ResourceClaim
	owned     map[string]map[types.NamespacedName]bool // claims made for a Pod
	users     map[types.NamespacedName]map[string]bool // Pods that name a claim

	// What has changed since the last Sync.
	dirty                         map[string]bool
	newQuotas, newFleet, newHolds bool

	// What the engine was told.
	told     map[string]*work
	given    map[string]fair.Quota
	capacity map[string]int64

	blocked map[string]fair.Reason // Pods that wait for something else
	refused map[string]error       // what the engine did not take
	strays  map[string]bool        // Pods with a gate that no quota speaks of
	// Pods that are left alone for a while: neither evicted, nor opened.
	spared, paused map[string]time.Time
}

// NewMirror returns an empty Mirror.
func NewMirror(config Config) (*Mirror, error) {
	f := config.fair()
	state, err := fair.New(f)
	if err != nil {
		return nil, fmt.Errorf("making the engine, %w", err)
	}
	m := &Mirror{
		state: state, costs: map[string]int64{}, fleet: newFleet(),
		expressions: selector.NewCache(maxExpressions),
		quotas:      map[string]*v1alpha1.TenantQuota{}, owner: map[string]string{},
		revisions: map[string]*v1alpha1.PolicyRevision{}, tiers: map[string]*tiers{},
		pods: map[string]*corev1.Pod{}, podAt: map[types.NamespacedName]string{}, podOf: map[types.UID]string{},
		claims: map[types.NamespacedName]*resourceapi.ResourceClaim{},
		owned:  map[string]map[types.NamespacedName]bool{}, users: map[types.NamespacedName]map[string]bool{},
		dirty: map[string]bool{}, told: map[string]*work{}, given: map[string]fair.Quota{}, capacity: map[string]int64{},
		blocked: map[string]fair.Reason{}, refused: map[string]error{}, strays: map[string]bool{},
		spared: map[string]time.Time{}, paused: map[string]time.Time{},
	}
	for _, model := range f.Models {
		m.costs[model.Name] = model.Cost
	}
	return m, nil
}

// Put takes an object that is new or has changed. Kinds that do not count are
// passed over.
func (m *Mirror) Put(object metav1.Object) { m.set(object, false) }

// Delete takes an object that is gone.
func (m *Mirror) Delete(object metav1.Object) { m.set(object, true) }

func (m *Mirror) set(object metav1.Object, gone bool) {
	switch o := object.(type) {
	case *corev1.Pod:
		m.setPod(o, gone)
	case *resourceapi.ResourceClaim:
		m.setClaim(o, gone)
	case *resourceapi.ResourceSlice:
		put(m.fleet.slices, o.Name, o, gone)
		m.newFleet = true
	case *corev1.Node:
		put(m.fleet.nodes, o.Name, o, gone)
		m.newFleet = true
	case *resourceapi.DeviceTaintRule:
		put(m.fleet.rules, o.Name, o, gone)
		m.newFleet = true
	case *v1alpha1.TenantQuota:
		put(m.quotas, o.Name, o, gone)
		m.newQuotas = true
	case *v1alpha1.PolicyRevision:
		put(m.revisions, o.Name, o, gone)
		m.renew(o.Name)
	}
}

func put[T any](to map[string]T, name string, object T, gone bool) {
	if gone {
		delete(to, name)
	} else {
		to[name] = object
	}
}

// renew looks again at all Pods of a revision.
func (m *Mirror) renew(revision string) {
	delete(m.tiers, revision)
	for id, pod := range m.pods {
		if templateOf(pod) == revision {
			m.dirty[id] = true
		}
	}
}

func (m *Mirror) setPod(pod *corev1.Pod, gone bool) {
	id, key := IDOf(pod.Namespace, pod.Name, pod.UID), keyOf(pod)
	gone = gone || len(pod.Spec.ResourceClaims) == 0 && !HasGate(pod)
	if other, ok := m.podAt[key]; ok && (other != id || gone) {
		if other != id && gone {
			return // of one that was replaced already
		}
		m.forget(other)
	}
	if gone {
		return
	}
	m.pods[id], m.podAt[key], m.podOf[pod.UID] = pod, id, id
	m.dirty[id] = true
	m.eachNamed(pod, func(claim types.NamespacedName) {
		if m.users[claim] == nil {
			m.users[claim] = map[string]bool{}
		}
		m.users[claim][id] = true
	})
}

// forget drops a Pod that is gone.
func (m *Mirror) forget(id string) {
	pod := m.pods[id]
	delete(m.pods, id)
	delete(m.podAt, keyOf(pod))
	delete(m.podOf, pod.UID)
	m.dirty[id] = true
	m.eachNamed(pod, func(claim types.NamespacedName) {
		if delete(m.users[claim], id); len(m.users[claim]) == 0 {
			delete(m.users, claim)
		}
	})
}

// eachNamed visits the claims that a Pod names, and looks again at each.
func (m *Mirror) eachNamed(pod *corev1.Pod, visit func(types.NamespacedName)) {
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimName == nil {
			continue
		}
		key := types.NamespacedName{Namespace: pod.Namespace, Name: *ref.ResourceClaimName}
		visit(key)
		if claim := m.claims[key]; claim != nil && ownerID(claim) == "" {
			m.dirty[claimID(claim)] = true
		}
	}
}

func (m *Mirror) setClaim(claim *resourceapi.ResourceClaim, gone bool) {
	key := keyOf(claim)
	if old := m.claims[key]; old != nil {
		if gone && old.UID != claim.UID {
			return
		}
		m.fleet.hold(old, -1)
		m.touch(old)
		delete(m.claims, key)
		if id := ownerID(old); id != "" {
			if delete(m.owned[id], key); len(m.owned[id]) == 0 {
				delete(m.owned, id)
			}
		}
	}
	m.newHolds = true
	if gone {
		return
	}
	m.claims[key] = claim
	m.fleet.hold(claim, 1)
	if id := ownerID(claim); id != "" {
		if m.owned[id] == nil {
			m.owned[id] = map[types.NamespacedName]bool{}
		}
		m.owned[id][key] = true
	}
	m.touch(claim)
}

// touch looks again at all that a claim concerns.
func (m *Mirror) touch(claim *resourceapi.ResourceClaim) {
	if id := ownerID(claim); id != "" {
		m.dirty[id] = true
		return
	}
	m.dirty[claimID(claim)] = true
	for id := range m.users[keyOf(claim)] {
		m.dirty[id] = true
	}
}

// Sync tells the engine what has changed. The errors are of single objects,
// which count for nothing until they change.
func (m *Mirror) Sync(now time.Time) error {
	var errs []error
	errs = append(errs, m.syncQuotas(now))
	if m.newFleet {
		if m.fleet.recount() {
			for name, t := range m.tiers {
				if t.open {
					m.renew(name)
				}
			}
			for id := range m.blocked {
				m.dirty[id] = true
			}
		}
	}
	m.expire(now)
	for _, id := range slices.Sorted(maps.Keys(m.dirty)) {
		delete(m.refused, id)
		if err := m.tell(now, id); err != nil {
			m.refused[id] = err
			errs = append(errs, err)
		}
	}
	clear(m.dirty)
	if m.newFleet || m.newHolds {
		errs = append(errs, m.syncCapacity(now))
	}
	m.newFleet, m.newHolds = false, false
	return errors.Join(errs...)
}

func (m *Mirror) syncQuotas(now time.Time) error {
	if !m.newQuotas {
		return nil
	}
	m.newQuotas = false
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(m.given)) {
		if m.quotas[name] == nil {
			delete(m.given, name)
			errs = append(errs, m.state.Apply(now, fair.QuotaRemoved{Tenant: name}))
		}
	}
	for _, q := range m.Quotas() {
		quota := quotaOf(q)
		if old, ok := m.given[q.Name]; ok && reflect.DeepEqual(old, quota) {
			continue
		}
		delete(m.refused, "quota/"+q.Name)
		if err := m.state.Apply(now, fair.QuotaSet{Quota: quota}); err != nil {
			m.refused["quota/"+q.Name] = err
			errs = append(errs, err)
			continue
		}
		m.given[q.Name] = quota
	}
	changed := m.own()
	for id, pod := range m.pods {
		if changed[pod.Namespace] {
			m.dirty[id] = true
		}
	}
	for _, claim := range m.claims {
		if changed[claim.Namespace] {
			m.touch(claim)
		}
	}
	return errors.Join(errs...)
}

func (m *Mirror) syncCapacity(now time.Time) error {
	capacity := m.fleet.capacity()
	var errs []error
	for model := range m.capacity {
		if _, ok := capacity[model]; !ok {
			capacity[model] = 0
		}
	}
	for _, model := range slices.Sorted(maps.Keys(capacity)) {
		if known, ok := m.capacity[model]; !ok || known != capacity[model] {
			errs = append(errs, m.state.Apply(now, fair.CapacitySet{Model: model, Devices: capacity[model]}))
		}
	}
	m.capacity = capacity
	return errors.Join(errs...)
}

// tell brings the engine from what it was told of some work to what is so.
func (m *Mirror) tell(now time.Time, id string) error {
	want := m.lookAt(now, id)
	had := m.told[id]
	if want == nil {
		if had == nil {
			return nil
		}
		delete(m.told, id)
		return m.apply(now, fair.Finished{ID: id})
	}
	if had != nil {
		next, events, ok := had.become(want)
		if ok {
			m.told[id] = next
			if err := m.apply(now, events...); err == nil {
				return nil
			}
		}
		delete(m.told, id)
		if err := m.apply(now, fair.Finished{ID: id}); err != nil && !errors.Is(err, fair.ErrUnknownEntry) {
			return err
		}
	}
	if err := m.apply(now, want.facts()...); err != nil {
		if err := m.apply(now, fair.Finished{ID: id}); err != nil && !errors.Is(err, fair.ErrUnknownEntry) {
			return err
		}
		return err
	}
	m.told[id] = want
	return nil
}

// lookAt is look, for Pods and for claims, and notes what else it says.
func (m *Mirror) lookAt(now time.Time, id string) *work {
	delete(m.blocked, id)
	delete(m.strays, id)
	if claim := m.claimAt(id); claim != nil {
		return m.leftOf(claim)
	}
	w, blocked, stray := m.look(id, now)
	if blocked != "" {
		m.blocked[id] = blocked
	}
	if stray {
		m.strays[id] = true
	}
	return w
}

// claimAt is the claim that the ID stands for, if it is there.
func (m *Mirror) claimAt(id string) *resourceapi.ResourceClaim {
	parts := strings.Split(id, "/")
	if len(parts) != 4 {
		return nil
	}
	claim := m.claims[types.NamespacedName{Namespace: parts[1], Name: parts[2]}]
	if claim == nil || claimID(claim) != id || ownerID(claim) != "" {
		return nil
	}
	return claim
}

func (m *Mirror) apply(now time.Time, events ...fair.Event) error {
	for _, ev := range events {
		if err := m.state.Apply(now, ev); err != nil {
			return fmt.Errorf("telling the engine, %w", err)
		}
	}
	return nil
}

// facts tell all of the work to an engine that does not know it.
func (w *work) facts() []fair.Event {
	events := []fair.Event{fair.Arrived{Entry: w.entry}}
	if w.phase == waiting {
		return events
	}
	events = append(events, fair.Opened{ID: w.entry.ID})
	if w.decided {
		events = append(events, w.allocated())
	}
	if w.phase == releasing {
		events = append(events, fair.Deleted{ID: w.entry.ID})
	} else if w.notice != nil {
		events = append(events, *w.notice)
	}
	return events
}

func (w *work) allocated() fair.Event {
	return fair.Allocated{ID: w.entry.ID, Devices: w.devices, Started: w.started}
}

// become is what to tell where the work was known already, and how it is known
// then. False: it has to be told anew.
func (w *work) become(want *work) (*work, []fair.Event, bool) {
	id := want.entry.ID
	switch {
	case w.phase == releasing:
		// What is left of it may go one claim after the other: it is all charged
		// until the last has gone.
		return w, nil, want.phase == releasing && w.entry.Tenant == want.entry.Tenant
	case want.phase == releasing:
		if w.phase != open || !w.decided || w.shares() || w.entry.Tenant != want.entry.Tenant {
			return nil, nil, false
		}
		var events []fair.Event
		if !slices.Equal(w.devices, want.devices) {
			want.started = w.started
			events = append(events, want.allocated())
		}
		return want, append(events, fair.Deleted{ID: id}), true
	case !reflect.DeepEqual(w.entry, want.entry):
		return nil, nil, false
	case w.phase == open && want.phase == waiting:
		return w, nil, true // opened; what shows it is still on its way
	}
	var events []fair.Event
	if w.phase == waiting && want.phase == open {
		events = append(events, fair.Opened{ID: id})
	}
	switch {
	case want.decided && (!w.decided || !slices.Equal(w.devices, want.devices)) && want.phase == open:
		events = append(events, want.allocated())
	case w.decided && !want.decided && w.phase == open:
		events = append(events, fair.Requeued{ID: id}, fair.Opened{ID: id}) // given back
	}
	return want, events, true
}

// Next returns what has to be done now. It is taken as done, so ask once for
// each change. Gates of Pods that no quota speaks of come first.
func (m *Mirror) Next(now time.Time) []fair.Action {
	var actions []fair.Action
	for _, id := range slices.Sorted(maps.Keys(m.strays)) {
		tenant := ""
		if w := m.told[id]; w != nil {
			if w.phase == open {
				continue // done; what shows it is still on its way
			}
			tenant, w.phase = w.entry.Tenant, open
			if err := m.state.Apply(now, fair.Opened{ID: id}); err != nil {
				m.refused[id] = err
			}
		}
		actions = append(actions, fair.Action{Kind: fair.Open, ID: id, Tenant: tenant})
	}
	clear(m.strays)
	for _, a := range m.state.Next(now) {
		if w := m.told[a.ID]; w != nil && a.Kind == fair.Open {
			w.phase = open
		}
		actions = append(actions, a)
	}
	return actions
}

// Wake is when Next may have something to do although nothing has changed.
func (m *Mirror) Wake(now time.Time) (time.Time, bool) {
	at, ok := m.state.Wake(now)
	for _, list := range []map[string]time.Time{m.paused, m.spared} {
		for _, t := range list {
			if !ok || t.Before(at) {
				at, ok = t, true
			}
		}
	}
	return at, ok
}

// Pause takes a Pod whose gate can't be opened out of the engine until then, so
// that what it would hold goes to others.
func (m *Mirror) Pause(id string, until time.Time) {
	m.paused[id], m.dirty[id] = until, true
}

// Spare keeps a Pod that could not be evicted from being chosen until then.
func (m *Mirror) Spare(id string, until time.Time) { m.spared[id], m.dirty[id] = until, true }

// Cancelled tells that a notice could not be carried out.
func (m *Mirror) Cancelled(now time.Time, id string) error {
	if m.told[id] == nil {
		return nil
	}
	return m.apply(now, fair.ReclaimCancelled{ID: id})
}

// expire ends pauses whose time is over, and those of Pods that are gone.
func (m *Mirror) expire(now time.Time) {
	for _, list := range []map[string]time.Time{m.paused, m.spared} {
		for id, until := range list {
			if _, ok := m.pods[id]; !ok || !now.Before(until) {
				delete(list, id)
				m.dirty[id] = true
			}
		}
	}
}

// Pod is the Pod of this ID as it was last seen, or nil.
func (m *Mirror) Pod(id string) *corev1.Pod { return m.pods[id] }

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
