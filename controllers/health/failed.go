package health

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// failure is a device of a claim whose failure is confirmed.
type failure struct {
	driver, pool, device string
	taint                resourcev1.DeviceTaint
}

// since is when the failure was confirmed; zero where the taint doesn't say.
func (f failure) since() time.Time {
	if f.taint.TimeAdded == nil {
		return time.Time{}
	}
	return f.taint.TimeAdded.Time
}

// String is "gpu.gpuladder.dev/pool/gpu-0 (taint gpu.gpuladder.dev/failed=xid-79:NoExecute)".
func (f failure) String() string {
	taint := f.taint.Key
	if f.taint.Value != "" {
		taint += "=" + f.taint.Value
	}
	return fmt.Sprintf("%s/%s/%s (taint %s:%s)", f.driver, f.pool, f.device, taint, f.taint.Effect)
}

// isFailure says whether a taint stands for a confirmed failure.
func isFailure(taint *resourcev1.DeviceTaint) bool {
	return taint.Key == v1alpha1.TaintFailed && taint.Effect == resourcev1.DeviceTaintEffectNoExecute
}

// state is how the devices of a claim are.
type state struct {
	// failed are those that have failed, the first failure first.
	failed []failure
	// missing says that one is in no slice: nobody knows how it is.
	missing bool
}

// state reads how the devices of a claim are. A device that a claim merely
// watches (admin access) is not its own.
func (c *Controller) state(ctx context.Context, claim *resourcev1.ResourceClaim) (state, error) {
	var found state
	if claim.Status.Allocation == nil {
		return found, nil
	}
	var rules resourcev1.DeviceTaintRuleList
	if err := c.client.List(ctx, &rules); err != nil {
		return found, fmt.Errorf("listing taint rules, %w", err)
	}
	pools := map[string][]resourcev1.ResourceSlice{}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if ptr.Deref(r.AdminAccess, false) {
			continue
		}
		key := poolKey(r.Driver, r.Pool)
		if _, read := pools[key]; !read {
			var list resourcev1.ResourceSliceList
			if err := c.client.List(ctx, &list, client.MatchingFields{fieldPool: key}); err != nil {
				return found, fmt.Errorf("listing slices of pool %s, %w", key, err)
			}
			pools[key] = list.Items
		}
		device := newest(pools[key], r.Device)
		if device == nil {
			found.missing = true
			continue
		}
		if taint := failureOf(r, device, rules.Items); taint != nil {
			found.failed = append(found.failed, failure{r.Driver, r.Pool, r.Device, *taint})
		}
	}
	slices.SortStableFunc(found.failed, func(a, b failure) int {
		return cmp.Or(a.since().Compare(b.since()), cmp.Compare(a.driver, b.driver), cmp.Compare(a.pool, b.pool), cmp.Compare(a.device, b.device))
	})
	return found, nil
}

// failureOf is the earliest taint of a device that stands for failure, or nil.
func failureOf(r *resourcev1.DeviceRequestAllocationResult, device *resourcev1.Device, rules []resourcev1.DeviceTaintRule) *resourcev1.DeviceTaint {
	var earliest *resourcev1.DeviceTaint
	consider := func(taint *resourcev1.DeviceTaint) {
		if isFailure(taint) && (earliest == nil || taint.TimeAdded != nil && earliest.TimeAdded != nil && taint.TimeAdded.Before(earliest.TimeAdded)) {
			earliest = taint
		}
	}
	for i := range device.Taints {
		consider(&device.Taints[i])
	}
	for i := range rules {
		if hits(&rules[i], r) {
			consider(&rules[i].Spec.Taint)
		}
	}
	return earliest
}

// newest is a device as the highest generation of its pool has it, or nil. A
// pool's slices are written one after another: until all of the highest
// generation are there, a device that is in none of them is as an earlier
// generation has it.
func newest(all []resourcev1.ResourceSlice, name string) *resourcev1.Device {
	var found *resourcev1.Device
	of, highest := int64(-1), int64(-1) // the generations of found and of the pool
	var have, want int64                // slices of the highest
	for i := range all {
		spec := &all[i].Spec
		if spec.Pool.Generation > highest {
			highest, have = spec.Pool.Generation, 0
		}
		if spec.Pool.Generation == highest {
			have, want = have+1, spec.Pool.ResourceSliceCount
		}
		for j := range spec.Devices {
			if spec.Devices[j].Name == name && spec.Pool.Generation > of {
				found, of = &spec.Devices[j], spec.Pool.Generation
			}
		}
	}
	if of < highest && have >= want {
		return nil
	}
	return found
}

// hits says whether a rule selects a device. A rule without a selector selects
// nothing, an empty selector everything.
func hits(rule *resourcev1.DeviceTaintRule, r *resourcev1.DeviceRequestAllocationResult) bool {
	s := rule.Spec.DeviceSelector
	return s != nil && unsetOr(s.Driver, r.Driver) && unsetOr(s.Pool, r.Pool) && unsetOr(s.Device, r.Device)
}

func unsetOr(want *string, have string) bool { return want == nil || *want == have }
