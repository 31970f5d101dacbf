package tenants

// A small cluster for tests: objects that change as they do in a real one, and
// a Mirror that is told of it.

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/fair"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

type world struct {
	t       *testing.T
	mirror  *Mirror
	now     time.Time
	config  Config
	objects map[string]metav1.Object
	uid     int
	opens   map[string]fair.Action // the last one about a Pod
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, now: start, objects: map[string]metav1.Object{}, opens: map[string]fair.Action{}, config: Config{Notice: &metav1.Duration{Duration: time.Minute}}}
	w.mirror = w.empty()
	return w
}

func (w *world) empty() *Mirror {
	w.t.Helper()
	m, err := NewMirror(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	m.ServeGroups()
	return m
}

func nameOf(o metav1.Object) string {
	return fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
}

// put makes or changes objects; what was told before is not touched.
func (w *world) put(objects ...metav1.Object) {
	for _, o := range objects {
		if o.GetUID() == "" {
			w.uid++
			o.SetUID(types.UID(fmt.Sprintf("u%04d", w.uid)))
		}
		w.objects[nameOf(o)] = o
		w.mirror.Put(o)
	}
}

func (w *world) remove(objects ...metav1.Object) {
	for _, o := range objects {
		delete(w.objects, nameOf(o))
		w.mirror.Delete(o)
	}
}

func (w *world) sync() {
	w.t.Helper()
	if err := w.mirror.Sync(w.now); err != nil {
		w.t.Fatal(err)
	}
}

// fresh is a Mirror that is told of everything at once, as after a restart.
func (w *world) fresh() *Mirror {
	w.t.Helper()
	m := w.empty()
	for _, name := range slices.Sorted(maps.Keys(w.objects)) {
		m.Put(w.objects[name])
	}
	if err := m.Sync(w.now); err != nil {
		w.t.Fatal(err)
	}
	return m
}

// actions are what is to be done.
func (w *world) actions() []fair.Action {
	w.t.Helper()
	w.sync()
	return w.noted(w.mirror.Next(w.now))
}

// noted keeps what opened needs to know of actions.
func (w *world) noted(actions []fair.Action) []fair.Action {
	for _, a := range actions {
		if a.Kind == fair.Open {
			w.opens[a.ID] = a
		}
	}
	return actions
}

// next is what is to be done, as "Open a/b".
func (w *world) next() []string {
	w.t.Helper()
	var list []string
	for _, a := range w.actions() {
		namespace, name, _, _ := SplitID(a.ID)
		list = append(list, a.Kind.String()+" "+namespace+"/"+name)
	}
	return list
}

func (w *world) expect(want ...string) {
	w.t.Helper()
	if got := w.next(); !slices.Equal(got, want) {
		w.t.Fatalf("got actions %q, want %q", got, want)
	}
}

// requireSameAsRestarted: who starts now counts the same.
func (w *world) requireSameAsRestarted() {
	w.t.Helper()
	w.sync()
	m := w.fresh()
	for _, q := range w.mirror.Quotas() {
		if got, want := w.mirror.Usage(q.Name), m.Usage(q.Name); !reflect.DeepEqual(got, want) {
			w.t.Fatalf("tenant %s: a new Mirror counts %+v, the old one %+v", q.Name, want, got)
		}
	}
	for _, model := range []string{"H100", "A100", "T4"} {
		a, b := w.mirror.Capacity(model)
		c, d := m.Capacity(model)
		if a != c || b != d {
			w.t.Fatalf("%s: a new Mirror sees %d devices, %d free, the old one %d and %d", model, c, d, a, b)
		}
	}
}

// requireUsage checks what a tenant holds and is charged of a model.
func (w *world) requireUsage(tenant, model string, used, charged int64) {
	w.t.Helper()
	w.sync()
	usage := w.mirror.Usage(tenant)
	if u := usage.Of(model); u.Allocated != used || u.Charged != charged {
		w.t.Fatalf("tenant %s uses %d %s and is charged %d, want %d and %d", tenant, u.Allocated, model, u.Charged, used, charged)
	}
}

func (w *world) requireCapacity(model string, devices, free int64) {
	w.t.Helper()
	w.sync()
	if a, b := w.mirror.Capacity(model); a != devices || b != free {
		w.t.Fatalf("got %d %s, %d of them free, want %d and %d", a, model, b, devices, free)
	}
}

func (w *world) node(name string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	w.put(n)
	return n
}

// gpus makes a node with n devices of a model.
func (w *world) gpus(node, model string, n int) *resourceapi.ResourceSlice {
	w.node(node)
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-slice"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: ptr.To(node), Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name:       fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: ptr.To(model)}},
		})
	}
	w.put(s)
	return s
}

