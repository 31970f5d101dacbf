package fleet

// This file says what a valid fleet is.

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// maxGroupName leaves room for the number of the node within a DNS label.
const maxGroupName = 50

// Validate checks a fleet after [Fleet.Default]. Errors carry field paths.
func (f *Fleet) Validate() field.ErrorList {
	var errs field.ErrorList
	if want := v1alpha1.GroupVersion.String(); f.APIVersion != want {
		errs = append(errs, field.NotSupported(field.NewPath("apiVersion"), f.APIVersion, []string{want}))
	}
	if f.Kind != Kind {
		errs = append(errs, field.NotSupported(field.NewPath("kind"), f.Kind, []string{Kind}))
	}
	boards := map[string]bool{}
	for i := range catalog {
		boards[catalog[i].Name] = true
	}
	for i := range f.Boards {
		path := field.NewPath("boards").Index(i)
		errs = append(errs, f.Boards[i].validate(path)...)
		if boards[f.Boards[i].Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), f.Boards[i].Name))
		}
		boards[f.Boards[i].Name] = true
	}
	path := field.NewPath("groups")
	if len(f.Groups) == 0 {
		errs = append(errs, field.Required(path, "a fleet has at least one group"))
	}
	names := map[string]bool{}
	for i := range f.Groups {
		errs = append(errs, f.Groups[i].validate(path.Index(i), boards)...)
		if names[f.Groups[i].Name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), f.Groups[i].Name))
		}
		names[f.Groups[i].Name] = true
	}
	if count := f.DeviceCount(); len(errs) == 0 && count > MaxDevices {
		errs = append(errs, field.Invalid(path, count, fmt.Sprintf("a fleet has at most %d devices in all", MaxDevices)))
	}
	return errs
}

func (b *Board) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range validation.IsValidLabelValue(b.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), b.Name, name))
	}
	for _, text := range []struct{ field, value string }{
		{"name", b.Name},
		{"model", b.Model},
		{"productName", b.ProductName},
		{"architecture", b.Architecture},
		{"brand", b.Brand},
	} {
		switch {
		case text.value == "":
			errs = append(errs, field.Required(path.Child(text.field), ""))
		case len(text.value) > resourcev1.DeviceAttributeMaxValueLength:
			errs = append(errs, field.TooLong(path.Child(text.field), text.value, resourcev1.DeviceAttributeMaxValueLength))
		}
	}
	errs = append(errs, validateVersion(path.Child("computeCapability"), b.ComputeCapability)...)
	errs = append(errs, validateVersion(path.Child("driverVersion"), b.DriverVersion)...)
	return append(errs, validatePositive(path.Child("memory"), b.Memory)...)
}

func (g *Group) validate(path *field.Path, boards map[string]bool) field.ErrorList {
	var errs field.ErrorList
	for _, message := range validation.IsDNS1123Label(g.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), g.Name, message))
	}
	if len(g.Name) > maxGroupName {
		errs = append(errs, field.TooLong(path.Child("name"), g.Name, maxGroupName))
	}
	errs = append(errs, validateRange(path.Child("nodes"), g.Nodes, 1, MaxNodesPerGroup)...)
	switch {
	case g.Board == "" && g.GPUs != 0:
		errs = append(errs, field.Required(path.Child("board"), "nodes with GPUs need a board"))
	case g.Board != "" && !boards[g.Board]:
		errs = append(errs, field.NotSupported(path.Child("board"), g.Board, slices.Sorted(maps.Keys(boards))))
	}
	if g.Board != "" {
		errs = append(errs, validateRange(path.Child("gpus"), g.GPUs, 1, MaxGPUsPerNode)...)
	}
	errs = append(errs, validateRange(path.Child("numaNodes"), g.NUMANodes, 1, MaxNUMANodes)...)
	errs = append(errs, validateRange(path.Child("pods"), int(g.Pods), 1, 1<<20)...)
	errs = append(errs, validatePositive(path.Child("cpu"), g.CPU)...)
	errs = append(errs, validatePositive(path.Child("memory"), g.Memory)...)
	if g.DriverVersion != "" {
		errs = append(errs, validateVersion(path.Child("driverVersion"), g.DriverVersion)...)
	}
	if g.MIG != nil {
		errs = append(errs, g.MIG.validate(path.Child("mig"), g.Board)...)
	}
	errs = append(errs, metav1validation.ValidateLabels(g.Labels, path.Child("labels"))...)
	for i := range g.Taints {
		errs = append(errs, validateTaint(path.Child("taints").Index(i), &g.Taints[i])...)
	}
	return errs
}

func validateTaint(path *field.Path, taint *corev1.Taint) field.ErrorList {
	var errs field.ErrorList
	for _, message := range validation.IsQualifiedName(taint.Key) {
		errs = append(errs, field.Invalid(path.Child("key"), taint.Key, message))
	}
	for _, message := range validation.IsValidLabelValue(taint.Value) {
		errs = append(errs, field.Invalid(path.Child("value"), taint.Value, message))
	}
	effects := []corev1.TaintEffect{corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule}
	if !slices.Contains(effects, taint.Effect) {
		errs = append(errs, field.NotSupported(path.Child("effect"), taint.Effect, effects))
	}
	return errs
}

func validateRange(path *field.Path, value, least, most int) field.ErrorList {
	if value < least || value > most {
		return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be %d to %d", least, most))}
	}
	return nil
}

func validatePositive(path *field.Path, value resource.Quantity) field.ErrorList {
	if value.Sign() <= 0 {
		return field.ErrorList{field.Invalid(path, value.String(), "must be more than zero")}
	}
	return nil
}

func validateVersion(path *field.Path, value string) field.ErrorList {
	if _, err := semver(value); err != nil {
		return field.ErrorList{field.Invalid(path, value, "must be one to three numbers joined by dots")}
	}
	return nil
}
