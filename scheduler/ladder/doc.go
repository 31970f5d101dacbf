// Package ladder is the scheduler plugin Ladder. It embeds kube-scheduler's
// DynamicResources plugin under its own name: the decision engine decides which
// node and devices a Pod gets, the embedded plugin carries it out.
//
// One attempt to schedule a Pod with claims runs like this:
//
//   - PreFilter brings the engine's state up to date, takes the first part of
//     the engine's total order of nodes, and lets the embedded plugin prepare
//     itself on a view that holds only the devices chosen there.
//   - Filter, of all plugins, runs on those nodes alone. Because the order is
//     total, the best node of the part that passes is the best of the fleet.
//   - If none passes, [Core.Widen] goes on with the next part in the same
//     attempt.
//   - Score gives the best node everything and the others nothing.
//   - Reserve has the engine build the record, refuses any difference between
//     what was decided and what the embedded plugin allocated, and charges it.
//   - PreBind looks at the devices, the policy revision, the quota and the node
//     again before anything is written.
//   - Bind puts tier, model, revision and digest on the Pod.
//
// A Pod may ask for devices by extended resources, without a claim; extended.go
// says how it is decided about.
package ladder
