package decidetest

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// With returns the cluster as it is once an Allocated answer has been carried
// out: the Pod is on its node and its claims are allocated. The receiver stays
// as it is.
func (c *Cluster) With(name types.NamespacedName, answer *Answer) *Cluster {
	after := *c
	after.Pods, after.Claims = slices.Clone(c.Pods), slices.Clone(c.Claims)
	for i, p := range after.Pods {
		if p.Namespace == name.Namespace && p.Name == name.Name {
			after.Pods[i] = p.DeepCopy()
			after.Pods[i].Spec.NodeName = answer.Node
		}
	}
	for i := 0; i < len(answer.picks); {
		claim := answer.picks[i].ask.claim
		var results []resourceapi.DeviceRequestAllocationResult
		for ; i < len(answer.picks) && answer.picks[i].ask.claim == claim; i++ {
			results = append(results, answer.picks[i].result(fmt.Sprintf("%s-%s-%d", name.Namespace, name.Name, i)))
		}
		after.allocate(name, claim, results)
	}
	return &after
}

// result is what an allocation says of a pick.
func (p pick) result(share string) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{
		Request: p.alternative.result, Driver: p.device.id.Driver, Pool: p.device.id.Pool, Device: p.device.id.Device,
		Tolerations: p.alternative.tolerations,
	}
	if p.alternative.admin {
		r.AdminAccess = ptr.To(true)
	}
	if p.device.shared() {
		need, _ := consumption(p.device, p.alternative.capacity)
		r.ShareID, r.ConsumedCapacity = ptr.To(uid("share", share)), need
	}
	return r
}

// allocate writes the results into the Pod's claim of that index, which is
// made where the Pod has none yet.
func (c *Cluster) allocate(pod types.NamespacedName, claim int, results []resourceapi.DeviceRequestAllocationResult) {
	allocation := &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	p := c.Pod(pod)
	if claim < len(p.Spec.ResourceClaims) {
		if name := p.Spec.ResourceClaims[claim].ResourceClaimName; name != nil {
			for i, have := range c.Claims {
				if have.Namespace == pod.Namespace && have.Name == *name {
					c.Claims[i] = have.DeepCopy()
					c.Claims[i].Status.Allocation = allocation
				}
			}
			return
		}
	}
	name := fmt.Sprintf("%s-made-%d", pod.Name, claim)
	made := newClaim(metav1.ObjectMeta{Namespace: pod.Namespace, Name: name, UID: uid("claim", pod.Namespace, name)}, resourceapi.ResourceClaimSpec{})
	made.Status.Allocation = allocation
	c.Claims = append(c.Claims, made)
}
