package mirror

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// relevantNode returns the part of a node that decides which devices it can
// reach. Everything else about nodes is the other plugins' business.
func relevantNode(node *corev1.Node) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, Labels: node.Labels},
		Status:     corev1.NodeStatus{DeclaredFeatures: node.Status.DeclaredFeatures},
	}
}

func sameNode(a, b *corev1.Node) bool {
	return a.UID == b.UID && maps.Equal(a.Labels, b.Labels) &&
		slices.Equal(a.Status.DeclaredFeatures, b.Status.DeclaredFeatures)
}

// relevantPod returns a Pod without the status that changes from attempt to
// attempt.
func relevantPod(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         pod.Namespace,
			Name:              pod.Name,
			UID:               pod.UID,
			Labels:            pod.Labels,
			Annotations:       relevantAnnotations(pod),
			CreationTimestamp: pod.CreationTimestamp,
		},
		Spec:   pod.Spec,
		Status: corev1.PodStatus{ResourceClaimStatuses: pod.Status.ResourceClaimStatuses},
	}
}

// boundPod returns what tells which claims a Pod has that is bound, and of which
// model their devices are.
func boundPod(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   pod.Namespace,
			Name:        pod.Name,
			UID:         pod.UID,
			Annotations: map[string]string{v1alpha1.AnnotationModel: pod.Annotations[v1alpha1.AnnotationModel]},
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName, ResourceClaims: pod.Spec.ResourceClaims},
		Status: corev1.PodStatus{ResourceClaimStatuses: pod.Status.ResourceClaimStatuses},
	}
}

// relevantAnnotations returns what others have told the scheduler to keep to, and
// nothing of what it writes itself.
func relevantAnnotations(pod *corev1.Pod) map[string]string {
	turn, ok := pod.Annotations[v1alpha1.AnnotationTurnModels]
	if !ok {
		return nil
	}
	return map[string]string{v1alpha1.AnnotationTurnModels: turn}
}
