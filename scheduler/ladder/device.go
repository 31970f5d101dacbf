package ladder

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/view"
)

// reservedDevice is a device as it was decided on.
type reservedDevice struct {
	pool   view.PoolKey
	slice  *resourceapi.ResourceSlice
	device resourceapi.Device
	// tolerations are the claim's. shared says that it is no loss if another
	// claim has the device too.
	tolerations []resourceapi.DeviceToleration
	shared      bool
}

// pools returns the slices of some pools as they are now, with the taints of
// rules.
func (p *Plugin) pools(wanted sets.Set[view.PoolKey]) (map[view.PoolKey][]*resourceapi.ResourceSlice, error) {
	current, err := p.dra.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, &BindError{v1alpha1.FailureAPIUnavailable, fmt.Errorf("listing resource slices, %w", err)}
	}
	pools := map[view.PoolKey][]*resourceapi.ResourceSlice{}
	for _, slice := range current {
		if key := (view.PoolKey{Driver: slice.Spec.Driver, Pool: slice.Spec.Pool.Name}); wanted.Has(key) {
			pools[key] = append(pools[key], slice)
		}
	}
	return pools, nil
}

// recheckDevice checks that a device is there, with the data that it was chosen
// for, and without a new taint that the claim does not tolerate.
func recheckDevice(d reservedDevice, pool []*resourceapi.ResourceSlice) error {
	for _, slice := range pool {
		if slice == d.slice {
			return nil
		}
	}
	current, err := findDevice(pool, d.pool, d.device.Name)
	if err != nil {
		return &BindError{v1alpha1.FailureStaleSlice, err}
	}
	if err := current.usable(d.tolerations); err != nil {
		return err
	}
	before, after := d.device, current.device
	before.Taints, after.Taints = nil, nil
	if !apiequality.Semantic.DeepEqual(before, after) {
		return &BindError{v1alpha1.FailureStaleSlice, fmt.Errorf("the data of device %s changed after the decision", d.key())}
	}
	return nil
}

// usable returns a BindError if the device has a taint that is not tolerated.
func (d reservedDevice) usable(tolerations []resourceapi.DeviceToleration) error {
	for _, taint := range d.device.Taints {
		if taint.Effect == resourceapi.DeviceTaintEffectNone || tolerated(taint, tolerations) {
			continue
		}
		return &BindError{v1alpha1.FailureDeviceBecameUnhealthy, fmt.Errorf("device %s has the taint %s:%s", d.key(), taint.Key, taint.Effect)}
	}
	return nil
}

func tolerated(taint resourceapi.DeviceTaint, tolerations []resourceapi.DeviceToleration) bool {
	for _, t := range tolerations {
		if resourceclaim.ToleratesTaint(t, taint) {
			return true
		}
	}
	return false
}

func (d reservedDevice) key() string { return d.pool.Driver + "/" + d.pool.Pool + "/" + d.device.Name }

// findDevice returns a device of a pool's newest generation.
func findDevice(pool []*resourceapi.ResourceSlice, key view.PoolKey, name string) (reservedDevice, error) {
	found := reservedDevice{pool: key}
	newest := int64(-1)
	for _, slice := range pool {
		newest = max(newest, slice.Spec.Pool.Generation)
	}
	for _, slice := range pool {
		if slice.Spec.Pool.Generation != newest {
			continue
		}
		for i := range slice.Spec.Devices {
			if slice.Spec.Devices[i].Name == name {
				found.slice, found.device = slice, slice.Spec.Devices[i]
				return found, nil
			}
		}
	}
	return found, fmt.Errorf("device %s/%s/%s is gone", key.Driver, key.Pool, name)
}

// holders finds the claims that a device is allocated to.
type holders struct{ claims cache.Indexer }

// byDevice is the name of the index by device.
const byDevice = "gpuladder.dev/device"

// newHolders adds the index to the informer of claims, which must not have
// begun.
func newHolders(claims cache.SharedIndexInformer) (holders, error) {
	if err := claims.AddIndexers(cache.Indexers{byDevice: devicesOf}); err != nil {
		return holders{}, fmt.Errorf("indexing claims by device, %w", err)
	}
	return holders{claims.GetIndexer()}, nil
}

// devicesOf returns the keys of the devices that a claim has for itself.
func devicesOf(obj any) ([]string, error) {
	claim, ok := obj.(*resourceapi.ResourceClaim)
	if !ok {
		return nil, nil
	}
	var keys []string
	for _, r := range results(claim) {
		if !forSeveral(r) {
			keys = append(keys, r.Driver+"/"+r.Pool+"/"+r.Device)
		}
	}
	return keys, nil
}

// forSeveral says whether an allocation leaves the device to others as well.
func forSeveral(r resourceapi.DeviceRequestAllocationResult) bool {
	return r.AdminAccess != nil && *r.AdminAccess || r.ShareID != nil
}

// recheck returns a BindError if another claim than those of the Pod was
// allocated the device, which only a second scheduler can have done.
func (h holders) recheck(d reservedDevice, own sets.Set[types.UID]) error {
	if d.shared {
		return nil
	}
	found, err := h.claims.ByIndex(byDevice, d.key())
	if err != nil {
		return fmt.Errorf("looking for other claims, %w", err)
	}
	for _, obj := range found {
		if claim, ok := obj.(*resourceapi.ResourceClaim); ok && !own.Has(claim.UID) {
			return &BindError{v1alpha1.FailureBindConflict, fmt.Errorf("device %s was allocated to claim %s by another scheduler", d.key(), klog.KObj(claim))}
		}
	}
	return nil
}
