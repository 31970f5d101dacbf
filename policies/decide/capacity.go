package decide

// Consumable capacity (KEP-5075): what a request takes of a device's capacity,
// and whether enough is left. The arithmetic is that of the in-tree allocator.

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// quantities are amounts of capacity by name.
type quantities = map[resourceapi.QualifiedName]resource.Quantity

// errNotRepresentable occurs when a request, rounded up to what the device's
// policy allows, passes the range of the arithmetic.
var errNotRepresentable = errors.New("the request cannot be represented in the device's range")

// consumption is what a request takes of each capacity of the device: the
// amount asked for, rounded up by the capacity's request policy; what the
// request does not name is taken by the policy's default, or whole.
func consumption(requests quantities, d *resourceapi.Device) (quantities, error) {
	out := make(quantities, len(d.Capacity))
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		capacity := d.Capacity[name]
		asked, ok := requests[name]
		amount, err := consumedOf(asked, ok, capacity)
		if err != nil {
			return nil, fmt.Errorf("%s, %w", name, err)
		}
		if amount.Sign() < 0 {
			return nil, fmt.Errorf("%s is negative: %w", name, errNotRepresentable)
		}
		out[name] = amount
	}
	return out, nil
}

func consumedOf(asked resource.Quantity, ok bool, capacity resourceapi.DeviceCapacity) (resource.Quantity, error) {
	policy := capacity.RequestPolicy
	switch {
	case !ok && policy != nil && policy.Default != nil:
		return policy.Default.DeepCopy(), nil
	case !ok:
		return capacity.Value.DeepCopy(), nil
	case policy == nil:
		return asked.DeepCopy(), nil
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		return roundUpToRange(asked, policy.ValidRange)
	case policy.ValidValues != nil:
		for _, v := range policy.ValidValues {
			if asked.Cmp(v) <= 0 {
				return v.DeepCopy(), nil
			}
		}
	}
	return asked.DeepCopy(), nil
}

// roundUpToRange rounds up to the range's minimum and steps.
func roundUpToRange(asked resource.Quantity, r *resourceapi.CapacityRequestPolicyRange) (resource.Quantity, error) {
	if asked.Cmp(*r.Min) < 0 {
		return r.Min.DeepCopy(), nil
	}
	if r.Step == nil {
		return asked.DeepCopy(), nil
	}
	value, least, step := (*resource.Quantity).Value, r.Min.Value(), r.Step.Value()
	milli := inMilli(r)
	if milli {
		value, least, step = (*resource.Quantity).MilliValue, r.Min.MilliValue(), r.Step.MilliValue()
		if !isMilli(asked) {
			return resource.Quantity{}, errNotRepresentable
		}
	} else if asked.CmpInt64(math.MaxInt64) > 0 {
		return resource.Quantity{}, errNotRepresentable
	}
	if step <= 0 || least < 0 {
		return resource.Quantity{}, errNotRepresentable
	}
	added := value(&asked) - least
	steps := added / step
	if added%step != 0 {
		steps++
	}
	if steps > (math.MaxInt64-least)/step {
		return resource.Quantity{}, errNotRepresentable
	}
	sum := least + step*steps
	switch {
	case !milli:
		return *resource.NewQuantity(sum, r.Step.Format), nil
	case sum%1000 == 0:
		return *resource.NewQuantity(sum/1000, r.Step.Format), nil
	default:
		return *resource.NewMilliQuantity(sum, r.Step.Format), nil
	}
}

// inMilli: the range's limits are all exact in thousandths.
func inMilli(r *resourceapi.CapacityRequestPolicyRange) bool {
	for _, q := range []*resource.Quantity{r.Min, r.Max, r.Step} {
		if q != nil && !isMilli(*q) {
			return false
		}
	}
	return r.Step == nil || r.Step.MilliValue() >= 1
}

// isMilli: the quantity is a whole number of thousandths that fits.
func isMilli(q resource.Quantity) bool {
	return q.Cmp(*resource.NewMilliQuantity(q.MilliValue(), q.Format)) == 0
}

// breaksPolicy: the amount is not one that the capacity's policy allows.
func breaksPolicy(amount resource.Quantity, policy *resourceapi.CapacityRequestPolicy) bool {
	switch {
	case policy == nil, policy.Default != nil && amount.Cmp(*policy.Default) == 0:
		return false
	case policy.ValidRange != nil:
		r := policy.ValidRange
		if r.Max != nil && amount.Cmp(*r.Max) > 0 {
			return true
		}
		if r.Step == nil || r.Min == nil {
			return false
		}
		if inMilli(r) {
			return !isMilli(amount) || (amount.MilliValue()-r.Min.MilliValue())%r.Step.MilliValue() != 0
		}
		return r.Step.Value() <= 0 || (amount.Value()-r.Min.Value())%r.Step.Value() != 0
	case len(policy.ValidValues) > 0:
		return !slices.ContainsFunc(policy.ValidValues, func(v resource.Quantity) bool { return amount.Cmp(v) == 0 })
	}
	return false
}

// capacityProblem says why the device can't serve the request even when nobody
// else uses it, or "".
func capacityProblem(requests quantities, d *resourceapi.Device) string {
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		if _, ok := d.Capacity[name]; !ok {
			return fmt.Sprintf("no capacity %s", name)
		}
	}
	takes, err := consumption(requests, d)
	if err != nil {
		return err.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(takes)) {
		amount, capacity := takes[name], d.Capacity[name]
		if breaksPolicy(amount, capacity.RequestPolicy) {
			return fmt.Sprintf("%s: %s is not an amount that the device gives", name, amount.String())
		}
		if amount.Cmp(capacity.Value) > 0 {
			return fmt.Sprintf("%s: %s < %s", name, capacity.Value.String(), amount.String())
		}
	}
	return ""
}

// capacityLeft says which capacity does not suffice once what others took is
// counted, or "".
func capacityLeft(takes quantities, d *resourceapi.Device, taken ...quantities) string {
	for _, name := range slices.Sorted(maps.Keys(takes)) {
		left := d.Capacity[name].Value.DeepCopy()
		for _, t := range taken {
			if q, ok := t[name]; ok {
				left.Sub(q)
			}
		}
		want, whole := takes[name], d.Capacity[name].Value
		if left.Cmp(want) < 0 {
			return fmt.Sprintf("%s: %s left of %s, %s wanted", name, left.String(), whole.String(), want.String())
		}
	}
	return ""
}
