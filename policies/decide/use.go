package decide

// Who holds which device: written allocations of claims, and decisions that
// were assumed and are not written yet.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// usage is everything that holds one device. It outlives the device's slice.
type usage struct {
	id     deviceID
	device *device // nil: not published now
	holds  []*hold
}

func (u *usage) held() bool { return u != nil && len(u.holds) > 0 }

// hold is one claim's part in a device. A device used with admin access only
// is not held.
type hold struct {
	use       *usage
	namespace string
	claim     string // the claim's name, or "" for an assumed decision
	pod       podKey // the Pod of an assumed decision
	reserved  bool   // assumed, and its allocation is still to be written
	share     bool   // one of several shares of the device
	takes     quantities
	// model is what the tenant is charged for: what the device's slice says
	// or, while it is not published, what was said when it was allocated.
	model modelKey
	// decided is the model of an assumed decision; reservedFor are the Pods of
	// a claim, which carry the model in an annotation once they are bound.
	decided     string
	reservedFor []types.UID
}

// by names the holder for a record in a namespace. Other namespaces' names are
// nobody's business there.
func (h *hold) by(namespace string) string {
	switch {
	case h.namespace != namespace:
		return "held from another namespace"
	case h.claim != "":
		return "held by claim " + h.namespace + "/" + h.claim
	default:
		return "held for Pod " + h.namespace + "/" + h.pod.Name
	}
}

func compareHolds(a, b *hold) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.claim, b.claim), cmp.Compare(a.pod.Name, b.pod.Name))
}

// hold takes a device for a holder.
func (st *State) hold(id deviceID, h *hold) {
	u := st.uses[id]
	if u == nil {
		u = &usage{id: id}
		st.uses[id] = u
		if p := st.pools[poolKey{id.driver, id.pool}]; p != nil {
			if d := p.deviceNamed(id.device); d != nil {
				u.device, d.use = d, u
			}
		}
	}
	h.use = u
	u.holds = append(u.holds, h)
	u.changed()
	st.settleModel(h)
}

// drop gives a hold back.
func (st *State) drop(h *hold) {
	u := h.use
	i := slices.Index(u.holds, h)
	u.holds = slices.Delete(u.holds, i, i+1)
	st.charge(h.namespace, h.model, -1)
	u.changed()
	if len(u.holds) > 0 {
		return
	}
	delete(st.uses, u.id)
	if u.device != nil {
		u.device.use = nil
	}
}

func (u *usage) changed() {
	if u.device != nil && len(u.device.counters) > 0 {
		u.device.pool().left = nil
	}
}

// deviceNamed finds a device of the newest generation.
func (p *pool) deviceNamed(name string) *device {
	for _, s := range p.current {
		i, ok := slices.BinarySearchFunc(s.devices, name, func(d *device, name string) int { return cmp.Compare(d.id.device, name) })
		if ok {
			return s.devices[i]
		}
	}
	return nil
}

// settleModel brings the model that a holder is charged for up to date. It
// depends on what is in the State, not on what once was: the slice's word, and
// while there is none that of the decision or of the Pod's annotation.
func (st *State) settleModel(h *hold) {
	id := h.use.id
	m := modelKey{}
	switch d := h.use.device; {
	case d != nil:
		m = d.model
	case h.decided != "":
		m = namedModel(id.driver, h.decided)
	default:
		for _, uid := range h.reservedFor {
			if p := st.podsByUID[uid]; p != nil && m == (modelKey{}) {
				first, _, _ := strings.Cut(p.obj.Annotations[v1alpha1.AnnotationModel], ",")
				m = namedModel(id.driver, first)
			}
		}
	}
	if m != h.model {
		st.charge(h.namespace, h.model, -1)
		st.charge(h.namespace, m, 1)
		h.model = m
	}
}

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

// pod is a Pod and what it takes of a node.
type pod struct {
	obj      *corev1.Pod
	key      podKey
	sum      lanes
	requests resources
	placed   string // the node that its requests are counted on, or ""
	assumed  *assumption
}

// assumption is what Assume charged for a Pod.
type assumption struct {
	node  string
	holds []*hold
	sum   lanes
}

func (st *State) putPod(obj *corev1.Pod) {
	key := podKey{Namespace: obj.Namespace, Name: obj.Name}
	p := st.pods[key]
	if p != nil && p.obj.UID != obj.UID {
		st.dropPod(key)
		p = nil
	}
	if p == nil {
		p = &pod{key: key}
		st.pods[key] = p
	} else {
		st.digest.sub(&p.sum)
	}
	st.place(p, "")
	p.obj, p.requests = obj, podRequests(obj)
	p.sum = sumOf("Pod", podContent(obj, p.requests))
	st.digest.add(&p.sum)
	if obj.UID != "" {
		st.podsByUID[obj.UID] = p
	}
	st.settlePlace(p)
	st.settleModelsFor(obj.UID)
}

// settleModelsFor follows a change of a Pod's annotation.
func (st *State) settleModelsFor(pod types.UID) {
	for _, c := range st.reservedFor[pod] {
		for _, h := range c.holds {
			st.settleModel(h)
		}
	}
}

// settlePlace counts the Pod where it is, or where it is assumed to go.
func (st *State) settlePlace(p *pod) {
	on := p.obj.Spec.NodeName
	if on == "" && p.assumed != nil {
		on = p.assumed.node
	}
	if p.obj.Status.Phase == corev1.PodSucceeded || p.obj.Status.Phase == corev1.PodFailed {
		on = ""
	}
	st.place(p, on)
}

func (st *State) dropPod(key podKey) {
	p := st.pods[key]
	if p == nil {
		return
	}
	st.Forget(key)
	st.place(p, "")
	st.digest.sub(&p.sum)
	delete(st.pods, key)
	delete(st.podsByUID, p.obj.UID)
	st.settleModelsFor(p.obj.UID)
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

// dropAssumedFor gives back the assumed hold on a device that a written
// allocation replaces.
func (st *State) dropAssumedFor(obj *resourceapi.ResourceClaim, id deviceID) {
	u := st.uses[id]
	if u == nil {
		return
	}
	for _, h := range u.holds {
		if h.claim != "" || h.namespace != obj.Namespace {
			continue
		}
		p := st.pods[h.pod]
		if p == nil || p.assumed == nil || !usesClaim(p.obj, obj) {
			continue
		}
		st.digest.sub(&p.assumed.sum)
		st.drop(h)
		p.assumed.holds = slices.DeleteFunc(p.assumed.holds, func(o *hold) bool { return o == h })
		p.assumed.sum = sumOf("Assumed", assumedContent(p.key, p.assumed))
		st.digest.add(&p.assumed.sum)
		return
	}
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
