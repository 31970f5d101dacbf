package fair_test

import (
	"errors"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/fair"
)

// ask is a request of n devices of a model.
func ask(n int64, models ...string) fair.Request {
	return fair.Request{Alternatives: []fair.Alternative{{Models: models, Count: n}}}
}

// A gang whose Pods ask for different things gets its devices one by one: what
// it has is counted as that, what it lacks as undecided.
func TestRestOfAnEntry(t *testing.T) {
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	st, err := fair.New(fair.Config{Models: []fair.Model{{Name: "H100", Cost: 4}, {Name: "A100", Cost: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(events ...fair.Event) {
		t.Helper()
		for _, ev := range events {
			if err := st.Apply(at, ev); err != nil {
				t.Fatal(err)
			}
		}
	}
	require := func(model string, allocated, undecided, free int64) {
		t.Helper()
		usage := st.Usage("a")
		_, left := st.Capacity(model)
		if u := usage.Of(model); u.Allocated != allocated || u.Undecided != undecided || left != free {
			t.Fatalf("%s: got %d allocated, %d undecided, %d free, want %d, %d and %d", model, u.Allocated, u.Undecided, left, allocated, undecided, free)
		}
	}
	apply(fair.CapacitySet{Model: "H100", Devices: 8}, fair.CapacitySet{Model: "A100", Devices: 8},
		fair.Arrived{Entry: fair.Entry{ID: "g", Tenant: "a", Created: at, Requests: []fair.Request{ask(4, "H100"), ask(2, "A100")}}})
	if got := st.Next(at); len(got) != 1 || len(got[0].Placements) != 2 {
		t.Fatalf("got %+v", got)
	}
	require("H100", 0, 4, 4)
	require("A100", 0, 2, 6)
	apply(fair.Allocated{ID: "g", Devices: []fair.Devices{{Model: "H100", Count: 3}}, Rest: []fair.Request{ask(1, "H100"), ask(2, "A100")}})
	require("H100", 3, 1, 4)
	require("A100", 0, 2, 6)
	if x, err := st.Explain("g"); err != nil || x.Reason != fair.ReasonOpened {
		t.Errorf("got %+v, %v", x, err)
	}
	apply(fair.Allocated{ID: "g", Devices: []fair.Devices{{Model: "H100", Count: 4}, {Model: "A100", Count: 2}}})
	require("H100", 4, 0, 4)
	require("A100", 2, 0, 6)
	// A part of it is given back.
	apply(fair.Allocated{ID: "g", Devices: []fair.Devices{{Model: "H100", Count: 4}}, Rest: []fair.Request{ask(2, "A100")}})
	require("H100", 4, 0, 4)
	require("A100", 0, 2, 6)
	// Deleted as it is: what it has is held until it is released.
	apply(fair.Deleted{ID: "g"})
	require("H100", 4, 0, 4)
	require("A100", 0, 0, 8)
	apply(fair.Released{ID: "g"})
	require("H100", 0, 0, 8)
}

// Requeued, an entry asks for all of it again.
func TestRestIsForgotten(t *testing.T) {
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	st, err := fair.New(fair.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range []fair.Event{
		fair.CapacitySet{Model: "H100", Devices: 4},
		fair.Arrived{Entry: fair.Entry{ID: "g", Tenant: "a", Created: at, Requests: []fair.Request{ask(3, "H100")}}},
		fair.Allocated{ID: "g", Devices: []fair.Devices{{Model: "H100", Count: 2}}, Rest: []fair.Request{ask(1, "H100")}},
		fair.Requeued{ID: "g"},
		fair.Opened{ID: "g"},
	} {
		if err := st.Apply(at, ev); err != nil {
			t.Fatal(err)
		}
	}
	usage := st.Usage("a")
	if u := usage.Of("H100"); u.Allocated != 0 || u.Undecided != 3 {
		t.Errorf("got %+v", u)
	}
}

func TestRestIsChecked(t *testing.T) {
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	st, err := fair.New(fair.Config{})
	if err != nil {
		t.Fatal(err)
	}
	shared := ask(1, "H100")
	shared.Claim = "c"
	for _, x := range []fair.Entry{
		{ID: "one", Tenant: "a", Created: at, Requests: []fair.Request{ask(2, "H100"), shared}},
		{ID: "many", Tenant: "a", Created: at, Members: 2, Requests: []fair.Request{ask(1, "H100")}},
	} {
		if err := st.Apply(at, fair.Arrived{Entry: x}); err != nil {
			t.Fatal(err)
		}
	}
	for name, ev := range map[string]fair.Allocated{
		"names a claim":       {ID: "one", Rest: []fair.Request{shared}},
		"members are counted": {ID: "many", Rest: []fair.Request{ask(1, "H100")}},
		"no alternative":      {ID: "one", Rest: []fair.Request{{}}},
		"a count of none":     {ID: "one", Rest: []fair.Request{ask(0, "H100")}},
	} {
		if err := st.Apply(at, ev); !errors.Is(err, fair.ErrInvalid) {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
	}
}
