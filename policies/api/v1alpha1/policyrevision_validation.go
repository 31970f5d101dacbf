package v1alpha1

import (
	"fmt"
	"regexp"
	"strconv"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var contentHash = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// RevisionName is the name of a policy's revision, and of the claim template
// that is made of it: <policy>-<revision>.
func RevisionName(policy string, revision int64) string {
	return policy + "-" + strconv.FormatInt(revision, 10)
}

// Validate says what is contradictory or impossible, by field. It expects
// defaults to have been filled in.
func (r *PolicyRevision) Validate() field.ErrorList {
	path := field.NewPath("spec")
	errs := validateRequiredSubdomain(r.Spec.Policy, maxPolicyName, path.Child("policy"))
	switch {
	case r.Spec.Revision == 0:
		errs = append(errs, field.Required(path.Child("revision"), ""))
	case r.Spec.Revision < 0:
		errs = append(errs, field.Invalid(path.Child("revision"), r.Spec.Revision, "must be at least 1"))
	}
	if r.Spec.Hash == "" {
		errs = append(errs, field.Required(path.Child("hash"), ""))
	} else {
		errs = append(errs, validatePattern(r.Spec.Hash, contentHash, path.Child("hash"))...)
	}
	errs = append(errs, r.Spec.PolicySpec.Validate(path.Child("policySpec"))...)
	if r.Spec.PolicySpec.ActiveRevision != nil {
		errs = append(errs, field.Invalid(path.Child("policySpec", "activeRevision"), *r.Spec.PolicySpec.ActiveRevision, "a revision does not name the active one"))
	}
	errs = append(errs, validateEnum(r.Spec.State, path.Child("state"), RevisionUsable, RevisionWithdrawn)...)
	if r.Spec.Policy == "" || len(r.Spec.Policy) > maxPolicyName || r.Spec.Revision == 0 {
		return errs // there is nothing to judge the name by
	}
	if want := RevisionName(r.Spec.Policy, r.Spec.Revision); r.Name != want {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), r.Name, fmt.Sprintf("must be <policy>-<revision>, %s", want)))
	}
	return errs
}

// ValidateUpdate says what of a change from old is not allowed: everything but
// state is immutable.
func (r *PolicyRevision) ValidateUpdate(old *PolicyRevision) field.ErrorList {
	errs := r.Validate()
	path := field.NewPath("spec")
	immutable := func(name string, now, before any) {
		if !apiequality.Semantic.DeepEqual(now, before) {
			errs = append(errs, field.Invalid(path.Child(name), now, "is immutable"))
		}
	}
	immutable("policy", r.Spec.Policy, old.Spec.Policy)
	immutable("revision", r.Spec.Revision, old.Spec.Revision)
	immutable("hash", r.Spec.Hash, old.Spec.Hash)
	immutable("policySpec", r.Spec.PolicySpec, old.Spec.PolicySpec)
	return errs
}
