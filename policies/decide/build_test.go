package decide

// Builders for the unit tests: a fleet in a few lines.

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// epoch is when the tests' Pods are created and decided.
var epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

const ours = v1alpha1.DriverName

func aNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("64Gi"),
				corev1.ResourcePods: resource.MustParse("110"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func text(s string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: &s}
}

func number(n int64) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{IntValue: &n} }

func version(s string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{VersionValue: &s}
}

func boolean(b bool) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{BoolValue: &b} }

// boards are what the devices of the tests report.
var boards = map[string]struct{ product, arch, compute, memory string }{
	"H100": {"NVIDIA H100 80GB HBM3", "Hopper", "9.0.0", "81559Mi"},
	"A100": {"NVIDIA A100-SXM4-80GB", "Ampere", "8.0.0", "81920Mi"},
	"L4":   {"NVIDIA L4", "Ada Lovelace", "8.9.0", "23034Mi"},
	"T4":   {"Tesla T4", "Turing", "7.5.0", "15360Mi"},
}

func aGPU(name, model string, change ...func(*resourceapi.Device)) resourceapi.Device {
	b := boards[model]
	d := resourceapi.Device{
		Name: name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": text("gpu"), "model": text(model), "productName": text(b.product), "architecture": text(b.arch),
			"cudaComputeCapability": version(b.compute), "driverVersion": version("570.148.8"),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(b.memory)}},
	}
	for _, c := range change {
		c(&d)
	}
	return d
}

func attr(name string, a resourceapi.DeviceAttribute) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) { d.Attributes[resourceapi.QualifiedName(name)] = a }
}

func without(name string) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		delete(d.Attributes, resourceapi.QualifiedName(name))
		delete(d.Capacity, resourceapi.QualifiedName(name))
	}
}

func withTaint(key string, effect resourceapi.DeviceTaintEffect) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: key, Effect: effect})
	}
}

func shareable(d *resourceapi.Device) { d.AllowMultipleAllocations = ptr.To(true) }

func consumes(set string, counters map[string]string) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		c := resourceapi.DeviceCounterConsumption{CounterSet: set, Counters: map[string]resourceapi.Counter{}}
		for name, q := range counters {
			c.Counters[name] = resourceapi.Counter{Value: resource.MustParse(q)}
		}
		d.ConsumesCounters = append(d.ConsumesCounters, c)
	}
}

// aSlice is the only slice of the node's pool.
func aSlice(node string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: ours, NodeName: ptr.To(node),
			Pool:    resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
			Devices: devices,
		},
	}
}

// fromNVIDIA makes the slice one of NVIDIA's driver, which knows no model.
func fromNVIDIA(s *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	s.Spec.Driver = v1alpha1.NVIDIADriverName
	for i := range s.Spec.Devices {
		delete(s.Spec.Devices[i].Attributes, "model")
	}
	return s
}

func aTier(name string, models ...string) v1alpha1.Tier {
	return v1alpha1.Tier{Name: name, Models: models}
}

func aPolicy(tiers ...v1alpha1.Tier) *v1alpha1.AcceleratorPolicy {
	return &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "h100-first"},
		Spec:       v1alpha1.AcceleratorPolicySpec{Tiers: tiers},
	}
}

// ladder is the usual policy: H100, then A100.
func ladder(change ...func(*v1alpha1.AcceleratorPolicySpec)) *v1alpha1.AcceleratorPolicy {
	p := aPolicy(aTier("h100", "H100"), aTier("a100", "A100"))
	for _, c := range change {
		c(&p.Spec)
	}
	return p
}

func aPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(epoch),
			Labels: map[string]string{v1alpha1.LabelPolicy: "h100-first"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
			}},
		}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// plain makes the Pod one without a policy that uses the claims of these names.
func plain(claims ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels = nil
		for _, c := range claims {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: ptr.To(c)})
		}
	}
}

// turnFor says which models the Pod's turn is for.
func turnFor(models string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.AnnotationTurnModels, models)
	}
}

func aClass(name string, selectors ...string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Selectors: celOf(selectors...)}}
}

func celOf(expressions ...string) []resourceapi.DeviceSelector {
	var out []resourceapi.DeviceSelector
	for _, e := range expressions {
		out = append(out, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return out
}

// exactly is a request for count devices of class gpu.
func exactly(name string, count int64, selectors ...string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count, Selectors: celOf(selectors...),
	}}
}

func aClaim(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID("uid-" + name)},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

// allocated gives a claim devices of pools of our driver: "pool/device".
func allocated(c *resourceapi.ResourceClaim, request string, devices ...[2]string) *resourceapi.ResourceClaim {
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: request, Driver: ours, Pool: d[0], Device: d[1]})
	}
	return c
}

func inNamespace(ns string, c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Namespace = ns
	return c
}

func aQuota(name string, namespaces []string, models ...v1alpha1.ModelQuota) *v1alpha1.TenantQuota {
	return &v1alpha1.TenantQuota{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.TenantQuotaSpec{Namespaces: namespaces, Models: models},
	}
}

func upTo(model string, limit int32) v1alpha1.ModelQuota {
	return v1alpha1.ModelQuota{Model: model, Limit: ptr.To(limit)}
}

// stateOf puts the objects.
func stateOf(t testing.TB, objects ...runtime.Object) *State {
	t.Helper()
	return stateWith(t, Options{}, objects...)
}

func stateWith(t testing.TB, opts Options, objects ...runtime.Object) *State {
	t.Helper()
	st := NewState(opts)
	mustPut(t, st, objects...)
	return st
}

func mustPut(t testing.TB, st *State, objects ...runtime.Object) {
	t.Helper()
	for _, o := range objects {
		if err := st.Put(o); err != nil {
			t.Fatalf("putting %T: %v", o, err)
		}
	}
}

func mustDelete(t testing.TB, st *State, objects ...runtime.Object) {
	t.Helper()
	for _, o := range objects {
		if err := st.Delete(o); err != nil {
			t.Fatalf("deleting %T: %v", o, err)
		}
	}
}

// ask is the question for a Pod of team-a at the epoch.
func ask(pod string) Query {
	return Query{Pod: types.NamespacedName{Namespace: "team-a", Name: pod}, Now: epoch}
}

func decideFor(t testing.TB, st *State, q Query) *Decision {
	t.Helper()
	d, err := st.Decide(q)
	if err != nil {
		t.Fatalf("deciding %s: %v", q.Pod, err)
	}
	return d
}

// countsOf are the counts of one tier.
func countsOf(t testing.TB, d *Decision, tier string) map[v1alpha1.Reason]int32 {
	t.Helper()
	for i := range d.Tiers {
		if d.Tiers[i].Name != tier {
			continue
		}
		out := map[v1alpha1.Reason]int32{}
		for _, r := range d.Tiers[i].Rejections {
			out[r.Code] = r.Count
		}
		return out
	}
	t.Fatalf("no tier %s in %+v", tier, d.Tiers)
	return nil
}

// detailOf is the detail of the first example of a reason.
func detailOf(d *Decision, tier string, reason v1alpha1.Reason) string {
	for i := range d.Tiers {
		for _, r := range d.Tiers[i].Rejections {
			if d.Tiers[i].Name == tier && r.Code == reason && len(r.Examples) > 0 {
				return r.Examples[0].Detail
			}
		}
	}
	return ""
}

// namesOf are the devices of a decision as "pool/device".
func namesOf(d *Decision) []string {
	var out []string
	for _, x := range d.Devices {
		out = append(out, x.Pool+"/"+x.Device)
	}
	return out
}
