package decide

// The models that a Pod's turn is for.

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// turns is a fleet with an H100 on n-1, which comes first, and an A100 on n-2, for
// a Pod that may have one of each.
func turns(models string, more ...runtime.Object) []runtime.Object {
	return append([]runtime.Object{
		aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), aNode("n-2"), aSlice("n-2", aGPU("gpu-0", "A100")),
		ladder(), aPod("p", turnFor(models)), aQuota("a", []string{"team-a"}, upTo("H100", 1), upTo("A100", 1)),
	}, more...)
}

// everyWay decides where nodes are judged here and where others judge them, which
// is read off the standings.
func everyWay(t *testing.T, check func(t *testing.T, st *State), objects ...runtime.Object) {
	t.Helper()
	for name, opts := range map[string]Options{"looked at": {}, "read off": {NodeChecks: ExternalNodeChecks}} {
		t.Run(name, func(t *testing.T) { check(t, stateWith(t, opts, objects...)) })
	}
}

func TestTurnForSomeModels(t *testing.T) {
	nvidia := func(models string) []runtime.Object {
		return turns(
			models, ladder(func(s *v1alpha1.AcceleratorPolicySpec) { s.Driver = v1alpha1.NVIDIADriverName }),
			fromNVIDIA(aSlice("n-1", aGPU("gpu-0", "H100"))), fromNVIDIA(aSlice("n-2", aGPU("gpu-0", "A100"))),
		)
	}
	held := inNamespace("team-a", allocated(aClaim("x"), "r", [2]string{"n-3", "gpu-0"}))
	for _, c := range []struct {
		name    string
		objects []runtime.Object
		want    string // the device
		detail  string // of the H100
	}{
		{"of the second tier", turns("A100"), "n-2/gpu-0", "the Pod's turn is for A100 only"},
		{"of several", turns(" L4 ,, A100 "), "n-2/gpu-0", "the Pod's turn is for L4, A100 only"},
		{"of both tiers", turns("A100,H100"), "n-1/gpu-0", ""},
		{"of none in the fleet", turns("T4"), "", "the Pod's turn is for T4 only"},
		{"empty", turns(""), "n-1/gpu-0", ""},
		{"nothing but separators", turns(" , "), "n-1/gpu-0", ""},
		{"a word of NVIDIA's product", nvidia("A100"), "n-2/gpu-0", "the Pod's turn is for A100 only"},
		{"the other word", nvidia("H100"), "n-1/gpu-0", ""},
		{"no word, but a part of one", nvidia("A10"), "", "the Pod's turn is for A10 only"},
		{"of two models on a node", turns("A100", aPolicy(aTier("h100", "H100", "A100")),
			aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "A100")), aSlice("n-2")), "n-1/gpu-1", "the Pod's turn is for A100 only"},
		{"the tenant has one of the others", turns("A100", aNode("n-3"), aSlice("n-3", aGPU("gpu-0", "H100")), held,
			aQuota("a", []string{"team-a"}, upTo("H100", 2), upTo("A100", 1))), "n-2/gpu-0", "the Pod's turn is for A100 only"},
		{
			"without a limit", turns("A100", aQuota("a", []string{"team-a"}, v1alpha1.ModelQuota{Model: "H100"}, v1alpha1.ModelQuota{Model: "A100"})),
			"n-2/gpu-0", "the Pod's turn is for A100 only",
		},
		{"not listed either", turns("A100", aQuota("a", []string{"team-a"}, upTo("A100", 1))), "n-2/gpu-0", "the tenant's quota does not list H100"},
		{"no quota", turns("A100", aQuota("a", []string{"team-b"})), "n-1/gpu-0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, st *State) {
				d := decideFor(t, st, ask("p"))
				want := []string{c.want}
				if c.want == "" {
					want = nil
				}
				if got := namesOf(d); !slices.Equal(got, want) {
					t.Errorf("chose %v, want %v: %s", got, want, d.Message)
				}
				if got := detailOf(d, "h100", v1alpha1.ReasonQuotaExceeded); got != c.detail {
					t.Errorf("detail %q, want %q", got, c.detail)
				}
			}, c.objects...)
		})
	}
}

// The turn says what the Pod may have now. What it could ever have is the quota's
// affair, so that a Pod waits for the models of its turn.
func TestTurnIsNotForever(t *testing.T) {
	held := inNamespace("team-b", allocated(aClaim("x"), "r", [2]string{"n-2", "gpu-0"}))
	never := aQuota("a", []string{"team-a"}, upTo("H100", 0), upTo("A100", 0))
	for _, c := range []struct {
		name    string
		objects []runtime.Object
		outcome v1alpha1.Outcome
		class   v1alpha1.FailureClass
	}{
		{"in use", turns("A100", held), v1alpha1.OutcomePending, ""},
		{"none there", turns("L4"), v1alpha1.OutcomePending, ""},
		{"the quota allows none", turns("A100", never), v1alpha1.OutcomeUnsatisfiable, v1alpha1.FailureQuotaNeverFits},
	} {
		t.Run(c.name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, st *State) {
				if d := decideFor(t, st, ask("p")); d.Outcome != c.outcome || d.Class != c.class {
					t.Errorf("%s %s: %s", d.Outcome, d.Class, d.Message)
				}
			}, c.objects...)
		})
	}
}

// Admin access takes nothing of what is set aside for others.
func TestAdminAccessNeedsNoTurn(t *testing.T) {
	admin := exactly("r", 1)
	admin.Exactly.AdminAccess = new(bool)
	st := stateOf(t, turns("A100", aSlice("n-2"), aClass("gpu"), aPod("p", plain("c"), turnFor("A100")), aClaim("c", admin))...)
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomePending {
		t.Fatalf("without it: %s", d.Message)
	}
	*admin.Exactly.AdminAccess = true
	mustPut(t, st, aClaim("c", admin))
	if d := decideFor(t, st, ask("p")); !slices.Equal(namesOf(d), []string{"n-1/gpu-0"}) {
		t.Fatalf("with it: %s", d.Message)
	}
}

// A group takes the tier that its Pods may use.
func TestTurnOfAGroup(t *testing.T) {
	st := stateOf(t, turns("A100")...)
	got, err := st.TierForGroup(GroupQuery{Pods: []podKey{ask("p").Pod}, Least: 1, Now: epoch})
	if err != nil || got.Tier != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
}

// A device without a model that is assumed for the Pod gives its tenant nothing
// back of the first model.
func TestAssumedDeviceWithoutModel(t *testing.T) {
	nic := aSlice("n-1", aGPU("nic-0", "H100"))
	nic.Spec.Driver = "dra.example.com"
	st := stateOf(t, aNode("n-1"), nic, aClass("gpu"), aPod("p", plain("c")), aClaim("c", exactly("r", 1)), aQuota("a", []string{"team-a"}, upTo("H100", 1)))
	assume(t, st, decideFor(t, st, ask("p")), true)
	if got := st.budgetOf(st.pods[ask("p").Pod], false).used; !slices.Equal(got, []int{0}) {
		t.Errorf("in use %v", got)
	}
}
