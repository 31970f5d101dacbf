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
// +kubebuilder:printcolumn:name="Waiting",type=integer,JSONPath=`.status.waiting`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
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

// TenantQuotaStatus is what a tenant holds and waits for.
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
	// sharePermille is the tenant's share of the fleet, devices weighted by
	// their cost, divided by its weight, in thousandths. The smaller goes first.
	// +optional
	SharePermille int32 `json:"sharePermille,omitempty"`
	// waiting counts the Pods that wait for the tenant's turn.
	// +optional
	Waiting int32 `json:"waiting"`
	// waitingSince is since when the Pod waits that has waited longest.
	// +optional
	WaitingSince *metav1.Time `json:"waitingSince,omitempty"`
	// next are the Pods whose turn comes next, and why they wait.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Next []WaitingPod `json:"next,omitempty"`
	// conditions are Ready and what hinders it, and what about the quota keeps
	// Pods from what they ask for first.
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
	// charged counts used devices, and those that Pods whose gate is open are
	// charged until they have theirs.
	// +optional
	Charged int32 `json:"charged"`
	// borrowed is what is charged above the guarantee.
	// +optional
	Borrowed int32 `json:"borrowed"`
	// firstChoice counts the Pods with devices whose policy asks for this model first.
	// +optional
	FirstChoice int32 `json:"firstChoice"`
	// fallbacks counts those of them that got devices of a lower tier.
	// +optional
	Fallbacks int32 `json:"fallbacks"`
}

// WaitingPod is a Pod that waits for its tenant's turn.
type WaitingPod struct {
	// position in the tenant's order, from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Position int32 `json:"position,omitempty"`
	// namespace of the Pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// name of the Pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// reason why it waits; docs/quota.md lists them.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// message says it for each model that would serve.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// Condition types of a TenantQuota.
const (
	// ConditionReady: the quota is held, for all of its namespaces.
	ConditionReady = "Ready"
	// ConditionFirstChoiceRare: the tenant's Pods hardly ever get the model
	// that they ask for first; the message says what would change it.
	ConditionFirstChoiceRare = "FirstChoiceRare"
)

// TenantQuotaList is a list of quotas.
//
// +kubebuilder:object:root=true
type TenantQuotaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TenantQuota `json:"items"`
}
