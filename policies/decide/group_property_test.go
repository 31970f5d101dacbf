package decide_test

// The tier of a group against the brute-force twin.

import (
	"testing"

	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// TestTierForGroupEqualsTwin: the same tier, the state as it was, and every tier
// before it said why not.
func TestTierForGroupEqualsTwin(t *testing.T) {
	var served, partly, none int
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		for _, pods := range c.Groups() {
			least := rapid.IntRange(1, len(pods)).Draw(t, "least")
			out, excluded := map[string]bool{}, map[string]string{}
			if tier := rapid.SampledFrom([]string{"", "", "tier-0", "tier-1"}).Draw(t, "excluded"); tier != "" {
				out[tier], excluded[tier] = true, "said the test"
			}
			want, err := c.TierForGroup(pods, least, c.Now, out)
			if err != nil {
				t.Fatalf("twin: %v", err)
			}
			before := s.Digest()
			got, err := s.TierForGroup(decide.GroupQuery{Pods: pods, Least: least, Now: c.Now, Excluded: excluded})
			if err != nil {
				t.Fatal(err)
			}
			if got.Tier != want {
				t.Fatalf("group %v, at least %d: the engine takes tier %d (%v), the twin %d", pods, least, got.Tier, got.Why, want)
			}
			if s.Digest() != before {
				t.Fatalf("group %v: the state is another one", pods)
			}
			if got.Tier != decide.NoTier && len(got.Why) != got.Tier {
				t.Fatalf("tier %d, and %d tiers before it: %v", got.Tier, len(got.Why), got.Why)
			}
			switch {
			case got.Tier == decide.NoTier:
				none++
			case got.Tier > 0:
				partly++
			default:
				served++
			}
		}
	})
	if served == 0 || partly == 0 || none == 0 {
		t.Errorf("first tier %d times, a later one %d, none %d", served, partly, none)
	}
}

// TestPodsOfAGroupEqualTwin: what a Pod gets, and why not, once the group's tier
// is known.
func TestPodsOfAGroupEqualTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		for _, name := range c.Pending() {
			if c.Pod(name).Labels[v1alpha1.LabelPolicy] == "" {
				continue
			}
			tier := rapid.IntRange(decide.NoTier, 3).Draw(t, "tier")
			q, twin := question(c, name)
			q.Group, twin.GroupTier = &decide.GroupTier{Tier: tier}, &tier
			want, err := c.Decide(twin)
			if err != nil {
				t.Fatalf("twin: %v", err)
			}
			d := mustDecide(t, s, q)
			compareWithTwin(t, c, d, want)
			free, _ := question(c, name)
			if mustDecide(t, s, free).InputDigest == d.InputDigest {
				t.Fatalf("the group does not count in the digest: %s", toJSON(d))
			}
		}
	})
}
