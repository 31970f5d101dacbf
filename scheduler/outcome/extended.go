package outcome

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// ReasonDevicePlugin is the condition's reason for a Pod whose extended resource
// a device plugin serves: nobody knows of which tier its devices are.
const ReasonDevicePlugin = "DevicePlugin"

// OfDevicePlugin returns the outcome of a Pod that asks for an extended resource
// and was placed where a device plugin serves it, since no tier of its policy, if
// it has one, could. why says which resource it is.
func OfDevicePlugin(pod *corev1.Pod, policy, node, why string) Outcome {
	otherwise := "no device could be had elsewhere"
	if policy != "" {
		otherwise = fmt.Sprintf("no tier of policy %s could be met elsewhere", policy)
	}
	return Outcome{
		Pod:     pod,
		Status:  corev1.ConditionTrue,
		Reason:  ReasonDevicePlugin,
		Message: v1alpha1.ClipMessage(fmt.Sprintf("node %s: %s; %s", node, why, otherwise)),
		key:     digest("device plugin", policy, node),
	}
}
