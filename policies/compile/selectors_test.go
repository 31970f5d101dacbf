package compile_test

import (
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

func str(s string) resourcev1.DeviceAttribute {
	return resourcev1.DeviceAttribute{StringValue: ptr.To(s)}
}

func ver(s string) resourcev1.DeviceAttribute {
	return resourcev1.DeviceAttribute{VersionValue: ptr.To(s)}
}

func num(i int64) resourcev1.DeviceAttribute {
	return resourcev1.DeviceAttribute{IntValue: ptr.To(i)}
}

// board is a device as both drivers publish it; change makes a variant of it.
func board(driver string, change ...func(*dracel.Device)) dracel.Device {
	d := dracel.Device{
		Driver: driver,
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"productName":           str("NVIDIA H100 80GB HBM3"),
			"architecture":          str("Hopper"),
			"cudaComputeCapability": ver("9.0.0"),
			"driverVersion":         ver("550.54.15"),
		},
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
			"memory": {Value: resource.MustParse("81559Mi")},
		},
	}
	if driver == v1alpha1.DriverName {
		d.Attributes["model"] = str("H100")
	}
	for _, c := range change {
		c(&d)
	}
	return d
}

func with(name resourcev1.QualifiedName, a resourcev1.DeviceAttribute) func(*dracel.Device) {
	return func(d *dracel.Device) { d.Attributes[name] = a }
}

func without(name resourcev1.QualifiedName) func(*dracel.Device) {
	return func(d *dracel.Device) { delete(d.Attributes, name) }
}

func memory(q string) func(*dracel.Device) {
	return func(d *dracel.Device) { d.Capacity["memory"] = resourcev1.DeviceCapacity{Value: resource.MustParse(q)} }
}

func bare(driver string) dracel.Device { return dracel.Device{Driver: driver} }

func shareable(d *dracel.Device) { d.AllowMultipleAllocations = ptr.To(true) }

// matches evaluates a tier's selectors as an API server of 1.37 accepts them
// and its allocator runs them: one after another, until one says no.
func matches(t *testing.T, spec v1alpha1.AcceleratorPolicySpec, d dracel.Device) bool {
	t.Helper()
	policy := &v1alpha1.AcceleratorPolicy{Spec: spec}
	policy.Name = "p"
	revision, err := compile.Revision(policy, 1)
	if err != nil {
		t.Fatal(err)
	}
	template, err := compile.Template(revision, "ns")
	if err != nil {
		t.Fatal(err)
	}
	env := environment.NewExpressions
	selectors := compile.DeviceClass(revision.Spec.PolicySpec.Driver).Spec.Selectors
	selectors = append(selectors, template.Spec.Spec.Devices.Requests[0].FirstAvailable[0].Selectors...)
	all := true
	for _, s := range selectors {
		result := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true}).
			CompileCELExpression(s.CEL.Expression, dracel.Options{EnvType: &env})
		if result.Error != nil {
			t.Fatalf("%s: %v", s.CEL.Expression, result.Error)
		}
		if result.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
			t.Fatalf("%s: an API server estimates its cost at %d and refuses it", s.CEL.Expression, result.MaxCost)
		}
		ok, _, err := result.DeviceMatches(t.Context(), d)
		if err != nil {
			t.Fatalf("%s: a device must never make it fail, %v", s.CEL.Expression, err)
		}
		all = all && ok
	}
	return all
}

