package guard_test

import (
	"encoding/json"
	"fmt"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const policy = "ladder-guard-allocations"

func TestOnlyLadderAllocates(t *testing.T) {
	s := server(t)
	c := claim(t, s.Client, "allocate", v1alpha1.DriverName)
	for _, user := range []string{stock, collector, "tenant@example.com", guard.Driver} {
		err := as(t, s, user).Status().Update(t.Context(), allocate(c, v1alpha1.DriverName, "gpu-0"))
		apiserver.RequireRefused(t, err, policy, "device gpu-0 of pool node-0", v1alpha1.DriverName, ladder, user, "spec.schedulerName ladder-scheduler")
	}
	if err := as(t, s, ladder).Status().Update(t.Context(), allocate(c, v1alpha1.DriverName, "gpu-0")); err != nil {
		t.Errorf("ladder-scheduler is refused: %v", err)
	}
}

// However the request is made: as a patch of each kind, or by server-side apply.
func TestEveryWayOfAllocatingIsGuarded(t *testing.T) {
	s := server(t)
	c := claim(t, s.Client, "ways", v1alpha1.DriverName)
	status := map[string]any{"allocation": map[string]any{"devices": map[string]any{"results": []any{
		map[string]any{"request": "accelerator", "driver": v1alpha1.DriverName, "pool": "node-0", "device": "gpu-0"},
	}}}}
	body := func(v any) []byte {
		t.Helper()
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	user := as(t, s, stock)
	for name, patch := range map[string]client.Patch{
		"merge patch":     client.RawPatch(types.MergePatchType, body(map[string]any{"status": status})),
		"strategic patch": client.RawPatch(types.StrategicMergePatchType, body(map[string]any{"status": status})),
		"JSON patch": client.RawPatch(types.JSONPatchType, body([]any{
			map[string]any{"op": "add", "path": "/status", "value": status},
		})),
	} {
		t.Run(name, func(t *testing.T) {
			apiserver.RequireRefused(t, user.Status().Patch(t.Context(), c.DeepCopy(), patch), policy, stock)
		})
	}
	t.Run("apply", func(t *testing.T) {
		config := client.RawPatch(types.ApplyPatchType, body(map[string]any{
			"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
			"metadata": map[string]any{"name": c.Name, "namespace": c.Namespace}, "status": status,
		}))
		apiserver.RequireRefused(t, user.Status().Patch(t.Context(), c.DeepCopy(), config, client.FieldOwner("test"), client.ForceOwnership), policy, stock)
	})
	// The claim itself takes no status, neither when it is made nor later.
	t.Run("with the claim itself", func(t *testing.T) {
		made := allocate(c, v1alpha1.DriverName, "gpu-0")
		made.ObjectMeta = metav1.ObjectMeta{Namespace: team, Name: "made-allocated"}
		for verb, write := range map[string]func() error{
			"create": func() error { return user.Create(t.Context(), made) },
			"update": func() error { return user.Update(t.Context(), allocate(c, v1alpha1.DriverName, "gpu-0")) },
		} {
			if err := write(); err != nil {
				t.Fatalf("%s: %v", verb, err)
			}
		}
		for _, name := range []string{made.Name, c.Name} {
			got := &resourcev1.ResourceClaim{}
			if err := s.Client.Get(t.Context(), types.NamespacedName{Namespace: team, Name: name}, got); err != nil {
				t.Fatal(err)
			}
			if got.Status.Allocation != nil {
				t.Errorf("claim %s has got an allocation", name)
			}
		}
	})
}

func TestAnAllocationIsNotChanged(t *testing.T) {
	s := server(t)
	c := claim(t, s.Client, "change", v1alpha1.DriverName)
	allocated := allocate(c, v1alpha1.DriverName, "gpu-0")
	if err := as(t, s, ladder).Status().Update(t.Context(), allocated); err != nil {
		t.Fatal(err)
	}
	for name, devices := range map[string][]string{"another": {"gpu-1"}, "one more": {"gpu-0", "gpu-1"}, "none": {}} {
		changed := allocate(allocated, v1alpha1.DriverName, devices...)
		// What is allocated is immutable for everybody, says the API server itself.
		if err := as(t, s, stock).Status().Update(t.Context(), changed); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
}

// What others do to an allocated claim goes on.
func TestAllocatedClaimsLiveOn(t *testing.T) {
	s := server(t)
	c := claim(t, s.Client, "live", v1alpha1.DriverName)
	current := allocate(c, v1alpha1.DriverName, "gpu-0")
	if err := as(t, s, ladder).Status().Update(t.Context(), current); err != nil {
		t.Fatal(err)
	}
	step := func(what, user string, change func(*resourcev1.ResourceClaim)) {
		t.Helper()
		change(current)
		if err := as(t, s, user).Status().Update(t.Context(), current); err != nil {
			t.Fatalf("%s by %s: %v", what, user, err)
		}
	}
	step("reserving", collector, func(c *resourcev1.ResourceClaim) {
		c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "1"}}
	})
	step("reserving for a second Pod", stock, func(c *resourcev1.ResourceClaim) {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "q", UID: "2"})
	})
	step("reporting a device", guard.Driver, func(c *resourcev1.ResourceClaim) {
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{
			Driver: v1alpha1.DriverName, Pool: "node-0", Device: "gpu-0",
			Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Prepared", LastTransitionTime: metav1.Now()}},
		}}
	})
	current.Labels = map[string]string{"seen": "yes"}
	if err := as(t, s, "tenant@example.com").Update(t.Context(), current); err != nil {
		t.Fatalf("labelling the claim: %v", err)
	}
	step("releasing", collector, func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil })
	step("deallocating", collector, func(c *resourcev1.ResourceClaim) { c.Status.Allocation = nil; c.Status.Devices = nil })
	apiserver.RequireRefused(t, as(t, s, stock).Status().Update(t.Context(), allocate(current, v1alpha1.DriverName, "gpu-0")), policy)
	step("allocating again", ladder, func(c *resourcev1.ResourceClaim) { *c = *allocate(c, v1alpha1.DriverName, "gpu-1") })
	step("deallocating", stock, func(c *resourcev1.ResourceClaim) { c.Status.Allocation = nil })
	if err := as(t, s, collector).Delete(t.Context(), current); err != nil {
		t.Errorf("deleting the claim: %v", err)
	}
}

