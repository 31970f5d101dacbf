package invariants

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const constraints = "I2 no allocation breaks a hard constraint"

// HardConstraints checks I2 by what the slices say of the devices and what the
// revision of the policy says in words, not by the expressions that were made
// of it: memory, compute capability, driver, architecture, attributes that all
// devices share, one model where models may not be mixed, and that the devices
// are of the tier and as many as it takes. CEL selectors are not looked at.
func HardConstraints(h History) Report {
	checked, missing := 0, h.Gaps()
	var violations []string
	unknown := h.allocations(func(c *cluster, a *allocation) {
		checked++
		for _, why := range a.broken(c) {
			violations = append(violations, fmt.Sprintf("%s: %s, policy %s, tier %s: %s", a.stamp(), a.name(), a.policy, a.tierName, why))
		}
	})
	r := conclude(constraints, checked, violations, missing)
	r.Unjudged = unknown
	return r
}

// broken says what an allocation breaks.
func (a *allocation) broken(c *cluster) []string {
	if a.tier < 0 {
		return []string{"the policy has no such tier"}
	}
	var broken []string
	tier := &a.spec.Tiers[a.tier]
	held := heldBy(a.claim)
	if want := count(a.spec, tier); len(held) != want {
		broken = append(broken, fmt.Sprintf("it has %d devices, the tier takes %d", len(held), want))
	}
	var all []*device
	for _, id := range held {
		d := c.devices[id]
		if d == nil {
			broken = append(broken, fmt.Sprintf("%s was never published", id))
			continue
		}
		all = append(all, d)
		if why := unmet(d, a.spec, tier); why != "" {
			broken = append(broken, fmt.Sprintf("%s: %s", id, why))
		}
	}
	shared := slices.Clone(a.spec.Constraints.MatchAttributes)
	if a.spec.MixModels != v1alpha1.MixModelsWithinTier {
		shared = append(shared, a.driver()+"/model")
	}
	for _, attribute := range shared {
		for _, d := range all {
			if one, other := d.attribute(attribute), all[0].attribute(attribute); one != other {
				broken = append(broken, fmt.Sprintf("%s has %s %q, %s has %q", d.id, attribute, one, all[0].id, other))
			}
		}
	}
	return broken
}

func (a *allocation) driver() string { return driverOf(a.spec) }

func driverOf(spec *v1alpha1.AcceleratorPolicySpec) string {
	if spec.Driver == "" {
		return v1alpha1.DriverName
	}
	return spec.Driver
}

// unmet says which constraint of its own a device does not meet, or that it is
// not of the tier; "" if it may serve it.
func unmet(d *device, spec *v1alpha1.AcceleratorPolicySpec, tier *v1alpha1.Tier) string {
	domain := driverOf(spec)
	if d.id.Driver != domain {
		return "it is not of driver " + domain
	}
	if model := d.attribute(domain + "/model"); len(tier.Models) > 0 && !slices.Contains(tier.Models, model) {
		return fmt.Sprintf("model %q is not one of the tier's", model)
	}
	hard := &spec.Constraints
	if hard.MinMemory != nil {
		if memory := d.capacity(domain, "memory"); memory.Cmp(*hard.MinMemory) < 0 {
			return fmt.Sprintf("memory %s, want %s", memory.String(), hard.MinMemory)
		}
	}
	for _, least := range []struct{ attribute, want string }{
		{"cudaComputeCapability", hard.MinComputeCapability}, {"driverVersion", hard.MinDriverVersion},
	} {
		if have := d.attribute(domain + "/" + least.attribute); least.want != "" && !atLeast(have, least.want) {
			return fmt.Sprintf("%s %q, want %s", least.attribute, have, least.want)
		}
	}
	if architecture := d.attribute(domain + "/architecture"); len(hard.Architectures) > 0 && !slices.Contains(hard.Architectures, architecture) {
		return fmt.Sprintf("architecture %q is not allowed", architecture)
	}
	if hard.Isolation == v1alpha1.IsolationExclusive && d.spec.AllowMultipleAllocations != nil && *d.spec.AllowMultipleAllocations {
		return "it may be shared"
	}
	return ""
}

// attribute is the value of a qualified attribute in words, "" where the device
// has none. In its driver's own domain names may stand without it.
func (d *device) attribute(name string) string {
	a, ok := d.spec.Attributes[resourcev1.QualifiedName(name)]
	if domain, short, qualified := strings.Cut(name, "/"); !ok && qualified && domain == d.id.Driver {
		a = d.spec.Attributes[resourcev1.QualifiedName(short)]
	}
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	case a.BoolValue != nil:
		return strconv.FormatBool(*a.BoolValue)
	}
	return ""
}

// capacity is zero where the device has none of this name.
func (d *device) capacity(domain, name string) resource.Quantity {
	c, ok := d.spec.Capacity[resourcev1.QualifiedName(domain+"/"+name)]
	if !ok && domain == d.id.Driver {
		c = d.spec.Capacity[resourcev1.QualifiedName(name)]
	}
	return c.Value
}

// atLeast compares versions number by number; one that is missing is too low.
func atLeast(have, want string) bool {
	return have != "" && slices.Compare(numbers(have), numbers(want)) >= 0
}

func numbers(version string) []int {
	version, _, _ = strings.Cut(version, "-")
	version, _, _ = strings.Cut(version, "+")
	all := make([]int, 3)
	for i, part := range strings.SplitN(version, ".", len(all)) {
		all[i], _ = strconv.Atoi(part)
	}
	return all
}
