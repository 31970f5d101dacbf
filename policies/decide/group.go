package decide

// Groups of Pods that take one tier.
//
// Each Pod for itself takes the best tier that it can get, so the Pods of one
// job may end up on devices of different speed, and the job is as slow as the
// slowest. A group takes the first tier that can serve all of it.

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// NoTier is the index where no tier can serve a group.
const NoTier = -1

// GroupTier is the tier that a group of Pods takes. It restricts the Pods of
// the group that follow the policy it was found for.
type GroupTier struct {
	// Tier is the index of the tier in the policy, or NoTier.
	Tier int `json:"tier"`
	// Why says of each tier before it, or of all where there is none, why it
	// is not taken.
	Why []string `json:"why,omitempty"`
}

// GroupQuery asks which tier a group takes.
type GroupQuery struct {
	// Pods are those of the group that wait and follow one revision of one
	// policy, in the order in which they will be placed. They must have been
	// Put, and nothing may be assumed for them.
	Pods []types.NamespacedName
	// Least is how many of them have to be placed, at least one.
	Least int
	// Now is the evaluation time.
	Now time.Time
	// Fixed is the name of the tier that other Pods of the group have already;
	// empty: there are none.
	Fixed string
	// Excluded are tiers by name that can't serve the group for a reason that
	// only the asker knows.
	Excluded map[string]string
}

// bars says whether the alternative is a tier that the group does not take.
func (g *GroupTier) bars(a *alternative) bool {
	return g != nil && a.tier != nil && a.index != g.Tier
}

// why says why the group does not take the tier.
func (g *GroupTier) why(a *alternative) string {
	if a.index < len(g.Why) {
		return g.Why[a.index]
	}
	return "the group takes another tier"
}

// TierForGroup returns the tier that the group takes: the first that can serve
// all of its Pods at once, else the first that can serve as many as are needed;
// nil where the policy lets tiers mix.
// The Pods are placed one after another, as the scheduler will. The State's
// content does not change, only its caches.
//
// Every Pod is tried once for each tier. Errors are those of Decide,
// and ErrInvalid where the Pods don't follow one revision of one policy.
func (st *State) TierForGroup(q GroupQuery) (*GroupTier, error) {
	rev, err := st.revisionOfGroup(&q)
	if err != nil {
		return nil, err
	}
	if rev.spec.MixTiers == v1alpha1.MixTiersWithinGroup {
		return nil, nil
	}
	g := &GroupTier{Tier: NoTier}
	enough := NoTier
	for i := range rev.spec.Tiers {
		name := rev.spec.Tiers[i].Name
		if why, out := q.Excluded[name]; out {
			g.Why = append(g.Why, why)
			continue
		}
		if q.Fixed != "" && q.Fixed != name {
			g.Why = append(g.Why, "other Pods of the group have tier "+q.Fixed)
			continue
		}
		served, err := st.servedBy(&q, i)
		if err != nil {
			return nil, err
		}
		if served == len(q.Pods) {
			g.Tier = i
			return g, nil
		}
		if served >= q.Least && enough == NoTier {
			enough = i
		}
		g.Why = append(g.Why, fmt.Sprintf("the tier can serve %d of the group's %d Pods now", served, len(q.Pods)))
	}
	if enough != NoTier {
		g.Tier, g.Why = enough, g.Why[:enough]
	}
	return g, nil
}

// revisionOfGroup is the revision that all of the Pods follow.
func (st *State) revisionOfGroup(q *GroupQuery) (*revision, error) {
	if len(q.Pods) == 0 {
		return nil, fmt.Errorf("a group without Pods, %w", ErrInvalid)
	}
	var rev *revision
	for _, key := range q.Pods {
		p := st.pods[key]
		if p == nil {
			return nil, fmt.Errorf("Pod %s, %w", key, ErrNotFound)
		}
		prob, err := st.problemOf(p, 0)
		if err != nil {
			return nil, err
		}
		switch {
		case p.assumed != nil:
			return nil, fmt.Errorf("Pod %s is placed already, %w", key, ErrInvalid)
		case prob.revision == nil:
			return nil, fmt.Errorf("Pod %s follows no policy, %w", key, ErrInvalid)
		case rev != nil && (prob.revision.policy != rev.policy || prob.revision.number != rev.number):
			return nil, fmt.Errorf("Pod %s follows revision %d of policy %s, others of the group %d of %s, %w",
				key, prob.revision.number, prob.revision.policy, rev.number, rev.policy, ErrInvalid)
		}
		rev = prob.revision
	}
	return rev, nil
}

// servedBy counts the Pods that the tier can serve at once.
func (st *State) servedBy(q *GroupQuery, tier int) (served int, err error) {
	defer func() {
		for _, key := range q.Pods {
			st.Forget(key)
		}
	}()
	for _, key := range q.Pods {
		ok, err := st.tryTier(key, q.Now, tier)
		if err != nil {
			return 0, err
		}
		if ok {
			served++
		}
	}
	return served, nil
}

// tryTier assumes what the Pod would get of the tier, if it can be served.
func (st *State) tryTier(key types.NamespacedName, now time.Time, tier int) (bool, error) {
	q := Query{Pod: key, Now: now, Group: &GroupTier{Tier: tier}}
	prob, parked, err := st.read(&q)
	if err != nil || parked != nil {
		return false, err
	}
	r := st.newRun(prob, &q, false)
	if r.allocatedProblem() != nil {
		return false, nil
	}
	best := r.choose()
	if best == nil {
		return false, nil
	}
	if a := r.mainAlternative(best); a == nil || a.tier == nil || a.index != tier {
		return false, nil // it has devices of another tier already
	}
	d := &Decision{Namespace: key.Namespace}
	d.Pod, d.Node, d.Outcome, d.Devices = key.Name, best.node.name, v1alpha1.OutcomeAllocated, r.devices(best)
	if prob.revision != nil {
		d.PolicyRevision = prob.revision.number
	}
	return true, st.Assume(d, true)
}
