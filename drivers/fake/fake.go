// Package fake is the hardware of nodes that have none: [Inventory] is a node
// of a fleet file, [Hardware] a real node that is labelled with a tier.
package fake

import (
	"context"
	"fmt"
	"slices"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/fleet"
)

// Inventory is the inventory of one node of a fleet.
type Inventory struct {
	changed chan struct{}

	mu   sync.Mutex
	pool inventory.Pool
}

var _ inventory.Source = &Inventory{}

// New returns the inventory of a node of a fleet. It fails if the fleet has no
// such node.
func New(f *fleet.Fleet, node string) (*Inventory, error) {
	pool, err := f.PoolOf(node)
	if err != nil {
		return nil, fmt.Errorf("making inventory, %w", err)
	}
	return &Inventory{changed: make(chan struct{}, 1), pool: inventory.Pool(pool)}, nil
}

// Pool implements [inventory.Source].
func (i *Inventory) Pool(context.Context) (inventory.Pool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pool.DeepCopy(), nil
}

// Changed implements [inventory.Source].
func (i *Inventory) Changed() <-chan struct{} { return i.changed }

// SetTaints makes the device carry exactly these taints: a fault, or with none
// its end. It fails if the node has no such device.
func (i *Inventory) SetTaints(device string, taints ...resourcev1.DeviceTaint) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := slices.IndexFunc(i.pool.Devices, func(d resourcev1.Device) bool { return d.Name == device })
	if n < 0 {
		return fmt.Errorf("tainting device, there is no %q", device)
	}
	i.pool.Devices[n].Taints = slices.Clone(taints)
	select {
	case i.changed <- struct{}{}:
	default: // one signal is waiting already and will see this change too
	}
	return nil
}
