package manifest

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// features are those of a 1.37 API server with its default feature gates. They
// are package compile's too: the compiler is kept for one set of features.
var features = cel.Features{EnableConsumableCapacity: true}

// compiled remembers what became of each expression, empty for good: fleets
// repeat a few.
type compiled map[string]string

// check says what is wrong with a CEL expression over a device.
func (c compiled) check(expression string) string {
	if why, ok := c[expression]; ok {
		return why
	}
	why := ""
	if len(expression) > resourceapi.CELSelectorExpressionMaxLength {
		why = fmt.Sprintf("the CEL expression is longer than %d bytes; shorten it", resourceapi.CELSelectorExpressionMaxLength)
	} else {
		switch result := cel.GetCompiler(features).CompileCELExpression(expression, cel.Options{}); {
		case result.Error != nil:
			why = "CEL does not compile: " + firstLine(result.Error.Detail) + "; correct the expression"
		case result.MaxCost > resourceapi.CELSelectorExpressionMaxCost:
			why = fmt.Sprintf("the CEL expression could cost more than the %d units that a selector may; make it simpler", resourceapi.CELSelectorExpressionMaxCost)
		}
	}
	c[expression] = why
	return why
}

// firstLine is the compiler's first complaint, without the picture below it.
func firstLine(detail string) string {
	for _, line := range strings.Split(detail, "\n") {
		line = strings.TrimPrefix(strings.TrimSpace(line), "compilation failed: ")
		if line != "" {
			return strings.TrimPrefix(line, "ERROR: ")
		}
	}
	return detail
}

// selectors compiles every CEL selector of an object and returns the
// first that does not.
func (c compiled) selectors(obj runtime.Object) *field.Error {
	spec := field.NewPath("spec")
	switch o := obj.(type) {
	case *v1alpha1.AcceleratorPolicy:
		return c.policy(&o.Spec, spec)
	case *v1alpha1.PolicyRevision:
		return c.policy(&o.Spec.PolicySpec, spec.Child("policySpec"))
	case *resourceapi.DeviceClass:
		return c.deviceSelectors(o.Spec.Selectors, spec.Child("selectors"))
	case *resourceapi.ResourceClaim:
		return c.claim(&o.Spec, spec)
	case *resourceapi.ResourceClaimTemplate:
		return c.claim(&o.Spec.Spec, spec.Child("spec"))
	}
	return nil
}

func (c compiled) policy(s *v1alpha1.AcceleratorPolicySpec, path *field.Path) *field.Error {
	if err := c.texts(s.Constraints.Selectors, path.Child("constraints", "selectors")); err != nil {
		return err
	}
	for i := range s.Tiers {
		if err := c.texts(s.Tiers[i].Selectors, path.Child("tiers").Index(i).Child("selectors")); err != nil {
			return err
		}
	}
	return nil
}

func (c compiled) texts(expressions []string, path *field.Path) *field.Error {
	for i, e := range expressions {
		if why := c.check(e); why != "" {
			return field.Invalid(path.Index(i), nil, why)
		}
	}
	return nil
}

func (c compiled) claim(s *resourceapi.ResourceClaimSpec, path *field.Path) *field.Error {
	requests := path.Child("devices", "requests")
	for i, r := range s.Devices.Requests {
		if r.Exactly != nil {
			if err := c.deviceSelectors(r.Exactly.Selectors, requests.Index(i).Child("exactly", "selectors")); err != nil {
				return err
			}
		}
		for j, sub := range r.FirstAvailable {
			if err := c.deviceSelectors(sub.Selectors, requests.Index(i).Child("firstAvailable").Index(j).Child("selectors")); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c compiled) deviceSelectors(selectors []resourceapi.DeviceSelector, path *field.Path) *field.Error {
	for i, s := range selectors {
		if s.CEL == nil {
			return field.Required(path.Index(i).Child("cel"), "is missing; give an expression")
		}
		if why := c.check(s.CEL.Expression); why != "" {
			return field.Invalid(path.Index(i).Child("cel", "expression"), nil, why)
		}
	}
	return nil
}
