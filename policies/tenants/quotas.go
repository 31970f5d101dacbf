package tenants

// Whose a namespace is.

import (
	"maps"
	"slices"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// unlimited is the tenant that a namespace without a quota makes. No quota can
// have the name: it is no object's.
func unlimited(namespace string) string { return "namespace:" + namespace }

// tenant is whose the namespace is, and whether a quota says so.
func (m *Mirror) tenant(namespace string) (string, bool) {
	if name, ok := m.owner[namespace]; ok {
		return name, true
	}
	return unlimited(namespace), false
}

// Conflict is a namespace that a quota names and another one has.
type Conflict struct{ Namespace, Owner string }

// Conflicts of a quota. The scheduler has the same rule: the quota whose name
// comes first has the namespace.
func (m *Mirror) Conflicts(quota string) []Conflict {
	q := m.quotas[quota]
	if q == nil {
		return nil
	}
	var found []Conflict
	for _, ns := range q.Spec.Namespaces {
		if owner := m.owner[ns]; owner != quota {
			found = append(found, Conflict{ns, owner})
		}
	}
	return found
}

// Quotas lists the quotas that are there, by name.
func (m *Mirror) Quotas() []*v1alpha1.TenantQuota {
	var list []*v1alpha1.TenantQuota
	for _, name := range slices.Sorted(maps.Keys(m.quotas)) {
		list = append(list, m.quotas[name])
	}
	return list
}

// Quota of this name, or nil.
func (m *Mirror) Quota(name string) *v1alpha1.TenantQuota { return m.quotas[name] }

// own gives each namespace to the first quota that names it, and reports the
// namespaces that changed hands.
func (m *Mirror) own() map[string]bool {
	before := m.owner
	m.owner = map[string]string{}
	for _, q := range m.Quotas() {
		for _, ns := range q.Spec.Namespaces {
			if _, ok := m.owner[ns]; !ok {
				m.owner[ns] = q.Name
			}
		}
	}
	changed := map[string]bool{}
	for ns, name := range m.owner {
		if before[ns] != name {
			changed[ns] = true
		}
	}
	for ns := range before {
		if _, ok := m.owner[ns]; !ok {
			changed[ns] = true
		}
	}
	return changed
}

// quotaOf is the quota as the engine has it.
func quotaOf(q *v1alpha1.TenantQuota) fair.Quota {
	spec := q.DeepCopy()
	spec.Default()
	out := fair.Quota{Tenant: q.Name, Weight: int64(*spec.Spec.Weight)}
	for _, m := range spec.Spec.Models {
		own := fair.ModelQuota{Model: m.Model, Guaranteed: int64(m.Guaranteed)}
		if m.Limit != nil {
			limit := int64(*m.Limit)
			own.Limit = &limit
		}
		out.Models = append(out.Models, own)
	}
	return out
}
