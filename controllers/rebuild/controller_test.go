package rebuild

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

var bound = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const missing = "train-0123456789abcdef"

var train = reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: "train"}}

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: "train", UID: "pod-uid", CreationTimestamp: metav1.NewTime(bound.Add(-time.Hour)),
			Annotations: map[string]string{
				v1alpha1.AnnotationRecord: missing, v1alpha1.AnnotationModel: "A100", v1alpha1.AnnotationTier: "a100", v1alpha1.AnnotationDigest: "sha256:d",
			},
		},
		Spec: corev1.PodSpec{NodeName: "n1", ResourceClaims: []corev1.PodResourceClaim{{Name: "accelerator", ResourceClaimName: ptr.To("c")}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(bound)},
		}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func claim() *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team-a", Name: "c", UID: "claim-uid", Labels: map[string]string{v1alpha1.LabelPolicy: "p", v1alpha1.LabelPolicyRevision: "3"},
	}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{
		{Request: "accelerator/a100", Driver: v1alpha1.DriverName, Pool: "n1", Device: "gpu-0"},
	}
	return c
}

func revision() *v1alpha1.PolicyRevision {
	r := &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: "p-3"}, Spec: v1alpha1.PolicyRevisionSpec{Hash: "sha256:h"}}
	r.Spec.PolicySpec.Tiers = []v1alpha1.Tier{{Name: "h100"}, {Name: "a100"}}
	return r
}

func newController(t *testing.T, calls interceptor.Funcs, objects ...client.Object) (*Controller, client.Client, *testclock.FakePassiveClock) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), resourcev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), metav1.AddMetaToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(calls).Build()
	clk := testclock.NewFakePassiveClock(bound.Add(DefaultPatience))
	return NewController(clk, c, c, DefaultPatience), c, clk
}

func records(t *testing.T, c client.Client) []v1alpha1.AllocationDecision {
	t.Helper()
	list := &v1alpha1.AllocationDecisionList{}
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func written() *v1alpha1.AllocationDecision {
	return &v1alpha1.AllocationDecision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: missing}, Spec: v1alpha1.AllocationDecisionSpec{Outcome: v1alpha1.OutcomeAllocated},
	}
}

func TestRebuilt(t *testing.T) {
	c, api, _ := newController(t, interceptor.Funcs{}, pod(), claim(), revision())
	result, err := c.Reconcile(t.Context(), train)
	if err != nil {
		t.Fatal(err)
	}
	if want := writersTries - DefaultPatience; result.RequeueAfter != want {
		t.Errorf("looks again in %s, want %s", result.RequeueAfter, want)
	}
	all := records(t, api)
	if len(all) != 1 {
		t.Fatalf("there are %d records", len(all))
	}
	got := all[0]
	if got.Annotations[v1alpha1.AnnotationRebuilt] != missing || got.Labels[v1alpha1.LabelPolicy] != "p" || got.Name == missing {
		t.Errorf("the record is %+v", got.ObjectMeta)
	}
	want := v1alpha1.AllocationDecisionSpec{
		Pod: "train", PodUID: "pod-uid", Claim: "c", Outcome: v1alpha1.OutcomeAllocated, Policy: "p", PolicyRevision: 3, PolicyHash: "sha256:h",
		Message: "Rebuilt, without the evidence: A100 (tier a100, revision 3): n1/n1/gpu-0",
		Tier:    "a100", TierIndex: ptr.To[int32](1), Node: "n1", IdempotencyKey: "claim-uid/3", InputDigest: "sha256:d",
		Devices: []v1alpha1.DecidedDevice{{Driver: v1alpha1.DriverName, Pool: "n1", Device: "gpu-0", Request: "accelerator/a100", Model: "A100"}},
	}
	if !reflect.DeepEqual(got.Spec, want) {
		t.Errorf("got %+v\nwant %+v", got.Spec, want)
	}
	if errs := got.Validate(); len(errs) > 0 {
		t.Errorf("the record is invalid: %v", errs)
	}
	// Looked at again, also by another controller, it stays the only one.
	if _, err := c.Reconcile(t.Context(), train); err != nil || len(records(t, api)) != 1 {
		t.Errorf("then %d records, %v", len(records(t, api)), err)
	}
}

