package compile

import (
	"fmt"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Attributes and capacities that both drivers publish under the same name, in
// their own domain.
const (
	attrArchitecture      = "architecture"
	attrComputeCapability = "cudaComputeCapability"
	attrDriverVersion     = "driverVersion"
	capMemory             = "memory"
)

// modelAttribute is the attribute that tells the model: Ladder's driver has one
// for it; NVIDIA's product name is the closest that theirs has.
func modelAttribute(driver string) string {
	if driver == v1alpha1.NVIDIADriverName {
		return "productName"
	}
	return "model"
}

// selectorsOf gives a tier's conditions in the order in which the decision
// engine checks them, but for the free selectors, which come last: they are
// the only ones that can fail with an error, and the allocator stops at the
// first one that says no.
func selectorsOf(spec *v1alpha1.AcceleratorPolicySpec, tier *v1alpha1.Tier) []resourcev1.DeviceSelector {
	c := &spec.Constraints
	var expressions []string
	if len(tier.Models) > 0 {
		expressions = append(expressions, modelIn(spec.Driver, tier.Models))
	}
	if c.MinMemory != nil {
		expressions = append(expressions, capacityAtLeast(spec.Driver, capMemory, c.MinMemory.String()))
	}
	if c.MinComputeCapability != "" {
		expressions = append(expressions, versionAtLeast(spec.Driver, attrComputeCapability, c.MinComputeCapability))
	}
	if c.MinDriverVersion != "" {
		expressions = append(expressions, versionAtLeast(spec.Driver, attrDriverVersion, c.MinDriverVersion))
	}
	if len(c.Architectures) > 0 {
		expressions = append(expressions, stringIn(spec.Driver, attrArchitecture, c.Architectures))
	}
	if c.Isolation == v1alpha1.IsolationExclusive {
		expressions = append(expressions, "device.allowMultipleAllocations == false")
	}
	expressions = append(expressions, tier.Selectors...)
	expressions = append(expressions, c.Selectors...)

	selectors := make([]resourcev1.DeviceSelector, 0, len(expressions))
	for _, e := range expressions {
		selectors = append(selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: e}})
	}
	return selectors
}

// modelIn says that the device is one of the models. With NVIDIA's driver a
// model is one word of the product name, split at space and hyphen.
func modelIn(driver string, models []string) string {
	if driver != v1alpha1.NVIDIADriverName {
		return stringIn(driver, modelAttribute(driver), models)
	}
	name := attribute(driver, modelAttribute(driver))
	return fmt.Sprintf(`has(%[1]s) && type(%[1]s) in [string] && %[1]s.replace("-", " ").split(" ").exists(word, word in %[2]s)`,
		name, list(models))
}

// stringIn says that a string attribute is one of the values. Equality of
// different types is false in CEL, so it needs no guard beyond the default.
func stringIn(driver, name string, values []string) string {
	return fmt.Sprintf(`device.attributes[%s].?%s.orValue("") in %s`, strconv.Quote(driver), name, list(values))
}

// versionAtLeast says that a version attribute is at least min. Comparing the
// type by `in` rather than == keeps the estimated cost bounded: the API server
// takes an attribute's type for a value of unknown size.
func versionAtLeast(driver, name, minimum string) string {
	version := attribute(driver, name)
	return fmt.Sprintf(`has(%[1]s) && type(%[1]s) in [type(semver("0.0.0"))] && %[1]s.compareTo(semver(%[2]s)) >= 0`,
		version, strconv.Quote(semver(minimum)))
}

// capacityAtLeast says that a capacity is at least min. All capacities are
// quantities, so only its absence needs a guard.
func capacityAtLeast(driver, name, minimum string) string {
	return fmt.Sprintf(`has(device.capacity[%[1]s].%[2]s) && device.capacity[%[1]s].%[2]s.compareTo(quantity(%[3]s)) >= 0`,
		strconv.Quote(driver), name, strconv.Quote(minimum))
}

func attribute(driver, name string) string {
	return fmt.Sprintf("device.attributes[%s].%s", strconv.Quote(driver), name)
}

func list(values []string) string {
	quoted := make([]string, 0, len(values))
	for _, v := range values {
		quoted = append(quoted, strconv.Quote(v))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// semver completes a version of one to three numbers to the form that
// attributes have: "550.054" becomes "550.54.0".
func semver(version string) string {
	parts := strings.Split(version, ".")
	for i, p := range parts {
		if p = strings.TrimLeft(p, "0"); p == "" {
			p = "0"
		}
		parts[i] = p
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	return strings.Join(parts, ".")
}
