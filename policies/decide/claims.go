package decide

// ResourceClaims and their written allocations.

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// claim is a ResourceClaim.
type claim struct {
	obj   *resourceapi.ResourceClaim
	sum   lanes
	holds []*hold
}

func (st *State) putClaim(obj *resourceapi.ResourceClaim) {
	key := types.NamespacedName{Namespace: obj.Namespace, Name: obj.Name}
	st.dropClaim(key)
	c := &claim{obj: obj, sum: sumOf("ResourceClaim", claimContent(obj))}
	st.digest.add(&c.sum)
	st.claims[key] = c
	if owner := podOwner(obj); owner != "" {
		st.claimsOf[owner] = append(st.claimsOf[owner], c)
	}
	reservedFor := podsOf(obj)
	for _, uid := range reservedFor {
		st.reservedFor[uid] = append(st.reservedFor[uid], c)
	}
	if obj.Status.Allocation == nil {
		return
	}
	for i := range obj.Status.Allocation.Devices.Results {
		r := &obj.Status.Allocation.Devices.Results[i]
		if ptr.Deref(r.AdminAccess, false) {
			continue
		}
		id := deviceID{r.Driver, r.Pool, r.Device}
		st.dropAssumedFor(obj, id)
		h := &hold{namespace: obj.Namespace, claim: obj.Name, share: r.ShareID != nil, takes: r.ConsumedCapacity, reservedFor: reservedFor}
		st.hold(id, h)
		c.holds = append(c.holds, h)
	}
}

func (st *State) dropClaim(key types.NamespacedName) {
	c := st.claims[key]
	if c == nil {
		return
	}
	delete(st.claims, key)
	st.digest.sub(&c.sum)
	for _, h := range c.holds {
		st.drop(h)
	}
	if owner := podOwner(c.obj); owner != "" {
		removeFrom(st.claimsOf, owner, c)
	}
	for _, uid := range podsOf(c.obj) {
		removeFrom(st.reservedFor, uid, c)
	}
}

// removeFrom takes an element out of the list of a key.
func removeFrom[K, T comparable](m map[K][]T, key K, element T) {
	list := slices.DeleteFunc(m[key], func(o T) bool { return o == element })
	if len(list) == 0 {
		delete(m, key)
	} else {
		m[key] = list
	}
}

// podsOf are the UIDs of the Pods for which the claim is reserved, in order.
func podsOf(obj *resourceapi.ResourceClaim) []types.UID {
	var out []types.UID
	for _, r := range obj.Status.ReservedFor {
		if r.Resource == "pods" && r.APIGroup == "" && !slices.Contains(out, r.UID) {
			out = append(out, r.UID)
		}
	}
	slices.Sort(out)
	return out
}

// podOwner is the UID of the Pod for which the claim was generated, or "".
func podOwner(obj *resourceapi.ResourceClaim) types.UID {
	for _, ref := range obj.OwnerReferences {
		if ref.Kind == "Pod" && ptr.Deref(ref.Controller, false) {
			return ref.UID
		}
	}
	return ""
}
