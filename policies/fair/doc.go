// Package fair is the quota and fairness engine: given tenants, capacity and
// what has happened so far, it says which gate opens next and which devices
// are taken back, and for whom.
//
// The engine is pure. It reads no clock and no client, knows no chance and
// depends on no map order: the same events give the same actions, and events of
// one instant may come in any order. The simulator and the quota controller use
// the same code. The rules that it follows are published in docs/fair.md.
//
//	st, err := fair.New(fair.Config{Models: models})
//	err = st.Apply(now, fair.QuotaSet{Quota: quota})
//	err = st.Apply(now, fair.Arrived{Entry: entry})
//	for _, action := range st.Next(now) { ... }  // taken as done
//	again, ok := st.Wake(now)                    // ask again then, or after an event
//
// Files: state.go takes the events of event.go; entry.go is what waits and
// runs; ledger.go counts what is charged; landing.go finds places; turn.go is
// the order and the pass along it; lend.go is what is not lent; reclaim.go and
// cover.go take devices back; wake.go, usage.go and explain.go answer questions.
package fair
