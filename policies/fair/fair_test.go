package fair_test

// Helpers of the tests, and what happens to single entries.

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

var start = time.Date(2017, 1, 2, 3, 4, 5, 0, time.UTC)

var models = []fair.Model{{Name: "H100", Cost: 100}, {Name: "A100", Cost: 50}, {Name: "L4", Cost: 10}}

func newState(t testing.TB, cfg fair.Config) *fair.State {
	t.Helper()
	st, err := fair.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func apply(t testing.TB, st *fair.State, now time.Time, events ...fair.Event) {
	t.Helper()
	for _, ev := range events {
		if err := st.Apply(now, ev); err != nil {
			t.Fatalf("%T %+v: %v", ev, ev, err)
		}
	}
}

// after start by seconds.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// pod asks for n devices of the first model that has them.
func pod(id, tenant string, created int, n int64, models ...string) fair.Entry {
	e := fair.Entry{ID: id, Tenant: tenant, Created: at(created), Preemptible: true, Preempts: v1alpha1.PreemptsBorrowed}
	var r fair.Request
	for _, m := range models {
		r.Alternatives = append(r.Alternatives, fair.Alternative{Models: []string{m}, Count: n})
	}
	e.Requests = []fair.Request{r}
	return e
}

func arrive(entries ...fair.Entry) []fair.Event {
	var out []fair.Event
	for _, e := range entries {
		out = append(out, fair.Arrived{Entry: e})
	}
	return out
}

// mq is a ModelQuota; a negative limit is none.
func mq(model string, guaranteed, limit int64) fair.ModelQuota {
	q := fair.ModelQuota{Model: model, Guaranteed: guaranteed}
	if limit >= 0 {
		q.Limit = &limit
	}
	return q
}

func quota(tenant string, models ...fair.ModelQuota) fair.Event {
	return fair.QuotaSet{Quota: fair.Quota{Tenant: tenant, Models: models}}
}

func allocated(id, model string, n int64) fair.Event {
	return fair.Allocated{ID: id, Devices: []fair.Devices{{Model: model, Count: n}}}
}

// steps are the actions as words.
func steps(actions []fair.Action) []string {
	out := []string{}
	for _, a := range actions {
		s := a.Kind.String() + " " + a.ID
		if a.For != "" {
			s += " for " + a.For
		}
		out = append(out, s)
	}
	return out
}

func expect(t *testing.T, st *fair.State, now time.Time, want ...string) {
	t.Helper()
	if got := steps(st.Next(now)); !slices.Equal(got, want) {
		t.Fatalf("next: %q, want %q", got, want)
	}
	if got := steps(st.Next(now)); len(got) > 0 {
		t.Fatalf("asked again: %q", got)
	}
}

func charged(t *testing.T, st *fair.State, tenant, model string, want int64) {
	t.Helper()
	u := st.Usage(tenant)
	if got := u.Of(model).Charged; got != want {
		t.Fatalf("%s is charged %d %s, want %d: %+v", tenant, got, model, want, u)
	}
}

func TestChargeIsTheDearestThenTheReal(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	apply(t, st, start, quota("a", mq("H100", 0, 4), mq("A100", 0, 8)), fair.CapacitySet{Model: "H100", Devices: 4}, fair.CapacitySet{Model: "A100", Devices: 8})
	apply(t, st, start, arrive(pod("p", "a", 0, 2, "A100", "H100"))...)
	charged(t, st, "a", "H100", 0)
	expect(t, st, start, "Open p")
	// It prefers an A100 and will get one, but an H100 is possible and dearer.
	charged(t, st, "a", "H100", 2)
	charged(t, st, "a", "A100", 0)
	apply(t, st, start, allocated("p", "A100", 2))
	charged(t, st, "a", "H100", 0)
	charged(t, st, "a", "A100", 2)
	// Told again with what it really is, the count follows in both directions.
	apply(t, st, start, allocated("p", "H100", 3))
	charged(t, st, "a", "H100", 3)
	charged(t, st, "a", "A100", 0)
	apply(t, st, start, fair.Finished{ID: "p"})
	charged(t, st, "a", "H100", 0)
}

func TestCountOfTheAlternativeDecidesWhatIsDearest(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	e := pod("p", "a", 0, 1, "H100", "A100")
	e.Requests[0].Alternatives[1].Count = 3 // 150 against 100
	apply(t, st, start, fair.CapacitySet{Model: "H100", Devices: 4}, fair.CapacitySet{Model: "A100", Devices: 8})
	apply(t, st, start, arrive(e)...)
	expect(t, st, start, "Open p")
	charged(t, st, "a", "A100", 3)
	charged(t, st, "a", "H100", 0)
}

func TestRefusedEventsChangeNothing(t *testing.T) {
	st := newState(t, fair.Config{Models: models})
	limit := int64(1)
	for _, c := range []struct {
		ev   fair.Event
		want error
	}{
		{fair.Arrived{}, fair.ErrInvalid},
		{fair.Arrived{Entry: pod("p", "a", 0, 0, "H100")}, fair.ErrInvalid},
		{fair.Arrived{Entry: pod("p", "a", 0, -1, "H100")}, fair.ErrInvalid},
		{fair.Arrived{Entry: pod("p", "a", 0, math.MaxInt64, "H100")}, fair.ErrInvalid},
		{fair.Arrived{Entry: pod("p", "a", 0, 1)}, fair.ErrInvalid},
		{fair.Opened{ID: "p"}, fair.ErrUnknownEntry},
		{allocated("p", "H100", 1), fair.ErrUnknownEntry},
		{fair.Released{ID: "p"}, fair.ErrUnknownEntry},
		{fair.CapacitySet{Model: "H100", Devices: -1}, fair.ErrInvalid},
		{quota("a", mq("H100", -1, 5)), fair.ErrInvalid},
		{quota("a", fair.ModelQuota{Model: "H100", Guaranteed: 2, Limit: &limit}), fair.ErrInvalid},
		{quota("a", mq("H100", 1, 5), mq("H100", 1, 5)), fair.ErrInvalid},
	} {
		if err := st.Apply(start, c.ev); !errors.Is(err, c.want) {
			t.Errorf("%T %+v: %v, want %v", c.ev, c.ev, err, c.want)
		}
	}
	if len(st.Tenants()) != 0 {
		t.Errorf("tenants %v", st.Tenants())
	}
}
