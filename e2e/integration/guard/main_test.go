// Package guard_test tries the guard against a real API server: devices of the
// guarded drivers are allocated by ladder-scheduler only, whoever else tries
// and however, and stay with their claim while a Pod uses them; a driver writes the slices of its own node only; and a real
// kube-scheduler is refused.
package guard_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

const (
	stock     = "system:kube-scheduler"
	collector = "system:serviceaccount:kube-system:resource-claim-controller"
	team      = "team-a"
)

var (
	guard   = catalog.DefaultGuard()
	ladder  = guard.Allocators[0]
	prepare sync.Once
)

// server returns an API server with the guard in force, the namespace team-a
// and Ladder's device class.
func server(t *testing.T) *apiserver.Server {
	t.Helper()
	s := apiserver.Get(t)
	prepare.Do(func() {
		objects, err := guard.Objects()
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			apiserver.Create(t, s.Client, object)
		}
		apiserver.Create(t, s.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: team, Labels: map[string]string{"resource.kubernetes.io/admin-access": "true"},
		}})
		apiserver.Create(t, s.Client, compile.DeviceClass(v1alpha1.DriverName))
		apiserver.Create(t, s.Client, template("sentinel", v1alpha1.DriverName))
		c := claim(t, s.Client, "sentinel", v1alpha1.DriverName)
		bare := give(t, s, claim(t, s.Client, "sentinel-held", v1alpha1.DriverName, protected), v1alpha1.DriverName, someone())
		bare.Finalizers = nil
		apiserver.WaitFor(t, "the guard to be in force", func(ctx context.Context) error {
			tries := map[string]error{
				"ladder-guard-pods":        s.Client.Create(ctx, pod("sentinel", "default-scheduler", "sentinel"), client.DryRunAll),
				"ladder-guard-allocations": as(t, s, stock).Status().Update(ctx, allocate(c, v1alpha1.DriverName, "gpu-0"), client.DryRunAll),
				claims:                     as(t, s, stock).Update(ctx, bare.DeepCopy(), client.DryRunAll),
				"ladder-guard-slices":      as(t, s, guard.Driver).Create(ctx, slice("sentinel", "n", v1alpha1.DriverName), client.DryRunAll),
			}
			for name, err := range tries {
				if err == nil || !strings.Contains(err.Error(), name) {
					return fmt.Errorf("%s does not refuse, %v", name, err) //nolint:errorlint // err can be nil
				}
			}
			return nil
		})
	})
	return s
}

// as is a client of another user with every right; extra is what its token says.
func as(t *testing.T, s *apiserver.Server, user string, extra ...string) client.Client {
	t.Helper()
	config := rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	if len(extra) > 0 {
		config.Extra = map[string][]string{"authentication.kubernetes.io/node-name": extra}
	}
	return apiserver.As(t, s, config)
}

func request(class string) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{Name: "accelerator", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
	}}
}

func template(name, class string) *resourcev1.ResourceClaimTemplate {
	return &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{request(class)}},
		}},
	}
}

// claim creates a claim without allocation.
func claim(t *testing.T, c client.Client, name, class string, change ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
	t.Helper()
	object := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{request(class)}}},
	}
	for _, change := range change {
		change(object)
	}
	apiserver.Create(t, c, object)
	return object
}

// allocate returns a copy of the claim with devices of a driver allocated.
func allocate(c *resourcev1.ResourceClaim, driver string, devices ...string) *resourcev1.ResourceClaim {
	allocated := c.DeepCopy()
	allocated.Status.Allocation = &resourcev1.AllocationResult{}
	for _, device := range devices {
		allocated.Status.Allocation.Devices.Results = append(allocated.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "accelerator", Driver: driver, Pool: "node-0", Device: device})
	}
	return allocated
}

func pod(name, scheduler string, templates ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name},
		Spec:       corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{Name: "main", Image: "example.com/train:1"}}},
	}
	for i, template := range templates {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: fmt.Sprintf("c%d", i), ResourceClaimTemplateName: &template,
		})
	}
	return p
}

func slice(name, node, driver string) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: ptr.To(node), Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "gpu-0"}},
		},
	}
}
