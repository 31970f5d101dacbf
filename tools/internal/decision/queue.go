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
)

// queued is a Pod that is to be decided, and where it was read.
type queued struct {
	pod    *corev1.Pod
	source manifest.Object
}

// queue gives the Pods that wait for a node and ask for devices, in the order
// in which they are decided: priority, the higher first, then age, namespace
// and name.
func queue(set *manifest.Set) []queued {
	var out []queued
	for pod, o := range manifest.All[*corev1.Pod](set) {
		if manifest.Undecided(pod) && asks(pod) {
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