func TestSelectorsDecide(t *testing.T) {
	const ladder, nvidia = v1alpha1.DriverName, v1alpha1.NVIDIADriverName
	models := func(driver string, m ...string) v1alpha1.AcceleratorPolicySpec {
		return v1alpha1.AcceleratorPolicySpec{Driver: driver, Tiers: []v1alpha1.Tier{{Name: "t", Models: m}}}
	}
	constrained := func(driver string, c v1alpha1.Constraints) v1alpha1.AcceleratorPolicySpec {
		return v1alpha1.AcceleratorPolicySpec{Driver: driver, Constraints: c, Tiers: []v1alpha1.Tier{{Name: "t"}}}
	}
	minMemory := func(driver, q string) v1alpha1.AcceleratorPolicySpec {
		return constrained(driver, v1alpha1.Constraints{MinMemory: ptr.To(resource.MustParse(q))})
	}
	minDriver := func(driver, v string) v1alpha1.AcceleratorPolicySpec {
		return constrained(driver, v1alpha1.Constraints{MinDriverVersion: v})
	}
	minCC := func(driver, v string) v1alpha1.AcceleratorPolicySpec {
		return constrained(driver, v1alpha1.Constraints{MinComputeCapability: v})
	}
	arch := func(driver string, a ...string) v1alpha1.AcceleratorPolicySpec {
		return constrained(driver, v1alpha1.Constraints{Architectures: a})
	}
	exclusive := constrained(ladder, v1alpha1.Constraints{Isolation: v1alpha1.IsolationExclusive})
	shared := constrained(ladder, v1alpha1.Constraints{Isolation: v1alpha1.IsolationShared})

	for _, test := range []struct {
		name   string
		spec   v1alpha1.AcceleratorPolicySpec
		device dracel.Device
		want   bool
	}{
		{"model", models(ladder, "A100", "H100"), board(ladder), true},
		{"other model", models(ladder, "A100"), board(ladder), false},
		{"model is compared whole", models(ladder, "H10"), board(ladder), false},
		{"model missing", models(ladder, "H100"), board(ladder, without("model")), false},
		{"model of another type", models(ladder, "H100"), board(ladder, with("model", num(100))), false},
		{"nothing published", models(ladder, "H100"), bare(ladder), false},
		{"model needs quoting", models(ladder, `H"1\0`), board(ladder, with("model", str(`H"1\0`))), true},
		{"another driver's device", models(ladder, "H100"), board("gpu.example.com", with("gpu.gpuladder.dev/model", str("H100"))), false},
		{"any model", models(ladder), bare(ladder), true},

		{"word of the product name", models(nvidia, "H100"), board(nvidia), true},
		{"word split at hyphen", models(nvidia, "A100"), board(nvidia, with("productName", str("NVIDIA A100-SXM4-80GB"))), true},
		{"not a part of a word", models(nvidia, "L4"), board(nvidia, with("productName", str("NVIDIA L40S"))), false},
		{"word is compared whole", models(nvidia, "A10"), board(nvidia, with("productName", str("NVIDIA A100-SXM4-80GB"))), false},
		{"a dot is a dot", models(nvidia, "H.00"), board(nvidia), false},
		{"product name missing", models(nvidia, "H100"), board(nvidia, without("productName")), false},
		{"product name of another type", models(nvidia, "H100"), board(nvidia, with("productName", num(1))), false},
		{"NVIDIA, nothing published", models(nvidia, "H100"), bare(nvidia), false},

		{"enough memory", minMemory(ladder, "40Gi"), board(ladder, memory("40Gi")), true},
		{"one byte short", minMemory(ladder, "40Gi"), board(ladder, memory("42949672959")), false},
		{"other spelling", minMemory(ladder, "42949672960"), board(ladder, memory("40Gi")), true},
		{"memory missing", minMemory(ladder, "1"), bare(ladder), false},
		{"NVIDIA memory", minMemory(nvidia, "80Gi"), board(nvidia), false},
		{"NVIDIA memory enough", minMemory(nvidia, "79Gi"), board(nvidia), true},

		{"driver equal", minDriver(ladder, "550.54.15"), board(ladder), true},
		{"driver newer", minDriver(ladder, "550.54"), board(ladder), true},
		{"driver older", minDriver(ladder, "550.54.16"), board(ladder), false},
		{"numbers, not text", minDriver(ladder, "550.6"), board(ladder), true},
		{"leading zeros", minDriver(ladder, "550.054.014"), board(ladder), true},
		{"only the major", minDriver(ladder, "551"), board(ladder), false},
		{"driver missing", minDriver(ladder, "1"), board(ladder, without("driverVersion")), false},
		{"driver as text", minDriver(ladder, "1"), board(ladder, with("driverVersion", str("550.54.15"))), false},
		{"driver as number", minDriver(nvidia, "1"), board(nvidia, with("driverVersion", num(550))), false},

		{"capability enough", minCC(ladder, "9.0"), board(ladder), true},
		{"capability too low", minCC(ladder, "9.1"), board(ladder), false},
		{"ten is above nine", minCC(nvidia, "9.0"), board(nvidia, with("cudaComputeCapability", ver("10.0.0"))), true},
		{"capability missing", minCC(nvidia, "1"), bare(nvidia), false},

		{"architecture", arch(ladder, "Ampere", "Hopper"), board(ladder), true},
		{"architecture excluded", arch(ladder, "Ampere"), board(ladder), false},
		{"architecture with a space", arch(nvidia, "Ada Lovelace"), board(nvidia, with("architecture", str("Ada Lovelace"))), true},
		{"architecture missing", arch(ladder, "Hopper"), bare(ladder), false},

		{"exclusive", exclusive, board(ladder), true},
		{"exclusive, but shareable", exclusive, board(ladder, shareable), false},
		{"shared", shared, board(ladder, shareable), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := matches(t, test.spec, test.device); got != test.want {
				t.Errorf("the tier matches: %v, want %v", got, test.want)
			}
		})
	}
}

