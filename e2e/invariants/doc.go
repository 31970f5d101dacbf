// Package invariants judges what was observed of a cluster against what Ladder
// promises, whatever happened meanwhile.
//
// A [History] is a list of observations in the order in which they were made:
// changes of Pods, claims, slices and quotas as the API server told them, what lay on
// the nodes, and what containers saw. It can be kept as JSON lines and judged
// again later, without a cluster. The checkers are pure functions of it; each
// has histories among its tests that it must fail.
//
//   - [ExclusiveDevices] (I1): no device belongs to two claims at once, and
//     partitions take no more than their shared counters have. Devices that were
//     allocated for admin access alone, or that are made to be shared, are no
//     conflict.
//   - [HardConstraints] (I2): no allocation breaks a hard constraint of its
//     policy, nor takes a device that is not of the tier that it names.
//   - [FirstChoices] (I4): a lower tier is taken only where no device of a higher
//     one was eligible when it was decided.
//   - [Recorded] (I6): every Pod that was bound has its record, with the devices
//     that it got and the policy's revision. [Rebuilt] looks at those alone whose
//     record was lost and rebuilt.
//   - [HealthyDevices] (I8): no device is chosen that was known to be unhealthy
//     when it was decided.
//   - [FreedDevices] (I9): after a Pod is gone its device is free, and its CDI
//     file and checkpoint entry are removed, within a bound.
//
// Package quota below judges whether tenants were held to their quotas.
//
//   - [AttemptsWithinBudget] (I11): no Pod has more failed attempts than its policy
//     allows.
//   - [EventsWithinBudget] (I11): no outcome is told by more Events than there were
//     schedulers to tell it.
//
// When something was decided is what its record says; until a scheduler hears of
// a change takes a moment, for which I4 and I8 have a [Slack].
//
// A checker that has not seen enough says [Inconclusive], never [Pass].
package invariants
