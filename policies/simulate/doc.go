// Package simulate plays a trace of jobs on a fleet that does not exist, under
// quotas and policies that do: discrete events, and the product's own code for
// every choice. [fair] says whose gate opens and what is taken back, [decide]
// places each Pod on a node and its devices. Nothing is approximated in between.
//
// It is a function of its input: no clock, no chance, no map order. The order of
// the trace's rows does not matter either.
//
// # From a job to Pods
//
// A job names a namespace, and by it a tenant: the TenantQuota that lists the
// namespace, else a tenant of the namespace's name without a quota. Its policy
// is the first one given whose namespaceSelector takes the namespace; every
// namespace has the label kubernetes.io/metadata.name. The policy's count is
// replaced by the number of GPUs of the job's Pods; a tier with a count of its
// own keeps its ratio to the policy's, rounded up.
//
// A job of more GPUs than any node of the policy's tiers holds is a gang: the
// fewest Pods of equal size that fit. What a tier can be served by is asked of
// the decision engine, on the fleet as it is when nothing runs; tiers that no
// node could serve are left out. A job for which none is left never starts, and
// counts as unfinished. Where the trace says which models a job may use, the
// tiers are narrowed to those.
//
// # What happens when
//
// When the gate of a job is open its Pods are decided one by one. A Pod that
// finds its devices scattered stays and is decided again when devices come
// free, before anything that is opened later; the Pods that are placed keep
// their devices meanwhile. The job runs when all its Pods are placed, for as
// long as the trace says, whatever the model. Should nothing else be left that
// could happen, the gang that was opened last gives its devices back.
//
// An eviction loses the work since the last checkpoint, without checkpoints all
// of it; the devices come free after Options.Release, and the job waits again
// with its age. Pods ask for devices only: CPU and memory are not simulated.
//
// # What is measured
//
// The wait of a job is everything between its creation and its end but its own
// duration: the queue, and after an eviction the work that was lost.
//
// Files: trace.go reads traces; simulation.go takes the input, kind.go makes
// Pods and entries of jobs; run.go is the loop, place.go its devices,
// calendar.go its future, books.go what it counts; private.go plays each
// tenant alone, compare.go holds that against the shared cluster; report.go and
// tenants.go are the result.
package simulate
