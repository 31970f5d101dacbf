package fake

// This file shares devices that do not exist.

import (
	"context"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

var _ inventory.Sharer = &Hardware{}

// Share implements [inventory.Sharer]: it is written down, and refused where
// the driver of real GPUs refuses it.
func (h *Hardware) Share(_ context.Context, device string, claim types.UID, sharing v1alpha1.Sharing) (specs.ContainerEdits, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := slices.IndexFunc(h.pool.Devices, func(d resourcev1.Device) bool { return d.Name == device })
	if at < 0 {
		return specs.ContainerEdits{}, fmt.Errorf("device %s, %w", device, errNoDevice)
	}
	if partitioned := len(h.pool.Devices[at].ConsumesCounters) > 0; partitioned {
		if why := inventory.RefusedOfPartitions(&sharing); why != "" {
			return specs.ContainerEdits{}, &inventory.UnsupportedError{Device: device, Strategy: sharing.Strategy, Reason: why}
		}
	}
	if h.shares == nil {
		h.shares = map[inventory.Share]v1alpha1.Sharing{}
	}
	h.shares[inventory.Share{Device: device, Claim: claim}] = sharing
	return specs.ContainerEdits{Env: []string{inventory.VariableSharing + "=" + string(sharing.Strategy)}}, nil
}

// Unshare implements [inventory.Sharer].
func (h *Hardware) Unshare(_ context.Context, device string, claim types.UID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.shares, inventory.Share{Device: device, Claim: claim})
	return nil
}

// Shared implements [inventory.Sharer]. Nothing of it outlives the driver.
func (h *Hardware) Shared(context.Context) ([]inventory.Share, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []inventory.Share
	for share := range h.shares {
		all = append(all, share)
	}
	return all, nil
}
