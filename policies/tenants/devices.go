package tenants

// The fleet: which devices can be given out, of which model each is, and how
// many claims hold it.

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/decide"
)

// deviceID names a device of the cluster.
type deviceID struct{ driver, pool, device string }

// poolID names a pool.
type poolID struct{ driver, pool string }

// kind is what devices have in common that a tier may choose by. One device
// stands for all of its kind.
type kind struct {
	driver, model, memory string
	shared                bool
}

// fleet is what is known of devices.
type fleet struct {
	slices map[string]*resourceapi.ResourceSlice
	nodes  map[string]*corev1.Node
	rules  map[string]*resourceapi.DeviceTaintRule
	// models of all devices that are published or held: what a claim holds stays
	// what it was although its slice is gone.
	models map[deviceID]string
	// holds counts what claims have of a device.
	holds map[deviceID]int

	// What recount finds.
	usable map[deviceID]string
	kinds  map[kind]*resourceapi.Device
}

func newFleet() fleet {
	return fleet{
		slices: map[string]*resourceapi.ResourceSlice{}, nodes: map[string]*corev1.Node{}, rules: map[string]*resourceapi.DeviceTaintRule{},
		models: map[deviceID]string{}, holds: map[deviceID]int{},
	}
}

// ours: a driver whose devices have a model.
func ours(driver string) bool { return slices.Contains(compile.Drivers(), driver) }

// recount finds the usable devices: of the newest whole generation of their
// pool, on a node that takes Pods, without a taint that keeps new claims away.
// It reports whether the kinds of devices changed.
func (f *fleet) recount() bool {
	pools := map[poolID][]*resourceapi.ResourceSlice{}
	there := map[deviceID]bool{} // in a slice of any generation
	for _, name := range slices.Sorted(maps.Keys(f.slices)) {
		s := f.slices[name]
		if !ours(s.Spec.Driver) {
			continue
		}
		id := poolID{s.Spec.Driver, s.Spec.Pool.Name}
		for i := range s.Spec.Devices {
			there[deviceID{id.driver, id.pool, s.Spec.Devices[i].Name}] = true
		}
		if known := pools[id]; len(known) > 0 {
			newest := known[0].Spec.Pool.Generation
			if s.Spec.Pool.Generation < newest {
				continue
			}
			if s.Spec.Pool.Generation > newest {
				pools[id] = nil
			}
		}
		pools[id] = append(pools[id], s)
	}
	f.usable = map[deviceID]string{}
	found := map[kind]*resourceapi.Device{}
	for id, list := range pools {
		whole := int64(len(list)) == list[0].Spec.Pool.ResourceSliceCount
		for _, s := range list {
			for i := range s.Spec.Devices {
				d := &s.Spec.Devices[i]
				model := decide.DeviceModel(id.driver, d.Attributes)
				if model == "" {
					continue
				}
				device := deviceID{id.driver, id.pool, d.Name}
				f.models[device] = model
				memory := d.Capacity["memory"]
				k := kind{id.driver, model, memory.Value.String(), ptr.Deref(d.AllowMultipleAllocations, false)}
				if found[k] == nil {
					found[k] = d
				}
				if whole && f.reaches(s, d) && !f.tainted(device, d) {
					f.usable[device] = model
				}
			}
		}
	}
	maps.DeleteFunc(f.models, func(id deviceID, _ string) bool { return !there[id] && f.holds[id] == 0 })
	same := maps.EqualFunc(f.kinds, found, func(_, _ *resourceapi.Device) bool { return true })
	f.kinds = found
	return !same
}

// reaches: a node that takes Pods has the device. Which nodes a selector means
// is the scheduler's affair.
func (f *fleet) reaches(s *resourceapi.ResourceSlice, d *resourceapi.Device) bool {
	name := ptr.Deref(s.Spec.NodeName, "")
	if name == "" {
		name = ptr.Deref(d.NodeName, "")
	}
	if name == "" {
		return true
	}
	node := f.nodes[name]
	if node == nil || node.Spec.Unschedulable || !node.DeletionTimestamp.IsZero() {
		return false
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return false
		}
	}
	return true
}

// tainted: a taint keeps new claims away. Claims of policies tolerate at most
// that a device they hold fails.
func (f *fleet) tainted(id deviceID, d *resourceapi.Device) bool {
	for _, t := range d.Taints {
		if blocks(t.Effect) {
			return true
		}
	}
	for _, rule := range f.rules {
		if sel := rule.Spec.DeviceSelector; sel != nil && blocks(rule.Spec.Taint.Effect) &&
			ptr.Deref(sel.Driver, id.driver) == id.driver && ptr.Deref(sel.Pool, id.pool) == id.pool && ptr.Deref(sel.Device, id.device) == id.device {
			return true
		}
	}
	return false
}

func blocks(e resourceapi.DeviceTaintEffect) bool {
	return e == resourceapi.DeviceTaintEffectNoSchedule || e == resourceapi.DeviceTaintEffectNoExecute
}

// capacity of each model: what is usable and free, and what is held, usable or
// not. So a device that fails under its holder takes nothing from others.
func (f *fleet) capacity() map[string]int64 {
	count := map[string]int64{}
	for id, model := range f.usable {
		if f.holds[id] == 0 {
			count[model]++
		}
	}
	for id, n := range f.holds {
		if model := f.models[id]; model != "" {
			count[model] += int64(n)
		}
	}
	return count
}

// hold counts what a claim has, once more or once less.
func (f *fleet) hold(claim *resourceapi.ResourceClaim, by int) {
	for _, id := range devicesOf(claim) {
		if f.holds[id] += by; f.holds[id] <= 0 {
			delete(f.holds, id)
		}
	}
}

// devicesOf are the devices that a claim was given, of drivers that have
// models. Admin access holds nothing.
func devicesOf(claim *resourceapi.ResourceClaim) []deviceID {
	if claim.Status.Allocation == nil {
		return nil
	}
	var list []deviceID
	for _, r := range claim.Status.Allocation.Devices.Results {
		if ours(r.Driver) && !ptr.Deref(r.AdminAccess, false) {
			list = append(list, deviceID{r.Driver, r.Pool, r.Device})
		}
	}
	return list
}
