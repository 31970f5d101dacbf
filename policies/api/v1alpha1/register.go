package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of every Ladder object.
const GroupName = "gpuladder.dev"

// GroupVersion is the group and version of the types in this package.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

var (
	// SchemeBuilder collects the functions that add this package to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds every type of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&AcceleratorPolicy{}, &AcceleratorPolicyList{},
		&PolicyRevision{}, &PolicyRevisionList{},
		&TenantQuota{}, &TenantQuotaList{},
		&AllocationDecision{}, &AllocationDecisionList{},
		&DeviceMigration{}, &DeviceMigrationList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
