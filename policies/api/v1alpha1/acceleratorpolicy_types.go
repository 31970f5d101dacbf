package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AcceleratorPolicy is an ordered choice of accelerators under hard
// constraints. A Pod asks for it by the label gpuladder.dev/policy.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=ladder,shortName=acp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="First tier",type=string,JSONPath=`.spec.tiers[0].name`
// +kubebuilder:printcolumn:name="Revision",type=integer,JSONPath=`.status.activeRevision`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name must be no more than 63 characters, since it is also a label's value"
type AcceleratorPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what a workload may get.
	// +required
	Spec AcceleratorPolicySpec `json:"spec,omitzero"`
	// status is what the policy controller made of it.
	// +optional
	Status AcceleratorPolicyStatus `json:"status,omitzero"`
}

// AcceleratorPolicySpec is the content of a policy. Everything but
// activeRevision is copied into each PolicyRevision.
//
// +kubebuilder:validation:XValidation:rule="!has(self.sharing) || !has(self.sharing.strategy) || self.sharing.strategy == 'Exclusive' || self.driver != 'gpu.nvidia.com'",message="with driver gpu.nvidia.com must be Exclusive, since that driver has parameters of its own",fieldPath=".sharing.strategy"
// +kubebuilder:validation:XValidation:rule="!has(self.sharing) || !has(self.sharing.strategy) || self.sharing.strategy == 'Exclusive' || !has(self.constraints) || !has(self.constraints.isolation) || self.constraints.isolation != 'Exclusive'",message="contradicts constraints.isolation, which is Exclusive",fieldPath=".sharing.strategy"
// +kubebuilder:validation:XValidation:rule="!has(self.preferAttributes) || !has(self.constraints) || !has(self.constraints.matchAttributes) || !self.preferAttributes.exists(a, a in self.constraints.matchAttributes)",message="contradicts constraints.matchAttributes, which demands the same attribute",fieldPath=".preferAttributes"
// +kubebuilder:validation:XValidation:rule="self.driver != 'gpu.nvidia.com' || !self.tiers.exists(t, has(t.models) && t.models.exists(m, m.contains(' ') || m.contains('-')))",message="with driver gpu.nvidia.com a model is one word of productName, without space or hyphen",fieldPath=".tiers"
// +kubebuilder:validation:XValidation:rule="self.tiers.all(j, b, self.tiers.all(i, a, i >= j || (has(a.count) ? a.count : self.count) > (has(b.count) ? b.count : self.count) || (has(a.after) && duration(a.after) > (has(b.after) ? duration(b.after) : duration('0s'))) || (has(a.models) && a.models.size() > 0 && (!has(b.models) || b.models.size() == 0 || !b.models.all(m, m in a.models))) || (has(a.selectors) && a.selectors.size() > 0 && !(has(b.selectors) && a.selectors.all(x, x in b.selectors)))))",message="a tier can never be used when one before it accepts all of its devices, needs no more of them and no longer wait",fieldPath=".tiers"
type AcceleratorPolicySpec struct {
	// driver says whose attributes the shorthand fields mean:
	// gpu.gpuladder.dev or gpu.nvidia.com.
	// +optional
	// +kubebuilder:default="gpu.gpuladder.dev"
	// +kubebuilder:validation:Enum="gpu.gpuladder.dev";"gpu.nvidia.com"
	Driver string `json:"driver,omitempty"`

	// count is the number of devices per Pod, 1 to 32. A tier may override it.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	Count *int32 `json:"count,omitempty"`

	// constraints are hard: they hold in every tier.
	// +optional
	Constraints Constraints `json:"constraints,omitzero"`

	// tiers are the alternatives in order of preference. A lower tier is used
	// only when no device of a higher one is eligible.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Tiers []Tier `json:"tiers,omitempty"`

	// ranking orders the nodes that can serve the same tier: Packed takes the
	// one with the fewest free eligible devices first, Spread the one with the
	// most; then node name, driver, pool, slice and device, byte-wise.
	// +optional
	// +kubebuilder:default=Packed
	Ranking Ranking `json:"ranking,omitempty"`

	// mixModels says whether the devices of one Pod may be of different models.
	// +optional
	// +kubebuilder:default=Never
	MixModels MixModels `json:"mixModels,omitempty"`

	// mixTiers says whether the Pods of one PodGroup may take different tiers.
	// Empty means Never: they all take the first tier that can serve them all.
	// +optional
	MixTiers MixTiers `json:"mixTiers,omitempty"`

	// preferAttributes are device attributes that the Pod's devices should
	// share if possible: topology as a wish. constraints.matchAttributes is
	// topology as a must.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z_][A-Za-z0-9_]{0,31}$`
	// +kubebuilder:validation:items:XValidation:rule="self.indexOf('/') <= 63",message="the domain must be no more than 63 characters"
	PreferAttributes []string `json:"preferAttributes,omitempty"`

	// preempts says whose devices may be taken back for a Pod of this policy.
	// +optional
	// +kubebuilder:default=Never
	Preempts Preempts `json:"preempts,omitempty"`

	// namespaceSelector says which namespaces may use the policy. Empty: every
	// namespace.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))",message="operator must be In or NotIn with values, or Exists or DoesNotExist without",fieldPath=".matchExpressions"
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// sharing says how the containers that use one claim share its devices.
	// Left out: Exclusive, as the device is. It goes into the claim as parameters
	// for the driver, so only gpu.gpuladder.dev can have another strategy.
	// +optional
	Sharing *Sharing `json:"sharing,omitempty"`

	// retry bounds what is tried again after a failure between decision and bind.
	// +optional
	// +kubebuilder:default={}
	Retry RetryPolicy `json:"retry,omitzero"`

	// onUnhealthy says what happens to a bound Pod whose device has failed.
	// +optional
	// +kubebuilder:default={}
	OnUnhealthy OnUnhealthy `json:"onUnhealthy,omitzero"`

	// activeRevision is the revision that new Pods get. Unset: the newest. To
	// roll back, name an older one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ActiveRevision *int64 `json:"activeRevision,omitempty"`
}

