package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PolicyRevision is what an AcceleratorPolicy was: numbered, hashed, immutable.
// Its name is <policy>-<revision>.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=ladder,shortName=acprev
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.spec.policy`
// +kubebuilder:printcolumn:name="Revision",type=integer,JSONPath=`.spec.revision`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PolicyRevision struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the frozen policy.
	// +required
	Spec PolicyRevisionSpec `json:"spec"`
}

// PolicyRevisionSpec is immutable but for state.
type PolicyRevisionSpec struct {
	// policy is the AcceleratorPolicy's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Policy string `json:"policy,omitempty"`
	// revision counts from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Revision int64 `json:"revision,omitempty"`
	// hash is the content hash of policySpec, "sha256:" and 64 hex digits.
	// +required
	// +kubebuilder:validation:MinLength=71
	// +kubebuilder:validation:MaxLength=71
	Hash string `json:"hash,omitempty"`
	// policySpec is the policy's spec with defaults filled in and without activeRevision.
	// +required
	PolicySpec AcceleratorPolicySpec `json:"policySpec,omitzero"`
	// state Withdrawn parks Pods that still wait with this revision.
	// +optional
	// +kubebuilder:default=Usable
	State RevisionState `json:"state,omitempty"`
}

// RevisionState says whether a revision may still be used.
// +kubebuilder:validation:Enum=Usable;Withdrawn
type RevisionState string

const (
	// RevisionUsable: Pods may be placed with it.
	RevisionUsable RevisionState = "Usable"
	// RevisionWithdrawn: Pods that wait with it are parked.
	RevisionWithdrawn RevisionState = "Withdrawn"
)

// PolicyRevisionList is a list of revisions.
//
// +kubebuilder:object:root=true
type PolicyRevisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PolicyRevision `json:"items"`
}
