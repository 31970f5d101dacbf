package decide

// Shared counters of partitionable devices (KEP-4815): the partitions of one
// GPU are devices of their own that consume the GPU's counters.

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// counterSets is what is left: counter set, counter, amount. An amount may be
// negative where more was allocated than the pool now publishes.
type counterSets map[string]map[string]resource.Quantity

func (c counterSets) clone() counterSets {
	out := make(counterSets, len(c))
	for set, counters := range c {
		left := make(map[string]resource.Quantity, len(counters))
		for name, q := range counters {
			left[name] = q.DeepCopy()
		}
		out[set] = left
	}
	return out
}

// check says what is wrong with a device's references to counters, or "".
func (c counterSets) check(d *resourceapi.Device) string {
	for _, consumes := range d.ConsumesCounters {
		if len(consumes.CompatibilityGroups) > 0 {
			return "device " + d.Name + " uses compatibility groups, which the in-tree allocator ignores"
		}
		set, ok := c[consumes.CounterSet]
		if !ok {
			return "device " + d.Name + " consumes counter set " + consumes.CounterSet + ", which is not published"
		}
		for _, name := range slices.Sorted(maps.Keys(consumes.Counters)) {
			if _, ok := set[name]; !ok {
				return "device " + d.Name + " consumes counter " + name + ", which is not in set " + consumes.CounterSet
			}
		}
	}
	return ""
}

// consume takes a device's share; what the sets do not hold is left out.
func (c counterSets) consume(d *resourceapi.Device) { c.change(d, (*resource.Quantity).Sub) }

// release gives a device's share back.
func (c counterSets) release(d *resourceapi.Device) { c.change(d, (*resource.Quantity).Add) }

func (c counterSets) change(d *resourceapi.Device, by func(*resource.Quantity, resource.Quantity)) {
	for _, consumes := range d.ConsumesCounters {
		set := c[consumes.CounterSet]
		for name, counter := range consumes.Counters {
			left, ok := set[name]
			if !ok {
				continue
			}
			by(&left, counter.Value)
			set[name] = left
		}
	}
}

// overdrawn: some counter is below zero. The in-tree allocator then allocates
// no device that consumes counters of this pool.
func (c counterSets) overdrawn() bool {
	for _, set := range c {
		for _, left := range set {
			if left.Sign() < 0 {
				return true
			}
		}
	}
	return false
}

// shortage names the first counter, by name, that does not suffice for the
// device, or is empty.
func (c counterSets) shortage(d *resourceapi.Device) string {
	for _, consumes := range d.ConsumesCounters {
		set := c[consumes.CounterSet]
		for _, name := range slices.Sorted(maps.Keys(consumes.Counters)) {
			want, left := consumes.Counters[name].Value, set[name]
			if left.Cmp(want) < 0 {
				return consumes.CounterSet + "/" + name + ": " + left.String() + " < " + want.String()
			}
		}
	}
	return ""
}

// fits: every counter suffices for the device.
func (c counterSets) fits(d *resourceapi.Device) bool {
	for _, consumes := range d.ConsumesCounters {
		set := c[consumes.CounterSet]
		for name, counter := range consumes.Counters {
			left := set[name]
			if left.Cmp(counter.Value) < 0 {
				return false
			}
		}
	}
	return true
}

// countersOf is what allocated devices leave of the pool's counters, cached
// until a use in the pool changes.
func (p *pool) countersOf() counterSets {
	if p.available == nil {
		p.available = p.counters.clone()
		for _, s := range p.current {
			for _, d := range s.devices {
				if d.use.held() {
					p.available.consume(d.spec)
				}
			}
		}
	}
	return p.available
}
