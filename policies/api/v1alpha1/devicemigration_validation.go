package v1alpha1

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxWaves        = 16
	maxSample       = 1_000_000
	maxResourceName = 127
)

var extendedResource = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// Validate says what is contradictory or impossible, by field. It expects
// defaults to have been filled in.
func (m *DeviceMigration) Validate() field.ErrorList {
	path := field.NewPath("spec")
	s := &m.Spec
	errs := validateEnum(s.Target, path.Child("target"), TargetDRA, TargetDevicePlugin)
	errs = append(errs, validateRequiredSubdomain(s.Policy, maxPolicyName, path.Child("policy"))...)
	errs = append(errs, validateExtendedResource(s.LegacyResource, path.Child("legacyResource"))...)
	errs = append(errs, validateLabelSelector(s.Selector, path.Child("selector"))...)
	errs = append(errs, validateLabelSelector(s.NamespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, validateWaves(s.Waves, path.Child("waves"))...)
	errs = append(errs, s.Gates.validate(path.Child("gates"))...)
	errs = append(errs, validateEnum(s.OnGateFailure, path.Child("onGateFailure"), GateRollback, GatePause)...)
	return append(errs, validateEnum(s.BoundPods, path.Child("boundPods"), BoundPodsWait, BoundPodsEvict)...)
}

func validateWaves(waves []int32, path *field.Path) field.ErrorList {
	switch {
	case len(waves) == 0:
		return field.ErrorList{field.Required(path, "at least one wave is needed")}
	case len(waves) > maxWaves:
		return field.ErrorList{field.TooMany(path, len(waves), maxWaves)}
	}
	var errs field.ErrorList
	for i := range waves {
		errs = append(errs, validateRange(&waves[i], 1, 100, path.Index(i))...)
	}
	if len(errs) > 0 {
		return errs
	}
	for i := 1; i < len(waves); i++ {
		if waves[i] <= waves[i-1] {
			return field.ErrorList{field.Invalid(path, waves, "must rise from wave to wave")}
		}
	}
	return nil
}

func (g *MigrationGates) validate(path *field.Path) field.ErrorList {
	errs := validateRange(g.MinSample, 1, maxSample, path.Child("minSample"))
	errs = append(errs, validateDuration(g.Soak, path.Child("soak"))...)
	errs = append(errs, validateRange(g.MaxSuccessRateDrop, 0, 100, path.Child("maxSuccessRateDrop"))...)
	errs = append(errs, validateRange(g.MaxFallbackRate, 0, 100, path.Child("maxFallbackRate"))...)
	errs = append(errs, validateRange(g.MaxLatencyRise, 0, 10000, path.Child("maxLatencyRise"))...)
	return append(errs, validateRange(g.MaxUtilizationDrop, 0, 100, path.Child("maxUtilizationDrop"))...)
}

// validateExtendedResource wants a name that a device plugin can register: a
// domain other than kubernetes.io, a slash and a name.
func validateExtendedResource(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	if !extendedResource.MatchString(name) || len(name) > maxResourceName {
		return field.ErrorList{field.Invalid(path, name, "must be an extended resource: a domain, a slash and a name")}
	}
	if domain, _, _ := strings.Cut(name, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
		return field.ErrorList{field.Invalid(path, name, "must not be in the domain kubernetes.io")}
	}
	return nil
}
