package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Gates are the names of a Pod's scheduling gates, in their order. While there
// is one no scheduler looks at the Pod, so there is no decision about it, no
// condition and no record.
func Gates(pod *corev1.Pod) []string {
	var names []string
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return names
}

// AtGates says in words what a Pod with gates waits for.
func AtGates(gates []string) string {
	if !slices.Contains(gates, v1alpha1.GateQuota) {
		return "waits until its scheduling gates are taken off: " + strings.Join(gates, ", ")
	}
	words := "waits at the gate " + v1alpha1.GateQuota + " for its tenant's turn"
	if others := slices.DeleteFunc(slices.Clone(gates), func(g string) bool { return g == v1alpha1.GateQuota }); len(others) > 0 {
		words += ", and until its other scheduling gates are taken off: " + strings.Join(others, ", ")
	}
	return words
}

// whyAtGates is a command that says why a Pod waits at its tenant's gate.
func whyAtGates(namespace, pod string) string {
	return "kubectl get nodes,pods,resourceslices,devicetaintrules,resourceclaims,acceleratorpolicies,policyrevisions,tenantquotas -A -o yaml | " +
		"ladder quota explain " + pod + " -n " + namespace + " -f -"
}

// Pod reads a Pod.
func (c *Client) Pod(ctx context.Context, namespace, pod string) (*corev1.Pod, error) {
	u, err := c.dynamic.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting Pod %s/%s, %w", namespace, pod, err)
	}
	read := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, read); err != nil {
		return nil, fmt.Errorf("reading Pod %s/%s, %w", namespace, pod, err)
	}
	return read, nil
}

// noDecision says why there is no AllocationDecision about a Pod, as far as the
// Pod is known; nil where it is not.
func noDecision(namespace, pod string, present *corev1.Pod) error {
	var gates []string
	if present != nil {
		gates = Gates(present)
	}
	switch {
	case len(gates) == 0:
		return fmt.Errorf("no AllocationDecision about Pod %s/%s; was it scheduled by %s, and not longer ago than records are kept?", namespace, pod, v1alpha1.SchedulerName)
	case slices.Contains(gates, v1alpha1.GateQuota):
		return fmt.Errorf("no AllocationDecision about Pod %s/%s: it %s, and no scheduler has looked at it; ask why with `%s`", namespace, pod, AtGates(gates), whyAtGates(namespace, pod))
	default:
		return fmt.Errorf("no AllocationDecision about Pod %s/%s: it %s, and no scheduler has looked at it", namespace, pod, AtGates(gates))
	}
}
