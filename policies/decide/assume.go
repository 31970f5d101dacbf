package decide

// Decisions that are charged before their allocations are written.

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// assumption is what Assume charged for a Pod.
type assumption struct {
	node  string
	holds []*hold
	sum   lanes
}

// Assume charges an Allocated decision: its devices are taken (by reason InUse,
// or Reserved where inFlight is true), the tenant's usage rises and with
// BuiltinNodeChecks the Pod counts as placed on the node. Putting the
// ResourceClaims with their allocation, and the Pod with its node, replaces
// what was assumed. For a decision that is not Allocated it does nothing. A
// Pod is assumed once: the last call counts.
func (st *State) Assume(d *Decision, inFlight bool) error {
	if d.Outcome != v1alpha1.OutcomeAllocated {
		return nil
	}
	key := podKey{Namespace: d.Namespace, Name: d.Pod}
	p := st.pods[key]
	if p == nil {
		return fmt.Errorf("assuming a decision for Pod %s, %w", key, ErrNotFound)
	}
	prob, err := st.problemOf(p, d.PolicyRevision)
	if err != nil {
		return fmt.Errorf("assuming a decision for Pod %s, %w", key, err)
	}
	st.Forget(key)
	a := &assumption{node: d.Node}
	for i := range d.Devices {
		dd := &d.Devices[i]
		alt := prob.alternativeNamed(dd)
		if alt == nil || alt.admin || alt.request.claim.allocated != nil {
			continue
		}
		id := deviceID{dd.Driver, dd.Pool, dd.Device}
		h := &hold{namespace: key.Namespace, pod: key, reserved: inFlight, decided: dd.Model}
		if p := st.pools[poolKey{id.driver, id.pool}]; p != nil {
			if dev := p.deviceNamed(id.device); dev != nil && dev.multi {
				h.share = true
				if h.takes, err = consumption(alt.capacity, dev.spec); err != nil {
					return fmt.Errorf("assuming device %s, %w", id, err)
				}
			}
		}
		a.holds = append(a.holds, h)
		st.hold(id, h)
	}
	p.assumed = a
	a.sum = sumOf("Assumed", assumedContent(key, a))
	st.digest.add(&a.sum)
	st.settlePlace(p)
	return nil
}

// Forget takes back what Assume did for this Pod.
func (st *State) Forget(key types.NamespacedName) {
	p := st.pods[key]
	if p == nil || p.assumed == nil {
		return
	}
	st.digest.sub(&p.assumed.sum)
	for _, h := range p.assumed.holds {
		st.drop(h)
	}
	p.assumed = nil
	st.settlePlace(p)
}

// Assumed says whether the claim's allocation is charged already, by a decision
// that was assumed for a Pod which uses the claim.
func (st *State) Assumed(claim *resourceapi.ResourceClaim) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if _, h := st.assumedFor(claim, deviceID{r.Driver, r.Pool, r.Device}); h != nil {
			return true
		}
	}
	return false
}

// assumedFor returns the assumed hold on a device that stands for the claim's
// allocation, with its Pod, or nil.
func (st *State) assumedFor(obj *resourceapi.ResourceClaim, id deviceID) (*pod, *hold) {
	u := st.uses[id]
	if u == nil {
		return nil, nil
	}
	for _, h := range u.holds {
		if h.claim != "" || h.namespace != obj.Namespace {
			continue
		}
		if p := st.pods[h.pod]; p != nil && p.assumed != nil && usesClaim(p.obj, obj) {
			return p, h
		}
	}
	return nil, nil
}

// dropAssumedFor gives back the assumed hold on a device that a written
// allocation replaces.
func (st *State) dropAssumedFor(obj *resourceapi.ResourceClaim, id deviceID) {
	p, h := st.assumedFor(obj, id)
	if h == nil {
		return
	}
	st.digest.sub(&p.assumed.sum)
	st.drop(h)
	p.assumed.holds = slices.DeleteFunc(p.assumed.holds, func(o *hold) bool { return o == h })
	p.assumed.sum = sumOf("Assumed", assumedContent(p.key, p.assumed))
	st.digest.add(&p.assumed.sum)
}

// usesClaim says whether the claim is one of the Pod's.
func usesClaim(obj *corev1.Pod, c *resourceapi.ResourceClaim) bool {
	if obj.UID != "" && podOwner(c) == obj.UID {
		return true
	}
	if obj.UID != "" && slices.Contains(podsOf(c), obj.UID) {
		return true
	}
	for _, ref := range obj.Spec.ResourceClaims {
		if ptr.Deref(ref.ResourceClaimName, "") == c.Name {
			return true
		}
	}
	for _, s := range obj.Status.ResourceClaimStatuses {
		if ptr.Deref(s.ResourceClaimName, "") == c.Name {
			return true
		}
	}
	return false
}
