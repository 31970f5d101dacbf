package decidetest

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// world is the cluster as one question sees it.
type world struct {
	cluster  *Cluster
	question Question
	pod      *corev1.Pod
	// relaxed: every device free and untainted, nodes usable, `after` elapsed,
	// the tenant's usage zero, the Pod's turn for any model.
	relaxed bool

	devices []*device
	pools   []*pool
	// held are devices that a claim has for itself.
	held map[DeviceID]bool
	// shares is what claims consume of devices that allow several allocations.
	shares map[DeviceID]quantities
	// limits are those of the Pod's tenant, usage what it has of each; limited
	// says whether there is a quota.
	usage   map[int]int
	limits  []v1alpha1.ModelQuota
	limited bool
	// turn are the models that the Pod's turn is for; none: any.
	turn []string
}

type quantities map[resourceapi.QualifiedName]resource.Quantity

// pool is the newest generation of a pool.
type pool struct {
	driver, name string
	slices       []*resourceapi.ResourceSlice
	broken       bool
	// counters are the pool's counter sets.
	counters map[string]map[string]resource.Quantity
}

// device is one device of a pool's newest generation.
type device struct {
	id     DeviceID
	pool   *pool
	spec   *resourceapi.Device
	taints []resourceapi.DeviceTaint
	// sliceKey is the smallest device name of the device's slice.
	sliceKey string
	// reach are the existing nodes from which the device can be used, sorted.
	reach []string
}

func (d *device) shared() bool {
	return d.spec.AllowMultipleAllocations != nil && *d.spec.AllowMultipleAllocations
}

// look gathers what the question depends on.
func (c *Cluster) look(q Question) *world {
	w := &world{
		cluster: c, question: q, pod: c.Pod(q.Pod),
		held: map[DeviceID]bool{}, shares: map[DeviceID]quantities{}, usage: map[int]int{},
	}
	w.gatherPools()
	w.gatherUse()
	return w
}

// relax returns the world in which everything that can change has changed for
// the better.
func (w *world) relax() *world {
	r := *w
	r.relaxed, r.turn = true, nil
	r.held, r.shares, r.usage = map[DeviceID]bool{}, map[DeviceID]quantities{}, map[int]int{}
	return &r
}

// brokenPoolMatters: nobody knows what a pool will hold that can't be used as it
// is published. It matters if it is of a driver that the Pod can use.
func (w *world) brokenPoolMatters(asks []*ask) bool {
	return slices.ContainsFunc(w.pools, func(p *pool) bool {
		return p.broken && slices.ContainsFunc(asks, func(a *ask) bool {
			driver := a.alternatives[0].driver
			return driver == "" || driver == p.driver
		})
	})
}

func (w *world) gatherPools() {
	type poolName struct{ driver, name string }
	byName := map[poolName][]*resourceapi.ResourceSlice{}
	for _, s := range w.cluster.Slices {
		k := poolName{s.Spec.Driver, s.Spec.Pool.Name}
		byName[k] = append(byName[k], s)
	}
	for k, all := range byName {
		newest := slices.MaxFunc(all, func(a, b *resourceapi.ResourceSlice) int {
			return cmp.Compare(a.Spec.Pool.Generation, b.Spec.Pool.Generation)
		}).Spec.Pool.Generation
		p := &pool{driver: k.driver, name: k.name}
		for _, s := range all {
			if s.Spec.Pool.Generation == newest {
				p.slices = append(p.slices, s)
			}
		}
		p.broken = !p.complete() || !p.valid()
		w.pools = append(w.pools, p)
		for _, s := range p.slices {
			w.addDevices(p, s)
		}
	}
	slices.SortFunc(w.devices, func(a, b *device) int {
		return cmp.Or(
			cmp.Compare(a.id.Driver, b.id.Driver), cmp.Compare(a.id.Pool, b.id.Pool),
			cmp.Compare(a.sliceKey, b.sliceKey), cmp.Compare(a.id.Device, b.id.Device))
	})
}

func (p *pool) complete() bool {
	for _, s := range p.slices {
		if s.Spec.Pool.ResourceSliceCount != int64(len(p.slices)) {
			return false
		}
	}
	return true
}

// valid checks names and counters, and collects the counter sets.
func (p *pool) valid() bool {
	p.counters = map[string]map[string]resource.Quantity{}
	ok := true
	for _, s := range p.slices {
		for _, set := range s.Spec.SharedCounters {
			if _, twice := p.counters[set.Name]; twice {
				ok = false
			}
			p.counters[set.Name] = map[string]resource.Quantity{}
			for name, c := range set.Counters {
				p.counters[set.Name][name] = c.Value
			}
		}
	}
	names := map[string]bool{}
	for _, s := range p.slices {
		for _, d := range s.Spec.Devices {
			if names[d.Name] {
				ok = false
			}
			names[d.Name] = true
			for _, consumes := range d.ConsumesCounters {
				for name := range consumes.Counters {
					if _, found := p.counters[consumes.CounterSet][name]; !found {
						ok = false
					}
				}
			}
		}
	}
	return ok
}

