package guard_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

const (
	claims = "ladder-guard-claims"
	tenant = "tenant@example.com"
)

// protected is a change to a claim before it is made: it bears the finalizer that
// the scheduler adds, and one of its owner's.
func protected(c *resourcev1.ResourceClaim) {
	c.Finalizers = []string{resourcev1.Finalizer, "example.com/own"}
}

// fromPolicy is a change to a claim before it is made: it says what it was made from.
func fromPolicy(c *resourcev1.ResourceClaim) {
	c.Labels = map[string]string{v1alpha1.LabelPolicy: "h100-first", v1alpha1.LabelPolicyRevision: "3"}
	c.Annotations = map[string]string{compile.AnnotationPolicyHash: "sha256:0"}
}

// give has ladder-scheduler allocate a device for the claim and reserve it for a
// Pod, and returns the claim as it is then.
func give(t *testing.T, s *apiserver.Server, c *resourcev1.ResourceClaim, driver string, user corev1.Pod) *resourcev1.ResourceClaim {
	t.Helper()
	given := allocate(c, driver, "gpu-0")
	given.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: user.Name, UID: user.UID}}
	if err := as(t, s, ladder).Status().Update(t.Context(), given); err != nil {
		t.Fatal(err)
	}
	return given
}

// someone is a Pod that only the claim knows.
func someone() corev1.Pod { return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}} }

