// Package isolation_test is a tenant with the rights of Kubernetes' role `edit`
// in its own namespaces, who tries to get more than its policies and quotas
// give: against a real API server with the shipped admission policies.
package isolation_test

import (
	"os"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/e2e/integration/internal/running"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

const (
	tenant = "tenant@example.com"
	own    = "team-a"
	strict = "team-a-strict" // the tenant's too; it enforces policies
	others = "team-b"
)

var prepare sync.Once

// world is what the tenant finds.
type world struct {
	*apiserver.Server
	// tenant may what the role `edit` lets it, in its own namespaces.
	tenant client.Client
	// gated waits for its turn, by the gate gpuladder.dev/quota.
	gated *corev1.Pod
	// placed was placed by a policy.
	placed *corev1.Pod
	quota  *v1alpha1.TenantQuota
	// template is revision 3 of the policy h100-first.
	template *resourcev1.ResourceClaimTemplate
	// held is a claim that has a device.
	held *resourcev1.ResourceClaim
}

var found world

func start(t *testing.T) *world {
	t.Helper()
	s := apiserver.Get(t)
	prepare.Do(func() {
		running.Install(t, s, "../../cluster/lab", catalog.Quota, guard)
		found = world{Server: s, tenant: asUser(t, s, tenant)}
		for _, ns := range []*corev1.Namespace{
			{ObjectMeta: metav1.ObjectMeta{Name: own, Labels: map[string]string{"tier": "silver"}}},
			{ObjectMeta: metav1.ObjectMeta{Name: strict, Labels: map[string]string{"gpuladder.dev/enforce-policy": "true"}}},
			{ObjectMeta: metav1.ObjectMeta{Name: others, Labels: map[string]string{"tier": "gold"}}},
		} {
			apiserver.Create(t, s.Client, ns)
		}
		for _, ns := range []string{own, strict} {
			// The role `edit` is put together from these two by a controller that
			// does not run here.
			for _, role := range []string{"system:aggregate-to-edit", "system:aggregate-to-view"} {
				binding := &rbacv1.RoleBinding{
					ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "tenant-"},
					RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
					Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: tenant}},
				}
				apiserver.Create(t, s.Client, binding)
			}
		}
		createPolicy(t, s.Client, "h100-first", nil)
		createPolicy(t, s.Client, "gold-only", &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}})
		found.quota = &v1alpha1.TenantQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec:       v1alpha1.TenantQuotaSpec{Namespaces: []string{own, strict}, Models: []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](1)}}},
		}
		apiserver.Create(t, s.Client, found.quota)
		for _, ns := range []string{own, others} {
			apiserver.Create(t, apiserver.AsMaster(t, s, catalog.DefaultAccounts().Scheduler), record(ns, "told"))
		}
		found.template = templateOf(t, "h100-first", 3)
		apiserver.Create(t, apiserver.AsMaster(t, s, catalog.DefaultAccounts().Controller), found.template)
		found.held = claim(own, v1alpha1.DriverName)
		found.held.Name, found.held.Finalizers = "held", []string{resourcev1.Finalizer}
		apiserver.Create(t, s.Client, found.held)
		found.held.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Request: "gpu", Driver: v1alpha1.DriverName, Pool: "n1", Device: "gpu-0"}},
		}}
		if err := apiserver.AsMaster(t, s, catalog.DefaultAccounts().Scheduler).Status().Update(t.Context(), found.held); err != nil {
			t.Fatal(err)
		}
		found.gated = pod(own, "gated", asks("h100-first"), func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/own"}}
		})
		found.placed = pod(own, "placed", asks("h100-first"))
		for _, p := range []*corev1.Pod{found.gated, found.placed} {
			apiserver.WaitFor(t, "a Pod to be admitted with its claim and its gate", admitted(s.Client, p))
		}
	})
	return &found
}

// guard is of the guard what keeps claims; what it says of Pods that have the
// wrong scheduler the policies of admission say as well.
func guard(catalog.Accounts) ([]*unstructured.Unstructured, error) {
	objects, err := catalog.DefaultGuard().Objects()
	return slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetName() != "ladder-guard-claims" }), err
}

// asUser is a client of a user with no rights but those that are bound.
func asUser(t *testing.T, s *apiserver.Server, user string) client.Client {
	t.Helper()
	return apiserver.As(t, s, rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}})
}

// createPolicy makes a policy of which revision 3 is active.
func createPolicy(t *testing.T, c client.Client, name string, selector *metav1.LabelSelector) {
	t.Helper()
	policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec()}
	policy.Spec.NamespaceSelector = selector
	apiserver.Create(t, c, policy)
	policy.Status = v1alpha1.AcceleratorPolicyStatus{
		ActiveRevision: 3, LatestRevision: 3, UsableRevisions: []int64{3}, TemplateName: name + "-3",
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "RevisionActive", LastTransitionTime: metav1.Now()}},
	}
	if err := c.Status().Update(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
}

func spec() v1alpha1.AcceleratorPolicySpec {
	return v1alpha1.AcceleratorPolicySpec{
		Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}}, OnUnhealthy: v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep},
	}
}

func templateOf(t *testing.T, policy string, revision int64) *resourcev1.ResourceClaimTemplate {
	t.Helper()
	r, err := compile.Revision(&v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: policy}, Spec: spec()}, revision)
	if err != nil {
		t.Fatal(err)
	}
	template, err := compile.Template(r, own)
	if err != nil {
		t.Fatal(err)
	}
	return template
}

func record(namespace, name string) *v1alpha1.AllocationDecision {
	return &v1alpha1.AllocationDecision{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.AllocationDecisionSpec{Pod: name, Outcome: v1alpha1.OutcomePending},
	}
}

func pod(namespace, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/train:1"}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func asks(policy string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelPolicy: policy} }
}

func claim(namespace, class string, tolerations ...resourcev1.DeviceToleration) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "mine"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1, Tolerations: tolerations,
			},
		}}}},
	}
}

func askingForNothing() *resourcev1.ResourceClaim {
	c := claim(own, v1alpha1.DriverName)
	c.Spec.Devices.Requests = nil
	return c
}

func template(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaimTemplate {
	return &resourcev1.ResourceClaimTemplate{ObjectMeta: c.ObjectMeta, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: c.Spec}}
}

func tolerates(key string) resourcev1.DeviceToleration {
	return resourcev1.DeviceToleration{Key: key, Operator: resourcev1.DeviceTolerationOpExists}
}
