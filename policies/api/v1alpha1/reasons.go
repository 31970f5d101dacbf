package v1alpha1

// Reason is the typed reason why a device was taken or passed over. Codes are
// a contract: they are documented in docs/reference/reasons.md and never renamed.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=64
type Reason string

// Each device is counted once for each tier, under the first check that it
// fails. The checks run in the order of this list, except where noted.
const (
	// ReasonPoolIncomplete: the newest generation of the device's pool has not
	// been published whole, or is invalid.
	ReasonPoolIncomplete Reason = "PoolIncomplete"
	// ReasonNodeMismatch: no node that exists can reach the device.
	ReasonNodeMismatch Reason = "NodeMismatch"
	// ReasonNodeUnsuitable: the Pod cannot run on the device's node; the
	// detail names the check or the scheduler plugin and its words.
	ReasonNodeUnsuitable Reason = "NodeUnsuitable"
	// ReasonModelMismatch: the device's model is not one of the tier's.
	ReasonModelMismatch Reason = "ModelMismatch"
	// ReasonSelectorNotMatched: a free CEL selector (of the tier, of the
	// constraints, of the class or of the request) says no.
	ReasonSelectorNotMatched Reason = "SelectorNotMatched"
	// ReasonSelectorError: a free CEL selector failed on this device.
	ReasonSelectorError Reason = "SelectorError"
	// ReasonTierNotYetAllowed: the Pod has not waited as long as the tier's `after`.
	ReasonTierNotYetAllowed Reason = "TierNotYetAllowed"
	// ReasonInUse: the device is allocated to another claim.
	ReasonInUse Reason = "InUse"
	// ReasonReserved: the device is held by a decision whose allocation has
	// not been written yet.
	ReasonReserved Reason = "Reserved"
	// ReasonCountersExhausted: the shared counters that the device consumes
	// are used up by other partitions.
	ReasonCountersExhausted Reason = "CountersExhausted"
	// ReasonDeviceTainted: the device carries a NoSchedule or NoExecute taint
	// that the claim does not tolerate.
	ReasonDeviceTainted Reason = "DeviceTainted"
	// ReasonDeviceUnhealthy: the driver reports the device unhealthy and no
	// taint has arrived yet.
	ReasonDeviceUnhealthy Reason = "DeviceUnhealthy"
	// ReasonMemoryTooSmall: below constraints.minMemory.
	ReasonMemoryTooSmall Reason = "MemoryTooSmall"
	// ReasonComputeCapabilityTooLow: below constraints.minComputeCapability.
	ReasonComputeCapabilityTooLow Reason = "ComputeCapabilityTooLow"
	// ReasonDriverTooOld: below constraints.minDriverVersion.
	ReasonDriverTooOld Reason = "DriverTooOld"
	// ReasonArchitectureExcluded: not in constraints.architectures.
	ReasonArchitectureExcluded Reason = "ArchitectureExcluded"
	// ReasonIsolationUnsatisfied: constraints.isolation cannot be held.
	ReasonIsolationUnsatisfied Reason = "IsolationUnsatisfied"
	// ReasonCapacityTooSmall: the device lacks a capacity that the request asks for.
	ReasonCapacityTooSmall Reason = "CapacityTooSmall"
	// ReasonQuotaExceeded: the tenant's limit for the device's model would be passed,
	// or the Pod's turn is for other models.
	ReasonQuotaExceeded Reason = "QuotaExceeded"
	// ReasonGroupNotServed: the device would do, but the Pods of the Pod's
	// PodGroup take one tier, and this one can't serve them.
	ReasonGroupNotServed Reason = "GroupNotServed"
	// ReasonTopologyUnsatisfied: no set of devices on the node meets the
	// match or distinct constraints.
	ReasonTopologyUnsatisfied Reason = "TopologyUnsatisfied"
	// ReasonNotEnoughDevices: the node has fewer eligible devices than the tier's count.
	ReasonNotEnoughDevices Reason = "NotEnoughDevices"
	// ReasonTierNotReached: a higher tier was chosen, this one was not looked at.
	ReasonTierNotReached Reason = "TierNotReached"
	// ReasonLowerRank: eligible, but others come first in the order of choice.
	ReasonLowerRank Reason = "LowerRank"
	// ReasonSelected: chosen.
	ReasonSelected Reason = "Selected"
)

// FailureClass classifies what went wrong between decision and bind, or why no
// decision can succeed.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=64
type FailureClass string

// Retryable classes are tried again with the policy's backoff; fatal ones park
// the Pod until an event can change the answer.
const (
	FailureBindConflict          FailureClass = "BindConflict"
	FailureStaleSlice            FailureClass = "StaleSlice"
	FailureDeviceBecameUnhealthy FailureClass = "DeviceBecameUnhealthy"
	FailureNodeLost              FailureClass = "NodeLost"
	FailureAPIUnavailable        FailureClass = "APIUnavailable"

	FailureUnsatisfiable  FailureClass = "Unsatisfiable"
	FailurePolicyInvalid  FailureClass = "PolicyInvalid"
	FailureQuotaNeverFits FailureClass = "QuotaNeverFits"
	FailureClaimGone      FailureClass = "ClaimGone"
)
