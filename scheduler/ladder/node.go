package ladder

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// recheckNode returns a BindError if the node is gone, is another one of the
// same name, or became unfit for the Pod since it was chosen: it is cordoned or
// tainted, or no longer ready. now is nil if it is gone.
func recheckNode(chosen, now *corev1.Node, pod *corev1.Pod) error {
	lost := func(format string, args ...any) error {
		return &BindError{v1alpha1.FailureNodeLost, fmt.Errorf("node %s "+format, append([]any{chosen.Name}, args...)...)}
	}
	if now == nil || now.UID != chosen.UID {
		return lost("is gone")
	}
	if now == chosen {
		return nil
	}
	known := map[corev1.Taint]bool{}
	for _, taint := range chosen.Spec.Taints {
		known[bare(taint)] = true
	}
	taint, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), now.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && !known[bare(*t)]
	}, true)
	if found {
		return lost("has the new taint %s:%s", taint.Key, taint.Effect)
	}
	if now.Spec.Unschedulable && !chosen.Spec.Unschedulable && !tolerates(pod, corev1.TaintNodeUnschedulable) {
		return lost("was cordoned")
	}
	// The taint follows a little later.
	if ready(chosen) && !ready(now) && !tolerates(pod, corev1.TaintNodeNotReady) {
		return lost("is not ready any more")
	}
	return nil
}

// bare is a taint without the time that it was added.
func bare(t corev1.Taint) corev1.Taint {
	t.TimeAdded = nil
	return t
}

// tolerates says whether the Pod may be scheduled to a node with this taint.
func tolerates(pod *corev1.Pod, key string) bool {
	taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
	for i := range pod.Spec.Tolerations {
		if pod.Spec.Tolerations[i].ToleratesTaint(klog.Background(), &taint, true) {
			return true
		}
	}
	return false
}

// ready says whether the node's condition says so.
func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
