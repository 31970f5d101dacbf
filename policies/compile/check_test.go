package compile_test

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

func TestCheck(t *testing.T) {
	nine := make([]v1alpha1.Tier, 9)
	for i := range nine {
		nine[i] = v1alpha1.Tier{Name: "t" + string(rune('0'+i)), Models: []string{"M" + string(rune('0'+i))}}
	}
	tier := func(change func(*v1alpha1.AcceleratorPolicySpec)) v1alpha1.AcceleratorPolicySpec {
		spec := v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}}}
		change(&spec)
		return spec
	}
	for _, test := range []struct {
		name    string
		spec    v1alpha1.AcceleratorPolicySpec
		field   string // empty: accepted
		message string
	}{
		{"fine", tier(func(*v1alpha1.AcceleratorPolicySpec) {}), "", ""},
		{"selector of the constraints", tier(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.Selectors = []string{"true", "device.nonsense"}
		}), "spec.constraints.selectors[1]", "undefined field 'nonsense'"},
		{"selector of a tier", tier(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Tiers[0].Selectors = []string{"true", "true", "1 +"}
		}), "spec.tiers[0].selectors[2]", "Syntax error"},
		{"not a bool", tier(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Tiers[0].Selectors = []string{`"H100"`}
		}), "spec.tiers[0].selectors[0]", "must evaluate to bool"},
		{"too dear", tier(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.Selectors = []string{`device.attributes.all(d, device.attributes.all(e, device.attributes.all(f, device.attributes.all(g, true))))`}
		}), "spec.constraints.selectors[0]", "could cost more"},
		{"bool of an attribute", tier(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.Selectors = []string{`device.attributes["gpu.gpuladder.dev"].ready`}
		}), "", ""},
		{"nine tiers", tier(func(s *v1alpha1.AcceleratorPolicySpec) { s.Tiers = nine }), "spec.tiers", "8"},
		{"eight tiers", tier(func(s *v1alpha1.AcceleratorPolicySpec) { s.Tiers = nine[:8] }), "", ""},
		{"33 devices", tier(func(s *v1alpha1.AcceleratorPolicySpec) { s.Count = ptr.To[int32](33) }), "spec.count", "32"},
		{"33 devices in a tier", tier(func(s *v1alpha1.AcceleratorPolicySpec) { s.Tiers[0].Count = ptr.To[int32](33) }), "spec.tiers[0].count", "32"},
		{"unknown driver", tier(func(s *v1alpha1.AcceleratorPolicySpec) { s.Driver = "gpu.example.com" }), "spec.driver", "gpu.example.com"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.spec.Default()
			errs := compile.Check(&test.spec)
			if test.field == "" {
				if len(errs) > 0 {
					t.Errorf("got %v, want no error", errs)
				}
				return
			}
			if len(errs) != 1 || errs[0].Field != test.field || !strings.Contains(errs[0].Error(), test.message) {
				t.Errorf("got %v, want one error at %s with %q", errs, test.field, test.message)
			}
			if len(errs) > 0 && strings.Contains(errs[0].Error(), "\n") {
				t.Errorf("the message has several lines: %q", errs[0].Error())
			}
			if _, err := compile.Revision(policyOf(test.spec), 1); err == nil || !strings.Contains(err.Error(), test.field) {
				t.Errorf("compiling all the same: got error %v, want one at %s", err, test.field)
			}
		})
	}
}

func TestLint(t *testing.T) {
	const model = `device.attributes["gpu.gpuladder.dev"].model`
	for _, test := range []struct {
		name, selector string
		want           []string // the references warned of
	}{
		{"unguarded", model + ` == "H100"`, []string{model}},
		{"in brackets", `device.attributes["gpu.gpuladder.dev"]["model"] == "H100"`, []string{model}},
		{"capacity", `device.capacity["gpu.gpuladder.dev"].memory.isGreaterThan(quantity("1Gi"))`, []string{`device.capacity["gpu.gpuladder.dev"].memory`}},
		{"twice, told once", model + ` == "H100" || ` + model + ` == "A100"`, []string{model}},
		{"default", `device.attributes["gpu.gpuladder.dev"].?model.orValue("") == "H100"`, nil},
		{"has", `has(` + model + `) && ` + model + ` == "H100"`, nil},
		{"has, behind", model + ` == "H100" && has(` + model + `)`, nil},
		{"in", `"model" in device.attributes["gpu.gpuladder.dev"] && ` + model + ` == "H100"`, nil},
		{"deep inside", `has(` + model + `) && (true && (false || ` + model + `.startsWith("H")))`, nil},
		{"not has or", `!has(` + model + `) || ` + model + ` == "H100"`, nil},
		{"has or", `has(` + model + `) || ` + model + ` == "H100"`, []string{model}},
		{"guard of another name", `has(device.attributes["gpu.gpuladder.dev"].brand) && ` + model + ` == "H100"`, []string{model}},
		{"guard of another domain", `has(device.attributes["gpu.nvidia.com"].model) && ` + model + ` == "H100"`, []string{model}},
		{"conditional", `has(` + model + `) ? ` + model + ` == "H100" : false`, nil},
		{"wrong branch", `has(` + model + `) ? false : ` + model + ` == "H100"`, []string{model}},
		{"in a macro", `["H100"].exists(m, ` + model + ` == m)`, []string{model}},
		{"guarded macro", `has(` + model + `) && ["H100"].exists(m, ` + model + ` == m)`, nil},
		{"bind", `cel.bind(a, device.attributes["gpu.gpuladder.dev"], has(a.model))`, nil},
		{"does not compile", `device.nonsense`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			spec := v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{{Name: "a", Selectors: []string{test.selector}}}}
			spec.Default()
			warnings := compile.Lint(&spec)
			if len(warnings) != len(test.want) {
				t.Fatalf("got %v, want warnings of %v", warnings, test.want)
			}
			for i, w := range warnings {
				if w.Field != "spec.tiers[0].selectors[0]" || !strings.HasPrefix(w.Message, test.want[i]+" is read without a guard") {
					t.Errorf("got %v, want a warning of %s", w, test.want[i])
				}
			}
		})
	}
}
