package v1alpha1

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// This file holds what is told of a Pod's devices in the same words everywhere.

// AcceleratorCondition returns the Pod's condition [ConditionAccelerator], or
// nil. It points into the Pod.
func AcceleratorCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == ConditionAccelerator {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// TurnModels returns the models that the Pod's turn is for, in the order in which
// [AnnotationTurnModels] names them; none: any that its policy takes.
func TurnModels(pod *corev1.Pod) []string {
	var models []string
	for model := range strings.SplitSeq(pod.Annotations[AnnotationTurnModels], ",") {
		if model = strings.TrimSpace(model); model != "" {
			models = append(models, model)
		}
	}
	return models
}

// Summary says what was allocated in one line, "H100 (tier h100, revision 3):
// node/pool/device"; models names what the devices are and may be empty.
func (s *AllocationDecisionSpec) Summary(models string) string {
	what := models
	if what == "" {
		what = "device"
	}
	var of []string
	if s.Tier != "" {
		of = append(of, "tier "+s.Tier)
	}
	if s.PolicyRevision != 0 {
		of = append(of, fmt.Sprintf("revision %d", s.PolicyRevision))
	}
	if len(of) > 0 {
		what += " (" + strings.Join(of, ", ") + ")"
	}
	places := make([]string, 0, len(s.Devices))
	for i := range s.Devices {
		places = append(places, s.Node+"/"+s.Devices[i].Pool+"/"+s.Devices[i].Device)
	}
	return what + ": " + strings.Join(places, ", ")
}

// MaxMessage is the longest message of a record and note of an Event, in bytes.
const MaxMessage = 1024

// ClipMessage shortens a message to [MaxMessage].
func ClipMessage(message string) string { return ClipMessageTo(message, MaxMessage) }

// ClipMessageTo shortens a message to at most longest bytes.
func ClipMessageTo(message string, longest int) string {
	const more = " ..."
	if len(message) <= longest {
		return message
	}
	return strings.ToValidUTF8(message[:longest-len(more)], "") + more
}
