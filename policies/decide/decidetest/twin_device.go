package decidetest

import (
	"context"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// judgeEverywhere is the first check that a device fails, the checks of pool
// and nodes included; "" when it passes all.
func (w *world) judgeEverywhere(d *device, alt *alternative) v1alpha1.Reason {
	usable := w.usableNodes()
	switch {
	case d.pool.broken:
		return v1alpha1.ReasonPoolIncomplete
	case len(d.reach) == 0:
		return v1alpha1.ReasonNodeMismatch
	case !slices.ContainsFunc(d.reach, func(n string) bool { return slices.Contains(usable, n) }):
		return v1alpha1.ReasonNodeUnsuitable
	}
	return w.judge(d, alt)
}

// judge is the first check that a device fails for an alternative, wherever it is.
func (w *world) judge(d *device, alt *alternative) v1alpha1.Reason {
	for _, check := range []func(*device, *alternative) v1alpha1.Reason{
		w.checkTier, w.checkUse, w.checkTaints, checkHardware, w.checkCapacity, w.checkQuota, w.checkGroup,
	} {
		if r := check(d, alt); r != "" {
			return r
		}
	}
	return ""
}

// checkGroup: a Pod of a group takes no tier but the group's.
func (w *world) checkGroup(_ *device, alt *alternative) v1alpha1.Reason {
	if g := w.question.GroupTier; !w.relaxed && g != nil && alt.tier >= 0 && alt.tier != *g {
		return v1alpha1.ReasonGroupNotServed
	}
	return ""
}

func (w *world) checkTier(d *device, alt *alternative) v1alpha1.Reason {
	if !modelMatches(d, alt) {
		return v1alpha1.ReasonModelMismatch
	}
	if r := selected(d, alt.selectors); r != "" {
		return r
	}
	waited := w.question.Now.Sub(w.pod.CreationTimestamp.Time)
	if w.pod.CreationTimestamp.IsZero() {
		waited = 0 // never created: it begins to wait now
	}
	if !w.relaxed && alt.after > 0 && waited < alt.after {
		return v1alpha1.ReasonTierNotYetAllowed
	}
	return ""
}

// modelMatches: with our driver the attribute model, with NVIDIA's one word of
// productName. A policy speaks of one driver's devices only.
func modelMatches(d *device, alt *alternative) bool {
	if alt.driver == "" {
		return true
	}
	if d.id.Driver != alt.driver {
		return false
	}
	if len(alt.models) == 0 {
		return true
	}
	return slices.ContainsFunc(alt.models, func(m string) bool { return isModel(d, m) })
}

// compiled keeps compiled expressions only, never a result.
var compiled = cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})

// selected evaluates CEL expressions in order: the first that says no, or fails.
func selected(d *device, expressions []string) v1alpha1.Reason {
	for _, e := range expressions {
		expression := compiled.GetOrCompile(e)
		if expression.Error != nil {
			return v1alpha1.ReasonSelectorError
		}
		yes, _, err := expression.DeviceMatches(context.Background(), cel.Device{
			Driver: d.id.Driver, AllowMultipleAllocations: d.spec.AllowMultipleAllocations,
			Attributes: d.spec.Attributes, Capacity: d.spec.Capacity,
		})
		if err != nil {
			return v1alpha1.ReasonSelectorError
		}
		if !yes {
			return v1alpha1.ReasonSelectorNotMatched
		}
	}
	return ""
}

func (w *world) checkUse(d *device, alt *alternative) v1alpha1.Reason {
	if !alt.admin && w.held[d.id] {
		return v1alpha1.ReasonInUse
	}
	if !w.countersAllow(nil, d) {
		return v1alpha1.ReasonCountersExhausted
	}
	return ""
}

func (w *world) checkTaints(d *device, alt *alternative) v1alpha1.Reason {
	if w.relaxed {
		return ""
	}
	for _, t := range d.taints {
		if t.Effect != resourceapi.DeviceTaintEffectNoSchedule && t.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(alt.tolerations, func(tol resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(tol, t)
		}) {
			return v1alpha1.ReasonDeviceTainted
		}
	}
	if d.reportsUnhealthy() {
		return v1alpha1.ReasonDeviceUnhealthy
	}
	return ""
}

// reportsUnhealthy: the boolean healthy is false, or the string health says so.
func (d *device) reportsUnhealthy() bool {
	if a := d.attribute(d.id.Driver, "healthy"); a != nil && a.BoolValue != nil && !*a.BoolValue {
		return true
	}
	a := d.attribute(d.id.Driver, "health")
	return a != nil && a.StringValue != nil && *a.StringValue == "Unhealthy"
}

