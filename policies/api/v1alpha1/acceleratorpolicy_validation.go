package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	computeCapability = regexp.MustCompile(`^[0-9]{1,4}(\.[0-9]{1,6}){0,2}$`)
	driverVersion     = regexp.MustCompile(`^[0-9]{1,6}(\.[0-9]{1,6}){0,2}$`)
)

// Validate says what is contradictory or impossible, by field. It expects
// defaults to have been filled in.
func (p *AcceleratorPolicy) Validate() field.ErrorList {
	return append(requireName(&p.ObjectMeta, maxPolicyName), p.Spec.Validate(field.NewPath("spec"))...)
}

// Validate says what is contradictory or impossible, by field under path. It
// expects defaults to have been filled in.
func (s *AcceleratorPolicySpec) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, validateEnum(s.Driver, path.Child("driver"), DriverName, NVIDIADriverName)...)
	errs = append(errs, validateRange(s.Count, 1, maxCount, path.Child("count"))...)
	errs = append(errs, s.Constraints.validate(path.Child("constraints"))...)
	errs = append(errs, s.validateTiers(path.Child("tiers"))...)
	errs = append(errs, validateEnum(s.Ranking, path.Child("ranking"), RankingPacked, RankingSpread)...)
	errs = append(errs, validateEnum(s.MixModels, path.Child("mixModels"), MixModelsNever, MixModelsWithinTier)...)
	if s.MixTiers != "" {
		errs = append(errs, validateEnum(s.MixTiers, path.Child("mixTiers"), MixTiersNever, MixTiersWithinGroup)...)
	}
	errs = append(errs, s.validatePreferAttributes(path.Child("preferAttributes"))...)
	errs = append(errs, validateEnum(s.Preempts, path.Child("preempts"), PreemptsNever, PreemptsBorrowed, PreemptsLowerPriority)...)
	errs = append(errs, validateLabelSelector(s.NamespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, s.validateSharing(path.Child("sharing"))...)
	errs = append(errs, s.Retry.validate(path.Child("retry"))...)
	errs = append(errs, s.OnUnhealthy.validate(path.Child("onUnhealthy"))...)
	if s.ActiveRevision != nil && *s.ActiveRevision < 1 {
		errs = append(errs, field.Invalid(path.Child("activeRevision"), *s.ActiveRevision, "must be at least 1"))
	}
	return errs
}

func (c *Constraints) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.MinMemory != nil && c.MinMemory.Sign() <= 0 {
		errs = append(errs, field.Invalid(path.Child("minMemory"), c.MinMemory.String(), "must be greater than zero"))
	}
	errs = append(errs, validatePattern(c.MinComputeCapability, computeCapability, path.Child("minComputeCapability"))...)
	errs = append(errs, validatePattern(c.MinDriverVersion, driverVersion, path.Child("minDriverVersion"))...)
	errs = append(errs, validateSet(c.Architectures, maxModels, path.Child("architectures"), validateText)...)
	errs = append(errs, validateEnum(c.Isolation, path.Child("isolation"), IsolationExclusive, IsolationShared)...)
	errs = append(errs, validateStrings(c.Selectors, maxSelectors, path.Child("selectors"), validateExpression)...)
	errs = append(errs, validateSet(c.MatchAttributes, maxAttributes, path.Child("matchAttributes"), validateAttribute)...)
	return errs
}

func (s *AcceleratorPolicySpec) validateTiers(path *field.Path) field.ErrorList {
	switch {
	case len(s.Tiers) == 0:
		return field.ErrorList{field.Required(path, "at least one tier is needed")}
	case len(s.Tiers) > maxTiers:
		return field.ErrorList{field.TooMany(path, len(s.Tiers), maxTiers)}
	}
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range s.Tiers {
		t := &s.Tiers[i]
		errs = append(errs, t.validate(path.Index(i))...)
		if names.Has(t.Name) {
			errs = append(errs, field.Duplicate(path.Index(i), t.Name))
		}
		names.Insert(t.Name)
	}
	if len(errs) > 0 {
		return errs // the checks between tiers need sound ones
	}
	errs = append(errs, s.validateModelWords(path)...)
	return append(errs, s.validateReachable(path)...)
}

func (t *Tier) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else {
		errs = append(errs, invalidIfAny(path.Child("name"), t.Name, utilvalidation.IsDNS1123Label(t.Name))...)
	}
	errs = append(errs, validateSet(t.Models, maxModels, path.Child("models"), validateText)...)
	errs = append(errs, validateStrings(t.Selectors, maxSelectors, path.Child("selectors"), validateExpression)...)
	errs = append(errs, validateRange(t.Count, 1, maxCount, path.Child("count"))...)
	errs = append(errs, validateDuration(t.After, path.Child("after"))...)
	return errs
}

