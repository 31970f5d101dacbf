package v1alpha1

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// This file holds the checks that several kinds share. The checks of a kind
// are in <kind>_validation.go. All of them repeat what the CRDs' schemas and
// CEL rules refuse, with the same field paths, so that an object in a file is
// judged as an API server would judge it; e2e/integration/api holds the two
// together. Every Validate expects defaults to have been filled in, and treats
// a value that is left out as an API server does: required, or fine.
//
// Whether a CEL selector compiles is not checked here: package compile does.

// Limits of the schemas.
const (
	maxPolicyName  = 63 // also a label's value
	maxTiers       = 8  // resource.k8s.io: alternatives of a request
	maxCount       = 32 // resource.k8s.io: devices of a claim
	maxModels      = 16
	maxModelLength = 64 // resource.k8s.io: string value of an attribute
	maxSelectors   = 8
	maxExpression  = 10240 // resource.k8s.io: bytes of a CEL expression
	maxAttributes  = 8
	maxDomain      = 63 // resource.k8s.io: domain of an attribute's name
	maxIdentifier  = 32 // resource.k8s.io: rest of an attribute's name
)

// requireName checks an object's own name, where it is further limited than
// names are anyway. The API server tells the field in its message only: a CRD
// can't give the path of metadata.
func requireName(meta *metav1.ObjectMeta, max int) field.ErrorList {
	path := field.NewPath("metadata", "name")
	if meta.Name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if len(meta.Name) > max {
		return field.ErrorList{field.Invalid(path, meta.Name, fmt.Sprintf("must be no more than %d characters", max))}
	}
	return validateSubdomain(meta.Name, path)
}

func validateSubdomain(name string, path *field.Path) field.ErrorList {
	return invalidIfAny(path, name, utilvalidation.IsDNS1123Subdomain(name))
}

// validateRequiredSubdomain checks a reference to a cluster-scoped object.
func validateRequiredSubdomain(name string, max int, path *field.Path) field.ErrorList {
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, "")}
	case len(name) > max:
		return field.ErrorList{field.TooLong(path, name, max)}
	default:
		return validateSubdomain(name, path)
	}
}

func invalidIfAny(path *field.Path, value any, messages []string) field.ErrorList {
	if len(messages) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, strings.Join(messages, "; "))}
}

// validateEnum refuses a value that is set and is none of the allowed ones.
func validateEnum[T ~string](value T, path *field.Path, allowed ...T) field.ErrorList {
	if value == "" {
		return nil
	}
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// validateRange refuses a number that is set and lies outside of min to max.
func validateRange(value *int32, min, max int32, path *field.Path) field.ErrorList {
	switch {
	case value == nil:
		return nil
	case *value < min:
		return field.ErrorList{field.Invalid(path, *value, fmt.Sprintf("must be at least %d", min))}
	case *value > max:
		return field.ErrorList{field.Invalid(path, *value, fmt.Sprintf("must be at most %d", max))}
	}
	return nil
}

// validateSet checks a list of strings that must differ from one another.
func validateSet(values []string, max int, path *field.Path, each func(string, *field.Path) field.ErrorList) field.ErrorList {
	errs := validateStrings(values, max, path, each)
	seen := sets.New[string]()
	for i, v := range values {
		if seen.Has(v) {
			errs = append(errs, field.Duplicate(path.Index(i), v))
		}
		seen.Insert(v)
	}
	return errs
}

// validateStrings checks a list of strings that may repeat.
func validateStrings(values []string, max int, path *field.Path, each func(string, *field.Path) field.ErrorList) field.ErrorList {
	if len(values) > max {
		return field.ErrorList{field.TooMany(path, len(values), max)}
	}
	var errs field.ErrorList
	for i, v := range values {
		errs = append(errs, each(v, path.Index(i))...)
	}
	return errs
}

var (
	text     = regexp.MustCompile(`^\S(.*\S)?$`)
	notBlank = regexp.MustCompile(`\S`)
)

// validateText refuses what is blank, begins or ends with a blank, or is
// longer than an attribute's value can be: no device could ever match it.
func validateText(v string, path *field.Path) field.ErrorList {
	switch {
	case !text.MatchString(v):
		return field.ErrorList{field.Invalid(path, v, "must not be blank, nor begin or end with a blank")}
	case utf8.RuneCountInString(v) > maxModelLength:
		return field.ErrorList{field.TooLong(path, v, maxModelLength)}
	}
	return nil
}

func validateExpression(v string, path *field.Path) field.ErrorList {
	switch {
	case !notBlank.MatchString(v):
		return field.ErrorList{field.Invalid(path, v, "must not be blank")}
	case utf8.RuneCountInString(v) > maxExpression:
		return field.ErrorList{field.TooLong(path, "", maxExpression)}
	}
	return nil
}

// validateAttribute wants the full name of a device attribute, a domain and a
// C identifier, as resource.k8s.io does for matchAttribute.
func validateAttribute(v string, path *field.Path) field.ErrorList {
	domain, id, found := strings.Cut(v, "/")
	switch {
	case !found || domain == "" || id == "":
		return field.ErrorList{field.Invalid(path, v, "must be a domain and a name separated by a slash")}
	case len(domain) > maxDomain:
		return field.ErrorList{field.Invalid(path, v, fmt.Sprintf("the domain must be no more than %d characters", maxDomain))}
	case len(id) > maxIdentifier:
		return field.ErrorList{field.Invalid(path, v, fmt.Sprintf("the name must be no more than %d characters", maxIdentifier))}
	}
	messages := append(utilvalidation.IsDNS1123Subdomain(domain), utilvalidation.IsCIdentifier(id)...)
	return invalidIfAny(path, v, messages)
}

// validatePattern refuses a string that is set and does not match.
func validatePattern(v string, pattern *regexp.Regexp, path *field.Path) field.ErrorList {
	if v == "" || pattern.MatchString(v) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, v, "must match "+pattern.String())}
}

// validateDuration refuses a negative duration.
func validateDuration(d *metav1.Duration, path *field.Path) field.ErrorList {
	if d == nil || d.Duration >= 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, d.Duration.String(), "must not be negative")}
}

// validateLabelSelector checks a selector. The API server gives the list,
// matchExpressions, where this gives the item in it.
func validateLabelSelector(s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path)
}

func durationOf(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.Duration
}
