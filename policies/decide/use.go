package decide

// Who holds which device: written allocations of claims, and decisions that
// were assumed and are not written yet.

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

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
	st.changed(u)
	st.settleModel(h)
}

// drop gives a hold back.
func (st *State) drop(h *hold) {
	u := h.use
	i := slices.Index(u.holds, h)
	u.holds = slices.Delete(u.holds, i, i+1)
	st.charge(h.namespace, h.model, -1)
	st.changed(u)
	if len(u.holds) > 0 {
		return
	}
	delete(st.uses, u.id)
	if u.device != nil {
		u.device.use = nil
	}
}

// changed notes that others hold the device now.
func (st *State) changed(u *usage) {
	if u.device == nil {
		return
	}
	if len(u.device.counters) > 0 {
		u.device.pool().left = nil
	}
	st.touch(u.device)
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
