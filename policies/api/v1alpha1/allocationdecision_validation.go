package v1alpha1

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate says what is contradictory in a record, by field.
func (d *AllocationDecision) Validate() field.ErrorList {
	return d.Spec.Validate(field.NewPath("spec"))
}

// Validate says what is contradictory in a record, by field under path. Sizes
// are left to the API server, as only Ladder writes records.
func (s *AllocationDecisionSpec) Validate(path *field.Path) field.ErrorList {
	if s.Outcome == "" {
		return field.ErrorList{field.Required(path.Child("outcome"), "")}
	}
	errs := validateEnum(s.Outcome, path.Child("outcome"), OutcomeAllocated, OutcomePending, OutcomeUnsatisfiable)
	if len(errs) > 0 {
		return errs
	}
	if s.Outcome == OutcomeAllocated {
		if s.Class != "" {
			errs = append(errs, field.Invalid(path.Child("class"), s.Class, "may be set only where outcome is not Allocated"))
		}
		return errs
	}
	const onlyAllocated = "may be set only where outcome is Allocated"
	if s.Tier != "" {
		errs = append(errs, field.Invalid(path.Child("tier"), s.Tier, onlyAllocated))
	}
	if s.TierIndex != nil {
		errs = append(errs, field.Invalid(path.Child("tierIndex"), *s.TierIndex, onlyAllocated))
	}
	if s.Node != "" {
		errs = append(errs, field.Invalid(path.Child("node"), s.Node, onlyAllocated))
	}
	if len(s.Devices) > 0 {
		errs = append(errs, field.Invalid(path.Child("devices"), len(s.Devices), onlyAllocated))
	}
	return errs
}

// ValidateUpdate says what of a change from old is not allowed: a record is
// never rewritten.
func (d *AllocationDecision) ValidateUpdate(old *AllocationDecision) field.ErrorList {
	errs := d.Validate()
	if !apiequality.Semantic.DeepEqual(d.Spec, old.Spec) {
		errs = append(errs, field.Invalid(field.NewPath("spec"), d.Name, "is immutable"))
	}
	return errs
}
