package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file fills in what the CRDs' schemas fill in, so that an object read
// from a file means the same as one that went through an API server. The two
// are compared in e2e/integration/api.

// Defaults of the fields that users leave out most often.
const (
	// DefaultCount is the number of devices per Pod.
	DefaultCount int32 = 1
	// DefaultLegacyResource is the extended resource that a migration moves.
	DefaultLegacyResource = "nvidia.com/gpu"
)

const (
	defaultMaxAttempts    int32 = 5
	defaultInitialBackoff       = time.Second
	defaultMaxBackoff           = 30 * time.Second
	defaultDeadline             = time.Hour
	defaultWeight         int32 = 1
	defaultMinSample      int32 = 20
)

// Default fills in the fields that were left out, as the API server does.
func (p *AcceleratorPolicy) Default() { p.Spec.Default() }

// Default fills in the fields that were left out, as the API server does.
func (s *AcceleratorPolicySpec) Default() {
	setDefault(&s.Driver, DriverName)
	setDefaultPtr(&s.Count, DefaultCount)
	setDefault(&s.Ranking, RankingPacked)
	setDefault(&s.MixModels, MixModelsNever)
	setDefault(&s.Preempts, PreemptsNever)
	s.Sharing.Default()
	s.Retry.Default()
	s.OnUnhealthy.Default()
}

// Default fills in the fields that were left out, as the API server does. What
// is left out as a whole stays so.
func (s *Sharing) Default() {
	if s == nil {
		return
	}
	setDefault(&s.Strategy, SharingExclusive)
	if s.TimeSlicing != nil {
		setDefault(&s.TimeSlicing.Interval, IntervalDefault)
	}
}

// Default fills in the fields that were left out. No API server does it: the
// object is a parameter of a claim, and is read by the driver only.
func (c *GPUConfig) Default() { c.Sharing.Default() }

// Default fills in the fields that were left out, as the API server does.
func (r *RetryPolicy) Default() {
	setDefaultPtr(&r.MaxAttempts, defaultMaxAttempts)
	setDefaultPtr(&r.InitialBackoff, metav1.Duration{Duration: defaultInitialBackoff})
	setDefaultPtr(&r.MaxBackoff, metav1.Duration{Duration: defaultMaxBackoff})
	setDefaultPtr(&r.Deadline, metav1.Duration{Duration: defaultDeadline})
}

// Default fills in the fields that were left out, as the API server does.
func (o *OnUnhealthy) Default() { setDefault(&o.Action, UnhealthyEvict) }

// Default fills in the fields that were left out, as the API server does.
func (r *PolicyRevision) Default() {
	r.Spec.PolicySpec.Default()
	setDefault(&r.Spec.State, RevisionUsable)
}

// Default fills in the fields that were left out, as the API server does.
func (q *TenantQuota) Default() { setDefaultPtr(&q.Spec.Weight, defaultWeight) }

// Default fills in the fields that were left out, as the API server does.
// Nothing in a record has a default.
func (d *AllocationDecision) Default() {}

// Default fills in the fields that were left out, as the API server does.
func (m *DeviceMigration) Default() {
	setDefault(&m.Spec.Target, TargetDevicePlugin)
	setDefault(&m.Spec.LegacyResource, DefaultLegacyResource)
	setDefault(&m.Spec.OnGateFailure, GateRollback)
	setDefault(&m.Spec.BoundPods, BoundPodsWait)
	setDefaultPtr(&m.Spec.Gates.MinSample, defaultMinSample)
}

// CountOf is the number of devices that a Pod gets from tier t: the tier's own
// count, else the policy's.
func (s *AcceleratorPolicySpec) CountOf(t *Tier) int32 {
	switch {
	case t.Count != nil:
		return *t.Count
	case s.Count != nil:
		return *s.Count
	default:
		return DefaultCount
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setDefaultPtr[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