// The scheduler's record may come after all: then the other goes.
func TestTheSchedulersComesAfterAll(t *testing.T) {
	c, api, clk := newController(t, interceptor.Funcs{}, pod(), claim(), revision())
	if _, err := c.Reconcile(t.Context(), train); err != nil {
		t.Fatal(err)
	}
	if err := api.Create(t.Context(), written()); err != nil {
		t.Fatal(err)
	}
	clk.SetTime(bound.Add(writersTries))
	result, err := c.Reconcile(t.Context(), train)
	if all := records(t, api); err != nil || result.RequeueAfter != 0 || len(all) != 1 || all[0].Name != missing {
		t.Errorf("left are %v, again in %s, %v", all, result.RequeueAfter, err)
	}
}

func TestNothingIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		objects []client.Object
		after   time.Duration // of the Binding
		again   time.Duration
	}{
		"written":               {[]client.Object{pod(), claim(), written()}, time.Hour, 0},
		"not late yet":          {[]client.Object{pod(), claim()}, 20 * time.Second, 40 * time.Second},
		"the Pod is gone":       {nil, time.Hour, 0},
		"its claim is gone":     {[]client.Object{pod()}, time.Hour, 0},
		"not bound":             {[]client.Object{pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), claim()}, time.Hour, 0},
		"another scheduler's":   {[]client.Object{pod(func(p *corev1.Pod) { p.Annotations = nil }), claim()}, time.Hour, 0},
		"bound, time not known": {[]client.Object{pod(func(p *corev1.Pod) { p.Status.Conditions = nil; p.CreationTimestamp = metav1.NewTime(bound) }), claim()}, 0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			c, api, clk := newController(t, interceptor.Funcs{}, test.objects...)
			clk.SetTime(bound.Add(test.after))
			before := len(records(t, api))
			result, err := c.Reconcile(t.Context(), train)
			if err != nil || result.RequeueAfter != test.again || len(records(t, api)) != before {
				t.Errorf("again in %s with %d records, %v", result.RequeueAfter, len(records(t, api)), err)
			}
		})
	}
}

// Without the revision the place of the tier is not known; without a policy
// there is none.
func TestLessIsKnown(t *testing.T) {
	c, api, _ := newController(t, interceptor.Funcs{}, pod(), claim())
	if _, err := c.Reconcile(t.Context(), train); err != nil {
		t.Fatal(err)
	}
	if got := records(t, api)[0]; got.Spec.TierIndex != nil || got.Spec.Tier != "a100" {
		t.Errorf("got %+v", got.Spec)
	}
	plain := claim()
	plain.Labels = nil
	c, api, _ = newController(t, interceptor.Funcs{}, pod(), plain)
	if _, err := c.Reconcile(t.Context(), train); err != nil {
		t.Fatal(err)
	}
	if got := records(t, api)[0]; got.Labels != nil || got.Spec.Policy != "" || len(got.Spec.Devices) != 1 {
		t.Errorf("got %+v", got)
	}
}

// A Pod that follows a policy by an extended resource has a claim that it does not
// name.
func TestByExtendedResource(t *testing.T) {
	byResource := pod(func(p *corev1.Pod) {
		p.Spec.ResourceClaims = nil
		p.Annotations[v1alpha1.AnnotationExtendedResourcePolicy], p.Annotations[v1alpha1.AnnotationRevision] = "p", "3"
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: "c", RequestMappings: []corev1.ContainerExtendedResourceRequest{{ResourceName: "nvidia.com/gpu", RequestName: "container-0-request-0"}},
		}
	})
	special := claim()
	special.Labels = nil
	special.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "train", UID: "pod-uid", Controller: ptr.To(true)}}
	special.Status.Allocation.Devices.Results[0].Request = "container-0-request-0"
	c, api, _ := newController(t, interceptor.Funcs{}, byResource, special, revision())
	if _, err := c.Reconcile(t.Context(), train); err != nil {
		t.Fatal(err)
	}
	all := records(t, api)
	if len(all) != 1 {
		t.Fatalf("there are %d records", len(all))
	}
	got := all[0]
	if got.Labels[v1alpha1.LabelPolicy] != "p" || got.Spec.Policy != "p" || got.Spec.PolicyRevision != 3 || got.Spec.PolicyHash != "sha256:h" ||
		got.Spec.Tier != "a100" || ptr.Deref(got.Spec.TierIndex, -1) != 1 || len(got.Spec.Devices) != 1 || got.Spec.Devices[0].Model != "A100" {
		t.Errorf("got %+v", got)
	}
}

