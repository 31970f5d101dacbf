package tenants

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// twoModels is a fleet of four H100 and four A100, and a policy that takes both.
func twoModels(t *testing.T) *world {
	w := newWorld(t)
	w.gpus("n", "H100", 4)
	w.gpus("m", "A100", 4)
	w.policy("ha", nil, tier("H100"), tier("A100"))
	w.quota("team", []string{"team"}, part("H100", 0, 4), part("A100", 0, 4))
	return w
}

// turnFor is the engine's next turn, as if it were for these models only.
func (w *world) turnFor(models ...string) []fair.Action {
	w.t.Helper()
	w.sync()
	var actions []fair.Action
	for _, a := range w.mirror.state.Next(w.now) {
		a.Models = models
		actions = append(actions, w.mirror.take(a)...)
	}
	return w.noted(actions)
}

// requireOpens checks which gates are opened, all of them for these models.
func requireOpens(t *testing.T, actions []fair.Action, names []string, models ...string) {
	t.Helper()
	var got []string
	for _, a := range actions {
		_, name, _, _ := SplitID(a.ID)
		got = append(got, name)
		if a.Kind != fair.Open || !slices.Equal(a.Models, models) {
			t.Errorf("got %v of %s for models %q, want it opened for %q", a.Kind, name, a.Models, models)
		}
	}
	if !slices.Equal(got, names) {
		t.Fatalf("got actions about %q, want %q", got, names)
	}
}

// requireTold checks for which models an engine that starts now, and the one that
// is there, were told that the work was opened.
func (w *world) requireTold(id string, want ...string) {
	w.t.Helper()
	w.sync()
	for name, m := range map[string]*Mirror{"the Mirror": w.mirror, "a new one": w.fresh()} {
		if m.told[id] == nil {
			w.t.Fatalf("%s does not know %s", name, id)
		}
		opened := slices.IndexFunc(m.told[id].facts(), func(ev fair.Event) bool { _, ok := ev.(fair.Opened); return ok })
		if opened < 0 {
			w.t.Fatalf("%s takes %s for waiting", name, id)
		}
		if got := m.told[id].facts()[opened].(fair.Opened); got.ID != id || !slices.Equal(got.Models, want) {
			w.t.Errorf("%s tells %+v, want models %q", name, got, want)
		}
	}
}

func idOf(p *corev1.Pod) string { return IDOf(p.Namespace, p.Name, p.UID) }

func models(text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationTurnModels: text} }
}

