package fleet

// This file makes the Nodes of a fleet.

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Nodes returns a new Node for each node of the fleet, in the order of the
// file: Ready, with what it can allocate, labelled with its host name, group
// and board. There are no timestamps in it.
func (f *Fleet) Nodes() []*corev1.Node {
	nodes := make([]*corev1.Node, 0, f.NodeCount())
	for i := range f.Groups {
		for n := range f.Groups[i].Nodes {
			nodes = append(nodes, f.Groups[i].node(n))
		}
	}
	return nodes
}

func (g *Group) node(index int) *corev1.Node {
	name := g.NodeName(index)
	labels := maps.Clone(g.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[corev1.LabelHostname] = name
	labels[corev1.LabelOSStable] = "linux"
	labels[corev1.LabelArchStable] = "amd64"
	labels[LabelGroup] = g.Name
	if g.Board != "" {
		labels[LabelBoard] = g.Board
	}
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    g.CPU.DeepCopy(),
		corev1.ResourceMemory: g.Memory.DeepCopy(),
		corev1.ResourcePods:   *resource.NewQuantity(g.Pods, resource.DecimalSI),
	}
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: cloneTaints(g.Taints)},
		Status: corev1.NodeStatus{
			Capacity:    resources.DeepCopy(),
			Allocatable: resources,
			Conditions: []corev1.NodeCondition{{
				Type:    corev1.NodeReady,
				Status:  corev1.ConditionTrue,
				Reason:  "FleetNode",
				Message: "node of a fleet file",
			}},
		},
	}
}

func cloneTaints(taints []corev1.Taint) []corev1.Taint {
	var clones []corev1.Taint
	for i := range taints {
		clones = append(clones, *taints[i].DeepCopy())
	}
	return clones
}
