package tenants

// What a revision of a policy lets a Pod have, as the engine counts it: models
// and how many of them.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/selector"
)

// maxExpressions bounds the cache of compiled expressions.
const maxExpressions = 1024

// tiers is what a revision comes to.
type tiers struct {
	alternatives []fair.Alternative
	// open: a tier names no model, so that the fleet decides which it has.
	open bool
	err  error
}

// tiersOf a revision, worked out once.
func (m *Mirror) tiersOf(revision *v1alpha1.PolicyRevision) *tiers {
	if t := m.tiers[revision.Name]; t != nil {
		return t
	}
	t := &tiers{}
	spec := revision.Spec.PolicySpec.DeepCopy()
	spec.Default()
	for i := range spec.Tiers {
		tier := &spec.Tiers[i]
		a := fair.Alternative{Models: slices.Clone(tier.Models), Count: int64(spec.CountOf(tier))}
		if tier.After != nil {
			a.After = tier.After.Duration
		}
		if len(tier.Models) == 0 {
			t.open = true
			var err error
			if a.Models, err = m.accepted(revision, i, spec.Driver); err != nil {
				t.err = err
			}
		}
		if len(a.Models) > 0 {
			t.alternatives = append(t.alternatives, a)
		}
	}
	m.tiers[revision.Name] = t
	return t
}

// accepted are the models of the fleet that a tier without models takes: those
// of which a device passes its conditions, the cheaper first.
func (m *Mirror) accepted(revision *v1alpha1.PolicyRevision, tier int, driver string) ([]string, error) {
	template, err := compile.Template(revision, "default")
	if err != nil {
		return nil, fmt.Errorf("reading tier %d, %w", tier, err)
	}
	selectors := template.Spec.Spec.Devices.Requests[0].FirstAvailable[tier].Selectors
	found := map[string]bool{}
	for k, device := range m.fleet.kinds {
		if k.driver == driver && !found[k.model] && m.passes(selectors, driver, device) {
			found[k.model] = true
		}
	}
	models := slices.Collect(maps.Keys(found))
	slices.SortFunc(models, func(a, b string) int {
		return cmp.Or(cmp.Compare(m.costs[a], m.costs[b]), cmp.Compare(a, b))
	})
	return models, nil
}

// passes: every selector says yes. An error is a no, as it is to the scheduler.
func (m *Mirror) passes(selectors []resourceapi.DeviceSelector, driver string, d *resourceapi.Device) bool {
	for _, s := range selectors {
		if s.CEL == nil {
			continue
		}
		ok, err := selector.Match(m.expressions, s.CEL.Expression, driver, d)
		if err != nil || !ok {
			return false
		}
	}
	return true
}