// While a claim has devices nobody takes away what keeps it, however the request
// is made, and whatever rights of its own the user has.
func TestTheFinalizerOfADeviceInUseStays(t *testing.T) {
	s := server(t)
	held := give(t, s, claim(t, s.Client, "held", v1alpha1.DriverName, protected), v1alpha1.DriverName, someone())
	without := held.DeepCopy()
	without.Finalizers = []string{"example.com/own"}
	patch := func(kind types.PatchType, body string) func(client.Client) error {
		return func(c client.Client) error {
			return c.Patch(t.Context(), held.DeepCopy(), client.RawPatch(kind, []byte(body)))
		}
	}
	ways := map[string]func(client.Client) error{
		"update":          func(c client.Client) error { return c.Update(t.Context(), without.DeepCopy()) },
		"merge patch":     patch(types.MergePatchType, `{"metadata":{"finalizers":null}}`),
		"JSON patch":      patch(types.JSONPatchType, `[{"op":"remove","path":"/metadata/finalizers/0"}]`),
		"strategic patch": patch(types.StrategicMergePatchType, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["`+resourcev1.Finalizer+`"]}}`),
	}
	for way, remove := range ways {
		for _, user := range []string{tenant, stock, guard.Driver} {
			t.Run(way+" by "+user, func(t *testing.T) {
				apiserver.RequireRefused(t, remove(as(t, s, user)), claims, resourcev1.Finalizer, ladder, user, "delete the claim and the Pods that use it")
			})
		}
	}
	// Nor once it has been deleted, which leaves it there.
	if err := as(t, s, tenant).Delete(t.Context(), held.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	for way, remove := range ways {
		if way != "update" { // it was changed meanwhile
			apiserver.RequireRefused(t, remove(as(t, s, tenant)), claims, tenant)
		}
	}
	now := &resourcev1.ResourceClaim{}
	if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(held), now); err != nil {
		t.Fatal(err)
	}
	if now.DeletionTimestamp == nil || now.Status.Allocation == nil {
		t.Errorf("the claim is %v, want one that is being deleted and has its device", now)
	}
	// An update of the status takes no finalizer, whoever makes it.
	now.Finalizers, now.Status.ReservedFor = nil, nil
	if err := as(t, s, collector).Status().Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if len(now.Finalizers) != 2 {
		t.Errorf("an update of the status leaves the finalizers %v", now.Finalizers)
	}
}

// What the claim was made from stays as long as it has devices.
func TestThePolicyOfADeviceInUseStays(t *testing.T) {
	s := server(t)
	made := give(t, s, claim(t, s.Client, "made", v1alpha1.DriverName, fromPolicy, protected), v1alpha1.DriverName, someone())
	plain := give(t, s, claim(t, s.Client, "plain-held", v1alpha1.DriverName, protected), v1alpha1.DriverName, someone())
	for name, tc := range map[string]struct {
		of     *resourcev1.ResourceClaim
		change func(*resourcev1.ResourceClaim)
	}{
		"another policy":   {made, func(c *resourcev1.ResourceClaim) { c.Labels[v1alpha1.LabelPolicy] = "keep" }},
		"another revision": {made, func(c *resourcev1.ResourceClaim) { c.Labels[v1alpha1.LabelPolicyRevision] = "2" }},
		"another hash":     {made, func(c *resourcev1.ResourceClaim) { c.Annotations[compile.AnnotationPolicyHash] = "sha256:1" }},
		"no policy":        {made, func(c *resourcev1.ResourceClaim) { c.Labels = nil }},
		"no hash":          {made, func(c *resourcev1.ResourceClaim) { c.Annotations = nil }},
		"a policy":         {plain, func(c *resourcev1.ResourceClaim) { c.Labels = map[string]string{v1alpha1.LabelPolicy: "keep"} }},
	} {
		t.Run(name, func(t *testing.T) {
			changed := tc.of.DeepCopy()
			tc.change(changed)
			apiserver.RequireRefused(t, as(t, s, tenant).Update(t.Context(), changed), claims, v1alpha1.LabelPolicy, ladder, tenant)
		})
	}
}

// What is not theirs to keep, the policies leave alone.
func TestClaimsAreOtherwiseTheirOwners(t *testing.T) {
	s := server(t)
	change := func(t *testing.T, user string, c *resourcev1.ResourceClaim, change func(*resourcev1.ResourceClaim)) {
		t.Helper()
		change(c)
		if err := as(t, s, user).Update(t.Context(), c); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
	bare := func(c *resourcev1.ResourceClaim) { c.Finalizers, c.Labels, c.Annotations = nil, nil, nil }
	t.Run("a finalizer and a label of their own", func(t *testing.T) {
		c := give(t, s, claim(t, s.Client, "own", v1alpha1.DriverName, protected, fromPolicy), v1alpha1.DriverName, someone())
		change(t, tenant, c, func(c *resourcev1.ResourceClaim) {
			c.Finalizers, c.Labels["seen"], c.Annotations["example.com/note"] = []string{resourcev1.Finalizer}, "yes", "x"
		})
	})
	t.Run("a claim without devices", func(t *testing.T) {
		change(t, tenant, claim(t, s.Client, "free", v1alpha1.DriverName, protected, fromPolicy), bare)
	})
	t.Run("a claim with devices of another driver", func(t *testing.T) {
		c := claim(t, s.Client, "others", "other.example.com", protected, fromPolicy)
		change(t, tenant, give(t, s, c, "other.example.com", someone()), bare)
	})
	t.Run("the scheduler undoes an allocation", func(t *testing.T) {
		change(t, ladder, give(t, s, claim(t, s.Client, "undone", v1alpha1.DriverName, protected), v1alpha1.DriverName, someone()), bare)
	})
	t.Run("the largest claim", func(t *testing.T) {
		c := claim(t, s.Client, "large", v1alpha1.DriverName, protected, func(c *resourcev1.ResourceClaim) {
			c.Spec.Devices.Requests[0].Exactly.Count = resourcev1.AllocationResultsMaxSize
		})
		var devices []string
		for i := range resourcev1.AllocationResultsMaxSize {
			devices = append(devices, fmt.Sprintf("gpu-%d", i))
		}
		full := allocate(c, v1alpha1.DriverName, devices...)
		if err := as(t, s, ladder).Status().Update(t.Context(), full); err != nil {
			t.Fatal(err)
		}
		change(t, tenant, full, func(c *resourcev1.ResourceClaim) { c.Labels = map[string]string{"seen": "yes"} })
	})
}

// Kubernetes' own controllers still release what is over: a claim that was
// deleted goes with its last Pod, and a namespace with everything in it.
func TestKubernetesReleasesClaims(t *testing.T) {
	s := server(t)
	startKubernetes(t, s, binaries.ControllerManager, "system:kube-controller-manager", "--use-service-account-credentials=true",
		"--controllers=resourceclaim-controller,namespace-controller")
	const namespace = "released"
	apiserver.Create(t, s.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	apiserver.Create(t, s.Client, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})
	// use makes a Pod and the claim that it uses.
	use := func(name string) (*corev1.Pod, *resourcev1.ResourceClaim) {
		c := claim(t, s.Client, name, v1alpha1.DriverName, func(c *resourcev1.ResourceClaim) {
			c.Namespace, c.Finalizers = namespace, []string{resourcev1.Finalizer}
		})
		p := pod(name, "ladder-scheduler")
		p.Namespace, p.Spec.TerminationGracePeriodSeconds = namespace, ptr.To[int64](0)
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &name}}
		apiserver.Create(t, s.Client, p)
		return p, give(t, s, c, v1alpha1.DriverName, *p)
	}
	gone := func(object client.Object) func(context.Context) error {
		return func(ctx context.Context) error {
			err := s.Client.Get(ctx, client.ObjectKeyFromObject(object), object)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there: %v, %v", object, err) //nolint:errorlint // err can be nil
		}
	}
	deleted, first := use("first")
	if err := as(t, s, tenant).Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	apiserver.RequireRefused(t, as(t, s, tenant).Patch(t.Context(), first.DeepCopy(),
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))), claims)
	if err := as(t, s, tenant).Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	apiserver.WaitFor(t, "the claim to go with its Pod", gone(first))

	// A claim that outlives its Pod is free again, for the next one.
	ended, kept := use("kept")
	if err := as(t, s, tenant).Delete(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	apiserver.WaitFor(t, "the claim to be free", func(ctx context.Context) error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(kept), kept); err != nil {
			return err
		}
		if kept.Status.Allocation != nil || len(kept.Finalizers) > 0 {
			return fmt.Errorf("it has %v and the finalizers %v", kept.Status, kept.Finalizers)
		}
		return nil
	})

	_, last := use("last")
	whole := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := s.Client.Delete(t.Context(), whole.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	apiserver.WaitFor(t, "the namespace to go", gone(whole))
	if err := gone(last)(t.Context()); err != nil {
		t.Error(err)
	}
}
