package integration_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// A Pod at its tenant's gate is not tried. One whose gate was taken off by hand
// is, and the tenant's limit holds all the same.
func TestGateTakenOffByHand(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(3))
	c.addPolicy("h100", ladderOf("H100"))
	quota := &v1alpha1.TenantQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "team"},
		Spec: v1alpha1.TenantQuotaSpec{
			Namespaces: []string{namespace},
			Models:     []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](1)}},
		},
	}
	c.create(quota)
	c.startScheduler()
	gated := func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.GateQuota}}
	}
	takeOff := func(name string) {
		pod := c.pod(name)
		pod.Spec.SchedulingGates = nil
		require.NoError(t, c.Update(t.Context(), pod))
	}
	c.addPod("first", "h100", gated)
	c.addPod("second", "h100", gated)
	c.addPod("third", "h100")
	c.placed("third")
	for _, name := range []string{"first", "second"} {
		_, err := c.place(name)
		require.Error(t, err, "%s passed its gate", name)
	}
	takeOff("first")
	assert.Contains(t, c.condition("first", "Pending"), "QuotaExceeded")
	c.remove("third")
	c.placed("first")
	takeOff("second")
	assert.Contains(t, c.condition("second", "Pending"), "QuotaExceeded")
}
