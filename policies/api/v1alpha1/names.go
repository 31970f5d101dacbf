package v1alpha1

// DriverName is the DRA driver of Ladder, real and fake alike.
const DriverName = "gpu.gpuladder.dev"

// NVIDIADriverName is NVIDIA's DRA driver, whose attributes a policy may mean instead.
const NVIDIADriverName = "gpu.nvidia.com"

// SchedulerName is the scheduler that a Pod with a policy is given.
const SchedulerName = "ladder-scheduler"

// Labels that a Pod carries to ask for accelerators.
const (
	// LabelPolicy names the AcceleratorPolicy.
	LabelPolicy = "gpuladder.dev/policy"
	// LabelPolicyRevision pins one revision of the policy, as a decimal number.
	LabelPolicyRevision = "gpuladder.dev/policy-revision"
)

// RequestName is the request of the claim that a policy's template makes; the
// tiers are its alternatives, under their own names.
const RequestName = "accelerator"

// ClaimRefName is the name under which a Pod's spec.resourceClaims refers to
// the claim of its policy.
const ClaimRefName = "accelerator"

// GateQuota is the scheduling gate that holds a tenant's Pod until its turn.
const GateQuota = "gpuladder.dev/quota"

// ConditionAccelerator is the condition type on a Pod that says what it got,
// or why not.
const ConditionAccelerator = "gpuladder.dev/Accelerator"

// Annotations of the Binding, merged into the Pod when it is bound.
const (
	AnnotationRevision = "gpuladder.dev/revision"
	AnnotationTier     = "gpuladder.dev/tier"
	AnnotationModel    = "gpuladder.dev/model"
	AnnotationDigest   = "gpuladder.dev/digest"
)

// Device taints of Ladder's driver.
const (
	// TaintUnhealthy (NoSchedule) is suspicion; no claim ever tolerates it.
	TaintUnhealthy = "gpu.gpuladder.dev/unhealthy"
	// TaintFailed (NoExecute) is confirmed failure; the only taint that a
	// claim made from a policy may tolerate.
	TaintFailed = "gpu.gpuladder.dev/failed"
)
