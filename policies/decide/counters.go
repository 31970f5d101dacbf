package decide

// Shared counters of partitionable devices (KEP-4815): the partitions of one
// GPU are devices of their own that consume the GPU's counters. A search
// compares them many times, so they are kept as vectors of integers.

import (
	"maps"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

// counters are the shared counters of a pool: their names ("set/counter", in
// order) and their totals.
type counters struct {
	names  []string
	format []resource.Format
	total  amounts
}

// amounts are one number per counter of a pool, in thousandths. One may be
// negative where more was allocated than the pool now publishes.
type amounts []int64

// counterUse is what a device consumes of the counter at a place.
type counterUse struct {
	at     int
	amount int64
}

// maxCounter keeps sums of up to 128 amounts in range; what is larger is as
// good as everything.
const maxCounter = math.MaxInt64 / 1000 / 128

func thousandths(q resource.Quantity) int64 {
	if q.CmpInt64(maxCounter) >= 0 {
		return maxCounter * 1000
	}
	return q.MilliValue()
}

// readCounters collects the counter sets of the slices; the answer says what is
// wrong with them, or is empty.
func readCounters(list []*slice) (c counters, problem string) {
	sets := map[string]bool{}
	totals := map[string]resource.Quantity{}
	for _, s := range list {
		for _, set := range s.spec.SharedCounters {
			if sets[set.Name] {
				return counters{}, "counter set " + set.Name + " is published twice"
			}
			sets[set.Name] = true
			for name, counter := range set.Counters {
				totals[set.Name+"/"+name] = counter.Value
			}
		}
	}
	for _, name := range sortedKeys(totals) {
		c.names = append(c.names, name)
		c.format = append(c.format, totals[name].Format)
		c.total = append(c.total, thousandths(totals[name]))
	}
	return c, ""
}

// bind resolves what a device consumes; the answer says what is wrong with it,
// or is empty.
func (c *counters) bind(d *device) (problem string) {
	sums := map[int]int64{}
	for _, consumes := range d.spec.ConsumesCounters {
		if len(consumes.CompatibilityGroups) > 0 {
			return "device " + d.id.device + " uses compatibility groups, which the in-tree allocator ignores"
		}
		for _, name := range sortedKeys(consumes.Counters) {
			at, ok := slices.BinarySearch(c.names, consumes.CounterSet+"/"+name)
			if !ok {
				return "device " + d.id.device + " consumes counter " + consumes.CounterSet + "/" + name + ", which is not published"
			}
			sums[at] += thousandths(consumes.Counters[name].Value)
		}
	}
	d.counters = nil
	for _, at := range slices.Sorted(maps.Keys(sums)) {
		d.counters = append(d.counters, counterUse{at, sums[at]})
	}
	return ""
}

func (a amounts) consume(d *device) {
	for _, u := range d.counters {
		a[u.at] -= u.amount
	}
}

func (a amounts) release(d *device) {
	for _, u := range d.counters {
		a[u.at] += u.amount
	}
}

// overdrawn: some counter is below zero. The in-tree allocator then allocates
// no device that consumes counters of this pool.
func (a amounts) overdrawn() bool { return len(a) > 0 && slices.Min(a) < 0 }

// fits: every counter suffices for the device.
func (a amounts) fits(d *device) bool {
	for _, u := range d.counters {
		if a[u.at] < u.amount {
			return false
		}
	}
	return true
}

// shortage names the first counter, by name, that does not suffice for the
// device, or is empty.
func (c *counters) shortage(left amounts, d *device) string {
	for _, u := range d.counters {
		if left[u.at] < u.amount {
			return c.names[u.at] + ": " + c.word(u.at, left[u.at]) + " < " + c.word(u.at, u.amount)
		}
	}
	return ""
}

func (c *counters) word(at int, n int64) string {
	return resource.NewMilliQuantity(n, c.format[at]).String()
}

// countersLeft is what allocated devices leave of the pool's counters, cached
// until a use in the pool changes.
func (p *pool) countersLeft() amounts {
	if p.left == nil {
		p.left = slices.Clone(p.counters.total)
		for _, s := range p.current {
			for _, d := range s.devices {
				if d.use.held() {
					p.left.consume(d)
				}
			}
		}
	}
	return p.left
}
