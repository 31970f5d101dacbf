// Package suites holds Ladder's end-to-end suites, which run on both kinds of
// cluster: the lab, whose nodes are simulated, and kind, with real kubelets,
// containerd and CDI. They are Go tests with the build tag e2e; docs/e2e.md says
// what they show, how they are run and how a failure is read.
//
// Each suite is a feature of e2e-framework with the labels suite, provider and
// core. A suite waits for events that package watchlog tells it of, within the
// bounds of one table, and what it waited through is judged by package
// invariants when it is over.
package suites
