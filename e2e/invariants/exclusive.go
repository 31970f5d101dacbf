package invariants

import (
	"fmt"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const exclusive = "I1 no device in two claims at once"

// DeviceID names a device.
type DeviceID struct{ Driver, Pool, Device string }

func (d DeviceID) String() string { return d.Driver + "/" + d.Pool + "/" + d.Device }

type poolID struct{ driver, pool string }

// ExclusiveDevices checks I1 in three ways: what the claims say, what the
// shared counters of the slices add up to, and what containers of running Pods
// saw.
func ExclusiveDevices(h History) Report {
	c := &holders{claims: map[types.UID]*holding{}, slices: map[types.UID]*resourcev1.ResourceSlice{}}
	for _, e := range h.ByVersion() {
		switch {
		case e.Claim != nil:
			c.claim(e)
		case e.Slice != nil:
			c.slice(e)
		}
	}
	seen, collisions := containers(h)
	return conclude(exclusive, c.checked+seen, append(c.violations, collisions...), h.Gaps())
}

// holding is what a claim has.
type holding struct {
	name    string
	devices []DeviceID
}

// holders follows who has what.
type holders struct {
	claims     map[types.UID]*holding
	slices     map[types.UID]*resourcev1.ResourceSlice
	checked    int
	violations []string
}

func (c *holders) claim(e Entry) {
	before := c.claims[e.Claim.UID]
	now := &holding{name: e.Claim.Namespace + "/" + e.Claim.Name, devices: heldBy(e.Claim)}
	if e.Type == watch.Deleted || len(now.devices) == 0 {
		delete(c.claims, e.Claim.UID)
		return
	}
	c.claims[e.Claim.UID] = now
	pools := map[poolID]bool{}
	for _, d := range now.devices {
		if before != nil && slices.Contains(before.devices, d) {
			continue // was checked when it came
		}
		c.checked++
		pools[poolID{d.Driver, d.Pool}] = true
		for _, uid := range slices.Sorted(maps.Keys(c.claims)) {
			if other := c.claims[uid]; uid != e.Claim.UID && slices.Contains(other.devices, d) {
				c.violations = append(c.violations, fmt.Sprintf("%s: %s was given to %s (version %s) while %s had it",
					e.At.Format(stamp), d, now.name, e.Claim.ResourceVersion, other.name))
			}
		}
	}
	for p := range pools {
		c.counters(e, p)
	}
}

// stamp is how times are told.
const stamp = "15:04:05.000"

// heldBy are the devices that the claim has for itself. Admin access takes
// nothing from anybody; a share of a device that is made to be shared has its
// own identity.
func heldBy(claim *resourcev1.ResourceClaim) []DeviceID {
	if claim.Status.Allocation == nil {
		return nil
	}
	var held []DeviceID
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess || r.ShareID != nil {
			continue
		}
		held = append(held, DeviceID{r.Driver, r.Pool, r.Device})
	}
	return held
}

func (c *holders) slice(e Entry) {
	if e.Type == watch.Deleted {
		delete(c.slices, e.Slice.UID)
		return
	}
	c.slices[e.Slice.UID] = e.Slice
}

// counters adds up what the pool's allocated devices consume.
func (c *holders) counters(e Entry, p poolID) {
	newest := int64(-1)
	for _, s := range c.slices {
		if s.Spec.Driver == p.driver && s.Spec.Pool.Name == p.pool {
			newest = max(newest, s.Spec.Pool.Generation)
		}
	}
	left := map[string]map[string]resource.Quantity{}
	var devices []resourcev1.Device
	for _, s := range c.slices {
		if s.Spec.Driver != p.driver || s.Spec.Pool.Name != p.pool || s.Spec.Pool.Generation != newest {
			continue
		}
		devices = append(devices, s.Spec.Devices...)
		for _, set := range s.Spec.SharedCounters {
			left[set.Name] = map[string]resource.Quantity{}
			for name, counter := range set.Counters {
				left[set.Name][name] = counter.Value.DeepCopy()
			}
		}
	}
	if len(left) == 0 {
		return
	}
	taken := map[string]bool{}
	for _, h := range c.claims {
		for _, d := range h.devices {
			taken[d.Device] = taken[d.Device] || d.Driver == p.driver && d.Pool == p.pool
		}
	}
	for _, d := range devices {
		if !taken[d.Name] {
			continue
		}
		for _, consumed := range d.ConsumesCounters {
			for name, counter := range consumed.Counters {
				rest := left[consumed.CounterSet][name]
				rest.Sub(counter.Value)
				if left[consumed.CounterSet] != nil {
					left[consumed.CounterSet][name] = rest
				}
			}
		}
	}
	c.checked++
	for _, set := range slices.Sorted(maps.Keys(left)) {
		for _, name := range slices.Sorted(maps.Keys(left[set])) {
			if rest := left[set][name]; rest.Sign() < 0 {
				c.violations = append(c.violations, fmt.Sprintf("%s: with %s/%s (version %s) the counter %s/%s of pool %s is overdrawn by %s",
					e.At.Format(stamp), e.Claim.Namespace, e.Claim.Name, e.Claim.ResourceVersion, set, name, p.pool, negated(rest)))
			}
		}
	}
}

func negated(q resource.Quantity) string {
	q.Neg()
	return q.String()
}
