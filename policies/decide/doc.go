// Package decide is the decision engine: given everything that is known at one
// instant, it says which devices a Pod gets, and why every other device was
// passed over.
//
// The engine is pure, total and deterministic. It reads no clock, no client,
// no random source and depends on no iteration order: the same [State] and the
// same [Query] give the same [Decision], byte for byte, in whatever order the
// objects were put in.
//
// # Order of choice
//
// Tier first; then the nodes that can serve the Pod, Packed by the fewest free
// devices eligible for this tier or Spread by the most, then by name; then
// inside the node driver, pool, slice (by its smallest device name), device,
// all byte-wise; for several devices the first feasible combination in that
// order. Pods with several requests compare the vector of their alternatives
// lexicographically, in the order of the Pod's claims and the claims' requests.
package decide
