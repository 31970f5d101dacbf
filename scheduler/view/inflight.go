package view

import (
	"maps"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// InFlight remembers the claims whose allocation is decided but not yet
// written. The in-tree tracker keeps the same list to itself.
type InFlight struct {
	mu     sync.Mutex
	claims map[types.UID]*resourceapi.ResourceClaim
}

// NewInFlight returns an empty list.
func NewInFlight() *InFlight {
	return &InFlight{claims: map[types.UID]*resourceapi.ResourceClaim{}}
}

// Claims returns the claims with the allocation that is to be written. Whoever
// also reads the written claims must do so afterwards: an allocation leaves
// this list only after it has become visible there.
func (f *InFlight) Claims() map[types.UID]*resourceapi.ResourceClaim {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.claims)
}

func (f *InFlight) add(uid types.UID, claim *resourceapi.ResourceClaim) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.claims[uid] == nil {
		f.claims[uid] = claim
	}
}

func (f *InFlight) remove(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.claims, uid)
}

// ExtendedResourcesOf returns the Pod for whose extended resources kube-scheduler
// made the claim; false for any other claim.
func ExtendedResourcesOf(claim *resourceapi.ResourceClaim) (pod types.UID, ok bool) {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] != "true" {
		return "", false
	}
	return owner.UID, true
}
