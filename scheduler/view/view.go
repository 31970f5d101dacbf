package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// PoolKey names a resource pool.
type PoolKey struct {
	Driver string
	Pool   string
}

// View is what the in-tree plugin is shown during one scheduling cycle.
type View struct {
	slices []*resourceapi.ResourceSlice
	claims map[types.NamespacedName]*resourceapi.ResourceClaim
}

// Source is where a View is cut from.
type Source struct {
	// Pool returns every slice of a pool.
	Pool func(PoolKey) []*resourceapi.ResourceSlice
	// Allocated says whether a device is allocated, written or in flight. It
	// is asked only about devices that consume shared counters.
	Allocated func(structured.DeviceID) bool
}

// New builds the View of the chosen devices: of each pool that holds one, every
// slice of the newest generation, but in it only the chosen devices. Slices are
// renamed and devices sorted so that the allocator visits them in the engine's
// order: the slice with the smallest device name first, then by device name.
//
// Devices that are allocated already are left out like all others that were
// not chosen; what they consume is taken off the pool's shared counters.
// Leaving them in would let the allocator pick one that may be used several
// times.
func New(src Source, chosen []v1alpha1.DecidedDevice, claims map[types.NamespacedName]*resourceapi.ResourceClaim) *View {
	byPool := map[PoolKey]sets.Set[string]{}
	for _, d := range chosen {
		key := PoolKey{Driver: d.Driver, Pool: d.Pool}
		if byPool[key] == nil {
			byPool[key] = sets.New[string]()
		}
		byPool[key].Insert(d.Device)
	}
	v := &View{claims: claims}
	for key, names := range byPool {
		v.slices = append(v.slices, cut(src, key, names)...)
	}
	return v
}

// cut returns the pool's newest slices with the named devices alone.
func cut(src Source, key PoolKey, names sets.Set[string]) []*resourceapi.ResourceSlice {
	newest := newestGeneration(src.Pool(key))
	used := consumed(src, key, newest, names)
	ranked := slices.Clone(newest)
	first := make(map[*resourceapi.ResourceSlice]string, len(ranked))
	for _, s := range ranked {
		first[s] = smallestDevice(s)
	}
	slices.SortFunc(ranked, func(a, b *resourceapi.ResourceSlice) int {
		return cmp.Or(strings.Compare(first[a], first[b]), strings.Compare(a.Name, b.Name))
	})
	result := make([]*resourceapi.ResourceSlice, 0, len(ranked))
	for i, s := range ranked {
		shown := *s
		shown.Name = fmt.Sprintf("%06d", i)
		shown.Spec.Devices = nil
		for _, d := range s.Spec.Devices {
			if names.Has(d.Name) {
				shown.Spec.Devices = append(shown.Spec.Devices, d)
			}
		}
		slices.SortFunc(shown.Spec.Devices, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
		shown.Spec.SharedCounters = remaining(s.Spec.SharedCounters, used)
		result = append(result, &shown)
	}
	return result
}

// newestGeneration returns the slices of a pool's highest generation.
func newestGeneration(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	var newest []*resourceapi.ResourceSlice
	for _, s := range all {
		switch {
		case len(newest) == 0 || s.Spec.Pool.Generation == newest[0].Spec.Pool.Generation:
			newest = append(newest, s)
		case s.Spec.Pool.Generation > newest[0].Spec.Pool.Generation:
			newest = []*resourceapi.ResourceSlice{s}
		}
	}
	return newest
}

// smallestDevice returns the byte-wise smallest device name in a slice.
func smallestDevice(s *resourceapi.ResourceSlice) string {
	smallest := ""
	for i, d := range s.Spec.Devices {
		if i == 0 || d.Name < smallest {
			smallest = d.Name
		}
	}
	return smallest
}

// counter names one counter of a pool.
type counter struct {
	set  string
	name string
}

// consumed adds up what the allocated devices that are not shown take from the
// pool's shared counters. A shown device that is allocated is counted by the
// allocator itself.
func consumed(src Source, key PoolKey, pool []*resourceapi.ResourceSlice, shown sets.Set[string]) map[counter]resourceapi.Counter {
	used := map[counter]resourceapi.Counter{}
	for _, s := range pool {
		for _, d := range s.Spec.Devices {
			if len(d.ConsumesCounters) == 0 || shown.Has(d.Name) ||
				!src.Allocated(structured.MakeDeviceID(key.Driver, key.Pool, d.Name)) {
				continue
			}
			for _, c := range d.ConsumesCounters {
				for name, value := range c.Counters {
					at := counter{set: c.CounterSet, name: name}
					sum := used[at]
					sum.Value.Add(value.Value)
					used[at] = sum
				}
			}
		}
	}
	return used
}

// remaining returns the counter sets less what is used.
func remaining(all []resourceapi.CounterSet, used map[counter]resourceapi.Counter) []resourceapi.CounterSet {
	if len(used) == 0 {
		return all
	}
	result := make([]resourceapi.CounterSet, 0, len(all))
	for i := range all {
		left := *all[i].DeepCopy()
		for name, c := range left.Counters {
			if sum, ok := used[counter{set: left.Name, name: name}]; ok {
				c.Value.Sub(sum.Value)
				left.Counters[name] = c
			}
		}
		result = append(result, left)
	}
	return result
}

// Narrow returns the claim with each prioritized list reduced to the
// alternative that was chosen. Without it the allocator could fall for an
// earlier alternative that the engine ruled out for a reason which a claim
// cannot express: a tier's `after`, or a selector that fails on the device.
//
// chosen maps a request to its alternative; a request without entry keeps its
// list.
func Narrow(claim *resourceapi.ResourceClaim, chosen map[string]string) *resourceapi.ResourceClaim {
	narrowed := claim.DeepCopy()
	for i := range narrowed.Spec.Devices.Requests {
		r := &narrowed.Spec.Devices.Requests[i]
		alternative, ok := chosen[r.Name]
		if !ok {
			continue
		}
		r.FirstAvailable = slices.DeleteFunc(r.FirstAvailable, func(s resourceapi.DeviceSubRequest) bool {
			return s.Name != alternative
		})
	}
	return narrowed
}

// Alternatives returns the chosen alternative of each request with a list, by
// claim reference and request: "accelerator/h100" says that request
// accelerator was met by h100.
func Alternatives(devices []v1alpha1.DecidedDevice) map[string]map[string]string {
	chosen := map[string]map[string]string{}
	for _, d := range devices {
		request, alternative, found := strings.Cut(d.Request, "/")
		if !found {
			continue
		}
		if chosen[d.Claim] == nil {
			chosen[d.Claim] = map[string]string{}
		}
		chosen[d.Claim][request] = alternative
	}
	return chosen
}
