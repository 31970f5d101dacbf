// Package quota judges from what was observed of a cluster whether tenants were
// held to their quotas. It is a naive twin: it counts anew from the allocations
// of claims, by the rules that docs/quota.md publishes, and shares no code with
// those who hold the quotas.
//
//   - [Limits]: no allocation gives a tenant more devices of a model than the
//     limit that is in force at that moment. It looks at every resource version.
//   - [LeftWaiting]: of what is there at one moment, the Pods that wait although
//     nothing keeps them from devices.
package quota

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Unlimited stands for a limit that a quota does not set.
const Unlimited = -1

// Excess is an allocation after which a tenant had more devices of a model than
// its limit.
type Excess struct {
	// Claim is the namespace and name of the claim that was allocated, Version
	// the resource version of that.
	Claim   string    `json:"claim"`
	Version uint64    `json:"version"`
	At      time.Time `json:"at"`
	Tenant  string    `json:"tenant"`
	Model   string    `json:"model"`
	// Used is what the tenant had then, Limit the limit in force.
	Used  int `json:"used"`
	Limit int `json:"limit"`
	// After is how long the limit had been in force, where an earlier one would
	// have allowed it; negative where no earlier one would have.
	After time.Duration `json:"after"`
}

func (e Excess) String() string {
	text := fmt.Sprintf("claim %s at version %d (%s): tenant %s had %d %s, limit %d",
		e.Claim, e.Version, e.At.Format("15:04:05.000"), e.Tenant, e.Used, e.Model, e.Limit)
	if e.After >= 0 {
		text += fmt.Sprintf(" since %s", e.After.Round(time.Millisecond))
	}
	return text
}

// Result is what [Limits] found.
type Result struct {
	// Versions counts the changes of claims and quotas, each judged at its own
	// resource version.
	Versions int `json:"versions"`
	// Given and Returned count devices of tenants.
	Given    int `json:"given"`
	Returned int `json:"returned"`
	// AtLimit counts the allocations after which the tenant had exactly its
	// limit: those that a limit came close to refusing.
	AtLimit int `json:"atLimit"`
	// Changes counts changed limits. Below counts those of them that were set
	// below what the tenant had.
	Changes int `json:"changes"`
	Below   int `json:"below"`
	// Passed are the violations.
	Passed []Excess `json:"passed,omitempty"`
	// Crossed are allocations that met a limit on its way down: an earlier
	// limit, in force until at most the given time before, allowed them.
	Crossed []Excess `json:"crossed,omitempty"`
	// Missing says what the history lacks, so that nothing can be said.
	Missing []string `json:"missing,omitempty"`
}

// Err is nil if enough was seen and no limit was passed.
func (r *Result) Err() error {
	switch {
	case len(r.Passed) > 0:
		return fmt.Errorf("%d allocations passed a limit, the first: %s", len(r.Passed), r.Passed[0])
	case len(r.Missing) > 0:
		return fmt.Errorf("the history is not complete: %s", r.Missing[0])
	case r.Given == 0:
		return errors.New("no device was given to a tenant, so nothing is shown")
	}
	return nil
}

// Limits replays a history in the order of resource versions. After each
// allocation it compares what the tenant has of each model that it was given
// with the limit in force. A limit that was lowered below what a tenant has
// takes nothing away from it, but nothing of that model may be given until
// enough has come back.
//
// Between the moment in which the scheduler looks at the quota last and the
// moment in which its write takes effect the limit can change. So an allocation
// that an earlier limit allows, which was in force until at most settle before,
// is counted as crossed and not as a violation.
func Limits(h invariants.History, settle time.Duration) Result {
	l := &ledger{
		models: map[device]string{}, claims: map[types.UID]*held{}, quotas: map[string]*v1alpha1.TenantQuota{},
		past: map[string][]outdated{}, settle: settle,
	}
	l.Missing = h.Gaps()
	for _, e := range h.ByVersion() {
		switch {
		case e.Slice != nil:
			l.slice(e.Slice)
		case e.Claim != nil:
			l.Versions++
			l.claim(e)
		case e.Quota != nil:
			l.Versions++
			l.quota(e)
		}
	}
	return l.Result
}

type device struct{ driver, pool, name string }

// held is a claim that has devices.
type held struct {
	namespace string
	models    map[string]int
}

// outdated is a quota that was replaced at the given time.
type outdated struct {
	quota *v1alpha1.TenantQuota
	until time.Time
}

// ledger is what is known at one resource version.
type ledger struct {
	models map[device]string // stays known when the slice is gone
	claims map[types.UID]*held
	quotas map[string]*v1alpha1.TenantQuota
	past   map[string][]outdated
	settle time.Duration
	Result
}

func (l *ledger) slice(s *resourcev1.ResourceSlice) {
	for _, d := range s.Spec.Devices {
		l.models[device{s.Spec.Driver, s.Spec.Pool.Name, d.Name}] = modelOf(s.Spec.Driver, &d)
	}
}

// modelOf is what Ladder's driver says of a device; quotas do not speak of the
// devices of others.
func modelOf(driver string, d *resourcev1.Device) string {
	if driver != v1alpha1.DriverName {
		return ""
	}
	for _, name := range []resourcev1.QualifiedName{"model", v1alpha1.DriverName + "/model"} {
		if a, ok := d.Attributes[name]; ok && a.StringValue != nil {
			return *a.StringValue
		}
	}
	return ""
}

