package v1alpha1

import (
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxNamespaces  = 256
	maxQuotaModels = 64
	maxQuota       = 1_000_000
)

// Validate says what is contradictory or impossible, by field. It expects
// defaults to have been filled in.
func (q *TenantQuota) Validate() field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if len(q.Spec.Namespaces) == 0 {
		errs = append(errs, field.Required(path.Child("namespaces"), "at least one namespace is needed"))
	}
	errs = append(errs, validateSet(q.Spec.Namespaces, maxNamespaces, path.Child("namespaces"),
		func(v string, path *field.Path) field.ErrorList {
			return invalidIfAny(path, v, utilvalidation.IsDNS1123Label(v))
		})...)
	errs = append(errs, validateRange(q.Spec.Weight, 1, maxQuota, path.Child("weight"))...)
	return append(errs, validateModelQuotas(q.Spec.Models, path.Child("models"))...)
}

func validateModelQuotas(models []ModelQuota, path *field.Path) field.ErrorList {
	switch {
	case len(models) == 0:
		return field.ErrorList{field.Required(path, "at least one model is needed")}
	case len(models) > maxQuotaModels:
		return field.ErrorList{field.TooMany(path, len(models), maxQuotaModels)}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i := range models {
		errs = append(errs, models[i].validate(path.Index(i))...)
		if seen.Has(models[i].Model) {
			errs = append(errs, field.Duplicate(path.Index(i), models[i].Model))
		}
		seen.Insert(models[i].Model)
	}
	return errs
}

func (m *ModelQuota) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Model == "" {
		errs = append(errs, field.Required(path.Child("model"), ""))
	} else {
		errs = append(errs, validateText(m.Model, path.Child("model"))...)
	}
	errs = append(errs, validateRange(&m.Guaranteed, 0, maxQuota, path.Child("guaranteed"))...)
	errs = append(errs, validateRange(m.Limit, 0, maxQuota, path.Child("limit"))...)
	if m.Limit != nil && m.Guaranteed > *m.Limit {
		errs = append(errs, field.Invalid(path.Child("guaranteed"), m.Guaranteed, "must not be above limit"))
	}
	return errs
}