// checkHardware checks the policy's constraints in the order of their fields.
func checkHardware(d *device, alt *alternative) v1alpha1.Reason {
	if alt.driver == "" {
		return ""
	}
	h := alt.hard
	if h.MinMemory != nil {
		memory, ok := d.capacity(alt.driver, "memory")
		if !ok || memory.Cmp(*h.MinMemory) < 0 {
			return v1alpha1.ReasonMemoryTooSmall
		}
	}
	if h.MinComputeCapability != "" && !d.atLeast(alt.driver, "cudaComputeCapability", h.MinComputeCapability) {
		return v1alpha1.ReasonComputeCapabilityTooLow
	}
	if h.MinDriverVersion != "" && !d.atLeast(alt.driver, "driverVersion", h.MinDriverVersion) {
		return v1alpha1.ReasonDriverTooOld
	}
	if len(h.Architectures) > 0 {
		a := d.attribute(alt.driver, "architecture")
		if a == nil || a.StringValue == nil || !slices.Contains(h.Architectures, *a.StringValue) {
			return v1alpha1.ReasonArchitectureExcluded
		}
	}
	if h.Isolation == v1alpha1.IsolationExclusive && d.shared() {
		return v1alpha1.ReasonIsolationUnsatisfied
	}
	return selected(d, h.Selectors)
}

func (d *device) capacity(domain, name string) (resource.Quantity, bool) {
	if c, ok := d.spec.Capacity[resourceapi.QualifiedName(domain+"/"+name)]; ok {
		return c.Value, true
	}
	c, ok := d.spec.Capacity[resourceapi.QualifiedName(name)]
	return c.Value, ok && domain == d.id.Driver
}

// atLeast compares a version attribute number by number.
func (d *device) atLeast(domain, name, least string) bool {
	a := d.attribute(domain, name)
	if a == nil || a.VersionValue == nil {
		return false
	}
	have, want := numbers(*a.VersionValue), numbers(least)
	return slices.Compare(have[:], want[:]) >= 0
}

func numbers(version string) (out [3]int) {
	version, _, _ = strings.Cut(version, "-")
	version, _, _ = strings.Cut(version, "+")
	for i, part := range strings.SplitN(version, ".", 3) {
		out[i], _ = strconv.Atoi(part)
	}
	return out
}

func (w *world) checkCapacity(d *device, alt *alternative) v1alpha1.Reason {
	if _, fits := consumption(d, alt.capacity); !fits || !w.sharesAllow(nil, alt, d) {
		return v1alpha1.ReasonCapacityTooSmall
	}
	return ""
}

func (w *world) checkQuota(d *device, alt *alternative) v1alpha1.Reason {
	if alt.admin {
		return ""
	}
	need := 1
	if alt.oneModel {
		need = alt.count
	}
	if !w.mayTake(d, need) {
		return v1alpha1.ReasonQuotaExceeded
	}
	return ""
}

// consumption is what a request takes of a device's capacities, and whether a
// fresh device could give it.
func consumption(d *device, want quantities) (quantities, bool) {
	for name := range want {
		if _, has := d.spec.Capacity[name]; !has {
			return nil, false
		}
	}
	out := quantities{}
	for name, c := range d.spec.Capacity {
		need, asked := want[name]
		switch {
		case !asked && c.RequestPolicy != nil && c.RequestPolicy.Default != nil:
			need = *c.RequestPolicy.Default
		case !asked:
			need = c.Value
		case c.RequestPolicy != nil:
			need = roundUp(need, c.RequestPolicy)
		}
		if c.RequestPolicy != nil && !allowed(need, c.RequestPolicy) {
			return nil, false
		}
		out[name] = need.DeepCopy()
	}
	return out, fitsIn(out, d)
}

func fitsIn(sum quantities, d *device) bool {
	for name, c := range d.spec.Capacity {
		if have := sum[name]; have.Cmp(c.Value) > 0 {
			return false
		}
	}
	return true
}

// roundUp takes a request to the next amount that the policy offers. Ranges in
// the tests are whole numbers.
func roundUp(need resource.Quantity, p *resourceapi.CapacityRequestPolicy) resource.Quantity {
	switch {
	case p.ValidRange != nil && p.ValidRange.Min != nil && need.Cmp(*p.ValidRange.Min) < 0:
		return *p.ValidRange.Min
	case p.ValidRange != nil && p.ValidRange.Min != nil && p.ValidRange.Step != nil:
		low, step := p.ValidRange.Min.Value(), p.ValidRange.Step.Value()
		steps := (need.Value() - low + step - 1) / step
		return *resource.NewQuantity(low+steps*step, resource.BinarySI)
	case len(p.ValidValues) > 0:
		for _, v := range p.ValidValues {
			if need.Cmp(v) <= 0 {
				return v
			}
		}
	}
	return need
}

func allowed(need resource.Quantity, p *resourceapi.CapacityRequestPolicy) bool {
	switch {
	case p.ValidRange != nil:
		return p.ValidRange.Max == nil || need.Cmp(*p.ValidRange.Max) <= 0
	case len(p.ValidValues) > 0:
		return slices.ContainsFunc(p.ValidValues, func(v resource.Quantity) bool { return need.Cmp(v) == 0 })
	}
	return true
}
