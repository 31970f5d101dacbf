// Package bench measures how fast Pods with accelerators are scheduled: Ladder
// and the stock kube-scheduler in turn, on one machine, in Kubernetes' own
// harness for that (k8s.io/kubernetes/test/integration/scheduler_perf).
//
// Each run is a process of its own, package perf as a test binary. This package
// says what runs ([Workloads], [Plan]), runs it ([Runner]) and compares
// ([Compare], [Comparison.Markdown]). It is a module of its own and no part of
// the workspace, because the harness brings a whole kube-apiserver with it.
package bench
