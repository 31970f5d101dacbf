package invariants

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Slack is what I4 and I8 allow for: a scheduler learns of a change a moment
// after the API server has it. A change counts as known to a decision when it
// had been there that long before the decision was made.
type Slack time.Duration

// allocation is one claim that was just given devices, by a policy.
type allocation struct {
	entry  Entry
	claim  *resourcev1.ResourceClaim
	pod    *corev1.Pod
	policy string
	spec   *v1alpha1.AcceleratorPolicySpec
	// tier is its place in the policy, -1 where the policy has no such tier.
	tier     int
	tierName string
	// record says why, and when it was decided; nil where there is none, or
	// where it is of a later attempt that found the devices allocated.
	record *v1alpha1.AllocationDecision
}

// name is the claim, for findings.
func (a *allocation) name() string { return a.claim.Namespace + "/" + a.claim.Name }

// stamp is when it was written, and at which version, for findings.
func (a *allocation) stamp() string {
	return a.entry.At.Format(stamp) + " (version " + a.claim.ResourceVersion + ")"
}

// decided is when it was decided, if that is known.
func (a *allocation) decided() (time.Time, bool) {
	if a.record == nil || a.record.Spec.DecidedAt == nil {
		return time.Time{}, false
	}
	return a.record.Spec.DecidedAt.Time, true
}

// records are the records of allocations, by the Pod.
func (h History) records() map[types.UID][]*v1alpha1.AllocationDecision {
	all := map[types.UID][]*v1alpha1.AllocationDecision{}
	for _, e := range h {
		if e.Record != nil && e.Type != watch.Deleted && e.Record.Spec.Outcome == v1alpha1.OutcomeAllocated {
			all[e.Record.Spec.PodUID] = append(all[e.Record.Spec.PodUID], e.Record)
		}
	}
	return all
}

// allocations goes through the history in the order of versions and hands over
// each allocation by a policy with the cluster as it was right before it. Those
// whose policy or Pod is not known are counted instead.
func (h History) allocations(visit func(*cluster, *allocation)) (unknown int) {
	c, records := newCluster(), h.records()
	for _, e := range h.ByVersion() {
		if e.Claim != nil && e.Type != watch.Deleted && len(c.claims[e.Claim.UID]) == 0 && len(heldBy(e.Claim)) > 0 {
			switch a := c.allocationOf(e); {
			case a == nil: // not made from a policy
			case a.spec == nil:
				unknown++
			default:
				a.record = recordOf(a, records)
				visit(c, a)
			}
		}
		c.apply(e)
	}
	return unknown
}

// allocationOf is what an allocated claim stands for; nil where its Pod asks for
// no policy.
func (c *cluster) allocationOf(e Entry) *allocation {
	a := &allocation{entry: e, claim: e.Claim, tier: -1, pod: c.pods[madeFor(e.Claim)]}
	if a.pod == nil {
		if madeFor(e.Claim) == "" {
			return nil // nobody's
		}
		return a
	}
	a.policy = a.pod.Labels[v1alpha1.LabelPolicy]
	if a.policy == "" {
		return nil
	}
	revision := c.revisions[a.policy][revisionOf(a.pod, a.policy)]
	if revision == nil {
		return a
	}
	a.spec = &revision.Spec.PolicySpec
	_, a.tierName, _ = strings.Cut(e.Claim.Status.Allocation.Devices.Results[0].Request, "/")
	a.tier = slices.IndexFunc(a.spec.Tiers, func(t v1alpha1.Tier) bool { return t.Name == a.tierName })
	return a
}

// revisionOf is the revision whose template the Pod's claim was made from.
func revisionOf(pod *corev1.Pod, policy string) int64 {
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimTemplateName == nil {
			continue
		}
		number, of := strings.CutPrefix(*ref.ResourceClaimTemplateName, policy+"-")
		if n, err := strconv.ParseInt(number, 10, 64); of && err == nil {
			return n
		}
	}
	return 0
}

// recordOf is the record of the decision that led to an allocation.
func recordOf(a *allocation, records map[types.UID][]*v1alpha1.AllocationDecision) *v1alpha1.AllocationDecision {
	for _, r := range records[a.pod.UID] {
		if r.Spec.DecidedAt == nil || r.Spec.DecidedAt.After(a.entry.At) {
			continue
		}
		if sameDevices(r.Spec.Devices, heldBy(a.claim)) {
			return r
		}
	}
	return nil
}

// sameDevices compares what a record says with what a claim has.
func sameDevices(decided []v1alpha1.DecidedDevice, held []DeviceID) bool {
	if len(decided) != len(held) {
		return false
	}
	for _, d := range decided {
		if !slices.Contains(held, DeviceID{d.Driver, d.Pool, d.Device}) {
			return false
		}
	}
	return true
}

// count is how many devices a tier takes.
func count(spec *v1alpha1.AcceleratorPolicySpec, tier *v1alpha1.Tier) int {
	switch {
	case tier.Count != nil:
		return int(*tier.Count)
	case spec.Count != nil:
		return int(*spec.Count)
	}
	return 1
}
