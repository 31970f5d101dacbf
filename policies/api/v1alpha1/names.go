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

// AnnotationExtendedResourcePolicy names, on a Pod, the policy whose tiers an
// extended resource follows that DRA serves: "h100-first", or
// "nvidia.com/gpu=h100-first" where the Pod asks for several.
const AnnotationExtendedResourcePolicy = "gpuladder.dev/extended-resource-policy"

// RequestName is the request of the claim that a policy's template makes; the
// tiers are its alternatives, under their own names.
const RequestName = "accelerator"

// ExtendedRef stands, in records, for the name of the claim that kube-scheduler's
// plugin made for a Pod's extended resources: the Pod does not refer to it, and no
// claim that it refers to can have the name.
const ExtendedRef = "<extended-resources>"

// ClaimRefName is the name under which a Pod's spec.resourceClaims refers to
// the claim of its policy.
const ClaimRefName = "accelerator"

// GateQuota is the scheduling gate that holds a tenant's Pod until its turn.
const GateQuota = "gpuladder.dev/quota"

// LabelPreemptible with the value "false" keeps a Pod's devices from being
// taken back. It then borrows only what is guaranteed to nobody.
const LabelPreemptible = "gpuladder.dev/preemptible"

// Annotations of a Pod whose borrowed devices will be taken back, or that came in
// place of one.
const (
	// AnnotationReclaimDeadline is when the Pod will be evicted, in RFC 3339.
	AnnotationReclaimDeadline = "gpuladder.dev/reclaim-deadline"
	// AnnotationReclaimFor is the UID of the Pod that waits for the devices.
	AnnotationReclaimFor = "gpuladder.dev/reclaim-for"
	// AnnotationReclaims is how often devices were taken back of the work that
	// the Pod goes on with, and AnnotationReclaimed when that was last, in RFC 3339.
	AnnotationReclaims  = "gpuladder.dev/reclaims"
	AnnotationReclaimed = "gpuladder.dev/reclaimed"
)

// AnnotationTurn is written on the Pods of a gang when their gates are opened: how
// many Pods of each kind the turn was for, in JSON.
const AnnotationTurn = "gpuladder.dev/turn"

// AnnotationTurnModels is written on a Pod when its gate is opened, where its turn
// is not for any model that its policy takes: the models that it may use, joined
// by commas and sorted. Whoever places the Pod gives it devices of these only, since
// others that are free are set aside for someone else.
const AnnotationTurnModels = "gpuladder.dev/turn-models"

// ConditionAccelerator is the condition type on a Pod that says what it got,
// or why not.
const ConditionAccelerator = "gpuladder.dev/Accelerator"

// Annotations of the Binding, merged into the Pod when it is bound.
const (
	AnnotationRevision = "gpuladder.dev/revision"
	AnnotationTier     = "gpuladder.dev/tier"
	AnnotationModel    = "gpuladder.dev/model"
	AnnotationDigest   = "gpuladder.dev/digest"
	// AnnotationRecord names the AllocationDecision that says why.
	AnnotationRecord = "gpuladder.dev/record"
)

// AnnotationRebuilt stands on an AllocationDecision that was not written by the
// scheduler but put together from what the Pod and its claims say. Its value is
// the name of the record that is missing.
const AnnotationRebuilt = "gpuladder.dev/rebuilt"

// Device taints of Ladder's driver.
const (
	// TaintUnhealthy (NoSchedule) is suspicion; no claim ever tolerates it.
	TaintUnhealthy = "gpu.gpuladder.dev/unhealthy"
	// TaintFailed (NoExecute) is confirmed failure; the only taint that a
	// claim made from a policy may tolerate.
	TaintFailed = "gpu.gpuladder.dev/failed"
)
