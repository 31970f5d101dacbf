// Package inventory is the border between the driver and the hardware: what a
// node has, and when that changes. The real driver reads it from NVML, the fake
// one from a fleet file.
package inventory

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
)

// Inventory is the hardware of one node. It is safe for concurrent use.
type Inventory interface {
	// Devices returns all devices of the node as they are to be published,
	// byte-wise by name: attributes, capacity, and what is wrong with them as
	// taints. The caller may keep and change what it gets. A device that fails
	// stays in the list, tainted; it is left out only once it is known to be
	// gone for good.
	Devices(ctx context.Context) ([]resourcev1.Device, error)
	// Changed receives after Devices has begun to return something else, be it
	// other devices or other taints. Several changes may be told by one
	// signal; no change is left without one after it.
	Changed() <-chan struct{}
}
