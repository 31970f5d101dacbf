package simulate

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The calendar is a sorted list.
func TestCalendar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c calendar
		var list []event
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(list) == 0 || rapid.IntRange(0, 2).Draw(t, "pop") > 0 {
				e := event{at: int64(rapid.IntRange(0, 9).Draw(t, "at")), job: int32(rapid.IntRange(0, 3).Draw(t, "job"))}
				c.push(e)
				list = append(list, e)
				slices.SortFunc(list, compareEvents)
				continue
			}
			if got := c.pop(); got != list[0] {
				t.Fatalf("%v comes first, want %v", got, list[0])
			}
			list = list[1:]
		}
		if c.empty() != (len(list) == 0) {
			t.Fatalf("%d events left, want %d", len(c), len(list))
		}
	})
}

// However long a run is, the timeline keeps what was counted, in few steps.
func TestTimelineCoarsens(t *testing.T) {
	s := newSimulation(t, Input{Fleet: fleetOf(nodes(1, 4, "H100")), Trace: traceOf(row{0, 1, 1, "a", 0})})
	b := newBooks(s, dawn.UnixMilli())
	b.hold(0, 0, 3)
	b.ask(0, 2)
	at := b.first
	for _, span := range []int64{1, 999, 500, 240_000, 3_000_000, 7, 86_400_000_000} {
		at += span
		b.advance(at)
		var used, wanted int64
		for i := range b.steps {
			used += b.used[0][i]
			wanted += b.wanted[0][i]
		}
		if total := at - b.first; used != 3*total || wanted != 2*total || b.heldFor[0][0] != 3*total || b.steps > maxSteps {
			t.Fatalf("after %d ms: %d held and %d queued in %d steps of %d", total, used, wanted, b.steps, b.step)
		}
	}
	l := s.timeline(b).Tenants[0]
	for i := range l.Held {
		if l.Held[i] != 3 || l.Queued[i] != 2 {
			t.Errorf("step %d: held %v, queued %v", i, l.Held[i], l.Queued[i])
		}
	}
}

func TestQuantiles(t *testing.T) {
	var hundred []int64
	for i := range int64(100) {
		hundred = append(hundred, (i+1)*1000)
	}
	for _, tc := range []struct {
		values []int64
		want   Spread
	}{
		{nil, Spread{}},
		{[]int64{5000}, Spread{5, 5, 5}},
		{[]int64{1000, 2000}, Spread{1, 2, 2}},
		{hundred, Spread{50, 99, 100}},
	} {
		if got := spread(tc.values, 1000); got != tc.want {
			t.Errorf("spread of %d values is %+v, want %+v", len(tc.values), got, tc.want)
		}
	}
	points := distribution(hundred, 1000)
	if points[0] != (Point{0, 1}) || points[len(points)-1] != (Point{1, 100}) || !slices.IsSortedFunc(points, func(a, b Point) int {
		return int(a.Value - b.Value)
	}) {
		t.Errorf("distribution %v", points)
	}
	if got := distribution(nil, 1); got == nil || len(got) != 0 {
		t.Errorf("distribution of none: %v", got)
	}
}

func TestJain(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   float64
	}{{nil, 1}, {[]float64{0, 0}, 1}, {[]float64{0.3, 0.3, 0.3}, 1}, {[]float64{1, 0, 0, 0}, 0.25}, {[]float64{1, 0.5}, 0.9}} {
		if got := jain(tc.values); got != tc.want {
			t.Errorf("Jain's index of %v is %v, want %v", tc.values, got, tc.want)
		}
	}
}

// Two gangs that hold parts of what both need: the later one gives way.
func TestGangsGiveWay(t *testing.T) {
	s := newSimulation(t, Input{
		Fleet: fleetOf(nodes(2, 2, "H100")),
		Trace: traceOf(row{0, 100, 4, "a", 0}, row{0, 100, 4, "b", 0}),
	})
	r := &run{sim: s, states: make([]state, 2), books: newBooks(s, dawn.UnixMilli()), now: dawn.UnixMilli()}
	var err error
	if r.queue, err = s.newQueue(modes[3], dawn); err != nil {
		t.Fatal(err)
	}
	if r.decider, err = s.newDecider(); err != nil {
		t.Fatal(err)
	}
	r.idle = [][]int{{0, 0, 2}}
	r.free = []int64{2, 2}
	for i := range int32(2) {
		if err := r.arrive(i); err != nil {
			t.Fatal(err)
		}
		if placed, err := r.decide(i, 0); err != nil || !placed {
			t.Fatalf("member 0 of gang %d: %t, %v", i, placed, err)
		}
		r.stuck = append(r.stuck, i)
	}
	r.arrived = 2
	if err := r.play(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range r.states {
		if r.states[i].ended == unfinished {
			t.Errorf("gang %d never runs", i)
		}
	}
	if r.states[0].ended >= r.states[1].ended {
		t.Errorf("the later gang ends at %d, the earlier at %d", r.states[1].ended, r.states[0].ended)
	}
}
