// Package health makes taints and reports of what the hardware says is wrong.
//
// A device can have several troubles, one from each source; the worst counts.
// A trouble holds from the first report that has it until it has been over for
// the whole of a recovery time, so that one which comes and goes is no reason
// to hand the device out in between. What is known is kept on disk: a driver
// that restarts publishes the same taints at once, with the same times.
package health

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Monitor keeps the health of one node's devices. It is safe for concurrent use.
type Monitor struct {
	folder   string
	boot     string
	clock    clock.PassiveClock
	recovery time.Duration

	mu       sync.Mutex
	troubles map[inventory.Origin]*entry
	unsaved  bool
}

// entry is a trouble and its times.
type entry struct {
	inventory.Trouble
	// since is when it was first reported.
	since time.Time
	// ended is when it was first not reported any more; zero while it is.
	ended time.Time
}

// New returns a monitor that knows what is in the file in a folder, which need
// not exist. Another boot ID than the file's means that the node has booted, and
// all is forgotten. With an error, which is about the file, the monitor is good:
// with a [DamagedError] that says so it knows what the file before had, and with
// any other it knows nothing.
func New(folder, bootID string, clock clock.PassiveClock, recovery time.Duration) (*Monitor, error) {
	m := &Monitor{folder: folder, boot: bootID, clock: clock, recovery: recovery, troubles: map[inventory.Origin]*entry{}}
	err := m.load()
	return m, err
}

// Transition is a change of a device's severity.
type Transition struct {
	Device   string
	From, To inventory.Severity
	// Reason and Message are those of the worst trouble; where To is Healthy,
	// of the one that is over.
	Reason, Message string
}

// Observe takes in what the hardware says now, and the time that has gone by,
// so it is to be called also when nothing has changed. It returns what has
// changed for whom, by device. An error is one of writing the file; the next
// call tries again.
func (m *Monitor) Observe(report inventory.Report) ([]Transition, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.worst()
	now := m.clock.Now().UTC()

	reported := map[inventory.Origin]bool{}
	lesser := map[inventory.Origin]inventory.Trouble{}
	for _, trouble := range report.Troubles {
		known := m.troubles[trouble.Origin]
		if known != nil && trouble.Severity < known.Severity {
			lesser[trouble.Origin] = trouble // it counts once the worse one is over
			continue
		}
		reported[trouble.Origin] = true
		if known == nil {
			m.troubles[trouble.Origin] = &entry{Trouble: trouble, since: now}
			m.unsaved = true
			continue
		}
		if known.Trouble != trouble || !known.ended.IsZero() {
			m.unsaved = true
		}
		if known.Severity != trouble.Severity {
			known.since = now
		}
		known.Trouble, known.ended = trouble, time.Time{}
	}
	for origin, known := range m.troubles {
		if reported[origin] || known.Latched && known.ended.IsZero() && !slices.Contains(report.Recovered, origin) {
			continue
		}
		if known.ended.IsZero() {
			known.ended = now
			m.unsaved = true
		}
		if now.Sub(known.ended) >= m.recovery {
			delete(m.troubles, origin)
			m.unsaved = true
			if left, is := lesser[origin]; is {
				m.troubles[origin] = &entry{Trouble: left, since: now}
			}
		}
	}
	transitions := m.compare(before)
	return transitions, m.write()
}

// worst is the worst trouble of each device.
func (m *Monitor) worst() map[string]entry {
	all := map[string]entry{}
	for _, e := range m.troubles {
		if present, known := all[e.Device]; !known || byWeight(*e, present) < 0 {
			all[e.Device] = *e
		}
	}
	return all
}

// byWeight orders the troubles of one device: worst first, then by source.
func byWeight(a, b entry) int {
	return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Source, b.Source))
}

func (m *Monitor) compare(before map[string]entry) []Transition {
	after := m.worst()
	var changed []Transition
	for device, now := range after {
		if was := before[device]; was.Severity != now.Severity {
			changed = append(changed, Transition{Device: device, From: was.Severity, To: now.Severity, Reason: now.Reason, Message: now.Message})
		}
	}
	for device, was := range before {
		if _, still := after[device]; !still {
			changed = append(changed, Transition{Device: device, From: was.Severity, To: inventory.Healthy, Reason: was.Reason, Message: was.Message})
		}
	}
	slices.SortFunc(changed, func(a, b Transition) int { return cmp.Compare(a.Device, b.Device) })
	return changed
}

// of are the troubles of a device, worst first.
func (m *Monitor) of(device string) []entry {
	var all []entry
	for _, e := range m.troubles {
		if e.Device == device {
			all = append(all, *e)
		}
	}
	slices.SortFunc(all, byWeight)
	return all
}

// Severity of a device, and all that is wrong with it in a few words.
func (m *Monitor) Severity(device string) (inventory.Severity, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.of(device)
	if len(all) == 0 {
		return inventory.Healthy, ""
	}
	said := make([]string, len(all))
	for i, e := range all {
		said[i] = e.Reason + ", " + e.Message
		if !e.ended.IsZero() {
			said[i] += " (over since " + e.ended.Format(time.RFC3339) + ")"
		}
	}
	return all[0].Severity, strings.Join(said, "; ")
}

// Reason is the one word for the worst trouble of a device; "" while it is
// healthy.
func (m *Monitor) Reason(device string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if all := m.of(device); len(all) > 0 {
		return all[0].Reason
	}
	return ""
}

// Taints that a device carries: none while it is healthy, NoSchedule from a
// suspicion on, NoExecute too once it has failed. Suspicion stays beside
// failure: a claim may tolerate the second, and must not be given the device
// for that.
func (m *Monitor) Taints(device string) []resourcev1.DeviceTaint {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.of(device)
	if len(all) == 0 {
		return nil
	}
	made := []resourcev1.DeviceTaint{taint(v1alpha1.TaintUnhealthy, resourcev1.DeviceTaintEffectNoSchedule, all, inventory.Suspect)}
	if all[0].Severity >= inventory.Failed {
		made = append(made, taint(v1alpha1.TaintFailed, resourcev1.DeviceTaintEffectNoExecute, all, inventory.Failed))
	}
	return made
}

// taint is for the troubles of at least this severity: the reason of the worst,
// the time of the first.
func taint(key string, effect resourcev1.DeviceTaintEffect, all []entry, least inventory.Severity) resourcev1.DeviceTaint {
	since := all[0].since
	for _, e := range all {
		if e.Severity >= least && e.since.Before(since) {
			since = e.since
		}
	}
	added := metav1.NewTime(since.Truncate(time.Second))
	return resourcev1.DeviceTaint{Key: key, Value: all[0].Reason, Effect: effect, TimeAdded: &added}
}
