package decidetest

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// mustOccur are the reasons that random clusters must produce often enough for
// the property tests to mean something. Reserved needs more than a cluster at rest.
var mustOccur = []v1alpha1.Reason{
	v1alpha1.ReasonPoolIncomplete, v1alpha1.ReasonNodeMismatch, v1alpha1.ReasonNodeUnsuitable,
	v1alpha1.ReasonModelMismatch, v1alpha1.ReasonSelectorNotMatched, v1alpha1.ReasonSelectorError,
	v1alpha1.ReasonTierNotYetAllowed, v1alpha1.ReasonInUse, v1alpha1.ReasonCountersExhausted,
	v1alpha1.ReasonDeviceTainted, v1alpha1.ReasonDeviceUnhealthy, v1alpha1.ReasonMemoryTooSmall, v1alpha1.ReasonComputeCapabilityTooLow,
	v1alpha1.ReasonDriverTooOld, v1alpha1.ReasonArchitectureExcluded, v1alpha1.ReasonIsolationUnsatisfied,
	v1alpha1.ReasonCapacityTooSmall, v1alpha1.ReasonQuotaExceeded, v1alpha1.ReasonTopologyUnsatisfied,
	v1alpha1.ReasonNotEnoughDevices, v1alpha1.ReasonTierNotReached, v1alpha1.ReasonLowerRank, v1alpha1.ReasonSelected,
}

// TestClustersCollide looks at a fixed sample of clusters: every outcome and
// every main reason must occur in it.
func TestClustersCollide(t *testing.T) {
	const sample = 1500
	outcomes, reasons, tiers := map[v1alpha1.Outcome]int{}, map[v1alpha1.Reason]int{}, map[string]int{}
	generator, parked := Clusters(), 0
	for seed := range sample {
		c := generator.Example(seed)
		name := c.Pending()[0]
		a, err := c.Decide(Question{Pod: name, Now: c.Now})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		outcomes[a.Outcome]++
		if a.Parked {
			parked++
		}
		if a.SingleRequest && a.Tier != "" && c.Pod(name).Labels[v1alpha1.LabelPolicy] != "" {
			tiers[fmt.Sprint("tier ", a.TierIndex)]++
		}
		here := map[v1alpha1.Reason]bool{}
		for _, tier := range a.Tiers {
			for r := range tier.Counts() {
				here[r] = true
			}
		}
		for r := range here {
			reasons[r]++
		}
	}
	for _, o := range []v1alpha1.Outcome{v1alpha1.OutcomeAllocated, v1alpha1.OutcomePending, v1alpha1.OutcomeUnsatisfiable} {
		if outcomes[o] < sample/20 {
			t.Errorf("outcome %s occurs %d times in %d clusters, want one in 20", o, outcomes[o], sample)
		}
	}
	for _, r := range mustOccur {
		if reasons[r] < 5 {
			t.Errorf("reason %s occurs in %d of %d clusters, want 5", r, reasons[r], sample)
		}
	}
	if tiers["tier 1"] < sample/50 {
		t.Errorf("the second tier is chosen %d times in %d clusters", tiers["tier 1"], sample)
	}
	if parked < 10 {
		t.Errorf("%d of %d Pods are parked", parked, sample)
	}
	t.Logf("outcomes %v, tiers %v, parked %d", outcomes, tiers, parked)
	for _, r := range slices.Sorted(maps.Keys(reasons)) {
		t.Logf("%-24s %5.1f %%", r, 100*float64(reasons[r])/sample)
	}
}

// TestTwinIsConsistent holds what the contract says of every answer against
// the twin itself.
func TestTwinIsConsistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Clusters().Draw(t, "cluster")
		for _, name := range c.Pending() {
			a, err := c.Decide(Question{Pod: name, Now: c.Now})
			if err != nil {
				t.Fatal(err)
			}
			if (a.Outcome == v1alpha1.OutcomeAllocated) != (len(a.Devices) > 0 && a.Node != "") {
				t.Fatalf("%s with node %q and %d devices", a.Outcome, a.Node, len(a.Devices))
			}
			fleet := c.look(Question{Pod: name}).devices
			for i, tier := range a.Tiers {
				if len(tier.Devices) != len(fleet) {
					t.Fatalf("tier %s speaks of %d devices, the fleet has %d", tier.Name, len(tier.Devices), len(fleet))
				}
				for _, d := range tier.Devices {
					r := d.Reason
					possible := r == v1alpha1.ReasonSelected || r == v1alpha1.ReasonLowerRank || r == v1alpha1.ReasonTierNotReached
					if possible && (a.Outcome != v1alpha1.OutcomeAllocated || i < a.TierIndex) {
						t.Fatalf("tier %s was passed over, yet %v is %s", tier.Name, d.ID, r)
					}
				}
			}
			c = carryOut(c, name, a)
		}
	})
}

func carryOut(c *Cluster, name types.NamespacedName, a *Answer) *Cluster {
	if a.Outcome != v1alpha1.OutcomeAllocated {
		return c
	}
	return c.With(name, a)
}
