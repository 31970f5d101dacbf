package view

import (
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// Manager is a SharedDRAManager that shows a View while there is one, and
// everything otherwise. Each profile has its own; scheduling cycles of one
// scheduler are serial, so one View at a time is enough.
type Manager struct {
	fwk.SharedDRAManager
	inFlight *InFlight
	current  atomic.Pointer[View]
}

// NewManager decorates inner. Allocations in flight are noted in inFlight,
// which all profiles share.
func NewManager(inner fwk.SharedDRAManager, inFlight *InFlight) *Manager {
	return &Manager{SharedDRAManager: inner, inFlight: inFlight}
}

// Show runs f while the in-tree plugin sees v.
func (m *Manager) Show(v *View, f func()) {
	m.current.Store(v)
	defer m.current.Store(nil)
	f()
}

// ResourceSlices implements fwk.SharedDRAManager.
func (m *Manager) ResourceSlices() fwk.ResourceSliceLister {
	return sliceLister{m}
}

// ResourceClaims implements fwk.SharedDRAManager.
func (m *Manager) ResourceClaims() fwk.ResourceClaimTracker {
	return claimTracker{ResourceClaimTracker: m.SharedDRAManager.ResourceClaims(), m: m}
}

type sliceLister struct{ m *Manager }

// ListWithDeviceTaintRules implements fwk.ResourceSliceLister.
func (l sliceLister) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	if v := l.m.current.Load(); v != nil {
		return v.slices, nil
	}
	return l.m.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
}

type claimTracker struct {
	fwk.ResourceClaimTracker
	m *Manager
}

// Get implements fwk.ResourceClaimTracker.
func (t claimTracker) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	if v := t.m.current.Load(); v != nil {
		if claim, ok := v.claims[types.NamespacedName{Namespace: namespace, Name: name}]; ok {
			return claim, nil
		}
	}
	return t.ResourceClaimTracker.Get(namespace, name)
}

// SignalClaimPendingAllocation implements fwk.ResourceClaimTracker.
func (t claimTracker) SignalClaimPendingAllocation(uid types.UID, claim *resourceapi.ResourceClaim) error {
	if err := t.ResourceClaimTracker.SignalClaimPendingAllocation(uid, claim); err != nil {
		return err
	}
	// The tracker keeps nothing for a claim that turned out to be allocated.
	if t.GetPendingAllocation(uid) != nil {
		t.m.inFlight.add(uid, claim)
	}
	return nil
}

// MaybeRemoveClaimPendingAllocation implements fwk.ResourceClaimTracker.
func (t claimTracker) MaybeRemoveClaimPendingAllocation(uid types.UID, forceRemove bool) bool {
	deleted := t.ResourceClaimTracker.MaybeRemoveClaimPendingAllocation(uid, forceRemove)
	if deleted {
		t.m.inFlight.remove(uid)
	}
	return deleted
}
