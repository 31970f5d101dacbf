package decide

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func candidatesFor(t testing.TB, st *State, q Query) []Candidate {
	t.Helper()
	seq, err := st.Candidates(q)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(seq)
}

func spread(s *v1alpha1.AcceleratorPolicySpec) { s.Ranking = v1alpha1.RankingSpread }

// ranked is a fleet whose nodes have one to three H100, and one A100 each.
func ranked(policy *v1alpha1.AcceleratorPolicy) []runtime.Object {
	return []runtime.Object{
		policy, aPod("p"), aNode("n-1"), aNode("n-2"), aNode("n-3"), aNode("n-4"),
		aSlice("n-1", aGPU("gpu-0", "A100"), aGPU("gpu-1", "H100"), aGPU("gpu-2", "H100")),
		aSlice("n-2", aGPU("gpu-0", "H100")),
		aSlice("n-3", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100"), aGPU("gpu-2", "H100")),
		aSlice("n-4", aGPU("gpu-0", "H100")),
	}
}

func TestOrderOfNodes(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy *v1alpha1.AcceleratorPolicy
		nodes  []string
		tiers  []string
	}{
		{"packed", ladder(), []string{"n-2", "n-4", "n-1", "n-3"}, []string{"h100", "h100", "h100", "h100"}},
		{"spread", ladder(spread), []string{"n-3", "n-1", "n-2", "n-4"}, []string{"h100", "h100", "h100", "h100"}},
		{"tier first", aPolicy(aTier("a100", "A100"), aTier("h100", "H100")), []string{"n-1", "n-2", "n-4", "n-3"}, []string{"a100", "h100", "h100", "h100"}},
		{"by tier's count", ladder(count(2)), []string{"n-1", "n-3"}, []string{"h100", "h100"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := stateOf(t, ranked(c.policy)...)
			var nodes, tiers []string
			candidates := candidatesFor(t, st, ask("p"))
			for _, x := range candidates {
				nodes, tiers = append(nodes, x.Node), append(tiers, x.Tier)
				if len(x.Shared) > 0 || len(x.Devices) == 0 {
					t.Errorf("%+v", x)
				}
			}
			if !slices.Equal(nodes, c.nodes) || !slices.Equal(tiers, c.tiers) {
				t.Errorf("%v %v, want %v %v", nodes, tiers, c.nodes, c.tiers)
			}
			d := decideFor(t, st, ask("p"))
			if first := candidates[0]; d.Node != first.Node || d.Tier != first.Tier || *d.TierIndex != first.TierIndex || !slices.Equal(d.Devices, first.Devices) {
				t.Errorf("decided %s %s %v, the first candidate is %+v", d.Tier, d.Node, d.Devices, first)
			}
		})
	}
}

// Reading candidates in part leaves no charge behind, and lower tiers unread.
func TestCandidatesAreLazy(t *testing.T) {
	st := stateOf(t, append(ranked(ladder()), aQuota("a", []string{"team-a"}, upTo("H100", 1), upTo("A100", 1)))...)
	for range 3 {
		seq, err := st.Candidates(ask("p"))
		if err != nil {
			t.Fatal(err)
		}
		for c := range seq {
			if c.Node != "n-2" {
				t.Fatalf("first %s", c.Node)
			}
			break
		}
	}
	if n := len(st.alternativeIDs); n != 1 {
		t.Errorf("%d tiers were looked at", n)
	}
	if d := decideFor(t, st, ask("p")); d.Node != "n-2" {
		t.Errorf("decided %s", d.Node)
	}
}

func TestCandidatesNameSharedDevices(t *testing.T) {
	rack := changed(aNode("n-1"), func(n *corev1.Node) { n.Labels["rack"] = "1" })
	st := stateOf(t, rack, onlyOn(aSlice("fabric", aGPU("gpu-0", "H100")), "rack", "1"), ladder(), aPod("p"))
	if got := candidatesFor(t, st, ask("p")); len(got) != 1 || !slices.Equal(got[0].Shared, []string{ours + "/fabric/gpu-0"}) {
		t.Errorf("%+v", got)
	}
}

// Several requests: nodes are ordered by the vector of alternatives, so that
// the first request's better alternative comes before the second's.
func TestOrderOfVectors(t *testing.T) {
	st := stateOf(
		t, aClass("gpu"), aPod("p", plain("c")), aClaim("c", firstAvailable("a", "H100", "L4"), firstAvailable("b", "A100", "T4")), aNode("n-1"), aNode("n-2"), aNode("n-3"), aNode("n-4"),
		aSlice("n-1", aGPU("gpu-0", "L4"), aGPU("gpu-1", "A100")),
		aSlice("n-2", aGPU("gpu-0", "H100"), aGPU("gpu-1", "T4")),
		aSlice("n-3", aGPU("gpu-0", "H100")),
		aSlice("n-4", aGPU("gpu-0", "L4"), aGPU("gpu-1", "T4")),
	)
	var nodes []string
	for _, c := range candidatesFor(t, st, ask("p")) {
		nodes = append(nodes, c.Node)
	}
	if want := []string{"n-2", "n-1", "n-4"}; !slices.Equal(nodes, want) {
		t.Fatalf("%v, want %v", nodes, want)
	}
	d := decideFor(t, st, ask("p"))
	if d.Tier != "a/H100" || *d.TierIndex != 0 {
		t.Errorf("tier %s", d.Tier)
	}
	outcomes := map[string]v1alpha1.TierOutcome{}
	for _, e := range d.Tiers {
		outcomes[e.Name] = e.Outcome
	}
	for name, want := range map[string]v1alpha1.TierOutcome{"a/H100": v1alpha1.TierSelected, "a/L4": v1alpha1.TierNotReached, "b/A100": v1alpha1.TierRejected, "b/T4": v1alpha1.TierSelected} {
		if outcomes[name] != want {
			t.Errorf("%s is %s, want %s", name, outcomes[name], want)
		}
	}
	// n-1 has an A100, but not beside an H100.
	if got := countsOf(t, d, "b/A100"); got[v1alpha1.ReasonNotEnoughDevices] != 1 || got[v1alpha1.ReasonLowerRank] != 0 {
		t.Errorf("the better second alternative counts %v", got)
	}
}

func TestAfter(t *testing.T) {
	policy := ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
		s.Tiers[1].After = &metav1.Duration{Duration: 10 * time.Minute}
	})
	st := stateOf(t, policy, aPod("p"), aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "A100")))
	for _, c := range []struct {
		waited time.Duration
		want   v1alpha1.Outcome
	}{
		{-time.Hour, v1alpha1.OutcomePending},
		{10*time.Minute - 1, v1alpha1.OutcomePending},
		{10 * time.Minute, v1alpha1.OutcomeAllocated},
		{time.Hour, v1alpha1.OutcomeAllocated},
	} {
		q := ask("p")
		q.Now = epoch.Add(c.waited)
		if d := decideFor(t, st, q); d.Outcome != c.want {
			t.Errorf("after %s: %s", c.waited, d.Message)
		}
	}
}
