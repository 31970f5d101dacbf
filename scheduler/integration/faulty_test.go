package integration_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// addPlain creates a Pod with a claim of its own for one device that the
// expression selects.
func (c *cluster) addPlain(name, expression string, opts ...podOption) {
	c.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName,
		Selectors:       []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
	}}}
	c.create(claim, plainPod(name, append(opts, func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: ptr.To(name)})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "gpu"})
	})...))
}

// scheduled is the Pod's condition PodScheduled, in words.
func (c *cluster) scheduled(name string) string {
	for _, condition := range c.pod(name).Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			return fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, condition.Message)
		}
	}
	return ""
}

// As with kube-scheduler, a Pod whose selector fails on a device is placed
// nowhere and says so; one that keeps away from the device's node is placed.
func TestSelectorThatFailsSomewhere(t *testing.T) {
	c := newCluster(t)
	c.addFleet(mixed()...)
	slices := &resourceapi.ResourceSliceList{}
	assert.NoError(t, c.List(t.Context(), slices))
	var strange string
	for i := range slices.Items {
		if s := &slices.Items[i]; strings.HasPrefix(ptr.Deref(s.Spec.NodeName, ""), "l4-") && strange == "" {
			strange = *s.Spec.NodeName
			delete(s.Spec.Devices[len(s.Spec.Devices)-1].Attributes, "model")
			assert.NoError(t, c.Update(t.Context(), s))
		}
	}
	assert.NotEmpty(t, strange)
	c.startScheduler()
	is := func(model string) string {
		return fmt.Sprintf("device.attributes[%q].model == %q", v1alpha1.DriverName, model)
	}

	c.addPlain("fails", is("H100"))
	c.eventually(func() error {
		if text := c.scheduled("fails"); !strings.HasPrefix(text, "False") || !strings.Contains(text, "CEL runtime error") {
			return fmt.Errorf("PodScheduled is %q", text)
		}
		return nil
	})
	assert.Empty(t, c.pod("fails").Spec.NodeName)

	c.addPlain("elsewhere", is("H100"), func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"h100-0001"}}},
			}}},
		}}
	})
	assert.Equal(t, "h100-0001/gpu-0", c.placed("elsewhere"))

	// On the strange node the first device is enough.
	c.addPlain("lazy", is("L4"))
	assert.Equal(t, strange+"/gpu-0", c.placed("lazy"))
	assert.Empty(t, c.pod("fails").Spec.NodeName)
}
