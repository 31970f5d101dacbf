// Package v1alpha1 holds the API types of the group gpuladder.dev: what a
// cluster writes down about how its GPUs are chosen.
//
//   - [AcceleratorPolicy] says what a workload may get, and in which order.
//   - [PolicyRevision] is one immutable, numbered state of a policy.
//   - [TenantQuota] says how much of each model a tenant may hold.
//   - [AllocationDecision] is the record of one decision.
//   - [DeviceMigration] is to move workloads from a device plugin to DRA and
//     back; nothing acts on it yet.
//   - [GPUConfig] is what a claim's parameters ask of Ladder's driver; it is no
//     object of the cluster.
//
// Field names, reason codes, labels and annotations in this package are a
// contract: they are never renamed within a version.
//
// +kubebuilder:object:generate=true
// +groupName=gpuladder.dev
package v1alpha1