// validateModelWords refuses a model that can't be one word of NVIDIA's
// productName, since those are split at space and hyphen.
func (s *AcceleratorPolicySpec) validateModelWords(path *field.Path) field.ErrorList {
	if s.Driver != NVIDIADriverName {
		return nil
	}
	for i := range s.Tiers {
		for _, m := range s.Tiers[i].Models {
			if strings.ContainsAny(m, " -") {
				return field.ErrorList{field.Invalid(path, m, fmt.Sprintf(
					"with driver %s a model is one word of productName, without space or hyphen", NVIDIADriverName))}
			}
		}
	}
	return nil
}

// validateReachable refuses a tier that can never be chosen, because an
// earlier one accepts each set of devices that this one accepts.
func (s *AcceleratorPolicySpec) validateReachable(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for j := range s.Tiers {
		for i := range j {
			if s.covers(&s.Tiers[i], &s.Tiers[j]) {
				errs = append(errs, field.Invalid(path, s.Tiers[j].Name, fmt.Sprintf(
					"tier can never be used: tier %s before it accepts all of its devices, needs no more of them and no longer wait", s.Tiers[i].Name)))
				break
			}
		}
	}
	return errs
}

// covers says whether tier a can be met whenever tier b can: it accepts every
// device that b accepts, needs no more of them, and opens no later. Selectors
// are compared as text, so "no" can also mean "not provably".
func (s *AcceleratorPolicySpec) covers(a, b *Tier) bool {
	if s.CountOf(a) > s.CountOf(b) || durationOf(a.After) > durationOf(b.After) {
		return false
	}
	if len(a.Models) > 0 && (len(b.Models) == 0 || !containsAll(a.Models, b.Models)) {
		return false
	}
	return containsAll(b.Selectors, a.Selectors)
}

func containsAll(list, wanted []string) bool {
	for _, w := range wanted {
		if !slices.Contains(list, w) {
			return false
		}
	}
	return true
}

func (s *AcceleratorPolicySpec) validatePreferAttributes(path *field.Path) field.ErrorList {
	errs := validateSet(s.PreferAttributes, maxAttributes, path, validateAttribute)
	if len(errs) > 0 {
		return errs
	}
	for _, a := range s.PreferAttributes {
		if slices.Contains(s.Constraints.MatchAttributes, a) {
			errs = append(errs, field.Invalid(path, a, "contradicts constraints.matchAttributes, which demands the same attribute"))
		}
	}
	return errs
}

// validateSharing refuses what contradicts the rest of the policy, beside what
// is wrong by itself.
func (s *AcceleratorPolicySpec) validateSharing(path *field.Path) field.ErrorList {
	errs := s.Sharing.Validate(path)
	if s.Sharing.IsExclusive() {
		return errs
	}
	strategy := path.Child("strategy")
	if s.Driver == NVIDIADriverName {
		errs = append(errs, field.Invalid(strategy, s.Sharing.Strategy, fmt.Sprintf(
			"with driver %s must be %s, since that driver has parameters of its own", NVIDIADriverName, SharingExclusive)))
	}
	if s.Constraints.Isolation == IsolationExclusive {
		errs = append(errs, field.Invalid(strategy, s.Sharing.Strategy, "contradicts constraints.isolation, which is Exclusive"))
	}
	return errs
}

func (r *RetryPolicy) validate(path *field.Path) field.ErrorList {
	errs := validateRange(r.MaxAttempts, 1, 100, path.Child("maxAttempts"))
	errs = append(errs, validateDuration(r.InitialBackoff, path.Child("initialBackoff"))...)
	errs = append(errs, validateDuration(r.MaxBackoff, path.Child("maxBackoff"))...)
	errs = append(errs, validateDuration(r.Deadline, path.Child("deadline"))...)
	if len(errs) == 0 && r.InitialBackoff != nil && r.MaxBackoff != nil && r.MaxBackoff.Duration < r.InitialBackoff.Duration {
		errs = append(errs, field.Invalid(path.Child("maxBackoff"), r.MaxBackoff.Duration.String(), "must not be below initialBackoff"))
	}
	return errs
}

func (o *OnUnhealthy) validate(path *field.Path) field.ErrorList {
	errs := validateEnum(o.Action, path.Child("action"), UnhealthyEvict, UnhealthyRecreate, UnhealthyEnd, UnhealthyKeep)
	grace := path.Child("gracePeriod")
	errs = append(errs, validateDuration(o.GracePeriod, grace)...)
	if o.GracePeriod == nil || len(errs) > 0 {
		return errs
	}
	if o.Action == UnhealthyKeep {
		errs = append(errs, field.Invalid(grace, o.GracePeriod.Duration.String(), "may not be set where action is Keep"))
	}
	if o.GracePeriod.Milliseconds()%1000 != 0 {
		errs = append(errs, field.Invalid(grace, o.GracePeriod.Duration.String(), "must be whole seconds, as a toleration's are"))
	}
	return errs
}
