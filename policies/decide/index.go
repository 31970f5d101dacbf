package decide

// The fleet: pools of slices of devices, in the order of choice. Everything is
// kept up to date slice by slice; nothing is rebuilt for a decision.

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// deviceID names a device for ever: slices come and go.
type deviceID struct{ driver, pool, device string }

func (id deviceID) String() string { return id.driver + "/" + id.pool + "/" + id.device }

type poolKey struct{ driver, name string }

func comparePoolKeys(a, b poolKey) int {
	return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.name, b.name))
}

// pool is all slices of one pool, of every generation that was published.
type pool struct {
	key    poolKey
	slices map[string]*slice // by object name
	// current are the slices of the newest generation that list devices, by
	// their smallest device name.
	current []*slice
	// problem says why nothing may be taken from the pool, or is empty.
	problem  string
	counters counters
	// left is what allocated devices leave of the counters; nil: not computed
	// since the last change.
	left amounts
}

// slice is one ResourceSlice.
type slice struct {
	name     string
	pool     *pool
	spec     *resourceapi.ResourceSliceSpec
	listed   []*device // as published, by name
	devices  []*device // without names that were listed before in the pool
	reach    *reach    // nil: each device has its own
	verdicts verdictCache
	sum      lanes
}

// device is one device as its slice publishes it.
type device struct {
	id    deviceID
	slice *slice
	spec  *resourceapi.Device
	reach *reach
	model modelKey
	// taints are those that keep new claims away: the device's own, then those
	// of the DeviceTaintRules by name.
	taints []resourceapi.DeviceTaint
	// unhealthy is the device's own word, see reportsUnhealthy.
	unhealthy bool
	counters  []counterUse
	// multi: several claims may share the device.
	multi bool
	// use is who holds the device; nil: nobody.
	use *usage
}

func (d *device) pool() *pool { return d.slice.pool }

// newSlice indexes a ResourceSlice.
func newSlice(obj *resourceapi.ResourceSlice) *slice {
	s := &slice{name: obj.Name, spec: &obj.Spec, listed: make([]*device, 0, len(obj.Spec.Devices))}
	if !ptr.Deref(obj.Spec.PerDeviceNodeSelection, false) {
		s.reach = newReach(obj.Spec.NodeName, obj.Spec.AllNodes, obj.Spec.NodeSelector)
	}
	for i := range obj.Spec.Devices {
		spec := &obj.Spec.Devices[i]
		d := &device{
			id:        deviceID{obj.Spec.Driver, obj.Spec.Pool.Name, spec.Name},
			slice:     s,
			spec:      spec,
			reach:     s.reach,
			model:     modelKeyOf(obj.Spec.Driver, spec.Attributes),
			unhealthy: reportsUnhealthy(obj.Spec.Driver, spec),
			multi:     ptr.Deref(spec.AllowMultipleAllocations, false),
		}
		if d.reach == nil {
			d.reach = newReach(spec.NodeName, spec.AllNodes, spec.NodeSelector)
		}
		s.listed = append(s.listed, d)
	}
	slices.SortStableFunc(s.listed, func(a, b *device) int { return cmp.Compare(a.id.device, b.id.device) })
	s.devices = s.listed
	return s
}

// local is the node to which the whole slice belongs, or "".
func (s *slice) local() string {
	if s.reach == nil {
		return ""
	}
	return s.reach.node
}

// compareSlices orders slices by driver, pool and smallest device name. A
// slice's own name can carry a random suffix, so it decides only between
// slices that make their pool invalid.
func compareSlices(a, b *slice) int {
	if a.pool != b.pool {
		return comparePoolKeys(a.pool.key, b.pool.key)
	}
	return cmp.Or(cmp.Compare(a.listed[0].id.device, b.listed[0].id.device), cmp.Compare(a.name, b.name))
}

// refresh computes current, problem and counters from slices.
func (p *pool) refresh() {
	p.current, p.counters, p.left = nil, counters{}, nil
	generation, count := int64(0), 0
	for _, s := range p.slices {
		if g := s.spec.Pool.Generation; count == 0 || g > generation {
			generation, count = g, 0
		}
		if s.spec.Pool.Generation == generation {
			count++
		}
	}
	newest := make([]*slice, 0, count)
	for _, s := range p.slices {
		if s.spec.Pool.Generation != generation {
			continue
		}
		newest = append(newest, s)
		if len(s.listed) > 0 {
			p.current = append(p.current, s)
		}
	}
	slices.SortFunc(newest, func(a, b *slice) int { return cmp.Compare(a.name, b.name) })
	slices.SortFunc(p.current, compareSlices)
	twice := p.dropDuplicates()
	if p.problem = p.validate(newest); p.problem == "" && twice != "" {
		p.problem = "device " + twice + " is published twice"
	}
}

