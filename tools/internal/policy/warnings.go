package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

// waits warns of waiting times that do not rise from tier to tier, and of a
// policy that gives nothing at first.
func waits(spec *v1alpha1.AcceleratorPolicySpec) []compile.Warning {
	var out []compile.Warning
	longest, at := time.Duration(0), ""
	shortest := time.Duration(-1)
	for i := range spec.Tiers {
		t := &spec.Tiers[i]
		after := time.Duration(0)
		if t.After != nil {
			after = t.After.Duration
		}
		if after < longest {
			out = append(out, compile.Warning{
				Field: fmt.Sprintf("spec.tiers[%d].after", i),
				Message: fmt.Sprintf("tier %s opens after %s, before the more wanted tier %s, which opens after %s; in between it is used although %s could serve",
					t.Name, brief(after), at, brief(longest), at),
			})
		} else if after > longest {
			longest, at = after, t.Name
		}
		if shortest < 0 || after < shortest {
			shortest = after
		}
	}
	if shortest > 0 {
		out = append(out, compile.Warning{
			Field:   "spec.tiers",
			Message: fmt.Sprintf("every tier has an after: no Pod gets anything in its first %s, however much is free", brief(shortest)),
		})
	}
	return out
}

// covered warns of a tier whose models all stand in earlier tiers. A tier that
// one earlier tier covers alone is refused by the API; here several do so
// together.
func covered(spec *v1alpha1.AcceleratorPolicySpec) []compile.Warning {
	var out []compile.Warning
	for j := range spec.Tiers {
		t := &spec.Tiers[j]
		if len(t.Models) == 0 {
			continue
		}
		var by []string
		all := true
		for _, m := range t.Models {
			i := slices.IndexFunc(spec.Tiers[:j], func(e v1alpha1.Tier) bool {
				return slices.Contains(e.Models, m) && len(e.Selectors) == 0 &&
					spec.CountOf(&e) <= spec.CountOf(t) && wait(&e) <= wait(t)
			})
			if i < 0 {
				all = false
				break
			}
			if name := spec.Tiers[i].Name; !slices.Contains(by, name) {
				by = append(by, name)
			}
		}
		// With mixed models a set of devices may fit this tier and none of the
		// earlier ones.
		if all && (spec.MixModels == v1alpha1.MixModelsNever || spec.CountOf(t) == 1) {
			out = append(out, compile.Warning{
				Field:   fmt.Sprintf("spec.tiers[%d].models", j),
				Message: fmt.Sprintf("tier %s is never used: the tiers %s before it take all of its models and need no more of them", t.Name, strings.Join(by, ", ")),
			})
		}
	}
	return out
}

// brief writes a duration without its zero parts: 10m, not 10m0s.
func brief(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func wait(t *v1alpha1.Tier) time.Duration {
	if t.After == nil {
		return 0
	}
	return t.After.Duration
}

// outOfQuota warns of a tenant that may use none of the policy's models.
func outOfQuota(spec *v1alpha1.AcceleratorPolicySpec, q *v1alpha1.TenantQuota) (compile.Warning, bool) {
	for i := range spec.Tiers {
		if len(spec.Tiers[i].Models) == 0 {
			return compile.Warning{}, false
		}
		for _, m := range q.Spec.Models {
			if slices.Contains(spec.Tiers[i].Models, m.Model) && (m.Limit == nil || *m.Limit >= spec.CountOf(&spec.Tiers[i])) {
				return compile.Warning{}, false
			}
		}
	}
	return compile.Warning{
		Field:   "spec.tiers",
		Message: fmt.Sprintf("TenantQuota %s fits no tier: its models or limits leave the namespaces %s without any device of this policy", q.Name, strings.Join(q.Spec.Namespaces, ", ")),
	}, true
}