// Constraints are checked in the order of their fields, after the tier and the
// use of the device. A device that lacks the attribute in question fails.
type Constraints struct {
	// minMemory is the least device memory, in bytes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="must be greater than zero"
	MinMemory *resource.Quantity `json:"minMemory,omitempty"`
	// minComputeCapability is the least CUDA compute capability, such as "8.0".
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9]{1,4}(\.[0-9]{1,6}){0,2}$`
	// +kubebuilder:validation:MaxLength=19
	MinComputeCapability string `json:"minComputeCapability,omitempty"`
	// minDriverVersion is the least driver version, such as "550.54", compared
	// number by number.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9]{1,6}(\.[0-9]{1,6}){0,2}$`
	// +kubebuilder:validation:MaxLength=20
	MinDriverVersion string `json:"minDriverVersion,omitempty"`
	// architectures are the allowed GPU architectures, such as Hopper or
	// "Ada Lovelace". Empty: any.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^\S(.*\S)?$`
	Architectures []string `json:"architectures,omitempty"`
	// isolation Exclusive excludes devices that several claims may share.
	// +optional
	Isolation Isolation `json:"isolation,omitempty"`
	// selectors are further CEL expressions over `device`; each must be true.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=10240
	// +kubebuilder:validation:items:Pattern=`\S`
	Selectors []string `json:"selectors,omitempty"`
	// matchAttributes are fully qualified attributes, such as
	// resource.kubernetes.io/numaNode, that all devices of the Pod must share.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z_][A-Za-z0-9_]{0,31}$`
	// +kubebuilder:validation:items:XValidation:rule="self.indexOf('/') <= 63",message="the domain must be no more than 63 characters"
	MatchAttributes []string `json:"matchAttributes,omitempty"`
}

// Tier is one alternative of a policy.
type Tier struct {
	// name is unique in the policy and appears in records as the tier.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`
	// models are the models that belong to the tier, such as H100. Empty: any
	// device that meets the constraints and the tier's selectors.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^\S(.*\S)?$`
	Models []string `json:"models,omitempty"`
	// selectors are CEL expressions over `device`; each must be true.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=10240
	// +kubebuilder:validation:items:Pattern=`\S`
	Selectors []string `json:"selectors,omitempty"`
	// count overrides the policy's count for this tier, 1 to 32.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	Count *int32 `json:"count,omitempty"`
	// after is how long a Pod must have waited, from its creation, before this
	// tier may be used; waiting exactly as long is enough.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h))+)$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration of less than 290 years"
	After *metav1.Duration `json:"after,omitempty"`
}

// Ranking orders equal nodes.
// +kubebuilder:validation:Enum=Packed;Spread
type Ranking string

const (
	// RankingPacked fills nodes: the fewest free eligible devices first.
	RankingPacked Ranking = "Packed"
	// RankingSpread spreads over nodes: the most free eligible devices first.
	RankingSpread Ranking = "Spread"
)

// MixModels says whether one Pod may hold devices of different models.
// +kubebuilder:validation:Enum=Never;WithinTier
type MixModels string

const (
	// MixModelsNever: all devices of a Pod are of one model.
	MixModelsNever MixModels = "Never"
	// MixModelsWithinTier: any models of the chosen tier together.
	MixModelsWithinTier MixModels = "WithinTier"
)

