package decision

// Claims that Pods name, rather than have made for them, can be shared: what
// the first Pod's decision allocated is the answer for the next one.

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/manifest"
)

// claims writes allocations into the claims that Pods name.
type claims struct {
	set     *manifest.Set
	written map[types.NamespacedName]bool
	// selectors are the nodes that reach a pool's devices; shared are the
	// devices that several claims may hold.
	selectors map[poolID]*corev1.NodeSelector
	shared    map[poolID]map[string]bool
}

type poolID struct{ driver, pool string }

func newClaims(set *manifest.Set) *claims {
	c := &claims{
		set: set, written: map[types.NamespacedName]bool{},
		selectors: map[poolID]*corev1.NodeSelector{}, shared: map[poolID]map[string]bool{},
	}
	for slice := range manifest.All[*resourcev1.ResourceSlice](set) {
		id := poolID{slice.Spec.Driver, slice.Spec.Pool.Name}
		if slice.Spec.NodeSelector != nil {
			c.selectors[id] = slice.Spec.NodeSelector
		}
		if node := ptr.Deref(slice.Spec.NodeName, ""); node != "" {
			c.selectors[id] = onlyNode(node)
		}
		for _, d := range slice.Spec.Devices {
			if ptr.Deref(d.AllowMultipleAllocations, false) {
				if c.shared[id] == nil {
					c.shared[id] = map[string]bool{}
				}
				c.shared[id][d.Name] = true
			}
		}
	}
	return c
}

func onlyNode(name string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name},
		}},
	}}}
}

// allocated returns the named claims of the Pod with what the decision gave
// them. Claims with shares of a device are left out: their allocation holds
// more than a decision says, so that Pods after this one find them waiting.
func (c *claims) allocated(pod *corev1.Pod, d *decide.Decision) []*resourcev1.ResourceClaim {
	if d.Outcome != v1alpha1.OutcomeAllocated {
		return nil
	}
	var out []*resourcev1.ResourceClaim
	for _, ref := range pod.Spec.ResourceClaims {
		key := types.NamespacedName{Namespace: pod.Namespace, Name: ptr.Deref(ref.ResourceClaimName, "")}
		if key.Name == "" || c.written[key] {
			continue
		}
		o, found := c.set.Find("ResourceClaim", key.Namespace, key.Name)
		if !found {
			continue
		}
		claim := o.Object.(*resourcev1.ResourceClaim)
		if claim.Status.Allocation != nil {
			continue
		}
		if result := c.allocation(claim, ref.Name, d); result != nil {
			claim = claim.DeepCopy()
			claim.Status.Allocation = result
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
				Resource: "pods", Name: pod.Name, UID: pod.UID,
			})
			c.written[key] = true
			out = append(out, claim)
		}
	}
	return out
}

// allocation is what the decision gave to one claim, nil where that can't be said.
func (c *claims) allocation(claim *resourcev1.ResourceClaim, ref string, d *decide.Decision) *resourcev1.AllocationResult {
	admin := map[string]bool{}
	for _, r := range claim.Spec.Devices.Requests {
		admin[r.Name] = r.Exactly != nil && ptr.Deref(r.Exactly.AdminAccess, false)
	}
	result := &resourcev1.AllocationResult{}
	for _, dev := range d.Devices {
		if dev.Claim != "" && dev.Claim != ref {
			continue
		}
		id := poolID{dev.Driver, dev.Pool}
		if c.shared[id][dev.Device] {
			return nil
		}
		one := resourcev1.DeviceRequestAllocationResult{Request: dev.Request, Driver: dev.Driver, Pool: dev.Pool, Device: dev.Device}
		if admin[dev.Request] {
			one.AdminAccess = ptr.To(true)
		}
		result.Devices.Results = append(result.Devices.Results, one)
		if s := c.selectors[id]; s != nil {
			result.NodeSelector = s
		}
	}
	if len(result.Devices.Results) == 0 {
		return nil
	}
	return result
}
