package decidetest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Expressions that tiers, policies and claims use; the last ones fail on
// devices that lack the attribute.
var expressions = []string{
	`device.attributes["gpu.gpuladder.dev"].?type.orValue("") == "gpu"`,
	`device.attributes["gpu.gpuladder.dev"].?architecture.orValue("") in ["Hopper", "Ampere"]`,
	`device.attributes["resource.kubernetes.io"].?numaNode.orValue(-1) == 0`,
	`device.attributes["gpu.gpuladder.dev"].brand == "Nvidia"`,
	`device.capacity["gpu.gpuladder.dev"].memory.compareTo(quantity("40Gi")) >= 0`,
}

func (d *draw) classes() {
	add := func(name string, selectors ...string) {
		class := &resourceapi.DeviceClass{
			TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClass"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
		}
		class.Spec.Selectors = celSelectors(selectors...)
		d.c.Classes = append(d.c.Classes, class)
	}
	add("gpu", `device.driver == "gpu.gpuladder.dev"`)
	add("h100", `device.driver == "gpu.gpuladder.dev"`, `device.attributes["gpu.gpuladder.dev"].?model.orValue("") == "H100"`)
	add("any")
}

func celSelectors(expressions ...string) []resourceapi.DeviceSelector {
	var out []resourceapi.DeviceSelector
	for _, e := range expressions {
		out = append(out, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return out
}

// plainClaims gives a Pod one or two claims without a policy, by name or by
// template.
func (d *draw) plainClaims(p *corev1.Pod) {
	n := 1
	if d.oneIn4("two claims") {
		n = 2
	}
	for i := range n {
		spec := d.claimSpec()
		name := fmt.Sprintf("%s-c%d", p.Name, i)
		ref := corev1.PodResourceClaim{Name: fmt.Sprintf("c%d", i)}
		meta := metav1.ObjectMeta{Namespace: p.Namespace, Name: name, UID: uid("claim", p.Namespace, name)}
		if d.oneIn4("by template") {
			ref.ResourceClaimTemplateName = &name
			d.c.Templates = append(d.c.Templates, &resourceapi.ResourceClaimTemplate{
				TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
				ObjectMeta: meta, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec},
			})
		} else {
			ref.ResourceClaimName = &name
			d.c.Claims = append(d.c.Claims, newClaim(meta, spec))
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, ref)
	}
}

func newClaim(meta metav1.ObjectMeta, spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: meta, Spec: spec,
	}
}

func (d *draw) claimSpec() resourceapi.ResourceClaimSpec {
	var spec resourceapi.ResourceClaimSpec
	names := []string{"main"}
	if d.oneIn4("two requests") {
		names = append(names, "side")
	}
	for _, name := range names {
		spec.Devices.Requests = append(spec.Devices.Requests, d.request(name))
	}
	if d.oneIn2("constraint") {
		attribute := resourceapi.FullyQualifiedName(pickOne(d, "constraint attribute", numaNode, pcieRoot, "gpu.gpuladder.dev/model"))
		c := resourceapi.DeviceConstraint{MatchAttribute: &attribute}
		if d.oneIn4("distinct") {
			c = resourceapi.DeviceConstraint{DistinctAttribute: &attribute}
		}
		if d.oneIn4("constraint of one request") {
			c.Requests = []string{"main"}
		}
		spec.Devices.Constraints = append(spec.Devices.Constraints, c)
	}
	return spec
}

func (d *draw) request(name string) resourceapi.DeviceRequest {
	if !d.oneIn2("first available") {
		e := resourceapi.ExactDeviceRequest{
			DeviceClassName: d.class(), Selectors: d.selectors(), Tolerations: d.tolerations(), Capacity: d.capacity(),
		}
		e.AllocationMode, e.Count = d.amount()
		if d.admin && d.oneIn4("admin access") {
			e.AdminAccess = ptr.To(true)
		}
		return resourceapi.DeviceRequest{Name: name, Exactly: &e}
	}
	r := resourceapi.DeviceRequest{Name: name}
	for i := range rapid.IntRange(1, 3).Draw(d.T, "alternatives") {
		s := resourceapi.DeviceSubRequest{
			Name: fmt.Sprintf("alt-%d", i), DeviceClassName: d.class(), Selectors: d.selectors(),
			Tolerations: d.tolerations(), Capacity: d.capacity(),
		}
		s.AllocationMode, s.Count = d.amount()
		r.FirstAvailable = append(r.FirstAvailable, s)
	}
	return r
}

func (d *draw) class() string { return pickOne(d, "class", "gpu", "h100", "any") }

func (d *draw) amount() (resourceapi.DeviceAllocationMode, int64) {
	if d.oneIn8("all devices") {
		return resourceapi.DeviceAllocationModeAll, 0
	}
	return resourceapi.DeviceAllocationModeExactCount, int64(rapid.IntRange(1, 3).Draw(d.T, "count"))
}

func (d *draw) selectors() []resourceapi.DeviceSelector {
	if !d.oneIn4("selector") {
		return nil
	}
	return celSelectors(pickOne(d, "expression", expressions...))
}

func (d *draw) tolerations() []resourceapi.DeviceToleration {
	if !d.oneIn4("toleration") {
		return nil
	}
	return []resourceapi.DeviceToleration{pickOne(d, "toleration",
		resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists},
		resourceapi.DeviceToleration{Key: "example.com/maintenance", Operator: resourceapi.DeviceTolerationOpExists},
		resourceapi.DeviceToleration{
			Key: v1alpha1.TaintUnhealthy, Operator: resourceapi.DeviceTolerationOpEqual, Value: "xid-79",
			Effect: resourceapi.DeviceTaintEffectNoSchedule,
		},
	)}
}

func (d *draw) capacity() *resourceapi.CapacityRequirements {
	if !d.sharing || !d.oneIn2("capacity") {
		return nil
	}
	name := pickOne(d, "capacity name", "memory", "memory", "memory", "bandwidth")
	return &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
		resourceapi.QualifiedName(name): resource.MustParse(pickOne(d, "amount", "10Gi", "15Gi", "40Gi", "100Gi")),
	}}
}

// allocations gives devices of the newest generations to other claims. What
// they take never exceeds what there is.
func (d *draw) allocations() {
	w := d.c.look(Question{})
	for _, x := range w.devices {
		if d.bits(3, "taken") >= d.load || w.held[x.id] {
			continue
		}
		result := resourceapi.DeviceRequestAllocationResult{
			Request: "main", Driver: x.id.Driver, Pool: x.id.Pool, Device: x.id.Device,
		}
		switch {
		case d.admin && d.oneIn4("held by admin"):
			result.AdminAccess = ptr.To(true)
		case !w.countersAllow(nil, x):
			continue
		case x.shared():
			need, ok := consumption(x, nil)
			if !ok || d.oneIn4("another share") {
				continue
			}
			result.ShareID, result.ConsumedCapacity = ptr.To(uid("share", x.id.Pool, x.id.Device)), need
			w.shares[x.id] = w.shares[x.id].plus(need)
		default:
			w.held[x.id] = true
		}
		d.allocated(result)
	}
}

func (d *draw) allocated(result resourceapi.DeviceRequestAllocationResult) {
	namespace := pickOne(d, "holder", "team-b", "team-a")
	name := fmt.Sprintf("held-%d", len(d.c.Claims))
	c := newClaim(metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid("claim", namespace, name)}, resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "main", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, AdminAccess: result.AdminAccess,
			},
		}}},
	})
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{result},
	}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: uid("pod", namespace, name)}}
	d.c.Claims = append(d.c.Claims, c)
}
