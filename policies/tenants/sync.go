package tenants

// Telling the engine what has changed.

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/fair"
)

// Sync tells the engine what has changed. The errors are of single objects,
// which count for nothing until they change.
func (m *Mirror) Sync(now time.Time) error {
	m.now = now
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
				m.mark(id)
			}
		}
	}
	m.expire(now)
	m.inherit(now)
	m.seen = map[types.NamespacedName]*gang{}
	for _, id := range slices.Sorted(maps.Keys(m.dirty)) {
		delete(m.refused, id)
		if err := m.tell(now, id); err != nil {
			m.refused[id] = err
			errs = append(errs, err)
		}
	}
	m.seen = nil
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
			m.mark(id)
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

// lookAt is look, for Pods, gangs and claims, and notes what else it says.
func (m *Mirror) lookAt(now time.Time, id string) *work {
	delete(m.blocked, id)
	delete(m.strays, id)
	if claim := m.claimAt(id); claim != nil {
		return m.leftOf(claim)
	}
	var w *work
	var stray bool
	inside, blocked := m.inGang(id)
	if group := m.groupAt(id); group != nil {
		w, blocked = m.lookAtGang(group, now)
	} else if !inside && blocked == "" {
		w, blocked, stray = m.look(id, now)
	}
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
	if claim == nil || claimID(claim) != id {
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
	events = append(events, fair.Opened{ID: w.entry.ID, Models: w.models})
	if w.known() {
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
	return fair.Allocated{ID: w.entry.ID, Devices: w.devices, Started: w.started, Rest: w.rest}
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
		return w, nil, w.pods == nil // opened; what shows it is still on its way
	case w.phase == open && want.decided:
		want.models = w.models // they do not matter any more, so nothing new is told
	case w.phase == open && !slices.Equal(w.models, want.models):
		return nil, nil, false
	}
	var events []fair.Event
	if w.phase == waiting && want.phase == open {
		events = append(events, fair.Opened{ID: id, Models: want.models})
	}
	switch {
	case want.known() && want.phase == open && (!w.known() || !slices.Equal(w.devices, want.devices) || !reflect.DeepEqual(w.rest, want.rest)):
		events = append(events, want.allocated())
	case w.known() && !want.known() && w.phase == open:
		if w.notice != nil {
			return nil, nil, false
		}
		events = append(events, fair.Requeued{ID: id}, fair.Opened{ID: id, Models: want.models}) // given back
	}
	if want.phase == open && w.notice == nil && want.notice != nil && w.pods != nil {
		events = append(events, *want.notice) // known already, but for one that was begun before a restart
	}
	return want, events, true
}
