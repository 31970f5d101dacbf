package mirror

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func allocated(name string, devices ...string) *resourceapi.ResourceClaim {
	c := claim(name)
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: "a", Device: d})
	}
	return c
}

func TestGains(t *testing.T) {
	m, _, w, _ := newMirror()
	share := types.UID("share")
	part := allocated("part", "gpu-9")
	part.Status.Allocation.Devices.Results[0].ShareID = &share
	heartbeat := node("a", map[string]string{"x": "y"})
	heartbeat.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}}
	for _, step := range []struct {
		what  string
		do    func()
		gains bool
	}{
		{"a node", func() { w.setNodes(node("a", nil)) }, true},
		{"nothing", func() {}, false},
		{"a node's labels", func() { w.setNodes(node("a", map[string]string{"x": "y"})) }, true},
		{"a node's images", func() { w.setNodes(heartbeat) }, false},
		{"a slice", func() { w.slices = []*resourceapi.ResourceSlice{poolSlice("s", "a")} }, true},
		{"a slice that changed", func() { w.slices = []*resourceapi.ResourceSlice{poolSlice("s", "a")} }, true},
		{"a slice that is gone", func() { w.slices = nil }, false},
		{"a class", func() { w.classes = []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "class"}}} }, true},
		{"a class that is gone", func() { w.classes = nil }, false},
		{"a claim that waits", func() { w.claims = []*resourceapi.ResourceClaim{claim("c")} }, false},
		{"two devices taken", func() { w.claims = []*resourceapi.ResourceClaim{allocated("c", "gpu-0", "gpu-1")} }, false},
		{"seen again", func() { w.claims = []*resourceapi.ResourceClaim{allocated("c", "gpu-1", "gpu-0")} }, false},
		{"one exchanged", func() { w.claims = []*resourceapi.ResourceClaim{allocated("c", "gpu-2", "gpu-0")} }, true},
		{"given back", func() { w.claims = []*resourceapi.ResourceClaim{claim("c")} }, true},
		{"a claim gone that had nothing", func() { w.claims = nil }, false},
		{"part of a device taken", func() { w.claims = []*resourceapi.ResourceClaim{part} }, false},
		{"the whole instead", func() { w.claims = []*resourceapi.ResourceClaim{allocated("part", "gpu-9")} }, true},
		{"a claim gone with its devices", func() { w.claims = nil }, true},
		{"a quota", func() { m.Note(&v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}}, false) }, true},
		{"a quota gone", func() { m.Note(&v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}}, true) }, true},
		{"a Pod that waited is gone", func() {
			require.NoError(t, m.PutPod(pod))
			m.Note(pod, true)
		}, false},
		{"a promise taken back", func() { m.Forget(types.NamespacedName{Namespace: "ns", Name: "p"}, "1") }, true},
		{"a node gone", func() { w.setNodes() }, false},
	} {
		before := m.Gains()
		step.do()
		require.NoError(t, m.Sync(w.nodes, w))
		assert.Equal(t, step.gains, m.Gains() > before, step.what)
		assert.GreaterOrEqual(t, m.Gains(), before)
	}
}
