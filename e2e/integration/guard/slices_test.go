package guard_test

import (
	"errors"
	"testing"

	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

var errAccepted = errors.New("accepted")

// A driver whose node was broken into can't lie about other nodes.
func TestDriverWritesItsOwnNode(t *testing.T) {
	s := server(t)
	const policy = "ladder-guard-slices"
	a, b, unbound := as(t, s, guard.Driver, "node-a"), as(t, s, guard.Driver, "node-b"), as(t, s, guard.Driver)

	ours := slice("slice-a", "node-a", v1alpha1.DriverName)
	apiserver.Create(t, a, ours)
	apiserver.RequireRefused(t, b.Create(t.Context(), slice("forged", "node-a", v1alpha1.DriverName)), policy, "driver on node node-b", `not of "node-a"`)
	apiserver.RequireRefused(t, unbound.Create(t.Context(), slice("forged", "node-a", v1alpha1.DriverName)), policy, "token names no node")
	apiserver.RequireRefused(t, a.Create(t.Context(), slice("forged", "node-a", "gpu.nvidia.com")), policy, "gpu.gpuladder.dev only, not of gpu.nvidia.com")
	outdating := slice("forged", "node-a", v1alpha1.DriverName)
	outdating.Spec.Pool.Name, outdating.Spec.Pool.Generation = "node-b", 1000
	apiserver.RequireRefused(t, a.Create(t.Context(), outdating), policy, "pool of that name only", `not of "node-b"`)
	everywhere := slice("everywhere", "node-a", v1alpha1.DriverName)
	everywhere.Spec.NodeName, everywhere.Spec.AllNodes = nil, ptr.To(true)
	apiserver.RequireRefused(t, a.Create(t.Context(), everywhere), policy, `not of ""`)

	changed := ours.DeepCopy()
	changed.Spec.Devices = changed.Spec.Devices[:0]
	apiserver.RequireRefused(t, b.Update(t.Context(), changed.DeepCopy()), policy, "node-b")
	apiserver.RequireRefused(t, b.Delete(t.Context(), ours), policy, "node-b")
	if err := a.Update(t.Context(), changed); err != nil {
		t.Errorf("a driver changes its own slice: %v", err)
	}
	if err := a.Delete(t.Context(), changed); err != nil {
		t.Errorf("a driver deletes its own slice: %v", err)
	}
	// Others are not this policy's business: the kubelet cleans up, for one.
	left := slice("left", "node-a", v1alpha1.DriverName)
	apiserver.Create(t, a, left)
	if err := as(t, s, "system:node:node-a").Delete(t.Context(), left); err != nil {
		t.Errorf("the kubelet cleans up: %v", err)
	}
}
