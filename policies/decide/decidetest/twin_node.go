package decidetest

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// usableNodes lists the nodes on which the Pod may run, sorted.
func (w *world) usableNodes() []string {
	var out []string
	for _, n := range w.cluster.Nodes {
		if w.usable(n) {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	return out
}

func (w *world) usable(n *corev1.Node) bool {
	if w.relaxed {
		return true
	}
	if w.question.External {
		_, refused := w.question.Refused[n.Name]
		return !refused
	}
	return !n.Spec.Unschedulable && ready(n) && tolerated(w.pod, n) && wanted(w.pod, n) && w.roomOn(n)
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// tolerated: the taints that the generators make have no special operators.
func tolerated(pod *corev1.Pod, n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(tol corev1.Toleration) bool {
			return (tol.Key == "" || tol.Key == t.Key) && (tol.Effect == "" || tol.Effect == t.Effect) &&
				(tol.Operator == corev1.TolerationOpExists || tol.Value == t.Value)
		}) {
			return false
		}
	}
	return true
}

func wanted(pod *corev1.Pod, n *corev1.Node) bool {
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(n)
	return err == nil && ok
}

// roomOn adds up the requests of the Pods on a node that have not ended.
func (w *world) roomOn(n *corev1.Node) bool {
	cpu, memory, pods := requests(w.pod, corev1.ResourceCPU), requests(w.pod, corev1.ResourceMemory), int64(1)
	for _, p := range w.cluster.Pods {
		if p.Spec.NodeName != n.Name || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		cpu.Add(requests(p, corev1.ResourceCPU))
		memory.Add(requests(p, corev1.ResourceMemory))
		pods++
	}
	a := n.Status.Allocatable
	return cpu.Cmp(*a.Cpu()) <= 0 && memory.Cmp(*a.Memory()) <= 0 && pods <= a.Pods().Value()
}

// requests sums the containers; the generators make no init containers.
func requests(p *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	var sum resource.Quantity
	for _, c := range p.Spec.Containers {
		sum.Add(c.Resources.Requests[name])
	}
	return sum
}