func TestOtherDriversAreFree(t *testing.T) {
	s := server(t)
	c := claim(t, s.Client, "other", "other.example.com")
	if err := as(t, s, stock).Status().Update(t.Context(), allocate(c, "other.example.com", "nic-0")); err != nil {
		t.Errorf("a device of another driver is refused: %v", err)
	}
	mixed := claim(t, s.Client, "mixed", "other.example.com")
	both := allocate(mixed, "other.example.com", "nic-1")
	both.Status.Allocation.Devices.Results = append(both.Status.Allocation.Devices.Results,
		resourcev1.DeviceRequestAllocationResult{Request: "accelerator", Driver: v1alpha1.DriverName, Pool: "node-0", Device: "gpu-7"})
	apiserver.RequireRefused(t, as(t, s, stock).Status().Update(t.Context(), both), policy, "device gpu-7")
}

// Devices with admin access stay free for others, so whoever monitors GPUs
// needs no other scheduler. That is for claims that ask for it, which the API
// server allows in few namespaces: what an allocation says of itself is not
// enough.
func TestAdminAccessIsFree(t *testing.T) {
	s := server(t)
	c := claim(t, s.Client, "admin", v1alpha1.DriverName, func(c *resourcev1.ResourceClaim) {
		c.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	})
	watching := allocate(c, v1alpha1.DriverName, "gpu-0")
	watching.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	if err := as(t, s, stock).Status().Update(t.Context(), watching); err != nil {
		t.Errorf("admin access is refused: %v", err)
	}
	sly := claim(t, s.Client, "admin-unasked", v1alpha1.DriverName)
	unasked := allocate(sly, v1alpha1.DriverName, "gpu-0")
	unasked.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	apiserver.RequireRefused(t, as(t, s, stock).Status().Update(t.Context(), unasked), policy)
	plain := claim(t, s.Client, "admin-not", v1alpha1.DriverName)
	taking := allocate(plain, v1alpha1.DriverName, "gpu-0")
	taking.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(false)
	apiserver.RequireRefused(t, as(t, s, stock).Status().Update(t.Context(), taking), policy)
}

// A claim may ask for nothing, and is allocated all the same.
func TestNothingIsFree(t *testing.T) {
	s := server(t)
	c := claim(t, s.Client, "nothing", v1alpha1.DriverName, func(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests = nil })
	if err := as(t, s, stock).Status().Update(t.Context(), allocate(c, v1alpha1.DriverName)); err != nil {
		t.Errorf("an allocation of nothing is refused: %v", err)
	}
}

// The largest allocation there can be stays within what CEL may cost.
func TestManyDevices(t *testing.T) {
	s := server(t)
	c := claim(t, s.Client, "many", v1alpha1.DriverName, func(c *resourcev1.ResourceClaim) {
		c.Spec.Devices.Requests[0].Exactly.Count = resourcev1.AllocationResultsMaxSize
	})
	var devices []string
	for i := range resourcev1.AllocationResultsMaxSize {
		devices = append(devices, fmt.Sprintf("gpu-%d", i))
	}
	full := allocate(c, v1alpha1.DriverName, devices...)
	apiserver.RequireRefused(t, as(t, s, stock).Status().Update(t.Context(), full.DeepCopy()), policy, "device gpu-0")
	if err := as(t, s, ladder).Status().Update(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	full.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "1"}}
	if err := as(t, s, collector).Status().Update(t.Context(), full); err != nil {
		t.Errorf("reserving a large claim: %v", err)
	}
}
