package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// start has no fraction of a second, as the API's times have none.
var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const namespace = "team-a"

// world is an API server with the controller beside it: node n1 with the
// devices gpu-0 and gpu-1, policy p with revision 3, and the Pod train, which
// has gpu-0.
type world struct {
	t *testing.T
	client.WithWatch
	controller *Controller
	clock      *clocktesting.FakeClock
	events     *events.FakeRecorder
	// evict answers evictions; nil lets them happen.
	evict func() error
	// writes are those that were tried: "status train", "evict train", …
	writes []string
}

func newWorld(t *testing.T, unhealthy v1alpha1.OnUnhealthy, more ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, clock: clocktesting.NewFakeClock(start), events: events.NewFakeRecorder(100)}
	revision := &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: "p-3"}}
	revision.Spec = v1alpha1.PolicyRevisionSpec{Policy: "p", Revision: 3, PolicySpec: v1alpha1.AcceleratorPolicySpec{OnUnhealthy: unhealthy}}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&corev1.Pod{}, &resourcev1.ResourceClaim{}).
		WithObjects(revision, slice(1), claim("train", "gpu-0"), pod("train")).WithObjects(more...)
	for _, i := range indexes() {
		builder = builder.WithIndex(i.object, i.field, i.extract)
	}
	w.WithWatch = builder.Build()
	c := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			w.writes = append(w.writes, "patch "+o.GetName())
			return c.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, _ string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			w.writes = append(w.writes, "status "+o.GetName())
			return c.Status().Patch(ctx, o, p, opts...)
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, name string, o, sub client.Object, opts ...client.SubResourceCreateOption) error {
			w.writes = append(w.writes, "evict "+o.GetName())
			eviction := sub.(*policyv1.Eviction)
			if name != "eviction" || eviction.DeleteOptions == nil || *eviction.DeleteOptions.Preconditions.UID != o.GetUID() {
				t.Errorf("%s of %s without a precondition: %+v", name, o.GetName(), eviction.DeleteOptions)
			}
			if w.evict != nil {
				if err := w.evict(); err != nil {
					return err
				}
			}
			return c.SubResource(name).Create(ctx, o, sub, opts...)
		},
	})
	w.controller = NewController(w.clock, c, w.WithWatch, w.events)
	return w
}

func slice(generation int64, failed ...string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n1-%d", generation)}}
	s.Spec = resourcev1.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To("n1"), Pool: resourcev1.ResourcePool{Name: "n1", Generation: generation, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0"}, {Name: "gpu-1"}},
	}
	for _, name := range failed {
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == name {
				s.Spec.Devices[i].Taints = taints(start)
			}
		}
	}
	return s
}

// taints are what the driver sets on a device that has failed.
func taints(since time.Time) []resourcev1.DeviceTaint {
	return []resourcev1.DeviceTaint{
		{Key: v1alpha1.TaintUnhealthy, Value: "xid-79", Effect: resourcev1.DeviceTaintEffectNoSchedule, TimeAdded: ptr.To(metav1.NewTime(since.Add(-time.Hour)))},
		{Key: v1alpha1.TaintFailed, Value: "xid-79", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: ptr.To(metav1.NewTime(since))},
	}
}

func claim(podName string, devices ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: podName + "-accelerator", UID: types.UID("claim-" + podName),
		Labels:          map[string]string{v1alpha1.LabelPolicy: "p", v1alpha1.LabelPolicyRevision: "3"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: podName, UID: types.UID("pod-" + podName), Controller: ptr.To(true)}},
	}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "accelerator/h100", Driver: v1alpha1.DriverName, Pool: "n1", Device: d})
	}
	c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: podName, UID: types.UID("pod-" + podName)}}
	return c
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("pod-" + name), Labels: map[string]string{v1alpha1.LabelPolicy: "p"},
			Annotations: map[string]string{v1alpha1.AnnotationModel: "H100", v1alpha1.AnnotationTier: "h100"},
		},
		Spec: corev1.PodSpec{NodeName: "n1", ResourceClaims: []corev1.PodResourceClaim{{Name: "accelerator", ResourceClaimTemplateName: ptr.To("p-3")}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, StartTime: ptr.To(metav1.NewTime(start.Add(-time.Hour))),
			ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "accelerator", ResourceClaimName: ptr.To(name + "-accelerator")}},
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue},
				{Type: v1alpha1.ConditionAccelerator, Status: corev1.ConditionTrue, Reason: "Allocated", Message: "H100 (tier h100, revision 3): n1/n1/gpu-0", LastTransitionTime: metav1.NewTime(start.Add(-time.Hour))},
			},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// fail replaces the slice by one in which the devices have failed; with none,
// all are well.
func (w *world) fail(devices ...string) {
	w.t.Helper()
	s := &resourcev1.ResourceSlice{}
	if err := w.Get(w.t.Context(), types.NamespacedName{Name: "n1-1"}, s); err != nil {
		w.t.Fatal(err)
	}
	s.Spec = slice(1, devices...).Spec
	if err := w.Update(w.t.Context(), s); err != nil {
		w.t.Fatal(err)
	}
}

// reconcile looks at the claim of a Pod and returns what was written and when
// to look again.
func (w *world) reconcile(podName string) ([]string, time.Duration) {
	w.t.Helper()
	w.writes = nil
	result, err := w.controller.Reconcile(w.t.Context(), request(podName))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.writes, result.RequeueAfter
}

func request(podName string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: podName + "-accelerator"}}
}

// pod reads a Pod; nil when it is gone.
func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{}
	err := w.Get(w.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, p)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// said returns the Events since the last call.
func (w *world) said() []string {
	var all []string
	for {
		select {
		case e := <-w.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func (w *world) requireWrites(got []string, want ...string) {
	w.t.Helper()
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		w.t.Errorf("wrote %q, want %q", got, want)
	}
}

func (w *world) requireCondition(name string, status corev1.ConditionStatus, reason string, words ...string) {
	w.t.Helper()
	c := v1alpha1.AcceleratorCondition(w.pod(name))
	if c == nil || c.Status != status || c.Reason != reason {
		w.t.Fatalf("the condition is %+v, want %s because of %s", c, status, reason)
	}
	for _, word := range words {
		if !strings.Contains(c.Message, word) {
			w.t.Errorf("the condition lacks %q: %s", word, c.Message)
		}
	}
}

func lasting(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

// refused is the API server's answer where a disruption budget stands in the way.
func refused(needs int) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: "Cannot evict pod as it would violate the pod's disruption budget.",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{
			Type: policyv1.DisruptionBudgetCause, Message: fmt.Sprintf("The disruption budget train needs %d healthy pods and has 1 currently", needs),
		}}},
	}}
}
