package outcome

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestOfDevicePlugin(t *testing.T) {
	pod := &corev1.Pod{}
	o := OfDevicePlugin(pod, "p", "n", "a device plugin serves nvidia.com/gpu there")
	assert.Equal(t, corev1.ConditionTrue, o.Status)
	assert.Equal(t, ReasonDevicePlugin, o.Reason)
	assert.Equal(t, "node n: a device plugin serves nvidia.com/gpu there; no tier of policy p could be met elsewhere", o.Message)
	assert.Nil(t, o.Decision, "nothing was decided that could be recorded")
	assert.NotEqual(t, o.key, OfDevicePlugin(pod, "p", "m", "").key)
	assert.LessOrEqual(t, len(OfDevicePlugin(pod, "p", "n", strings.Repeat("x", 2000)).Message), v1alpha1.MaxMessage)
}
