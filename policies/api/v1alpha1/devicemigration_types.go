package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Nothing acts on it yet. DeviceMigration is to move workloads from a device
// plugin to DRA in waves, and back.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=ladder,shortName=dmig
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.spec.policy`
// +kubebuilder:printcolumn:name="Wave",type=integer,JSONPath=`.status.wave`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DeviceMigration struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is to be moved, and how.
	// +required
	Spec DeviceMigrationSpec `json:"spec,omitzero"`
	// status is how far it has come.
	// +optional
	Status DeviceMigrationStatus `json:"status,omitzero"`
}

// DeviceMigrationSpec is what is to be moved, and how.
type DeviceMigrationSpec struct {
	// target is the switch: where workloads are to be served.
	// +optional
	// +kubebuilder:default=DevicePlugin
	Target MigrationTarget `json:"target,omitempty"`
	// policy is the AcceleratorPolicy that moved workloads get.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Policy string `json:"policy,omitempty"`
	// legacyResource is the extended resource that the device plugin serves.
	// +optional
	// +kubebuilder:default="nvidia.com/gpu"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?kubernetes[.]io/')",message="must not be in the domain kubernetes.io"
	LegacyResource string `json:"legacyResource,omitempty"`
	// selector picks the Pods by label. Empty: every Pod that asks for legacyResource.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))",message="operator must be In or NotIn with values, or Exists or DoesNotExist without",fieldPath=".matchExpressions"
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// namespaceSelector picks the namespaces. Empty: every namespace.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))",message="operator must be In or NotIn with values, or Exists or DoesNotExist without",fieldPath=".matchExpressions"
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// waves are the parts of the workloads that move, in percent, rising.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=100
	// +kubebuilder:validation:XValidation:rule="self.all(i, w, i == 0 || self[i - 1] < w)",message="must rise from wave to wave"
	Waves []int32 `json:"waves,omitempty"`
	// gates must hold before the next wave.
	// +optional
	// +kubebuilder:default={}
	Gates MigrationGates `json:"gates,omitzero"`
	// onGateFailure says what a failed gate does.
	// +optional
	// +kubebuilder:default=Rollback
	OnGateFailure GateFailureAction `json:"onGateFailure,omitempty"`
	// boundPods says what happens to Pods that run on a node that moves.
	// +optional
	// +kubebuilder:default=Wait
	BoundPods BoundPods `json:"boundPods,omitempty"`
}

// MigrationTarget is who serves the workloads.
// +kubebuilder:validation:Enum=DRA;DevicePlugin
type MigrationTarget string

const (
	// TargetDRA: by DRA, wave by wave.
	TargetDRA MigrationTarget = "DRA"
	// TargetDevicePlugin: by the device plugin; from DRA, this is the rollback.
	TargetDevicePlugin MigrationTarget = "DevicePlugin"
)

// GateFailureAction says what a failed gate does.
// +kubebuilder:validation:Enum=Rollback;Pause
type GateFailureAction string

const (
	// GateRollback stops new templates and goes back.
	GateRollback GateFailureAction = "Rollback"
	// GatePause stays where it is.
	GatePause GateFailureAction = "Pause"
)

// BoundPods says what happens to Pods that run on a node that moves.
// +kubebuilder:validation:Enum=Wait;Evict
type BoundPods string

const (
	// BoundPodsWait waits for them to end.
	BoundPodsWait BoundPods = "Wait"
	// BoundPodsEvict evicts them through the Eviction API.
	BoundPodsEvict BoundPods = "Evict"
)

// MigrationGates compare the DRA cohort with the device plugin's. Percentages
// are whole percent points.
type MigrationGates struct {
	// minSample is the least number of Pods in each cohort.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MinSample *int32 `json:"minSample,omitempty"`
	// soak is the least time a wave runs.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h))+)$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration of less than 290 years"
	Soak *metav1.Duration `json:"soak,omitempty"`
	// maxSuccessRateDrop is how far the DRA cohort's success rate may lie below.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxSuccessRateDrop *int32 `json:"maxSuccessRateDrop,omitempty"`
	// maxFallbackRate is the most that may fall back to a lower tier.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxFallbackRate *int32 `json:"maxFallbackRate,omitempty"`
	// maxLatencyRise is how far the median scheduling latency may lie above.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxLatencyRise *int32 `json:"maxLatencyRise,omitempty"`
	// maxUtilizationDrop is how far GPU utilisation may lie below.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxUtilizationDrop *int32 `json:"maxUtilizationDrop,omitempty"`
}

// DeviceMigrationStatus is how far a migration has come.
type DeviceMigrationStatus struct {
	// observedGeneration is the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// wave is the current wave, from 1; 0 before the first.
	// +optional
	Wave int32 `json:"wave,omitempty"`
	// conditions are Progressing, Complete and what hinders them.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DeviceMigrationList is a list of migrations.
//
// +kubebuilder:object:root=true
type DeviceMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DeviceMigration `json:"items"`
}
