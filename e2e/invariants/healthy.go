package invariants

import (
	"fmt"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

const healthy = "I8 no device is chosen that was unhealthy when it was decided"

// HealthyDevices checks I8: no device is allocated whose slice or a
// DeviceTaintRule had, when it was decided and for the slack before, given it a
// taint that keeps new claims away and that the claim does not tolerate.
// Allocations without a record of their decision are not judged.
func HealthyDevices(h History, slack Slack) Report {
	checked, unjudged := 0, 0
	var violations []string
	unknown := h.allocations(func(c *cluster, a *allocation) {
		decided, known := a.decided()
		if !known {
			unjudged++
			return
		}
		checked++
		for _, r := range a.claim.Status.Allocation.Devices.Results {
			d := c.devices[DeviceID{r.Driver, r.Pool, r.Device}]
			if d == nil {
				continue // I2 tells
			}
			why, since := c.unhealthy(d, toleratedBy(r.Tolerations))
			if why != "" && !since.After(decided.Add(-time.Duration(slack))) {
				violations = append(violations, fmt.Sprintf("%s: %s was given %s, decided at %s, with %s since %s",
					a.stamp(), a.name(), d.id, decided.Format(stamp), why, since.Format(stamp)))
			}
		}
	})
	r := conclude(healthy, checked, violations, h.Gaps())
	r.Unjudged = unknown + unjudged
	return r
}

func toleratedBy(tolerations []resourcev1.DeviceToleration) func(resourcev1.DeviceTaint) bool {
	return func(t resourcev1.DeviceTaint) bool {
		for _, toleration := range tolerations {
			if resourceclaim.ToleratesTaint(toleration, t) {
				return true
			}
		}
		return false
	}
}

// none tolerates nothing.
func none(resourcev1.DeviceTaint) bool { return false }

// reservation is a device that a decision held before its allocation was
// written.
type reservation struct {
	claim         types.UID
	decided, from time.Time // from is when the allocation was written
}

// unknownFlight is how long before its allocation was written a decision of
// unknown time may have held its devices.
const unknownFlight = 30 * time.Second

// reservations are those of all allocations, by device.
func (h History) reservations() map[DeviceID][]reservation {
	all := map[DeviceID][]reservation{}
	h.allocations(func(_ *cluster, a *allocation) {
		decided, known := a.decided()
		if !known {
			decided = a.entry.At.Add(-unknownFlight)
		}
		for _, id := range heldBy(a.claim) {
			all[id] = append(all[id], reservation{claim: a.claim.UID, decided: decided, from: a.entry.At})
		}
	})
	return all
}
