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
// +kubebuilder:validation:XValidation:rule="self.metadata.name.startsWith(self.spec.policy + '-') && self.metadata.name.matches('-[1-9][0-9]{0,18}$') && self.metadata.name.lastIndexOf('-') == self.spec.policy.size() && int(self.metadata.name.substring(self.spec.policy.size() + 1)) == self.spec.revision",message="metadata.name must be <policy>-<revision>"
type PolicyRevision struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the frozen policy.
	// +required
	Spec PolicyRevisionSpec `json:"spec,omitzero"`
}

// PolicyRevisionSpec is immutable but for state.
type PolicyRevisionSpec struct {
	// policy is the AcceleratorPolicy's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	Policy string `json:"policy,omitempty"`
	// revision counts from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	Revision int64 `json:"revision,omitempty"`
	// hash is the content hash of policySpec, "sha256:" and 64 hex digits.
	// +required
	// +kubebuilder:validation:MinLength=71
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	Hash string `json:"hash,omitempty"`
	// policySpec is the policy's spec with defaults filled in and without
	// activeRevision. It can't be changed, not even to another spelling of the
	// same quantity or duration.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.activeRevision)",message="a revision does not name the active one",fieldPath=".activeRevision"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
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
