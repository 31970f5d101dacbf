package tenants

// What has to be done, and what those who do it say.

import (
	"maps"
	"slices"
	"time"

	"gpuladder.dev/ladder/policies/fair"
)

// Next returns what has to be done now. It is taken as done, so ask once for
// each change. All actions are about Pods, one for each of a gang. Gates of Pods
// that no quota speaks of come first, then what is left to do for gangs.
func (m *Mirror) Next(now time.Time) []fair.Action {
	m.now = now
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
	for _, id := range slices.Sorted(maps.Keys(m.unfinished)) {
		if a := m.unfinished[id]; m.pods[id] != nil {
			m.asked[id] = a
			actions = append(actions, a)
		}
	}
	clear(m.unfinished)
	for _, a := range m.state.Next(now) {
		actions = append(actions, m.take(a)...)
	}
	return actions
}

// take notes that an action of the engine is under way, and returns it as
// actions about Pods.
func (m *Mirror) take(a fair.Action) []fair.Action {
	switch w := m.told[a.ID]; {
	case w == nil:
	case a.Kind == fair.Open:
		w.phase, w.models = open, either(a.Models)
	case a.Kind == fair.Widen:
		w.models = nil
	}
	return m.each(a)
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
	m.paused[id] = until
	delete(m.asked, id)
	m.mark(id)
}

// Spare keeps a Pod that could not be evicted from being chosen until then.
func (m *Mirror) Spare(id string, until time.Time) {
	m.spared[id] = until
	m.mark(id)
}

// Cancelled tells that a notice could not be carried out.
func (m *Mirror) Cancelled(now time.Time, id string) error {
	for _, fellow := range m.Fellows(id) {
		if !m.isAsked(fellow, fair.Open) {
			delete(m.asked, fellow)
		}
	}
	entry := m.entryOf(id)
	if m.told[entry] == nil {
		return nil
	}
	return m.apply(now, fair.ReclaimCancelled{ID: entry})
}

// expire ends pauses whose time is over, and those of Pods that are gone.
func (m *Mirror) expire(now time.Time) {
	for _, list := range []map[string]time.Time{m.paused, m.spared} {
		for id, until := range list {
			if _, ok := m.pods[id]; !ok || !now.Before(until) {
				delete(list, id)
				m.mark(id)
			}
		}
	}
}