func (w *world) policy(name string, change func(*v1alpha1.AcceleratorPolicySpec), tiers ...v1alpha1.Tier) *v1alpha1.PolicyRevision {
	w.t.Helper()
	policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.AcceleratorPolicySpec{Tiers: tiers}}
	if change != nil {
		change(&policy.Spec)
	}
	revision, err := compile.Revision(policy, 1)
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(revision)
	return revision
}

func tier(models ...string) v1alpha1.Tier {
	return v1alpha1.Tier{Name: strings.ToLower("t" + strings.Join(models, "-")), Models: models}
}

func (w *world) quota(name string, namespaces []string, models ...v1alpha1.ModelQuota) *v1alpha1.TenantQuota {
	q := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TenantQuotaSpec{Namespaces: namespaces, Models: models}}
	q.Default()
	w.put(q)
	return q
}

func part(model string, guaranteed, limit int32) v1alpha1.ModelQuota {
	return v1alpha1.ModelQuota{Model: model, Guaranteed: guaranteed, Limit: &limit}
}

// pod makes a Pod of a policy at its gate.
func (w *world) pod(namespace, name, policy string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(w.now),
			Labels: map[string]string{v1alpha1.LabelPolicy: policy},
		},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.GateQuota}},
			ResourceClaims:  []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To(policy + "-1")}},
		},
	}
	for _, c := range change {
		c(p)
	}
	w.put(p)
	return p
}

func (w *world) edit(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	p = p.DeepCopy()
	change(p)
	w.put(p)
	return p
}

// opened is the Pod after the gate was opened.
func (w *world) opened(p *corev1.Pod) *corev1.Pod {
	a := w.opens[IDOf(p.Namespace, p.Name, p.UID)]
	a.ID = IDOf(p.Namespace, p.Name, p.UID) // also where a test opens it by hand
	says := w.mirror.OpeningOf(a)
	return w.edit(p, func(p *corev1.Pod) {
		p.Spec.SchedulingGates = nil
		for key, value := range says {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value)
		}
	})
}

func (w *world) terminating(p *corev1.Pod) *corev1.Pod {
	return w.edit(p, func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(w.now)) })
}

// claim makes a claim with devices, as "node/gpu-0", for a Pod or, without one,
// for whoever names it.
func (w *world) claim(namespace, name string, p *corev1.Pod, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(w.now)}}
	if old, ok := w.objects[nameOf(c)].(*resourceapi.ResourceClaim); ok {
		c.UID = old.UID
	}
	if p != nil {
		c.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: v1alpha1.ClaimRefName}
		c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr.To(true)}}
	}
	if len(devices) > 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{}
	}
	for _, d := range devices {
		node, device, _ := strings.Cut(d, "/")
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: v1alpha1.RequestName, Driver: v1alpha1.DriverName, Pool: node, Device: device,
		})
	}
	w.put(c)
	return c
}

func (w *world) allocate(p *corev1.Pod, devices ...string) *resourceapi.ResourceClaim {
	return w.claim(p.Namespace, p.Name+"-accelerator", p, devices...)
}

func reasonOf(t *testing.T, m *Mirror, namespace, name string) fair.Reason {
	t.Helper()
	x, blocked, ok := m.Explain(namespace, name)
	if !ok {
		return blocked
	}
	return x.Reason
}