func (w *world) addDevices(p *pool, s *resourceapi.ResourceSlice) {
	if len(s.Spec.Devices) == 0 {
		return
	}
	smallest := slices.MinFunc(s.Spec.Devices, func(a, b resourceapi.Device) int { return cmp.Compare(a.Name, b.Name) }).Name
	for i := range s.Spec.Devices {
		d := &device{
			id: DeviceID{p.driver, p.name, s.Spec.Devices[i].Name}, pool: p,
			spec: &s.Spec.Devices[i], sliceKey: smallest,
		}
		d.taints = append(d.taints, d.spec.Taints...)
		for _, r := range w.cluster.Rules {
			if ruleMeans(r.Spec.DeviceSelector, d.id) {
				d.taints = append(d.taints, r.Spec.Taint)
			}
		}
		for _, n := range w.cluster.Nodes {
			if reaches(s, d.spec, n) {
				d.reach = append(d.reach, n.Name)
			}
		}
		slices.Sort(d.reach)
		if w.find(d.id) == nil { // a name published twice, which breaks the pool, is one device
			w.devices = append(w.devices, d)
		}
	}
}

// ruleMeans: no selector selects nothing, an empty one everything.
func ruleMeans(sel *resourceapi.DeviceTaintSelector, id DeviceID) bool {
	if sel == nil {
		return false
	}
	same := func(want *string, have string) bool { return want == nil || *want == have }
	return same(sel.Driver, id.Driver) && same(sel.Pool, id.Pool) && same(sel.Device, id.Device)
}

func reaches(s *resourceapi.ResourceSlice, d *resourceapi.Device, n *corev1.Node) bool {
	if s.Spec.PerDeviceNodeSelection != nil && *s.Spec.PerDeviceNodeSelection {
		return nodeMeant(d.NodeName, d.AllNodes, d.NodeSelector, n)
	}
	return nodeMeant(s.Spec.NodeName, s.Spec.AllNodes, s.Spec.NodeSelector, n)
}

func nodeMeant(name *string, all *bool, sel *corev1.NodeSelector, n *corev1.Node) bool {
	switch {
	case name != nil:
		return *name == n.Name
	case all != nil && *all:
		return true
	case sel != nil:
		parsed, err := nodeaffinity.NewNodeSelector(sel)
		return err == nil && parsed.Match(n)
	default:
		return false
	}
}

// gatherUse reads the allocations: who has what, and what the Pod's tenant has.
func (w *world) gatherUse() {
	tenant := w.cluster.Tenant(w.question.Pod.Namespace)
	if tenant != nil {
		w.limited, w.limits = true, tenant.Spec.Models
		for _, model := range strings.Split(w.pod.Annotations[v1alpha1.AnnotationTurnModels], ",") {
			if model = strings.TrimSpace(model); model != "" {
				w.turn = append(w.turn, model)
			}
		}
	}
	for _, c := range w.cluster.Claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			id := DeviceID{r.Driver, r.Pool, r.Device}
			if r.ShareID == nil {
				w.held[id] = true
			} else {
				w.shares[id] = w.shares[id].plus(r.ConsumedCapacity)
			}
			if d := w.find(id); d != nil && tenant != nil && w.cluster.Tenant(c.Namespace) == tenant {
				if place, counts := w.charged(d); counts {
					w.usage[place]++
				}
			}
		}
	}
}

func (w *world) find(id DeviceID) *device {
	for _, d := range w.devices {
		if d.id == id {
			return d
		}
	}
	return nil
}

func (q quantities) plus(more map[resourceapi.QualifiedName]resource.Quantity) quantities {
	out := quantities{}
	for k, v := range q {
		out[k] = v.DeepCopy()
	}
	for k, v := range more {
		sum := out[k].DeepCopy()
		sum.Add(v)
		out[k] = sum
	}
	return out
}

// modelOf is what a device's slice says about its model: the attribute model
// with Ladder's driver, the productName with NVIDIA's.
func modelOf(d *device) string {
	name := "model"
	if d.id.Driver == v1alpha1.NVIDIADriverName {
		name = "productName"
	}
	if a := d.attribute(d.id.Driver, name); a != nil && a.StringValue != nil {
		return *a.StringValue
	}
	return ""
}

// isModel: the model itself, or with NVIDIA's driver one word of productName,
// split at space and hyphen.
func isModel(d *device, model string) bool {
	name := modelOf(d)
	if d.id.Driver != v1alpha1.NVIDIADriverName {
		return name == model && name != ""
	}
	return slices.Contains(strings.FieldsFunc(name, func(r rune) bool { return r == ' ' || r == '-' }), model)
}

// charged is the place of the device's model in the tenant's quota: -1 where
// it is not listed. Devices of drivers without models are not charged.
func (w *world) charged(d *device) (place int, counts bool) {
	if !w.limited || (d.id.Driver != v1alpha1.DriverName && d.id.Driver != v1alpha1.NVIDIADriverName) {
		return 0, false
	}
	return slices.IndexFunc(w.limits, func(m v1alpha1.ModelQuota) bool { return isModel(d, m.Model) }), true
}

// attribute looks an attribute up: by its full name, or, where the domain is
// the driver's own, by the bare one.
func (d *device) attribute(domain, name string) *resourceapi.DeviceAttribute {
	if a, ok := d.spec.Attributes[resourceapi.QualifiedName(domain+"/"+name)]; ok {
		return &a
	}
	if domain == d.id.Driver {
		if a, ok := d.spec.Attributes[resourceapi.QualifiedName(name)]; ok {
			return &a
		}
	}
	return nil
}

// mayTake says whether the tenant's limit has room for n more of the device's
// model, and the Pod's turn is for that.
func (w *world) mayTake(d *device, n int) bool {
	place, counts := w.charged(d)
	switch {
	case !counts:
		return true
	case place < 0:
		return false
	case len(w.turn) > 0 && !slices.ContainsFunc(w.turn, func(m string) bool { return isModel(d, m) }):
		return false
	case w.limits[place].Limit == nil:
		return true
	default:
		return w.usage[place]+n <= int(*w.limits[place].Limit)
	}
}
