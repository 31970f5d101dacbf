package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TenantQuota says how many devices of each model a tenant may hold. A
// namespace without one is not limited.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=ladder,shortName=tq
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Namespaces",type=string,JSONPath=`.spec.namespaces`
// +kubebuilder:printcolumn:name="Weight",type=integer,JSONPath=`.spec.weight`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TenantQuota struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what the tenant is given.
	// +required
	Spec TenantQuotaSpec `json:"spec,omitzero"`
	// status is what the tenant holds.
	// +optional
	Status TenantQuotaStatus `json:"status,omitzero"`
}

// TenantQuotaSpec is what a tenant is given.
type TenantQuotaSpec struct {
	// namespaces belong to the tenant. A namespace belongs to one tenant only.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespaces []string `json:"namespaces,omitempty"`
	// weight is the tenant's share of what is not guaranteed, relative to others.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Weight *int32 `json:"weight,omitempty"`
	// models are the models that the tenant may use; what is not listed it may not.
	// +required
	// +listType=map
	// +listMapKey=model
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Models []ModelQuota `json:"models,omitempty"`
}

// ModelQuota is a tenant's part of one model.
//
// +kubebuilder:validation:XValidation:rule="!has(self.limit) || self.guaranteed <= self.limit",message="must not be above limit",fieldPath=".guaranteed"
type ModelQuota struct {
	// model is the device model, such as H100.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\S(.*\S)?$`
	Model string `json:"model,omitempty"`
	// guaranteed devices are never reclaimed from the tenant.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Guaranteed int32 `json:"guaranteed"`
	// limit is the most devices that the tenant may hold. Unset: up to what is free.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Limit *int32 `json:"limit,omitempty"`
}

// TenantQuotaStatus is what a tenant holds.
type TenantQuotaStatus struct {
	// observedGeneration is the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// models is the usage by model.
	// +optional
	// +listType=map
	// +listMapKey=model
	// +kubebuilder:validation:MaxItems=1024
	Models []ModelUsage `json:"models,omitempty"`
	// conditions are Ready and what hinders it.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ModelUsage is how many devices of one model a tenant holds.
type ModelUsage struct {
	// model is the device model.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Model string `json:"model,omitempty"`
	// used counts allocated devices.
	// +optional
	Used int32 `json:"used"`
}

// TenantQuotaList is a list of quotas.
//
// +kubebuilder:object:root=true
type TenantQuotaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TenantQuota `json:"items"`
}
