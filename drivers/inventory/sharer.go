package inventory

// This file is what hardware offers whose devices can be shared by settings.

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Sharer is what an [Inventory] implements on whose devices a claim may ask for
// more than to have them as they are. Devices of one that does not implement it
// are [v1alpha1.SharingExclusive] only. It is safe for concurrent use, also by
// the two processes of a rolling update.
type Sharer interface {
	// Share sets a device up for the programs of a claim, and returns what their
	// containers need beside [Inventory.Edits]. Asked for the same again it finds
	// it done, or mends it. It is asked only for strategies other than Exclusive,
	// in canonical form. An [UnsupportedError] is one that no trying again mends.
	Share(ctx context.Context, device string, claim types.UID, sharing v1alpha1.Sharing) (specs.ContainerEdits, error)
	// Unshare sets a device back to what it was, also if Share has failed or was
	// cut off. It is no error if there is nothing to undo.
	Unshare(ctx context.Context, device string, claim types.UID) error
	// Shared returns all that Share has begun in this boot of the node and Unshare
	// has not undone, as far as it outlives a driver, in any order. It does not ask
	// the hardware.
	Shared(ctx context.Context) ([]Share, error)
}

// VariableSharing tells a container how its devices are shared; without it they
// are Exclusive.
const VariableSharing = "LADDER_SHARING"

// Share is one device that is set up for one claim.
type Share struct {
	Device string
	Claim  types.UID
}

// UnsupportedError occurs for a way of sharing that a device does not have.
type UnsupportedError struct {
	Device   string
	Strategy v1alpha1.SharingStrategy
	// Reason says why, in a few words.
	Reason string
}

// Error says which device can't be shared how, and why.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("device %s can't be shared by %s: %s", e.Device, e.Strategy, e.Reason)
}

// RefusedOfPartitions says why a board in MIG mode, whole or in part, can't be
// shared like this; "" if it can. Programs in one partition take turns anyway.
// What is set by GPU can't be set for one of its partitions: the interval, and
// the compute mode that keeps programs from going past an MPS daemon.
func RefusedOfPartitions(sharing *v1alpha1.Sharing) string {
	switch {
	case sharing.Strategy == v1alpha1.SharingMPS:
		return "its board is in MIG mode, where no compute mode can be set, so programs could go past the MPS daemon"
	case sharing.Strategy == v1alpha1.SharingTimeSlicing && sharing.Interval() != v1alpha1.IntervalDefault:
		return "its board is in MIG mode, where the interval can only be Default"
	}
	return ""
}
