// Package quota_test holds tenants to their quotas on a real API server: the
// shipped admission policies put Pods at their gate, the real ladder-controller,
// under the account and with the roles of an installation, opens it. The test
// plays the scheduler and the nodes.
package quota_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/e2e/integration/internal/running"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/tenants"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m, apiserver.PodGroups)) }

var install sync.Once

// server returns an API server with the shipped admission policies, those of
// quotas included, and with the accounts and roles that the lab installs.
func server(t *testing.T) *apiserver.Server {
	t.Helper()
	s := apiserver.Get(t)
	install.Do(func() { running.Install(t, s, "../../cluster/lab", catalog.Quota) })
	return s
}

// as is a client of another user, with the groups.
func as(t *testing.T, s *apiserver.Server, user string, groups ...string) client.Client {
	t.Helper()
	return apiserver.As(t, s, rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")})
}

// edit is what the role edit is made of; no controller is here to add it up.
const edit = "system:aggregate-to-edit"

// namespace makes a namespace that the user dev may edit.
func namespace(t *testing.T, s *apiserver.Server, name string) {
	t.Helper()
	apiserver.Create(t, s.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	apiserver.Create(t, s.Client, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "dev"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: edit},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "dev"}},
	})
}

// quota makes a TenantQuota, and takes it away after the test.
func quota(t *testing.T, s *apiserver.Server, name string, namespaces []string, models ...v1alpha1.ModelQuota) *v1alpha1.TenantQuota {
	t.Helper()
	q := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TenantQuotaSpec{Namespaces: namespaces, Models: models}}
	// The admission policy learns of quotas by a watch of its own.
	apiserver.Create(t, s.Client, q)
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(s.Client.Delete(context.WithoutCancel(t.Context()), q)); err != nil {
			t.Error(err)
		}
	})
	return q
}

func part(model string, guaranteed, limit int32) v1alpha1.ModelQuota {
	return v1alpha1.ModelQuota{Model: model, Guaranteed: guaranteed, Limit: &limit}
}

// policy makes a policy whose revision 1 is active, as the controller would.
func policy(t *testing.T, s *apiserver.Server, name string) {
	t.Helper()
	p := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.AcceleratorPolicySpec{
		Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}},
	}}
	apiserver.Create(t, s.Client, p)
	p.Status.ActiveRevision, p.Status.LatestRevision, p.Status.UsableRevisions = 1, 1, []int64{1}
	p.Status.TemplateName = v1alpha1.RevisionName(name, 1)
	if err := s.Client.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func pod(namespace, name, policy string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPolicy: policy}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/train:1"}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func gates(p *corev1.Pod) (names []string) {
	for _, g := range p.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return names
}

// fleet makes a node with n devices, and takes it away after the test.
func fleet(t *testing.T, s *apiserver.Server, node, model string, n int) {
	t.Helper()
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
	}}
	for i := range n {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &model}},
		})
	}
	for _, o := range []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, slice} {
		apiserver.Create(t, s.Client, o)
		t.Cleanup(func() { remove(t, s, o) })
	}
}

// allocate makes the claim of a Pod and gives it a device, as a scheduler does.
func allocate(t *testing.T, s *apiserver.Server, p *corev1.Pod, tier, node, device string) *resourcev1.ResourceClaim {
	t.Helper()
	template := &resourcev1.ResourceClaimTemplate{}
	name := types.NamespacedName{Namespace: p.Namespace, Name: *p.Spec.ResourceClaims[0].ResourceClaimTemplateName}
	if err := s.Client.Get(t.Context(), name, template); err != nil {
		t.Fatal(err)
	}
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name + "-accelerator", Annotations: map[string]string{resourcev1.PodResourceClaimAnnotation: v1alpha1.ClaimRefName},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr.To(true)}},
		},
		Spec: template.Spec.Spec,
	}
	apiserver.Create(t, s.Client, claim)
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
		Request: v1alpha1.RequestName + "/" + tier, Driver: v1alpha1.DriverName, Pool: node, Device: device,
	}}}}
	if err := s.Client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	return claim
}

func remove(t *testing.T, s *apiserver.Server, o client.Object) {
	t.Helper()
	err := s.Client.Delete(context.WithoutCancel(t.Context()), o, client.GracePeriodSeconds(0))
	if client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
}

// waitOpen waits until the gates of exactly these Pods of a namespace are open.
func waitOpen(t *testing.T, s *apiserver.Server, namespace string, want ...string) {
	t.Helper()
	apiserver.WaitFor(t, fmt.Sprintf("the gates of %q in %s", want, namespace), func(ctx context.Context) error {
		list := &corev1.PodList{}
		if err := s.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
		open := map[string]bool{}
		for i := range list.Items {
			if !tenants.HasGate(&list.Items[i]) {
				open[list.Items[i].Name] = true
			}
		}
		for _, name := range want {
			if !open[name] {
				return fmt.Errorf("%s waits, open are %v", name, open)
			}
		}
		if len(open) != len(want) {
			t.Fatalf("open are %v, want %q only", open, want)
		}
		return nil
	})
}

// startController runs ladder-controller with these settings of quotas, if there
// are any.
func startController(t *testing.T, s *apiserver.Server, settings ...string) *running.Program {
	t.Helper()
	file := filepath.Join(t.TempDir(), "quota.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(settings, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return running.Controller(t, s, "--leader-elect=false", "--quota-config="+file, "--v=2")
}
