package guard_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// A Pod hears at once that its claims and its scheduler don't go together.
func TestPodsOfAnotherScheduler(t *testing.T) {
	s := server(t)
	fallback := template("fallback", "other.example.com")
	fallback.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "accelerator", FirstAvailable: []resourcev1.DeviceSubRequest{
		{Name: "other", DeviceClassName: "other.example.com", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		{Name: "ours", DeviceClassName: v1alpha1.DriverName, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
	}}}
	admin := template("admin", v1alpha1.DriverName)
	admin.Spec.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	empty := template("empty", v1alpha1.DriverName)
	empty.Spec.Spec.Devices.Requests = nil
	for _, tmpl := range []*resourcev1.ResourceClaimTemplate{empty, template("plain", v1alpha1.DriverName), template("other", "other.example.com"), fallback, admin} {
		apiserver.Create(t, s.Client, tmpl)
	}
	tenant := as(t, s, "tenant@example.com")
	try := func(scheduler string, templates ...string) error {
		return tenant.Create(t.Context(), pod("p", scheduler, templates...), client.DryRunAll)
	}
	// Templates are read by a watch of the API server's own.
	apiserver.WaitFor(t, "the templates to be known", func(context.Context) error { return refused(try("default-scheduler", "plain")) })
	apiserver.WaitFor(t, "the templates to be known", func(context.Context) error { return refused(try("default-scheduler", "fallback")) })

	apiserver.RequireRefused(t, try("default-scheduler", "plain"), "ladder-guard-pods",
		"spec.schedulerName", "ResourceClaimTemplate plain", "class gpu.gpuladder.dev", "allocated by ladder-scheduler only, not by default-scheduler")
	apiserver.RequireRefused(t, try("my-scheduler", "other", "plain"), "ladder-guard-pods", "not by my-scheduler")
	apiserver.RequireRefused(t, try("default-scheduler", "fallback"), "ladder-guard-pods", "class gpu.gpuladder.dev")
	for name, err := range map[string]error{
		"Ladder's scheduler": try("ladder-scheduler", "plain", "fallback"),
		"another driver":     try("default-scheduler", "other"),
		"admin access":       try("default-scheduler", "admin"),
		"asks for nothing":   try("default-scheduler", "empty"),
		"no claims":          try("default-scheduler"),
		"no such template":   try("default-scheduler", "nothing"),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	shared := pod("shared", "default-scheduler")
	shared.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "shared", ResourceClaimName: ptr.To("plain")}}
	if err := tenant.Create(t.Context(), shared, client.DryRunAll); err != nil {
		t.Errorf("a Pod that names a claim: %v", err)
	}
}

// refused turns a refusal into success.
func refused(err error) error {
	if err == nil {
		return errAccepted
	}
	return nil
}
