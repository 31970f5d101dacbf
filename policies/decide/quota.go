package decide

// Tenants' quotas: what a tenant holds, by model, and what it may still take.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// quota is a TenantQuota.
type quota struct {
	obj    *v1alpha1.TenantQuota
	sum    lanes
	models []string
}

// putQuota replaces the quota of this name. A namespace belongs to one tenant:
// where several quotas list it, to the one with the smallest name. All of them
// are kept, because quotas that change one after another may overlap in between.
func (st *State) putQuota(obj *v1alpha1.TenantQuota) {
	st.dropQuota(obj.Name)
	q := &quota{obj: obj, sum: sumOf("TenantQuota", quotaContent(obj))}
	for i := range obj.Spec.Models {
		q.models = append(q.models, obj.Spec.Models[i].Model)
	}
	st.quotas[obj.Name] = q
	for _, ns := range obj.Spec.Namespaces {
		st.claimants[ns] = append(withoutQuota(st.claimants[ns], q), q)
		slices.SortFunc(st.claimants[ns], func(a, b *quota) int { return cmp.Compare(a.obj.Name, b.obj.Name) })
	}
	st.digest.add(&q.sum)
}

func (st *State) dropQuota(name string) {
	q := st.quotas[name]
	if q == nil {
		return
	}
	delete(st.quotas, name)
	for _, ns := range q.obj.Spec.Namespaces {
		if st.claimants[ns] = withoutQuota(st.claimants[ns], q); len(st.claimants[ns]) == 0 {
			delete(st.claimants, ns)
		}
	}
	st.digest.sub(&q.sum)
}

func withoutQuota(quotas []*quota, q *quota) []*quota {
	return slices.DeleteFunc(quotas, func(o *quota) bool { return o == q })
}

// quotaOf returns the quota of the tenant that the namespace belongs to, or nil.
func (st *State) quotaOf(namespace string) *quota {
	if quotas := st.claimants[namespace]; len(quotas) > 0 {
		return quotas[0]
	}
	return nil
}

// charge counts a device of a model for a namespace.
func (st *State) charge(namespace string, m modelKey, by int) {
	if m == (modelKey{}) {
		return
	}
	counts := st.charges[namespace]
	if counts == nil {
		counts = map[modelKey]int{}
		st.charges[namespace] = counts
	}
	if counts[m] += by; counts[m] == 0 {
		delete(counts, m)
	}
	if len(counts) == 0 {
		delete(st.charges, namespace)
	}
}

// budget is what a Pod's tenant may still take, as far as the Pod may take it. A
// nil budget sets no limit.
type budget struct {
	models []string // that the tenant may use
	limit  []int    // by place in models; math.MaxInt: no limit
	used   []int
	// turn are the models that the Pod's turn is for; empty: any. Others may be
	// free, but they are set aside for other tenants.
	turn []string

	// What is known of the model that was asked for last: fleets come in runs.
	lastModel  modelKey
	lastPlace  int
	lastInTurn bool
}

// budgetOf returns the budget of the Pod's tenant, without what is assumed for
// the Pod itself; with nothing used, and for any turn, where fresh is set.
func (st *State) budgetOf(p *pod, fresh bool) *budget {
	q := st.quotaOf(p.key.Namespace)
	if q == nil {
		return nil
	}
	b := &budget{models: q.models, limit: make([]int, len(q.models)), used: make([]int, len(q.models)), lastPlace: -1}
	for i := range q.obj.Spec.Models {
		b.limit[i] = math.MaxInt
		if l := q.obj.Spec.Models[i].Limit; l != nil {
			b.limit[i] = int(*l)
		}
	}
	if fresh {
		return b
	}
	b.turn = v1alpha1.TurnModels(p.obj) // before any model is looked up
	for _, ns := range q.obj.Spec.Namespaces {
		if st.quotaOf(ns) != q {
			continue
		}
		for m, n := range st.charges[ns] {
			if i := b.place(m); i >= 0 {
				b.used[i] += n
			}
		}
	}
	if p.assumed != nil {
		for _, h := range p.assumed.holds {
			if i := b.place(h.model); i >= 0 {
				b.used[i]--
			}
		}
	}
	return b
}

// find says where the model stands in the quota, or -1, and whether the Pod's turn
// is for it.
func (b *budget) find(m modelKey) (place int, inTurn bool) {
	if m != b.lastModel {
		b.lastModel, b.lastPlace = m, slices.IndexFunc(b.models, m.has)
		b.lastInTurn = len(b.turn) == 0 || slices.ContainsFunc(b.turn, m.has)
	}
	return b.lastPlace, b.lastInTurn
}

// place is where the model stands in the quota, or -1.
func (b *budget) place(m modelKey) int {
	i, _ := b.find(m)
	return i
}

// exempt: no quota speaks of devices without a model, those of other drivers.
func exempt(m modelKey) bool { return m == (modelKey{}) }

// refuses says why the Pod can't take n devices of the model, or "".
func (b *budget) refuses(m modelKey, n int) string {
	if b == nil || exempt(m) {
		return ""
	}
	i, inTurn := b.find(m)
	switch {
	case i < 0:
		return "the tenant's quota does not list " + m.plain()
	case !inTurn:
		return "the Pod's turn is for " + strings.Join(b.turn, ", ") + " only"
	case b.limit[i]-b.used[i] < n:
		return fmt.Sprintf("%d of %d %s in use by the tenant, %d wanted", b.used[i], b.limit[i], b.models[i], n)
	}
	return ""
}

// allows is refuses without the words.
func (b *budget) allows(m modelKey, n int) bool {
	if b == nil || exempt(m) {
		return true
	}
	i, inTurn := b.find(m)
	return i >= 0 && inTurn && b.limit[i]-b.used[i] >= n
}

// take charges one device; the model must be allowed.
func (b *budget) take(m modelKey, by int) {
	if b == nil || exempt(m) {
		return
	}
	if i := b.place(m); i >= 0 {
		b.used[i] += by
	}
}
