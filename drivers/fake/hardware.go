package fake

// This file is the hardware of a real node that has none.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// DeviceFolder is where a container finds a node for each of its devices.
const DeviceFolder = "/dev/ladder"

// Troubles are what is wrong with devices by request.
type Troubles interface {
	// Troubles of some of these devices.
	Troubles(devices []string) []inventory.Trouble
	// Changed receives after they have changed.
	Changed() <-chan struct{}
}

// Hardware is an inventory whose devices are given, and whose troubles are made.
type Hardware struct {
	troubles Troubles
	changed  chan struct{}

	mu     sync.Mutex
	pool   inventory.Pool
	shares map[inventory.Share]v1alpha1.Sharing
}

var _ inventory.Inventory = &Hardware{}

// NewHardware returns hardware that has a pool. Without troubles nothing is
// ever wrong with it. It listens for changes of the troubles until ctx is done.
func NewHardware(ctx context.Context, pool inventory.Pool, troubles Troubles) *Hardware {
	h := &Hardware{troubles: troubles, changed: make(chan struct{}, 1), pool: pool}
	if troubles != nil {
		go h.follow(ctx, troubles.Changed())
	}
	return h
}

func (h *Hardware) follow(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			h.tell()
		}
	}
}

func (h *Hardware) tell() {
	select {
	case h.changed <- struct{}{}:
	default: // one signal is waiting already and will see this change too
	}
}

// SetPool replaces all devices.
func (h *Hardware) SetPool(pool inventory.Pool) {
	h.mu.Lock()
	h.pool = pool
	h.mu.Unlock()
	h.tell()
}

// Pool implements [inventory.Source].
func (h *Hardware) Pool(context.Context) (inventory.Pool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pool.DeepCopy(), nil
}

// Names are those of the devices.
func (h *Hardware) Names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for i := range h.pool.Devices {
		names = append(names, h.pool.Devices[i].Name)
	}
	return names
}

// Changed implements [inventory.Source].
func (h *Hardware) Changed() <-chan struct{} { return h.changed }

// Health implements [inventory.Inventory].
func (h *Hardware) Health(context.Context) (inventory.Report, error) {
	if h.troubles == nil {
		return inventory.Report{}, nil
	}
	return inventory.Report{Troubles: h.troubles.Troubles(h.Names())}, nil
}

// errNoDevice occurs for a device that the node does not have.
var errNoDevice = errors.New("there is no such device")

// Edits implements [inventory.Inventory]: a device node that stands for the
// GPU. It is /dev/null under another name, which every host has and which any
// container may open.
func (h *Hardware) Edits(_ context.Context, device string) (specs.ContainerEdits, error) {
	if !slices.Contains(h.Names(), device) {
		return specs.ContainerEdits{}, fmt.Errorf("device %s, %w", device, errNoDevice)
	}
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{
		Path: DeviceFolder + "/" + device, HostPath: "/dev/null", Type: "c", Major: 1, Minor: 3, Permissions: "rw",
	}}}, nil
}

// Release implements [inventory.Inventory]: there is nothing to undo.
func (h *Hardware) Release(context.Context, string) error { return nil }
