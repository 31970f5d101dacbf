// Package invariants judges what was observed of a cluster against what Ladder
// promises, whatever happened meanwhile.
//
// A [History] is a list of observations in the order in which they were made:
// changes of Pods, claims and slices as the API server told them, what lay on
// the nodes, and what containers saw. It can be kept as JSON lines and judged
// again later, without a cluster. The checkers are pure functions of it; each
// has histories among its tests that it must fail.
//
//   - [ExclusiveDevices] (I1): no device belongs to two claims at once, and
//     partitions take no more than their shared counters have. Devices that were
//     allocated for admin access alone, or that are made to be shared, are no
//     conflict.
//   - [FreedDevices] (I9): after a Pod is gone its device is free, and its CDI
//     file and checkpoint entry are removed, within a bound.
//
// A checker that has not seen enough says [Inconclusive], never [Pass].
package invariants
