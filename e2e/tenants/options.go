// Package tenants holds many tenants to their quotas in the lab: Pods come and
// go, ladder-controller and ladder-scheduler are killed at random moments and
// quotas change meanwhile. The watch of claims and quotas is judged at every
// resource version by package invariants/quota. Before that, without kills, it
// measures how fast gates open and how soon a device that was freed is used
// again.
//
// Files: options.go says what is done and to what; plan.go draws the load from a
// seed; follow.go reads the watch; scene.go makes tenants, policies and Pods;
// request.go makes requests of a busy API server; measure.go measures, churn.go
// makes the trouble, run.go puts them in order; outcome.go and report.go tell
// what came of it.
package tenants

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

// models of the fleet, the dearest first, and their boards.
var (
	models = []string{"H100", "A100", "L4"}
	boards = []string{"H100-SXM5-80GB", "A100-SXM4-80GB", "L4"}
)

const gpusPerNode = 8

// Options say what is done.
type Options struct {
	// Tenants, each with a namespace and a quota of its own.
	Tenants int
	// Pods that come and go under kills and changes.
	Pods int
	// Nodes of 8 GPUs each: a quarter carries H100, a third A100, the rest L4.
	Nodes int
	// Duration is the time in which the Pods come.
	Duration time.Duration
	// Seed of everything that is drawn.
	Seed uint64
	// Kills of ladder-controller and ladder-scheduler, together.
	Kills int
	// Changes of quotas.
	Changes int
	// Reactions is how many times a device is freed to see when it is used again.
	Reactions int
	// Settle is how long after a limit was lowered an allocation may still land
	// that was under way.
	Settle time.Duration
	// History gets the watch log as JSON lines. Nil: it is not kept.
	History io.Writer
	// Progress gets a line for each step.
	Progress io.Writer
}

// Validate says what is wrong with the options.
func (o *Options) Validate() error {
	switch {
	case o.Tenants < 1 || o.Tenants > 1000:
		return fmt.Errorf("%d tenants: want 1 to 1000", o.Tenants)
	case o.Nodes < len(models):
		return fmt.Errorf("%d nodes: want one of each model, %d at least", o.Nodes, len(models))
	case o.Pods < 1:
		return fmt.Errorf("%d Pods: want 1 at least", o.Pods)
	case o.Duration < time.Second:
		return fmt.Errorf("duration %s: want 1 s at least", o.Duration)
	case o.Kills < 0 || o.Changes < 0 || o.Reactions < 0 || o.Settle < 0:
		return errors.New("kills, changes, reactions and the time to settle can't be negative")
	}
	return nil
}

// nodes of each model.
func (o *Options) nodes() []int {
	h100, a100 := max(o.Nodes/4, 1), max(o.Nodes/3, 1)
	return []int{h100, a100, o.Nodes - h100 - a100}
}

// devices of each model.
func (o *Options) devices() []int {
	n := o.nodes()
	for i := range n {
		n[i] *= gpusPerNode
	}
	return n
}

func (o *Options) deviceCount() int { return o.Nodes * gpusPerNode }

// Fleet is the fleet that the options describe.
func (o *Options) Fleet() *fleet.Fleet {
	var groups []fleet.Group
	for i, n := range o.nodes() {
		groups = append(groups, fleet.Group{Name: strings.ToLower(models[i]), Nodes: n, Board: boards[i], GPUs: gpusPerNode})
	}
	return fleet.New(groups...)
}

// tenant is the name of a tenant and of its namespace.
func tenant(i int) string { return fmt.Sprintf("tenant-%02d", i) }

// quota is what a tenant is given: half of the fleet is guaranteed, in equal
// parts; the limits add up to 1.6 times the fleet. Every fifth tenant may have
// as many L4 as are free.
func (o *Options) quota(i int) *v1alpha1.TenantQuota {
	weight := int32(1 + i%4)
	q := &v1alpha1.TenantQuota{
		ObjectMeta: metav1.ObjectMeta{Name: tenant(i)},
		Spec:       v1alpha1.TenantQuotaSpec{Namespaces: []string{tenant(i)}, Weight: &weight},
	}
	for m, n := range o.devices() {
		part := v1alpha1.ModelQuota{Model: models[m], Guaranteed: int32(n / (2 * o.Tenants))}
		if limit := int32(max((8*n+5*o.Tenants-1)/(5*o.Tenants), 2)); m < len(models)-1 || i%5 != 4 {
			part.Limit = &limit
		}
		q.Spec.Models = append(q.Spec.Models, part)
	}
	return q
}

// closed is a quota under which no Pod starts.
func closed(q *v1alpha1.TenantQuota) *v1alpha1.TenantQuota {
	q = q.DeepCopy()
	for i := range q.Spec.Models {
		none := int32(0)
		q.Spec.Models[i].Guaranteed, q.Spec.Models[i].Limit = 0, &none
	}
	return q
}

// unlimited is a quota under which the fleet is what limits.
func unlimited(q *v1alpha1.TenantQuota) *v1alpha1.TenantQuota {
	q = q.DeepCopy()
	for i := range q.Spec.Models {
		q.Spec.Models[i].Guaranteed, q.Spec.Models[i].Limit = 0, nil
	}
	return q
}

// bestFirst is the policy of the Pods that are measured.
const bestFirst = "best-first"

// policies of three tiers each.
func policies() []*v1alpha1.AcceleratorPolicy {
	one, two := int32(1), int32(2)
	named := func(name string, preempts v1alpha1.Preempts, lastCount *int32, order ...string) *v1alpha1.AcceleratorPolicy {
		p := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.AcceleratorPolicySpec{Preempts: preempts}}
		for _, m := range order {
			p.Spec.Tiers = append(p.Spec.Tiers, v1alpha1.Tier{Name: strings.ToLower(m), Models: []string{m}, Count: &one})
		}
		p.Spec.Tiers[len(order)-1].Count = lastCount
		return p
	}
	all := []*v1alpha1.AcceleratorPolicy{
		named(bestFirst, v1alpha1.PreemptsNever, &one, "H100", "A100", "L4"),
		named("best-or-pair", v1alpha1.PreemptsBorrowed, &two, "H100", "A100", "L4"),
		named("middle-first", v1alpha1.PreemptsBorrowed, &one, "A100", "L4", "H100"),
		named("small-first", v1alpha1.PreemptsNever, &one, "L4", "A100", "H100"),
	}
	slices.SortFunc(all, func(a, b *v1alpha1.AcceleratorPolicy) int { return strings.Compare(a.Name, b.Name) })
	return all
}
