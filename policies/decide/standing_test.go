package decide

// What is kept of the fleet: that it is bounded, and when it does not answer.

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// watched is a State as the scheduler has it.
func watched(t *testing.T, objects ...runtime.Object) *State {
	t.Helper()
	return stateWith(t, Options{NodeChecks: ExternalNodeChecks}, objects...)
}

// answers says whether the standing of the Pod's first alternative answers.
func answers(t *testing.T, st *State, q Query) bool {
	t.Helper()
	prob, _, err := st.read(&q)
	if err != nil {
		t.Fatal(err)
	}
	return st.newRun(prob, &q, false).answering(prob.alts[0]) != nil
}

// goesTo says that the Pod gets a place on the node.
func goesTo(t *testing.T, st *State, pod, node string) {
	t.Helper()
	if d := decideFor(t, st, ask(pod)); d.Node != node {
		t.Fatalf("Pod %s goes to node %q, want %q", pod, d.Node, node)
	}
}

func TestWhenStandingsAnswer(t *testing.T) {
	policy := ladder()
	late := ladder(func(s *v1alpha1.AcceleratorPolicySpec) {
		s.Tiers[0].After = &metav1.Duration{Duration: 10 * time.Minute}
	})
	everything := aPolicy(aTier("any"))
	pair := ladder(count(2), func(s *v1alpha1.AcceleratorPolicySpec) { s.MixModels = v1alpha1.MixModelsWithinTier })
	for _, c := range []struct {
		name    string
		objects []runtime.Object
		want    bool
	}{
		{"a policy", ranked(policy), true},
		{"a tier that may not be used yet", ranked(late), false},
		{"a quota with room", append(ranked(policy), aQuota("a", []string{"team-a"}, upTo("H100", 1))), true},
		{"a quota without", append(ranked(policy), aQuota("a", []string{"team-a"}, upTo("H100", 0))), true},
		{"a quota without the model", append(ranked(policy), aQuota("a", []string{"team-a"}, upTo("A100", 1))), true},
		{"a quota without some model of a node", append(ranked(everything), aQuota("a", []string{"team-a"}, upTo("A100", 1))), false},
		{"a quota for one of two", append(ranked(pair), aQuota("a", []string{"team-a"}, upTo("H100", 1))), false},
		{"a turn for another model", append(ranked(policy), aPod("p", turnFor("A100")), aQuota("a", []string{"team-a"}, upTo("H100", 9), upTo("A100", 9))), true},
		{"a turn for one of two models of a node", append(ranked(everything), aPod("p", turnFor("A100")), aQuota("a", []string{"team-a"}, upTo("H100", 9), upTo("A100", 9))), false},
		{"devices for several nodes", append(ranked(policy), onlyOn(aSlice("fabric", aGPU("gpu-0", "H100")), "rack", "1")), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := answers(t, watched(t, c.objects...), ask("p")); got != c.want {
				t.Errorf("answers is %t, want %t", got, c.want)
			}
			if answers(t, stateOf(t, c.objects...), ask("p")) {
				t.Error("it answers where nodes are judged Pod by Pod")
			}
		})
	}
	st := watched(t, ranked(policy)...)
	d := decideFor(t, st, ask("p"))
	if err := st.Assume(d, true); err != nil {
		t.Fatal(err)
	}
	if answers(t, st, ask("p")) {
		t.Error("it answers although what is assumed for the Pod is free for it alone")
	}
	st.Forget(ask("p").Pod)
	if !answers(t, st, ask("p")) {
		t.Error("it does not answer any more")
	}
}

func TestStandingsAreBounded(t *testing.T) {
	objects := ranked(ladder())
	for i := range maxStandings + 20 {
		p := ladder()
		p.Name = fmt.Sprintf("policy-%03d", i)
		p.Spec.Constraints.MinMemory = ptr.To(resource.MustParse(fmt.Sprintf("%dMi", i+1)))
		pod := aPod(fmt.Sprintf("pod-%03d", i))
		pod.Labels[v1alpha1.LabelPolicy] = p.Name
		objects = append(objects, p, pod)
	}
	st := watched(t, objects...)
	for range 2 {
		for i := range maxStandings + 20 {
			goesTo(t, st, fmt.Sprintf("pod-%03d", i), "n-2")
		}
		if n := len(st.standings.by); n != maxStandings {
			t.Errorf("%d standings are kept, want %d", n, maxStandings)
		}
	}
}

func TestChangesAreBounded(t *testing.T) {
	st := watched(t, ranked(ladder())...)
	other := ladder()
	other.Name = "other"
	other.Spec.Ranking = v1alpha1.RankingSpread
	late := aPod("late")
	late.Labels[v1alpha1.LabelPolicy] = "other"
	mustPut(t, st, other, late)
	goesTo(t, st, "late", "n-3")
	structure := st.standings.structure
	for i := range maxTouched + 10 {
		on := []string{"n-2", "n-4"}[i%2]
		mustPut(t, st, allocated(aClaim("x"), "r", [2]string{on, "gpu-0"}))
		want := []string{"n-4", "n-2"}[i%2]
		if i%1000 == 0 {
			goesTo(t, st, "p", want)
		}
	}
	if st.standings.structure == structure {
		t.Error("nothing is built anew after that many changes")
	}
	if n := len(st.standings.touched); n > maxTouched {
		t.Errorf("%d changes are remembered, want at most %d", n, maxTouched)
	}
	goesTo(t, st, "late", "n-3") // it did not follow for a long time
}

// A search that is long on one node may be given up where much was searched
// before it, so such fleets are looked at as a whole.
func TestHardNodesAreLookedAt(t *testing.T) {
	st := watched(t, ranked(ladder())...)
	if !answers(t, st, ask("p")) {
		t.Fatal("it does not answer")
	}
	for _, s := range st.standings.by {
		for _, n := range s.nodes {
			hard := *n
			hard.hard = true
			s.replace(&hard)
			break
		}
	}
	if answers(t, st, ask("p")) {
		t.Error("it answers for a node on which the search is long")
	}
	goesTo(t, st, "p", "n-2")
}