func TestModelsOnAPod(t *testing.T) {
	w := newWorld(t)
	for text, want := range map[string][]string{
		"": nil, "H100": {"H100"}, "A100,H100": {"A100", "H100"}, " H100 ,, A100,H100,": {"A100", "H100"}, " , ": nil,
	} {
		if got := modelsOn(w.pod("team", "p", "h", models(text))); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := modelsOn(w.pod("team", "p", "", models("H100"))); len(got) > 0 {
		t.Errorf("a Pod without a policy says %q, which counts", got)
	}
}

func TestEither(t *testing.T) {
	for _, test := range []struct {
		lists [][]string
		want  []string
	}{
		{nil, nil},
		{[][]string{{"T4", "A100"}}, []string{"A100", "T4"}},
		{[][]string{{"H100"}, {"A100", "H100"}}, []string{"A100", "H100"}},
		{[][]string{{"H100"}, {}}, nil},
	} {
		if got := either(test.lists...); !slices.Equal(got, test.want) {
			t.Errorf("%q: got %q, want %q", test.lists, got, test.want)
		}
	}
}

// A Pod says for which models its gate was opened, and who starts anew tells it.
func TestModelsOfATurn(t *testing.T) {
	w := twoModels(t)
	p := w.pod("team", "p", "ha")
	requireOpens(t, w.turnFor("H100", "A100"), []string{"p"}, "H100", "A100")
	if _, events, ok := w.mirror.told[idOf(p)].become(w.mirror.lookAt(w.now, idOf(p))); !ok || len(events) > 0 {
		t.Errorf("got events %v, %v while the opening is on its way", events, ok)
	}
	p = w.opened(p)
	if got := p.Annotations[v1alpha1.AnnotationTurnModels]; got != "A100,H100" {
		t.Errorf("the Pod says %q", got)
	}
	if _, events, ok := w.mirror.told[idOf(p)].become(w.mirror.lookAt(w.now, idOf(p))); !ok || len(events) > 0 {
		t.Errorf("got events %v, %v of what is known", events, ok)
	}
	w.requireTold(idOf(p), "A100", "H100")
	p = w.edit(p, models("A100"))
	w.requireTold(idOf(p), "A100") // by hand
	w.requireSameAsRestarted()
	p = w.edit(p, models(""))
	w.requireTold(idOf(p))
	w.requireSameAsRestarted()
}

// Nobody sets anything aside for Pods that no quota speaks of.
func TestStraysMayUseAnyModel(t *testing.T) {
	w := twoModels(t)
	p := w.pod("free", "p", "ha")
	requireOpens(t, w.actions(), []string{"p"})
	if p = w.opened(p); len(p.Annotations) > 0 {
		t.Errorf("the Pod says %v", p.Annotations)
	}
	w.requireTold(idOf(p))
}

// What is told of work whose models are said is told with them.
func TestBecomeTellsModels(t *testing.T) {
	a, b := []string{"A100"}, []string{"H100"}
	has := []fair.Devices{{Model: "A100", Count: 1}}
	opened := fair.Opened{ID: "p", Models: a}
	for name, test := range map[string]struct {
		was, is work
		events  []fair.Event
		models  []string
		anew    bool
	}{
		"let in by others": {was: work{}, is: work{phase: open, models: a}, events: []fair.Event{opened}, models: a},
		"on its way":       {was: work{phase: open, models: a}, is: work{}, models: a},
		"the same":         {was: work{phase: open, models: a}, is: work{phase: open, models: a}, models: a},
		"others":           {was: work{phase: open, models: b}, is: work{phase: open, models: a}, anew: true},
		"any":              {was: work{phase: open, models: b}, is: work{phase: open}, anew: true},
		"given back": {
			was: work{phase: open, models: a, decided: true, devices: has}, is: work{phase: open, models: a},
			events: []fair.Event{fair.Requeued{ID: "p"}, opened}, models: a,
		},
		// The Pods of a gang are not asked any more once they have devices.
		"decided": {
			was: work{phase: open, models: a, decided: true, devices: has}, is: work{phase: open, decided: true, devices: has}, models: a,
		},
	} {
		test.was.entry.ID, test.is.entry.ID = "p", "p"
		next, events, ok := test.was.become(&test.is)
		if ok == test.anew {
			t.Errorf("%s: told anew: %v", name, !ok)
			continue
		}
		if same := func(x, y fair.Event) bool {
			p, isOpened := x.(fair.Opened)
			q, wantOpened := y.(fair.Opened)
			return isOpened == wantOpened && (isOpened || x == y) && p.ID == q.ID && slices.Equal(p.Models, q.Models)
		}; !slices.EqualFunc(events, test.events, same) {
			t.Errorf("%s: got events %+v, want %+v", name, events, test.events)
		}
		if ok && !slices.Equal(next.models, test.models) {
			t.Errorf("%s: it is known with models %q, want %q", name, next.models, test.models)
		}
	}
}

// All Pods of a gang are let in for the same models, whoever opens the gates, also
// one that comes in the place of another.
func TestModelsOfAGang(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		w := twoModels(t)
		again := func() {
			if restarts {
				w.mirror = w.fresh()
			}
		}
		gang := gangID(w.group("team", "job", 3))
		pods := w.members("team", "job", "ha", 3)
		requireOpens(t, w.turnFor("A100"), []string{"job-a", "job-b", "job-c"}, "A100")
		w.sync()
		if got := w.mirror.told[gang]; got.phase != open || !slices.Equal(got.models, []string{"A100"}) {
			t.Errorf("while all openings are on their way it is known as %+v", got)
		}
		// One that the API server refuses is opened later, for the same: also where
		// no Pod says yet what it is.
		refused := func() {
			w.mirror.Pause(idOf(pods[0]), w.now.Add(time.Minute))
			requireOpens(t, w.actions(), nil)
			w.now = w.now.Add(time.Minute)
			requireOpens(t, w.actions(), []string{"job-a"}, "A100")
		}
		refused()
		pods[1] = w.opened(pods[1])
		if got := pods[1].Annotations; got[v1alpha1.AnnotationTurnModels] != "A100" || got[v1alpha1.AnnotationTurn] == "" {
			t.Errorf("a Pod of the gang says %v", got)
		}
		w.requireTold(gang, "A100")
		if restarts {
			again()
			requireOpens(t, w.actions(), []string{"job-a", "job-c"}, "A100")
		}
		refused()
		w.requireTold(gang, "A100")
		w.opened(pods[0])
		w.opened(pods[2])
		w.requireTold(gang, "A100")

		w.remove(pods[1])
		again()
		w.requireTold(gang, "A100")
		d := w.pod("team", "job-d", "ha", of("job"))
		requireOpens(t, w.actions(), []string{"job-d"}, "A100")
		if got := w.opened(d).Annotations[v1alpha1.AnnotationTurnModels]; got != "A100" {
			t.Errorf("who comes in the place of another says %q", got)
		}
		w.requireTold(gang, "A100")
	}
}