// MixTiers says whether the Pods of one PodGroup may take different tiers.
// +kubebuilder:validation:Enum=Never;WithinGroup
type MixTiers string

const (
	// MixTiersNever: the Pods of a PodGroup that follow the policy take one tier.
	MixTiersNever MixTiers = "Never"
	// MixTiersWithinGroup: each Pod takes the best tier that it can get.
	MixTiersWithinGroup MixTiers = "WithinGroup"
)

// Preempts says whose devices may be taken back.
// +kubebuilder:validation:Enum=Never;Borrowed;LowerPriority
type Preempts string

const (
	// PreemptsNever: nobody's.
	PreemptsNever Preempts = "Never"
	// PreemptsBorrowed: devices that are borrowed, by later Pods of the same tenant
	// or by other tenants.
	PreemptsBorrowed Preempts = "Borrowed"
	// PreemptsLowerPriority: also those of lower priority inside the tenant.
	PreemptsLowerPriority Preempts = "LowerPriority"
)

// Isolation says whether a device may be shared between claims.
// +kubebuilder:validation:Enum=Exclusive;Shared
type Isolation string

const (
	// IsolationExclusive: the device is allocated to one claim only.
	IsolationExclusive Isolation = "Exclusive"
	// IsolationShared: the device may be shared; the same as leaving it out.
	IsolationShared Isolation = "Shared"
)

// RetryPolicy bounds retries.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maxBackoff) || !has(self.initialBackoff) || duration(self.maxBackoff) >= duration(self.initialBackoff)",message="must not be below initialBackoff",fieldPath=".maxBackoff"
type RetryPolicy struct {
	// maxAttempts is the number of attempts in all, 1 to 100.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxAttempts *int32 `json:"maxAttempts,omitempty"`
	// initialBackoff is the wait after the first failure; it doubles each time.
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h))+)$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration of less than 290 years"
	InitialBackoff *metav1.Duration `json:"initialBackoff,omitempty"`
	// maxBackoff caps the wait.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h))+)$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration of less than 290 years"
	MaxBackoff *metav1.Duration `json:"maxBackoff,omitempty"`
	// deadline is how long after the first failure attempts go on.
	// +optional
	// +kubebuilder:default="1h0m0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h))+)$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration of less than 290 years"
	Deadline *metav1.Duration `json:"deadline,omitempty"`
}

// OnUnhealthy says what happens to a bound Pod whose device has failed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.gracePeriod) || self.action != 'Keep'",message="may not be set where action is Keep",fieldPath=".gracePeriod"
type OnUnhealthy struct {
	// action is what happens.
	// +optional
	// +kubebuilder:default=Evict
	Action UnhealthyAction `json:"action,omitempty"`
	// gracePeriod is how long the Pod keeps the device after the failure is
	// confirmed; not with Keep.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h))+)$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration of less than 290 years"
	// +kubebuilder:validation:XValidation:rule="duration(self).getMilliseconds() % 1000 == 0",message="must be whole seconds, as a toleration's are"
	GracePeriod *metav1.Duration `json:"gracePeriod,omitempty"`
}

// UnhealthyAction is what happens to a bound Pod whose device has failed.
// +kubebuilder:validation:Enum=Evict;Recreate;End;Keep
type UnhealthyAction string

const (
	// UnhealthyEvict: deleted by taint eviction after the grace period.
	UnhealthyEvict UnhealthyAction = "Evict"
	// UnhealthyRecreate: evicted through the Eviction API after the grace
	// period, so that disruption budgets hold.
	UnhealthyRecreate UnhealthyAction = "Recreate"
	// UnhealthyEnd: the Pod ends as failed after the grace period.
	UnhealthyEnd UnhealthyAction = "End"
	// UnhealthyKeep: the Pod keeps the device.
	UnhealthyKeep UnhealthyAction = "Keep"
)

// AcceleratorPolicyStatus is what the policy controller made of a policy.
type AcceleratorPolicyStatus struct {
	// observedGeneration is the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// latestRevision is the newest revision made of this policy.
	// +optional
	LatestRevision int64 `json:"latestRevision,omitempty"`
	// activeRevision is the revision that new Pods get.
	// +optional
	ActiveRevision int64 `json:"activeRevision,omitempty"`
	// usableRevisions are the revisions that a Pod may pin, the newest 1024 of
	// them, in ascending order.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1024
	UsableRevisions []int64 `json:"usableRevisions,omitempty"`
	// templateName is the ResourceClaimTemplate of the active revision.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	TemplateName string `json:"templateName,omitempty"`
	// conditions are Ready and what hinders it.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AcceleratorPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type AcceleratorPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AcceleratorPolicy `json:"items"`
}
