package v1alpha1

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// This file reads and checks how a device is shared, where it stands in a
// policy and where it stands in a claim's parameters.

// memoryUnit is what MPS counts memory in.
var memoryUnit = resource.MustParse("1Mi")

// DecodeGPUConfig reads parameters of a claim, strictly: an unknown version,
// kind or field, or one that is there twice, is an error that says which. What
// it returns is valid, and has its defaults.
func DecodeGPUConfig(raw []byte) (*GPUConfig, error) {
	var head GPUConfig
	// The rest of another kind means something else.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &struct {
		APIVersion *string `json:"apiVersion"`
		Kind       *string `json:"kind"`
	}{&head.APIVersion, &head.Kind}); err != nil {
		return nil, fmt.Errorf("reading parameters, %w", err)
	}
	if head.APIVersion != GroupVersion.String() || head.Kind != GPUConfigKind {
		return nil, fmt.Errorf("reading parameters, they are %s, and the driver knows only %s",
			kindOf(head.APIVersion, head.Kind), kindOf(GroupVersion.String(), GPUConfigKind))
	}
	config := &GPUConfig{}
	wrong, err := kjson.UnmarshalStrict(raw, config)
	if err != nil {
		return nil, fmt.Errorf("reading %s, %w", GPUConfigKind, err)
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("reading %s, %w", GPUConfigKind, errors.Join(wrong...))
	}
	config.Default()
	if errs := config.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("reading %s, %w", GPUConfigKind, errs.ToAggregate())
	}
	return config, nil
}

// kindOf says a kind, of what may have none.
func kindOf(apiVersion, kind string) string {
	if apiVersion == "" && kind == "" {
		return "of no apiVersion and kind"
	}
	return strings.Trim(apiVersion+"/"+kind, "/")
}

// Validate says what is contradictory or impossible, by field. It expects
// defaults to have been filled in.
func (c *GPUConfig) Validate() field.ErrorList { return c.Sharing.Validate(field.NewPath("sharing")) }

// Validate says what is contradictory or impossible, by field under path. It
// expects defaults to have been filled in. Nothing is wrong with nil.
func (s *Sharing) Validate(path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := validateEnum(s.Strategy, path.Child("strategy"), SharingExclusive, SharingTimeSlicing, SharingMPS)
	only := func(given bool, name string, strategy SharingStrategy) {
		if given && s.Strategy != strategy {
			errs = append(errs, field.Invalid(path.Child(name), "", fmt.Sprintf("may be set only where strategy is %s", strategy)))
		}
	}
	only(s.TimeSlicing != nil, "timeSlicing", SharingTimeSlicing)
	only(s.MPS != nil, "mps", SharingMPS)
	if s.TimeSlicing != nil {
		errs = append(errs, validateEnum(s.TimeSlicing.Interval, path.Child("timeSlicing", "interval"),
			IntervalDefault, IntervalShort, IntervalMedium, IntervalLong)...)
	}
	if s.MPS != nil {
		mps := path.Child("mps")
		errs = append(errs, validateRange(s.MPS.ActiveThreadPercentage, 1, 100, mps.Child("activeThreadPercentage"))...)
		if limit := s.MPS.PinnedDeviceMemoryLimit; limit != nil && limit.Cmp(memoryUnit) < 0 {
			errs = append(errs, field.Invalid(mps.Child("pinnedDeviceMemoryLimit"), limit.String(), "must be at least 1Mi"))
		}
	}
	return errs
}

// IsExclusive says whether nothing is to be set on a device; so it is for nil.
func (s *Sharing) IsExclusive() bool {
	return s == nil || s.Strategy == "" || s.Strategy == SharingExclusive
}

// Canonical is one way of writing what is asked for: nil for Exclusive, without
// what says no more than the default, quantities as numbers of bytes.
func (s *Sharing) Canonical() *Sharing {
	if s.IsExclusive() {
		return nil
	}
	c := s.DeepCopy()
	if t := c.TimeSlicing; t != nil && (t.Interval == "" || t.Interval == IntervalDefault) {
		c.TimeSlicing = nil
	}
	if c.MPS != nil {
		if limit := c.MPS.PinnedDeviceMemoryLimit; limit != nil {
			c.MPS.PinnedDeviceMemoryLimit = resource.NewQuantity(limit.Value()/memoryUnit.Value()*memoryUnit.Value(), resource.BinarySI)
		}
		if *c.MPS == (MPS{}) {
			c.MPS = nil
		}
	}
	return c
}

// Interval is that of time slicing, Default where none is given.
func (s *Sharing) Interval() TimeSliceInterval {
	if s == nil || s.TimeSlicing == nil || s.TimeSlicing.Interval == "" {
		return IntervalDefault
	}
	return s.TimeSlicing.Interval
}
