// Package decide is the decision engine: given everything that is known at one
// instant, it says which devices a Pod gets, and why every other device was
// passed over.
//
// The engine is pure, total and deterministic. It reads no clock, no client,
// no random source and depends on no iteration order: the same [State] and the
// same [Query] give the same [Decision], byte for byte, in whatever order the
// objects were put in and whatever was there before.
//
// # Order of choice
//
// Tier first; then the nodes that can serve the Pod, Packed by the fewest free
// devices eligible for this tier or Spread by the most, then by name; then
// inside the node driver, pool, slice (by its smallest device name), device,
// all byte-wise; for several devices the first feasible combination in that
// order. Pods with several requests compare the vector of their alternatives
// lexicographically, in the order of the Pod's claims and the claims' requests;
// the vector is chosen before the devices. Their nodes are ranked by the
// devices that are eligible for any of the chosen alternatives. A policy whose
// claim the Pod does not have yet comes after the Pod's own claims. Attributes
// that a policy prefers come between the tier and the ranking: the fewest unmet
// ones first, whichever they are, each being met where it could as well be a
// constraint.
//
// # Evidence
//
// Each device of the newest generation of its pool counts once for each tier,
// under the first check that it fails, in the order of the reasons in the API
// package. A device that passes all of them but is not taken is judged with the
// others of its node: NotEnoughDevices where even without constraints and quota
// no set exists beside all else that the Pod asks for, TopologyUnsatisfied
// where without the quota none does, QuotaExceeded where the quota does not
// allow a set together, and LowerRank where the node could serve. A device that
// several nodes reach gets the best of theirs, in the order LowerRank,
// TopologyUnsatisfied, QuotaExceeded, NotEnoughDevices.
//
// # What is read where
//
// A device is DeviceUnhealthy without a taint where it says so itself: the
// boolean attribute `healthy` is false or the string `health` is Unhealthy, in
// its driver's domain. The shorthand of a policy speaks of one driver; devices
// of others are ModelMismatch. Quotas speak of the models of Ladder's and of
// NVIDIA's driver; devices of other drivers have no model and are not charged.
// A device that is not published at the moment stays charged as the model that
// was decided, which the Pod carries in an annotation once it is bound.
//
// Files: state.go is the public face, decide.go and choose.go the questions;
// index.go, taints.go, nodes.go, claims.go, pods.go, use.go, assume.go and
// quota.go keep what is known; problem.go, request.go and revision.go read what
// a Pod asks for; checks.go, evaluate.go and search.go answer; evidence.go,
// detail.go and record.go write it down.
package decide
