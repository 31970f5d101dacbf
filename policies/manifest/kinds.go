package manifest

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// kind is one kind that this package reads.
type kind struct {
	gvk        schema.GroupVersionKind
	namespaced bool
	make       func() runtime.Object
	resource   string
}

// kinds are all that is read, by group and kind.
var kinds = func() map[schema.GroupKind]kind {
	core, dra, own := corev1.SchemeGroupVersion, resourceapi.SchemeGroupVersion, v1alpha1.GroupVersion
	table := []kind{
		{core.WithKind("Node"), false, func() runtime.Object { return &corev1.Node{} }, "nodes"},
		{core.WithKind("Namespace"), false, func() runtime.Object { return &corev1.Namespace{} }, "namespaces"},
		{core.WithKind("Pod"), true, func() runtime.Object { return &corev1.Pod{} }, "pods"},
		{dra.WithKind("ResourceSlice"), false, func() runtime.Object { return &resourceapi.ResourceSlice{} }, "resourceslices"},
		{dra.WithKind("DeviceClass"), false, func() runtime.Object { return &resourceapi.DeviceClass{} }, "deviceclasses"},
		{dra.WithKind("ResourceClaim"), true, func() runtime.Object { return &resourceapi.ResourceClaim{} }, "resourceclaims"},
		{dra.WithKind("ResourceClaimTemplate"), true, func() runtime.Object { return &resourceapi.ResourceClaimTemplate{} }, "resourceclaimtemplates"},
		{dra.WithKind("DeviceTaintRule"), false, func() runtime.Object { return &resourceapi.DeviceTaintRule{} }, "devicetaintrules"},
		{own.WithKind("AcceleratorPolicy"), false, func() runtime.Object { return &v1alpha1.AcceleratorPolicy{} }, "acceleratorpolicies"},
		{own.WithKind("PolicyRevision"), false, func() runtime.Object { return &v1alpha1.PolicyRevision{} }, "policyrevisions"},
		{own.WithKind("TenantQuota"), false, func() runtime.Object { return &v1alpha1.TenantQuota{} }, "tenantquotas"},
		{own.WithKind("AllocationDecision"), true, func() runtime.Object { return &v1alpha1.AllocationDecision{} }, "allocationdecisions"},
	}
	m := make(map[schema.GroupKind]kind, len(table))
	for _, k := range table {
		m[k.gvk.GroupKind()] = k
	}
	return m
}()

// ownKindsNotRead are kinds of our group that mean nothing to a decision. Any
// other kind of the group is a spelling mistake.
var ownKindsNotRead = map[string]bool{"DeviceMigration": true, "Fleet": true}

// KindOf returns the kind of an object that this package reads, whether or not
// its own type fields are set; empty for any other.
func KindOf(obj runtime.Object) string {
	switch obj.(type) {
	case *corev1.Node:
		return "Node"
	case *corev1.Namespace:
		return "Namespace"
	case *corev1.Pod:
		return "Pod"
	case *resourceapi.ResourceSlice:
		return "ResourceSlice"
	case *resourceapi.DeviceClass:
		return "DeviceClass"
	case *resourceapi.ResourceClaim:
		return "ResourceClaim"
	case *resourceapi.ResourceClaimTemplate:
		return "ResourceClaimTemplate"
	case *resourceapi.DeviceTaintRule:
		return "DeviceTaintRule"
	case *v1alpha1.AcceleratorPolicy:
		return "AcceleratorPolicy"
	case *v1alpha1.PolicyRevision:
		return "PolicyRevision"
	case *v1alpha1.TenantQuota:
		return "TenantQuota"
	case *v1alpha1.AllocationDecision:
		return "AllocationDecision"
	}
	return ""
}

// NewOfKind returns an empty object of a kind that this package reads, or nil.
func NewOfKind(name string) runtime.Object {
	for gk, k := range kinds {
		if gk.Kind == name {
			return k.make()
		}
	}
	return nil
}
