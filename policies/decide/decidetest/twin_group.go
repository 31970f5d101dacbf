package decidetest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Groups returns the Pods without a node that follow a policy, together with
// those that follow the same revision of it, in the order of the list.
func (c *Cluster) Groups() [][]types.NamespacedName {
	by := map[string][]types.NamespacedName{}
	for _, name := range c.Pending() {
		pod := c.Pod(name)
		if policy := pod.Labels[v1alpha1.LabelPolicy]; policy != "" {
			key := fmt.Sprintf("%s %d", policy, c.revisionOf(pod, policy))
			by[key] = append(by[key], name)
		}
	}
	var out [][]types.NamespacedName
	for _, key := range slices.Sorted(maps.Keys(by)) {
		out = append(out, by[key])
	}
	return out
}

// TierForGroup returns the first tier of those that are not out with which all
// of the Pods can be placed one after another, else the first with which at
// least that many can, else -1.
func (c *Cluster) TierForGroup(pods []types.NamespacedName, least int, now time.Time, out map[string]bool) (int, error) {
	spec, err := c.policySpec(c.Pod(pods[0]), c.Pod(pods[0]).Labels[v1alpha1.LabelPolicy])
	if err != nil {
		return 0, err
	}
	served := make([]int, len(spec.Tiers))
	for i, t := range spec.Tiers {
		if out[t.Name] {
			served[i] = -1
			continue
		}
		after := c
		for _, name := range pods {
			answer, err := after.Decide(Question{Pod: name, Now: now, GroupTier: &i})
			if err != nil {
				return 0, err
			}
			if answer.Outcome == v1alpha1.OutcomeAllocated {
				after = after.With(name, answer)
				served[i]++
			}
		}
	}
	if i := slices.Index(served, len(pods)); i >= 0 {
		return i, nil
	}
	return slices.IndexFunc(served, func(n int) bool { return n >= least }), nil
}
