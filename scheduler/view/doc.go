// Package view shows the in-tree DynamicResources plugin only what the decision
// engine has chosen, so that what it allocates is what was decided.
//
// Three decorators do that. [Manager] replaces the devices and the claims that
// the plugin reads during one scheduling cycle by those of a [View]. [InFlight]
// remembers the allocations that are decided but not written yet. [Client]
// puts the full specification back when the plugin writes a claim that it was
// shown in part.
package view
