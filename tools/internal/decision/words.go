package decision

import "gpuladder.dev/ladder/policies/api/v1alpha1"

// words say each reason to a person; the codes are the contract.
var words = map[v1alpha1.Reason]string{
	v1alpha1.ReasonPoolIncomplete:          "the pool is not published whole",
	v1alpha1.ReasonNodeMismatch:            "no existing node reaches it",
	v1alpha1.ReasonNodeUnsuitable:          "the Pod can't run on the node",
	v1alpha1.ReasonModelMismatch:           "another model",
	v1alpha1.ReasonSelectorNotMatched:      "a selector says no",
	v1alpha1.ReasonSelectorError:           "a selector failed on it",
	v1alpha1.ReasonTierNotYetAllowed:       "the Pod has not waited long enough for this tier",
	v1alpha1.ReasonInUse:                   "in use",
	v1alpha1.ReasonReserved:                "held by a decision under way",
	v1alpha1.ReasonCountersExhausted:       "other partitions of the card use it up",
	v1alpha1.ReasonDeviceTainted:           "tainted",
	v1alpha1.ReasonDeviceUnhealthy:         "reported unhealthy",
	v1alpha1.ReasonMemoryTooSmall:          "too little memory",
	v1alpha1.ReasonComputeCapabilityTooLow: "compute capability too low",
	v1alpha1.ReasonDriverTooOld:            "driver too old",
	v1alpha1.ReasonArchitectureExcluded:    "another architecture",
	v1alpha1.ReasonIsolationUnsatisfied:    "may be shared",
	v1alpha1.ReasonCapacityTooSmall:        "too little of what the claim asks for",
	v1alpha1.ReasonQuotaExceeded:           "over the tenant's quota",
	v1alpha1.ReasonGroupNotServed:          "the tier can't serve all Pods of the group",
	v1alpha1.ReasonTopologyUnsatisfied:     "no set of devices here fits together",
	v1alpha1.ReasonNotEnoughDevices:        "too few eligible devices on the node",
	v1alpha1.ReasonTierNotReached:          "a higher tier was chosen",
	v1alpha1.ReasonLowerRank:               "eligible, but others come first",
	v1alpha1.ReasonSelected:                "chosen",
}

// tierWords say what became of a tier.
var tierWords = map[v1alpha1.TierOutcome]string{
	v1alpha1.TierSelected:   "selected",
	v1alpha1.TierRejected:   "rejected",
	v1alpha1.TierNotReached: "not reached",
}