// What stands on the claim may have been changed by its owner, and the policy may
// have been made again under its name.
func TestThePodSaysWhatItFollows(t *testing.T) {
	follows := pod(func(p *corev1.Pod) {
		p.Labels = map[string]string{v1alpha1.LabelPolicy: "p"}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "accelerator", ResourceClaimTemplateName: ptr.To("p-3")}}
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "accelerator", ResourceClaimName: ptr.To("c")}}
	})
	changed := claim()
	changed.Labels = map[string]string{v1alpha1.LabelPolicy: "q", v1alpha1.LabelPolicyRevision: "9"}
	changed.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "train", UID: "pod-uid", Controller: ptr.To(true)}}
	changed.CreationTimestamp = metav1.NewTime(bound)
	again := revision()
	again.CreationTimestamp = metav1.NewTime(bound.Add(time.Second))
	for name, test := range map[string]struct {
		revision *v1alpha1.PolicyRevision
		known    bool
	}{"its revision": {revision(), true}, "another of its name": {again, false}} {
		t.Run(name, func(t *testing.T) {
			c, api, _ := newController(t, interceptor.Funcs{}, follows, changed, test.revision)
			if _, err := c.Reconcile(t.Context(), train); err != nil {
				t.Fatal(err)
			}
			got := records(t, api)[0].Spec
			if got.Policy != "p" || got.PolicyRevision != 3 || (got.TierIndex != nil) != test.known || (got.PolicyHash != "") != test.known {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	resource := v1alpha1.GroupVersion.WithResource("allocationdecisions").GroupResource()
	terminating := apierrors.NewForbidden(resource, "x", errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, test := range map[string]struct {
		create error
		fails  bool
	}{
		"refused":                     {apierrors.NewForbidden(resource, "x", errors.New("no")), true},
		"written by an earlier round": {apierrors.NewAlreadyExists(resource, "x"), false},
		"the namespace goes":          {terminating, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, _ := newController(t, interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
					return test.create
				},
			}, pod(), claim(), revision())
			if _, err := c.Reconcile(t.Context(), train); (err != nil) != test.fails {
				t.Errorf("got %v", err)
			}
		})
	}
	for _, unread := range []string{"*v1.Pod", "*v1.PartialObjectMetadata", "*v1.ResourceClaim", "*v1alpha1.PolicyRevision"} {
		t.Run("no answer about "+unread, func(t *testing.T) {
			c, _, _ := newController(t, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if reflect.TypeOf(o).String() == unread {
						return errors.New("no answer")
					}
					return c.Get(ctx, key, o, opts...)
				},
			}, pod(), claim(), revision())
			if _, err := c.Reconcile(t.Context(), train); err == nil || !strings.Contains(err.Error(), "no answer") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestRebuiltName(t *testing.T) {
	for _, name := range []string{missing, "a-b-c-0123456789abcdef", strings.Repeat("x", 236) + "-0123456789abcdef"} {
		got := rebuiltName(name)
		if got == name || len(got) != len(name) || got[:len(got)-hexDigits] != name[:len(name)-hexDigits] {
			t.Errorf("%s became %s", name, got)
		}
		if rebuiltName(name) != got {
			t.Errorf("%s has no one name", name)
		}
	}
}

// A Pod is looked at when it is bound, and at the start.
func TestWhenBound(t *testing.T) {
	before := pod(func(p *corev1.Pod) { p.Annotations = nil })
	c, _, _ := newController(t, interceptor.Funcs{})
	c.patience = time.Millisecond
	for name, test := range map[string]struct {
		send func(queue workqueue.TypedRateLimitingInterface[reconcile.Request])
		want bool
	}{
		"at the start": {func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			c.whenBound().Create(t.Context(), event.CreateEvent{Object: pod()}, q)
		}, true},
		"when it is bound": {func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			c.whenBound().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: pod()}, q)
		}, true},
		"not while it waits": {func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			c.whenBound().Create(t.Context(), event.CreateEvent{Object: before}, q)
		}, false},
		"not at later changes": {func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			c.whenBound().Update(t.Context(), event.UpdateEvent{ObjectOld: pod(), ObjectNew: pod()}, q)
		}, false},
		"not when it goes": {func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			c.whenBound().Delete(t.Context(), event.DeleteEvent{Object: pod()}, q)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer queue.ShutDown()
			test.send(queue)
			if !test.want {
				time.Sleep(20 * time.Millisecond)
				if queue.Len() != 0 {
					t.Error("looks at it")
				}
				return
			}
			if got, _ := queue.Get(); got != train {
				t.Errorf("looks at %v", got)
			}
		})
	}
}
