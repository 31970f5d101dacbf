// Package decision decides Pods on files and tells people what was decided:
// the commands decide, explain and replay.
package decision

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/tools/internal/cluster"
)

// queued is a Pod that is to be decided, and where it was read.
type queued struct {
	pod    *corev1.Pod
	source manifest.Object
}

// Gated is a Pod that asks for devices and stands at scheduling gates. No
// scheduler looks at it, so nothing is decided about it.
type Gated struct {
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	Gates     []string `json:"gates"`
}

// gated gives the Pods that ask for devices and stand at gates, by namespace
// and name.
func gated(set *manifest.Set) []Gated {
	var out []Gated
	for pod := range manifest.All[*corev1.Pod](set) {
		if gates := cluster.Gates(pod); manifest.Undecided(pod) && asks(pod) && len(gates) > 0 {
			out = append(out, Gated{pod.Namespace, pod.Name, gates})
		}
	}
	slices.SortFunc(out, func(a, b Gated) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	return out
}

// queue gives the Pods that wait for a node, stand at no gate and ask for
// devices, in the order in which they are decided: priority, the higher first,
// then age, namespace and name.
func queue(set *manifest.Set) []queued {
	var out []queued
	for pod, o := range manifest.All[*corev1.Pod](set) {
		if manifest.Undecided(pod) && asks(pod) && len(pod.Spec.SchedulingGates) == 0 {
			out = append(out, queued{pod, o})
		}
	}
	slices.SortFunc(out, func(a, b queued) int {
		return cmp.Or(
			cmp.Compare(ptr.Deref(b.pod.Spec.Priority, 0), ptr.Deref(a.pod.Spec.Priority, 0)),
			a.pod.CreationTimestamp.Time.Compare(b.pod.CreationTimestamp.Time),
			cmp.Compare(a.pod.Namespace, b.pod.Namespace),
			cmp.Compare(a.pod.Name, b.pod.Name),
		)
	})
	return out
}

// asks says whether a Pod asks for devices at all.
func asks(pod *corev1.Pod) bool {
	_, labelled := pod.Labels[v1alpha1.LabelPolicy]
	return labelled || len(pod.Spec.ResourceClaims) > 0
}
