package fair_test

// The four properties of dominant resource fairness (Ghodsi et al., NSDI 2011),
// each in the setting in which it holds for tasks that cannot be divided:
// every tenant has more work than fits, all of it came at one instant, nothing
// is guaranteed or limited, each model is a group of its own, and a task needs
// one device of each of the models that its tenant uses (so demands are
// Leontief). What holds for divisible resources then holds up to one task.

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/fair"
)

// market is such a setting.
type market struct {
	capacity map[string]int64
	wants    map[string][]string // models by tenant
	weights  map[string]int64
}

var marketModels = []string{"A", "B", "C"}

func drawMarket(t *rapid.T, weighted bool) market {
	m := market{capacity: map[string]int64{}, wants: map[string][]string{}, weights: map[string]int64{}}
	for _, name := range marketModels {
		m.capacity[name] = rapid.Int64Range(1, 12).Draw(t, "capacity")
	}
	for i := range rapid.IntRange(2, 4).Draw(t, "tenants") {
		name := fmt.Sprintf("t%d", i)
		m.wants[name] = drawWants(t)
		m.weights[name] = 1
		if weighted {
			m.weights[name] = rapid.Int64Range(1, 4).Draw(t, "weight")
		}
	}
	return m
}

func drawWants(t *rapid.T) []string {
	n := rapid.IntRange(1, 3).Draw(t, "models")
	wants := rapid.Permutation(marketModels).Draw(t, "wants")[:n]
	slices.Sort(wants)
	return wants
}

// settle returns the number of tasks that each tenant gets.
func (m market) settle(t *rapid.T) map[string]int64 {
	var known []fair.Model
	for _, name := range marketModels {
		known = append(known, fair.Model{Name: name, Cost: int64(len(known)*7 + 1), Group: name})
	}
	st, err := fair.New(fair.Config{Models: known})
	if err != nil {
		t.Fatal(err)
	}
	say := func(ev fair.Event) {
		if err := st.Apply(start, ev); err != nil {
			t.Fatal(err)
		}
	}
	for name, n := range m.capacity {
		say(fair.CapacitySet{Model: name, Devices: n})
	}
	for name, wants := range m.wants {
		q := fair.Quota{Tenant: name, Weight: m.weights[name]}
		for _, w := range marketModels {
			q.Models = append(q.Models, fair.ModelQuota{Model: w})
		}
		say(fair.QuotaSet{Quota: q})
		for i := range 14 {
			e := fair.Entry{ID: fmt.Sprintf("%s-%02d", name, i), Tenant: name, Created: start, Preemptible: true}
			for _, w := range wants {
				e.Requests = append(e.Requests, fair.Request{Alternatives: []fair.Alternative{{Models: []string{w}, Count: 1}}})
			}
			say(fair.Arrived{Entry: e})
		}
	}
	tasks := map[string]int64{}
	for _, a := range st.Next(start) {
		if a.Kind == fair.Open {
			tasks[a.Tenant]++
		}
	}
	return tasks
}

// dominant share of one task of a tenant that uses these models.
func (m market) dominant(wants []string) float64 {
	var share float64
	for _, w := range wants {
		share = max(share, 1/float64(m.capacity[w]))
	}
	return share
}

const rounding = 1e-9

// TestSharingIncentive: no tenant has less than in its equal part of the
// fleet, up to one task of each tenant.
func TestSharingIncentive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMarket(t, true)
		tasks := m.settle(t)
		var weights, one float64
		for name, wants := range m.wants {
			weights += float64(m.weights[name])
			one += m.dominant(wants)
		}
		for name, wants := range m.wants {
			part := float64(m.weights[name]) / weights
			if got, want := float64(tasks[name])*m.dominant(wants), part*(1-one); got < want-rounding {
				t.Fatalf("%s has a share of %v, below %v of %+v: %v", name, got, want, m, tasks)
			}
		}
	})
}

// TestEnvyFreeness: no tenant could do more with another's devices than with
// its own, up to one task of the other. Weights are equal.
func TestEnvyFreeness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMarket(t, false)
		tasks := m.settle(t)
		for me, wants := range m.wants {
			for other, theirs := range m.wants {
				if useful := min(serves(theirs, wants)*(tasks[other]-1), 14); me != other && useful > tasks[me] {
					t.Fatalf("%s does %d tasks, and %d with what %s has: %+v: %v", me, tasks[me], useful, other, m, tasks)
				}
			}
		}
	})
}

// serves is 1 where a task's devices serve another's task, else 0.
func serves(has, wants []string) int64 {
	for _, w := range wants {
		if !slices.Contains(has, w) {
			return 0
		}
	}
	return 1
}

// TestParetoEfficiency: nobody can be given one task more from what is left.
func TestParetoEfficiency(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMarket(t, true)
		tasks := m.settle(t)
		left := map[string]int64{}
		for name, n := range m.capacity {
			left[name] = n
		}
		for name, wants := range m.wants {
			for _, w := range wants {
				left[w] -= tasks[name]
			}
		}
		for name, wants := range m.wants {
			if tasks[name] < 14 && !slices.ContainsFunc(wants, func(w string) bool { return left[w] <= 0 }) {
				t.Fatalf("%s waits and could run: left %v of %+v: %v", name, left, m, tasks)
			}
		}
		for name, n := range left {
			if n < 0 {
				t.Fatalf("model %s is given away %d times too often", name, -n)
			}
		}
	})
}

// TestStrategyProofness: a tenant that says it needs other models than it does
// gets no more done, up to one task. Weights are equal.
func TestStrategyProofness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMarket(t, false)
		honest := m.settle(t)["t0"]
		truth := m.wants["t0"]
		m.wants["t0"] = drawWants(t)
		lie := m.settle(t)["t0"] * serves(m.wants["t0"], truth)
		if lie > honest+1 {
			t.Fatalf("%v does %d tasks, saying %v it does %d: %+v", truth, honest, m.wants["t0"], lie, m)
		}
	})
}
