package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AllocationDecision is the record of one decision: what was looked at, what
// was passed over and why, and what was chosen. It has no owner, so that it
// outlives its Pod, and expires by the retention setting.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=ladder,shortName=adec
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.pod`
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.spec.outcome`
// +kubebuilder:printcolumn:name="Tier",type=string,JSONPath=`.spec.tier`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AllocationDecision struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the record.
	// +required
	Spec AllocationDecisionSpec `json:"spec,omitzero"`
}

// AllocationDecisionSpec is the record; the same fields make one entry of
// `ladder decide -o json`.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
// +kubebuilder:validation:XValidation:rule="self.outcome == 'Allocated' || !has(self.tier)",message="may be set only where outcome is Allocated",fieldPath=".tier"
// +kubebuilder:validation:XValidation:rule="self.outcome == 'Allocated' || !has(self.tierIndex)",message="may be set only where outcome is Allocated",fieldPath=".tierIndex"
// +kubebuilder:validation:XValidation:rule="self.outcome == 'Allocated' || !has(self.node)",message="may be set only where outcome is Allocated",fieldPath=".node"
// +kubebuilder:validation:XValidation:rule="self.outcome == 'Allocated' || !has(self.devices) || self.devices.size() == 0",message="may be set only where outcome is Allocated",fieldPath=".devices"
// +kubebuilder:validation:XValidation:rule="self.outcome != 'Allocated' || !has(self.class)",message="may be set only where outcome is not Allocated",fieldPath=".class"
type AllocationDecisionSpec struct {
	// pod is the Pod's name; the namespace is the record's own.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod,omitempty"`
	// podUID tells two Pods of one name apart.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	PodUID types.UID `json:"podUID,omitempty"`
	// claim is the ResourceClaim's name, when there is exactly one or when it
	// is the policy's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Claim string `json:"claim,omitempty"`
	// outcome says whether devices were found.
	// +required
	Outcome Outcome `json:"outcome,omitempty"`
	// message says the outcome in one sentence.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// class is the failure class, where the outcome is not Allocated.
	// +optional
	Class FailureClass `json:"class,omitempty"`
	// policy is the AcceleratorPolicy's name; empty for a claim without one.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Policy string `json:"policy,omitempty"`
	// policyRevision is the revision that was used.
	// +optional
	PolicyRevision int64 `json:"policyRevision,omitempty"`
	// policyHash is the revision's content hash.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=71
	PolicyHash string `json:"policyHash,omitempty"`
	// tier is the chosen tier's name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Tier string `json:"tier,omitempty"`
	// tierIndex is the chosen tier's place, from 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TierIndex *int32 `json:"tierIndex,omitempty"`
	// node is the chosen node.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// devices are the chosen devices, in the order of the requests.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Devices []DecidedDevice `json:"devices,omitempty"`
	// tiers is the evidence, one entry for each tier in order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Tiers []TierEvidence `json:"tiers,omitempty"`
	// attempt counts from 1.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// idempotencyKey is the claim's UID and the revision: a repeated attempt
	// with the same key never allocates twice.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
	// inputDigest identifies the snapshot that was decided on.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	InputDigest string `json:"inputDigest,omitempty"`
	// journal is the position in the scheduler's journal, where there is one.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Journal string `json:"journal,omitempty"`
	// engineVersion is the version of the decision engine's rules.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	EngineVersion string `json:"engineVersion,omitempty"`
	// decidedAt is the evaluation time.
	// +optional
	DecidedAt *metav1.MicroTime `json:"decidedAt,omitempty"`
}

// Outcome says how a decision ended.
// +kubebuilder:validation:Enum=Allocated;Pending;Unsatisfiable
type Outcome string

const (
	// OutcomeAllocated: devices were found.
	OutcomeAllocated Outcome = "Allocated"
	// OutcomePending: not now, but a change of use, health, nodes, time or
	// usage could help.
	OutcomePending Outcome = "Pending"
	// OutcomeUnsatisfiable: no tier could be met even with every device free
	// and untainted, nodes usable, `after` elapsed and the tenant's usage zero.
	OutcomeUnsatisfiable Outcome = "Unsatisfiable"
)

// DecidedDevice is one chosen device.
type DecidedDevice struct {
	// driver is the DRA driver.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Driver string `json:"driver,omitempty"`
	// pool is the resource pool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`
	// device is the device's name in the pool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Device string `json:"device,omitempty"`
	// claim is the claim's reference name in the Pod, where the Pod has several.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Claim string `json:"claim,omitempty"`
	// request is the request, with the chosen alternative after a slash.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	Request string `json:"request,omitempty"`
	// model is the device's model as its slice told it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Model string `json:"model,omitempty"`
}

// TierOutcome says what became of a tier.
// +kubebuilder:validation:Enum=Selected;Rejected;NotReached
type TierOutcome string

const (
	// TierSelected: the tier was chosen.
	TierSelected TierOutcome = "Selected"
	// TierRejected: no node could serve the tier.
	TierRejected TierOutcome = "Rejected"
	// TierNotReached: a higher tier was chosen.
	TierNotReached TierOutcome = "NotReached"
)

// TierEvidence is what was seen in one tier.
type TierEvidence struct {
	// name is the tier's name, or request/alternative for a claim without a policy.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Name string `json:"name,omitempty"`
	// outcome says what became of the tier.
	// +required
	Outcome TierOutcome `json:"outcome,omitempty"`
	// rejections count the devices by reason, in the order of the checks.
	// Selected and LowerRank are listed here too, so that the counts add up to
	// the devices of the fleet.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Rejections []Rejection `json:"rejections,omitempty"`
}

// Rejection counts the devices that fell under one reason.
type Rejection struct {
	// code is the reason.
	// +required
	Code Reason `json:"code,omitempty"`
	// count is the number of devices.
	// +required
	// +kubebuilder:validation:Minimum=1
	Count int32 `json:"count,omitempty"`
	// examples are the first few of them in the order of choice.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Examples []RejectionExample `json:"examples,omitempty"`
}

// RejectionExample is one device that fell under a reason.
type RejectionExample struct {
	// node is the device's node, where it has one.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// pool is the device's pool.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`
	// device is the device's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Device string `json:"device,omitempty"`
	// detail says what was found and what was wanted.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Detail string `json:"detail,omitempty"`
}

// AllocationDecisionList is a list of records.
//
// +kubebuilder:object:root=true
type AllocationDecisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AllocationDecision `json:"items"`
}
