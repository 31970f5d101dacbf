package decide

// What model a device is. Ladder's driver says it in the attribute `model`;
// NVIDIA's driver says only productName, of which one word is the model.

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Attribute ids that the shorthand of a policy reads, under the policy's driver.
const (
	attrModel       = "model"
	attrProductName = "productName"
	attrArch        = "architecture"
	attrCompute     = "cudaComputeCapability"
	attrDriver      = "driverVersion"
	attrHealthy     = "healthy"
	attrHealth      = "health"
	capMemory       = "memory"
)

// brands are the words of a productName that name a maker or a product line
// rather than a model, in lower case.
var brands = []string{"nvidia", "tesla", "geforce", "quadro", "rtx", "gtx", "titan", "grid"}

// modelKey is what a device's slice says about its model: the attribute model
// of Ladder's driver, or the productName of NVIDIA's. Devices of other drivers
// have the zero key: they have no model and no quota speaks of them.
type modelKey struct {
	driver string
	name   string
}

func modelKeyOf(driver string, attrs map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) modelKey {
	switch driver {
	case v1alpha1.DriverName:
		return modelKey{driver, stringAttr(attrs, driver, attrModel)}
	case v1alpha1.NVIDIADriverName:
		return modelKey{driver, stringAttr(attrs, driver, attrProductName)}
	default:
		return modelKey{}
	}
}

// namedModel is the key of a device of which only the model's name is known.
func namedModel(driver, model string) modelKey {
	if model == "" || (driver != v1alpha1.DriverName && driver != v1alpha1.NVIDIADriverName) {
		return modelKey{}
	}
	return modelKey{driver, model}
}

// has says whether the device is of this model: the model itself, or with
// NVIDIA's driver one word of productName.
func (k modelKey) has(model string) bool {
	if k.name == "" || model == "" {
		return false
	}
	if k.driver != v1alpha1.NVIDIADriverName {
		return k.name == model
	}
	for word := range strings.FieldsFuncSeq(k.name, isModelSeparator) {
		if word == model {
			return true
		}
	}
	return false
}

// firstOf returns the first of the models that the device is of, or "".
func (k modelKey) firstOf(models []string) string {
	for _, m := range models {
		if k.has(m) {
			return m
		}
	}
	return ""
}

// plain is the model where neither a tier nor a quota names one.
func (k modelKey) plain() string {
	if k.driver != v1alpha1.NVIDIADriverName {
		return k.name
	}
	for word := range strings.FieldsFuncSeq(k.name, isModelSeparator) {
		if !slices.Contains(brands, strings.ToLower(word)) {
			return word
		}
	}
	return ""
}

func isModelSeparator(r rune) bool { return r == ' ' || r == '-' }

// DeviceModel is the model of a device: with gpu.gpuladder.dev the attribute
// `model`; with gpu.nvidia.com the first word of productName, split at space
// and hyphen, that is not a brand or product line (NVIDIA, Tesla, GeForce,
// Quadro, RTX, ...). Devices of other drivers have none. A policy's tier or a
// tenant's quota that names another word of productName takes precedence where
// there is one.
func DeviceModel(driver string, attrs map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) string {
	return modelKeyOf(driver, attrs).plain()
}

// lookupAttr finds the attribute id of a domain on a device of the driver: by
// its qualified name, or by the bare id where the domain is the driver's. It
// is the rule of the in-tree allocator.
func lookupAttr(attrs map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, driver, domain, id string) (resourceapi.DeviceAttribute, bool) {
	a, ok := attrs[resourceapi.QualifiedName(domain+"/"+id)]
	if !ok && domain == driver {
		a, ok = attrs[resourceapi.QualifiedName(id)]
	}
	return a, ok
}

func stringAttr(attrs map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, driver, id string) string {
	a, ok := lookupAttr(attrs, driver, driver, id)
	if !ok || a.StringValue == nil {
		return ""
	}
	return *a.StringValue
}
