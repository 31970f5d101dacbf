package decide_test

// The engine against its brute-force twin, and what must hold of every answer.

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// TestEngineEqualsTwin: same outcome, tier, node, devices and counts.
func TestEngineEqualsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		for _, name := range c.Pending() {
			q, twin := question(c, name)
			want, err := c.Decide(twin)
			if err != nil {
				t.Fatalf("twin: %v", err)
			}
			compareWithTwin(t, c, mustDecide(t, s, q), want)
		}
	})
}

// TestEngineEqualsTwinWithExternalChecks: the same where others judge the nodes.
func TestEngineEqualsTwinWithExternalChecks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{NodeChecks: decide.ExternalNodeChecks}, c.Objects())
		refused := map[string]string{}
		for _, n := range c.Nodes {
			if rapid.Bool().Draw(t, "refused "+n.Name) {
				refused[n.Name] = "NodeAffinity: said no"
			}
		}
		for _, name := range c.Pending() {
			q, twin := question(c, name)
			q.NodeRejections = refused
			twin.External, twin.Refused = true, refused
			want, err := c.Decide(twin)
			if err != nil {
				t.Fatalf("twin: %v", err)
			}
			compareWithTwin(t, c, mustDecide(t, s, q), want)
		}
	})
}

// TestEvidenceIsComplete: the counts of each tier add up to the fleet, every
// device is named when all examples are asked for, and a tier that was passed
// over holds no device that could have served.
func TestEvidenceIsComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, everyDevice, c.Objects())
		fleet := fleetSize(c)
		for _, name := range c.Pending() {
			q, _ := question(c, name)
			d := mustDecide(t, s, q)
			if len(d.Tiers) == 0 {
				t.Fatalf("no evidence: %s", toJSON(d))
			}
			for _, tier := range d.Tiers {
				checkTier(t, d, tier, fleet)
			}
		}
	})
}

func checkTier(t failer, d *decide.Decision, tier v1alpha1.TierEvidence, fleet int) {
	t.Helper()
	if got := total(tier); got != fleet {
		t.Fatalf("tier %s counts %d devices, the fleet has %d: %s", tier.Name, got, fleet, toJSON(d))
	}
	seen := map[v1alpha1.Reason]bool{}
	for _, r := range tier.Rejections {
		named := int(r.Count) == len(r.Examples) || r.Code == v1alpha1.ReasonTierNotReached
		if seen[r.Code] || r.Count < 1 || !named {
			t.Fatalf("tier %s: reason %s twice, empty, or with %d examples for %d devices: %s",
				tier.Name, r.Code, len(r.Examples), r.Count, toJSON(d))
		}
		seen[r.Code] = true
	}
	could := seen[v1alpha1.ReasonSelected] || seen[v1alpha1.ReasonLowerRank]
	switch tier.Outcome {
	case v1alpha1.TierSelected:
		if !seen[v1alpha1.ReasonSelected] || seen[v1alpha1.ReasonTierNotReached] {
			t.Fatalf("tier %s is selected without a selected device: %s", tier.Name, toJSON(d))
		}
	case v1alpha1.TierNotReached:
		if len(tier.Rejections) > 1 || (fleet > 0 && !seen[v1alpha1.ReasonTierNotReached]) {
			t.Fatalf("tier %s was not reached but looked at: %s", tier.Name, toJSON(d))
		}
	case v1alpha1.TierRejected:
		if (could || seen[v1alpha1.ReasonTierNotReached]) && singleRequest(d) {
			t.Fatalf("tier %s was passed over although a device could serve: %s", tier.Name, toJSON(d))
		}
	default:
		t.Fatalf("tier %s has outcome %q", tier.Name, tier.Outcome)
	}
}

// singleRequest is true for policies; with several requests an alternative can
// fail because of another request, with devices left that would do for it.
func singleRequest(d *decide.Decision) bool { return d.Policy != "" }

// TestNothingIsChosenWithoutOutcome: devices, node and tier stand in a record
// exactly when the outcome is Allocated, and a class exactly when it is not
// just waiting.
func TestNothingIsChosenWithoutOutcome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		for _, name := range c.Pending() {
			q, _ := question(c, name)
			d := mustDecide(t, s, q)
			chosen := d.Node != "" || len(d.Devices) > 0 || d.Tier != "" || d.TierIndex != nil
			allocated := d.Node != "" && len(d.Devices) > 0 && d.Tier != "" && d.TierIndex != nil
			if want := d.Outcome == v1alpha1.OutcomeAllocated; chosen != want || allocated != want {
				t.Fatalf("outcome and choice disagree: %s", toJSON(d))
			}
			again := mustDecide(t, s, decide.Query{Pod: q.Pod, Now: q.Now.Add(time.Second)})
			if again.InputDigest == d.InputDigest {
				t.Fatalf("another evaluation time has the same digest: %s", toJSON(d))
			}
			if d.Message == "" || d.InputDigest == "" || d.EngineVersion != decide.EngineVersion || d.Attempt != 1 {
				t.Fatalf("the record is not complete: %s", toJSON(d))
			}
		}
	})
}