// TestSelectorsAtTheLimits compiles the largest policy that the API allows:
// matches fails if an API server would find a selector too long or too dear.
func TestSelectorsAtTheLimits(t *testing.T) {
	for _, driver := range compile.Drivers() {
		long := make([]string, 16)
		for i := range long {
			for len(long[i]) < 64 {
				long[i] += string(rune('A' + i))
			}
		}
		spec := v1alpha1.AcceleratorPolicySpec{
			Driver: driver,
			Constraints: v1alpha1.Constraints{
				MinMemory: ptr.To(resource.MustParse("1Gi")), MinComputeCapability: "9999.999999.999999",
				MinDriverVersion: "999999.999999.999999", Architectures: long, Isolation: v1alpha1.IsolationExclusive,
			},
			Tiers: []v1alpha1.Tier{{Name: "t", Models: long}},
		}
		if matches(t, spec, board(driver)) {
			t.Errorf("%s: a device without any of the models matches", driver)
		}
	}
}

// TestConstraintsHoldInEveryTier guards against the trap of prioritized lists:
// an alternative inherits nothing.
func TestConstraintsHoldInEveryTier(t *testing.T) {
	policy := &v1alpha1.AcceleratorPolicy{Spec: v1alpha1.AcceleratorPolicySpec{
		Constraints: v1alpha1.Constraints{
			MinMemory:     ptr.To(resource.MustParse("40Gi")),
			Architectures: []string{"Hopper"},
			Selectors:     []string{`device.attributes["gpu.gpuladder.dev"].?brand.orValue("") == "Nvidia"`},
		},
		Tiers: []v1alpha1.Tier{
			{Name: "a", Models: []string{"H100"}},
			{Name: "b", Models: []string{"A100"}},
			{Name: "c", Selectors: []string{`device.attributes["gpu.gpuladder.dev"].?type.orValue("") == "mig"`}},
			{Name: "d"},
		},
	}}
	policy.Name = "p"
	revision, err := compile.Revision(policy, 1)
	if err != nil {
		t.Fatal(err)
	}
	template, err := compile.Template(revision, "ns")
	if err != nil {
		t.Fatal(err)
	}
	tiers := template.Spec.Spec.Devices.Requests[0].FirstAvailable
	if len(tiers) != 4 {
		t.Fatalf("got %d alternatives, want 4", len(tiers))
	}
	hard := tiers[3].Selectors // the tier without any condition of its own
	if len(hard) != 3 {
		t.Fatalf("got %d hard constraints, want 3", len(hard))
	}
	for _, tier := range tiers {
		for _, want := range hard {
			found := false
			for _, s := range tier.Selectors {
				found = found || s.CEL.Expression == want.CEL.Expression
			}
			if !found {
				t.Errorf("tier %s lacks the hard constraint %s", tier.Name, want.CEL.Expression)
			}
		}
	}
	if last := tiers[2].Selectors[len(tiers[2].Selectors)-1].CEL.Expression; last != policy.Spec.Constraints.Selectors[0] {
		t.Errorf("the free selectors must come last, got %s", last)
	}
}