// A Pod beyond those that a gang starts with has a turn of its own, for models of
// its own. It may use any as the others once it is one of those that lack devices.
func TestModelsOfATurnBesideTheGang(t *testing.T) {
	w := twoModels(t)
	gang := gangID(w.group("team", "job", 2))
	pods := w.members("team", "job", "ha", 3)
	requireOpens(t, w.turnFor(), []string{"job-a", "job-b"})
	pods[0], pods[1] = w.opened(pods[0]), w.opened(pods[1])
	requireOpens(t, w.turnFor("A100"), []string{"job-c"}, "A100")
	w.requireTold(gang) // the other two may use any
	pods[2] = w.opened(pods[2])
	w.requireTold(gang)

	w.remove(pods[1])
	w.now = w.now.Add(time.Second)
	d := w.pod("team", "job-d", "ha", of("job"))
	requireOpens(t, w.actions(), []string{"job-d"})
	d = w.opened(d)
	w.requireTold(gang)

	w.allocate(pods[0], "n/gpu-0")
	w.allocate(d, "n/gpu-1")
	if got := w.mirror.Unsaid(); len(got) != 1 || len(got[idOf(pods[2])]) != 1 {
		t.Errorf("unsaid: %v", got)
	}
	w.allocate(pods[2], "m/gpu-0")
	w.requireUsage("team", "A100", 1, 1)
	w.requireSameAsRestarted()
}

// What a Pod may use is taken off it when the engine says so, however often that
// has to be tried, and of all Pods of a gang.
func TestWidening(t *testing.T) {
	w := twoModels(t)
	gang := gangID(w.group("team", "job", 2))
	pods := w.members("team", "job", "ha", 2)
	requireOpens(t, w.turnFor("A100"), []string{"job-a", "job-b"}, "A100")
	pods[0], pods[1] = w.opened(pods[0]), w.opened(pods[1])
	w.requireTold(gang, "A100")
	actions := w.mirror.take(fair.Action{Kind: fair.Widen, ID: gang, Tenant: "team"})
	if len(actions) != 2 || actions[0].ID != idOf(pods[0]) || actions[1].ID != idOf(pods[1]) {
		t.Errorf("%+v", actions)
	}
	unsaid := func(want ...*corev1.Pod) {
		t.Helper()
		got := w.mirror.Unsaid()
		for _, p := range want {
			if value, ok := got[idOf(p)][v1alpha1.AnnotationTurnModels]; !ok || value != nil {
				t.Errorf("%s is not to be told: %v", p.Name, got)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%v", got)
		}
	}
	w.sync()
	if got := w.mirror.told[gang]; len(got.models) > 0 {
		t.Errorf("known as %+v", got)
	}
	unsaid(pods...)
	// A controller that ends after the first of them leaves the rest to the next.
	first := pods[0].DeepCopy()
	delete(first.Annotations, v1alpha1.AnnotationTurnModels)
	w.put(first)
	w.sync()
	unsaid(pods[1])
	w.mirror = w.fresh()
	w.sync()
	unsaid(pods[1])
}
