// Package tenants tells the quota and fairness engine, package fair, what the
// objects of a cluster mean: whose a Pod is, what it asks for and what it
// holds, what the fleet has, and what each tenant is given. It is pure: objects
// in, events for the engine out; no clock and no client. The quota controller
// feeds it from watches, `ladder quota` from files.
//
//	m, err := tenants.NewMirror(config)
//	m.ServeGroups()  // where the cluster serves PodGroups
//	m.Put(pod); m.Put(claim); m.Delete(slice)  // in any order
//	err = m.Sync(now)                          // tells the engine
//	for _, action := range m.Next(now) { ... }
//	report := m.Report("team-a", now)
//
// What is told is a function of the objects that are there now, and nothing is
// kept beside them: who starts again with the same objects counts the same.
// The rules are published in docs/quota.md.
//
// Files: mirror.go takes the objects, index.go finds what one concerns, sync.go
// tells the engine, next.go is what to do; work.go reads a Pod with its claims,
// gang.go and gather.go the Pods of a PodGroup, tiers.go what a policy lets them
// have, models.go what of it a turn is for, devices.go the fleet, quotas.go who
// owns a namespace; report.go is a tenant's status; config.go are the settings of
// the whole cluster.
package tenants
