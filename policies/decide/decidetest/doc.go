// Package decidetest holds what the tests of the decision engine share: random
// small clusters that are full of collisions, a naive twin of the engine that
// follows the contract by brute force, and a builder of large fleets for
// benchmarks.
//
// The twin shares no code with the engine. It keeps no index and no cache of
// results: every question looks at every device, every node and every
// combination again.
package decidetest
