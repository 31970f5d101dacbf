package invariants

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const firstChoice = "I4 a lower tier only when every higher device was ineligible"

// FirstChoices checks I4 in two ways. The record of an allocation from a lower
// tier must show each higher tier as rejected, with no device in it that could
// have served. And looked at from outside, no node had as many devices of a
// higher tier as that takes which were published, free, without a taint and
// meeting the constraints all the time from the slack before the decision until
// the allocation was written.
//
// Devices that other decisions held at that moment, whose allocations were
// written later, are taken into account; a decision that came to nothing shows
// only in the evidence, so as many devices as that counts as Reserved are
// excused. Not looked at are tenants' quotas, CPU and memory of the nodes, nodes
// whose taints a Pod tolerates, and CEL selectors: where they matter this is no
// judge. Allocations without a record of their decision are not judged, nor are
// tiers of several devices under matchAttributes.
func FirstChoices(h History, slack Slack) Report {
	checked, unjudged := 0, 0
	var violations []string
	reserved := h.reservations()
	unknown := h.allocations(func(c *cluster, a *allocation) {
		if a.tier < 0 {
			return // I2 tells
		}
		decided, known := a.decided()
		if !known {
			unjudged++
			return
		}
		checked++
		note := func(format string, args ...any) {
			violations = append(violations, fmt.Sprintf("%s: %s got tier %s of policy %s, decided at %s: ", a.stamp(), a.name(), a.tierName, a.policy, decided.Format(stamp))+
				fmt.Sprintf(format, args...))
		}
		for i := range a.tier {
			tier := &a.spec.Tiers[i]
			if why := a.evidence(tier.Name); why != "" {
				note("%s", why)
				continue
			}
			if where, devices := c.passedOver(a, tier, decided, time.Duration(slack), reserved); where != "" {
				note("tier %s could have had %s on node %s", tier.Name, strings.Join(devices, ", "), where)
			}
		}
	})
	r := conclude(firstChoice, checked, violations, h.Gaps())
	r.Unjudged = unknown + unjudged
	return r
}

// evidence says what the record tells of a higher tier that must not be.
func (a *allocation) evidence(tier string) string {
	for i := range a.record.Spec.Tiers {
		t := &a.record.Spec.Tiers[i]
		if t.Name != tier {
			continue
		}
		if t.Outcome != v1alpha1.TierRejected {
			return fmt.Sprintf("its record shows the higher tier %s as %s", tier, t.Outcome)
		}
		for _, r := range t.Rejections {
			if r.Code == v1alpha1.ReasonLowerRank || r.Code == v1alpha1.ReasonSelected {
				return fmt.Sprintf("its record counts %d devices of the higher tier %s as %s", r.Count, tier, r.Code)
			}
		}
		return ""
	}
	return "its record says nothing of the higher tier " + tier
}

// reservedIn is how many devices of a tier the record counts as held by
// decisions under way.
func (a *allocation) reservedIn(tier string) int {
	for i := range a.record.Spec.Tiers {
		for _, r := range a.record.Spec.Tiers[i].Rejections {
			if a.record.Spec.Tiers[i].Name == tier && r.Code == v1alpha1.ReasonReserved {
				return int(r.Count)
			}
		}
	}
	return 0
}

// passedOver returns a node that could have served a tier all the time, and with
// which devices.
func (c *cluster) passedOver(a *allocation, tier *v1alpha1.Tier, decided time.Time, slack time.Duration, reserved map[DeviceID][]reservation) (string, []string) {
	known := decided.Add(-slack)
	want := count(a.spec, tier)
	if tier.After != nil && known.Sub(a.pod.CreationTimestamp.Time) < tier.After.Duration {
		return "", nil
	}
	if want > 1 && len(a.spec.Constraints.MatchAttributes) > 0 {
		return "", nil
	}
	free := map[string][]string{} // by node, and by model where one must do
	nodes := map[string]string{}
	held, all := 0, 0
	for _, id := range slices.SortedFunc(maps.Keys(c.devices), compareDevices) {
		d := c.devices[id]
		if !c.eligible(d, a, tier, known) {
			continue
		}
		if underWay(reserved[id], a, decided) {
			held++
			continue
		}
		all++
		key := d.node
		if a.spec.MixModels != v1alpha1.MixModelsWithinTier {
			key += " " + d.attribute(a.driver()+"/model")
		}
		nodes[key] = d.node
		free[key] = append(free[key], id.String())
	}
	// What the evidence counts as held, and nothing else explains, may have been
	// held by decisions that came to nothing.
	if all <= a.reservedIn(tier.Name)-held {
		return "", nil
	}
	for _, key := range slices.Sorted(maps.Keys(free)) {
		if len(free[key]) >= want {
			return nodes[key], free[key]
		}
	}
	return "", nil
}

// eligible says whether a device could have served a tier, and nothing about it
// has changed after the given moment.
func (c *cluster) eligible(d *device, a *allocation, tier *v1alpha1.Tier, known time.Time) bool {
	n := c.nodes[d.node]
	if d.holder != "" || d.touched.After(known) || n == nil || !n.usable || n.changed.After(known) || !c.published(d) {
		return false
	}
	if why, _ := c.unhealthy(d, none); why != "" {
		return false
	}
	return unmet(d, a.spec, tier) == ""
}

// underWay says whether another decision, made by then, held a device and was
// written only after this one.
func underWay(reserved []reservation, a *allocation, decided time.Time) bool {
	return slices.ContainsFunc(reserved, func(r reservation) bool {
		return r.claim != a.claim.UID && !r.decided.After(decided) && !r.from.Before(a.entry.At)
	})
}

func compareDevices(a, b DeviceID) int {
	return slices.Compare([]string{a.Driver, a.Pool, a.Device}, []string{b.Driver, b.Pool, b.Device})
}