func (l *ledger) claim(e invariants.Entry) {
	c := e.Claim
	before := map[string]int{}
	if old := l.claims[c.UID]; old != nil {
		before = old.models
	}
	now := map[string]int{}
	if e.Type != watch.Deleted && c.Status.Allocation != nil {
		now = l.allocated(c)
	}
	delete(l.claims, c.UID)
	if len(now) > 0 {
		l.claims[c.UID] = &held{c.Namespace, now}
	}
	tenant := l.owner(c.Namespace)
	if tenant == nil {
		return
	}
	for _, model := range slices.Sorted(maps.Keys(before)) {
		l.Returned += max(before[model]-now[model], 0)
	}
	for _, model := range slices.Sorted(maps.Keys(now)) {
		if more := now[model] - before[model]; more > 0 {
			l.Given += more
			l.judge(e, tenant, model)
		}
	}
}

// allocated counts the claim's devices by model. The model of a device that no
// slice has told of is not known, and then nothing can be said.
func (l *ledger) allocated(c *resourcev1.ResourceClaim) map[string]int {
	models := map[string]int{}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess {
			continue // takes nothing from anybody
		}
		model, known := l.models[device{r.Driver, r.Pool, r.Device}]
		switch {
		case !known || model == "" && r.Driver == v1alpha1.DriverName:
			l.Missing = append(l.Missing, fmt.Sprintf("claim %s/%s at version %s: the model of device %s/%s/%s is not known",
				c.Namespace, c.Name, c.ResourceVersion, r.Driver, r.Pool, r.Device))
		case model != "":
			models[model]++
		}
	}
	return models
}

// owner is the quota that a namespace belongs to; of two, the first by name.
func (l *ledger) owner(namespace string) *v1alpha1.TenantQuota {
	return ownerOf(slices.Collect(maps.Values(l.quotas)), namespace)
}

func ownerOf(quotas []*v1alpha1.TenantQuota, namespace string) *v1alpha1.TenantQuota {
	var owner *v1alpha1.TenantQuota
	for _, q := range quotas {
		if slices.Contains(q.Spec.Namespaces, namespace) && (owner == nil || q.Name < owner.Name) {
			owner = q
		}
	}
	return owner
}

// limitOf is the limit of a model: none may be used that the quota does not
// list.
func limitOf(q *v1alpha1.TenantQuota, model string) int {
	for _, m := range q.Spec.Models {
		switch {
		case m.Model != model:
		case m.Limit == nil:
			return Unlimited
		default:
			return int(*m.Limit)
		}
	}
	return 0
}

func allows(limit, used int) bool { return limit == Unlimited || used <= limit }

// used counts what the namespaces of a quota have of a model.
func (l *ledger) used(q *v1alpha1.TenantQuota, model string) int {
	n := 0
	for _, c := range l.claims {
		if owner := l.owner(c.namespace); owner != nil && owner.Name == q.Name {
			n += c.models[model]
		}
	}
	return n
}

// judge looks at the limit of a model that a tenant was just given.
func (l *ledger) judge(e invariants.Entry, tenant *v1alpha1.TenantQuota, model string) {
	used, limit := l.used(tenant, model), limitOf(tenant, model)
	if allows(limit, used) {
		if used == limit {
			l.AtLimit++
		}
		return
	}
	version, _ := e.Version()
	x := Excess{
		Claim: e.Claim.Namespace + "/" + e.Claim.Name, Version: version, At: e.At,
		Tenant: tenant.Name, Model: model, Used: used, Limit: limit, After: -1,
	}
	for _, p := range l.past[tenant.Name] {
		if allows(limitOf(p.quota, model), used) {
			x.After = max(e.At.Sub(p.until), 0) // the last of them is the nearest
		}
	}
	if x.After >= 0 && x.After <= l.settle {
		l.Crossed = append(l.Crossed, x)
	} else {
		l.Passed = append(l.Passed, x)
	}
}

func (l *ledger) quota(e invariants.Entry) {
	q := e.Quota
	before := l.quotas[q.Name]
	if before != nil && (before.Generation != q.Generation || e.Type == watch.Deleted) {
		l.past[q.Name] = append(l.past[q.Name], outdated{before, e.At})
	}
	if e.Type == watch.Deleted {
		delete(l.quotas, q.Name)
		return
	}
	l.quotas[q.Name] = q
	if before == nil {
		return
	}
	for _, model := range modelsOf(before, q) {
		if limit := limitOf(q, model); limit != limitOf(before, model) {
			l.Changes++
			if !allows(limit, l.used(q, model)) {
				l.Below++
			}
		}
	}
}

// modelsOf are the models that any of the quotas lists.
func modelsOf(quotas ...*v1alpha1.TenantQuota) []string {
	var models []string
	for _, q := range quotas {
		for _, m := range q.Spec.Models {
			models = append(models, m.Model)
		}
	}
	slices.SortFunc(models, cmp.Compare[string])
	return slices.Compact(models)
}