// dropDuplicates makes every device count once, though a name that is
// published twice makes the pool invalid, and returns the first such name.
func (p *pool) dropDuplicates() (twice string) {
	seen := map[string]bool{}
	for _, s := range p.current {
		once := make([]*device, 0, len(s.listed))
		for _, d := range s.listed {
			if seen[d.id.device] {
				twice = cmp.Or(twice, d.id.device)
				continue
			}
			seen[d.id.device] = true
			once = append(once, d)
		}
		if len(once) != len(s.devices) {
			s.verdicts = verdictCache{}
		}
		s.devices = once
	}
	return twice
}

// validate says why the newest generation can't be used, or "".
func (p *pool) validate(newest []*slice) string {
	for _, s := range newest {
		if want := s.spec.Pool.ResourceSliceCount; want != int64(len(newest)) {
			return fmt.Sprintf("generation %d has %d of %d slices", s.spec.Pool.Generation, len(newest), want)
		}
	}
	for _, s := range newest {
		if len(s.spec.SharedCounters) > 0 && len(s.spec.Devices) > 0 {
			return "a slice holds both devices and shared counters"
		}
	}
	var problem string
	if p.counters, problem = readCounters(newest); problem != "" {
		return problem
	}
	for _, s := range p.current {
		for _, d := range s.devices {
			if problem := p.counters.bind(d); problem != "" {
				return problem
			}
		}
	}
	return ""
}

// putSlice replaces the slice of this name.
func (st *State) putSlice(obj *resourceapi.ResourceSlice) error {
	for field, value := range map[string]string{"spec.driver": obj.Spec.Driver, "spec.pool.name": obj.Spec.Pool.Name} {
		if value == "" {
			return invalid("ResourceSlice", obj, field, "must be set")
		}
	}
	for i := range obj.Spec.Devices {
		if obj.Spec.Devices[i].Name == "" {
			return invalid("ResourceSlice", obj, fmt.Sprintf("spec.devices[%d].name", i), "must be set")
		}
	}
	s := newSlice(obj)
	s.sum = sumOf("ResourceSlice", sliceContent(obj))
	st.dropSlice(obj.Name)
	key := poolKey{obj.Spec.Driver, obj.Spec.Pool.Name}
	p := st.pools[key]
	if p == nil {
		p = &pool{key: key, slices: map[string]*slice{}}
		st.pools[key] = p
		st.poolOrder = insertSorted(st.poolOrder, p, func(a, b *pool) int { return comparePoolKeys(a.key, b.key) })
	}
	s.pool = p
	st.slices[s.name] = s
	st.digest.add(&s.sum)
	st.changePool(p, func() { p.slices[s.name] = s })
	return nil
}

// dropSlice removes the slice of this name.
func (st *State) dropSlice(name string) {
	s := st.slices[name]
	if s == nil {
		return
	}
	delete(st.slices, name)
	st.digest.sub(&s.sum)
	p := s.pool
	st.changePool(p, func() { delete(p.slices, name) })
	if len(p.slices) == 0 {
		delete(st.pools, p.key)
		st.poolOrder = removeSorted(st.poolOrder, p, func(a, b *pool) int { return comparePoolKeys(a.key, b.key) })
	}
}

// changePool applies a change to the pool's slices and mends what refers to
// its devices: the nodes' lists, the users of devices, the taints by rule.
func (st *State) changePool(p *pool, change func()) {
	for _, s := range p.current {
		if name := s.local(); name != "" {
			n := st.nodeNamed(name)
			n.local = removeSorted(n.local, s, compareSlices)
			s.reach.home = nil
			st.dropIdleNode(n)
		} else {
			st.shared = removeSorted(st.shared, s, compareSlices)
		}
		for _, d := range s.devices {
			if d.use != nil {
				d.use.device, d.use = nil, nil
			}
		}
		st.deviceCount -= len(s.devices)
	}
	before := p.current
	if p.problem != "" {
		st.broken--
	}
	change()
	p.refresh()
	if p.problem != "" {
		st.broken++
	}
	st.restructure()
	for _, s := range p.current {
		if name := s.local(); name != "" {
			n := st.nodeNamed(name)
			n.local = insertSorted(n.local, s, compareSlices)
			s.reach.home = n
		} else {
			st.shared = insertSorted(st.shared, s, compareSlices)
		}
		for _, d := range s.devices {
			if u := st.uses[d.id]; u != nil {
				d.use, u.device = u, d
			}
			st.setTaints(d)
		}
		st.deviceCount += len(s.devices)
	}
	for _, list := range [][]*slice{before, p.current} {
		for _, s := range list {
			for _, d := range s.devices {
				if u := st.uses[d.id]; u != nil {
					for _, h := range u.holds {
						st.settleModel(h)
					}
				}
			}
		}
	}
}

// insertSorted puts an element into a sorted list.
func insertSorted[T any](list []T, element T, compare func(a, b T) int) []T {
	i, _ := slices.BinarySearchFunc(list, element, compare)
	return slices.Insert(list, i, element)
}

// removeSorted takes an element out of a sorted list; one that is not there is
// left alone.
func removeSorted[T comparable](list []T, element T, compare func(a, b T) int) []T {
	i, found := slices.BinarySearchFunc(list, element, compare)
	if !found || list[i] != element {
		return list
	}
	return slices.Delete(list, i, i+1)
}
