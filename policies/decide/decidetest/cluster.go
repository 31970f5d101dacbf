package decidetest

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Cluster is all that a decision may depend on, as plain lists of objects.
type Cluster struct {
	Nodes      []*corev1.Node
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Slices     []*resourceapi.ResourceSlice
	Rules      []*resourceapi.DeviceTaintRule
	Classes    []*resourceapi.DeviceClass
	Claims     []*resourceapi.ResourceClaim
	Templates  []*resourceapi.ResourceClaimTemplate
	Policies   []*v1alpha1.AcceleratorPolicy
	Revisions  []*v1alpha1.PolicyRevision
	Quotas     []*v1alpha1.TenantQuota
	// Now is the evaluation time.
	Now time.Time
}

// Objects lists every object of the cluster.
func (c *Cluster) Objects() []runtime.Object {
	var out []runtime.Object
	out = appendObjects(out, c.Nodes)
	out = appendObjects(out, c.Namespaces)
	out = appendObjects(out, c.Pods)
	out = appendObjects(out, c.Slices)
	out = appendObjects(out, c.Rules)
	out = appendObjects(out, c.Classes)
	out = appendObjects(out, c.Claims)
	out = appendObjects(out, c.Templates)
	out = appendObjects(out, c.Policies)
	out = appendObjects(out, c.Revisions)
	return appendObjects(out, c.Quotas)
}

func appendObjects[T runtime.Object](out []runtime.Object, objects []T) []runtime.Object {
	for _, o := range objects {
		out = append(out, o)
	}
	return out
}

// Add puts objects into the lists of their kinds and reports whether it knew
// the kinds of all of them.
func (c *Cluster) Add(objects ...runtime.Object) bool {
	known := true
	for _, obj := range objects {
		switch o := obj.(type) {
		case *corev1.Node:
			c.Nodes = append(c.Nodes, o)
		case *corev1.Namespace:
			c.Namespaces = append(c.Namespaces, o)
		case *corev1.Pod:
			c.Pods = append(c.Pods, o)
		case *resourceapi.ResourceSlice:
			c.Slices = append(c.Slices, o)
		case *resourceapi.DeviceTaintRule:
			c.Rules = append(c.Rules, o)
		case *resourceapi.DeviceClass:
			c.Classes = append(c.Classes, o)
		case *resourceapi.ResourceClaim:
			c.Claims = append(c.Claims, o)
		case *resourceapi.ResourceClaimTemplate:
			c.Templates = append(c.Templates, o)
		case *v1alpha1.AcceleratorPolicy:
			c.Policies = append(c.Policies, o)
		case *v1alpha1.PolicyRevision:
			c.Revisions = append(c.Revisions, o)
		case *v1alpha1.TenantQuota:
			c.Quotas = append(c.Quotas, o)
		default:
			known = false
		}
	}
	return known
}

// Pending lists the Pods without a node, in the order of the list.
func (c *Cluster) Pending() []types.NamespacedName {
	var out []types.NamespacedName
	for _, p := range c.Pods {
		if p.Spec.NodeName == "" {
			out = append(out, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
	return out
}

// Tenant returns the quota of the tenant that the namespace belongs to, or nil:
// of those that list it the one with the smallest name.
func (c *Cluster) Tenant(namespace string) *v1alpha1.TenantQuota {
	var found *v1alpha1.TenantQuota
	for _, q := range c.Quotas {
		if slices.Contains(q.Spec.Namespaces, namespace) && (found == nil || q.Name < found.Name) {
			found = q
		}
	}
	return found
}

// Pod returns the Pod of that name, or nil.
func (c *Cluster) Pod(name types.NamespacedName) *corev1.Pod {
	for _, p := range c.Pods {
		if p.Namespace == name.Namespace && p.Name == name.Name {
			return p
		}
	}
	return nil
}
