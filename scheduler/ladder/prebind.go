package ladder

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/metrics"
	"gpuladder.dev/ladder/scheduler/outcome"
	"gpuladder.dev/ladder/scheduler/view"
)

// BindError is a failure between decision and bind, with its class.
type BindError struct {
	Class v1alpha1.FailureClass
	Err   error
}

// Error implements error.
func (e *BindError) Error() string { return fmt.Sprintf("%s: %v", e.Class, e.Err) }

// Unwrap returns the cause.
func (e *BindError) Unwrap() error { return e.Err }

// reservedDevice is a device as it was decided on.
type reservedDevice struct {
	pool   view.PoolKey
	slice  *resourceapi.ResourceSlice
	device resourceapi.Device
}

// quotaVersion identifies the quota that a decision was held against; empty for
// none.
type quotaVersion struct {
	uid        types.UID
	generation int64
}

func versionOf(q *v1alpha1.TenantQuota) quotaVersion {
	if q == nil {
		return quotaVersion{}
	}
	return quotaVersion{uid: q.UID, generation: q.Generation}
}

// PreBindPreFlight implements fwk.PreBindPlugin. What other plugins prepare can
// take minutes (a volume is made); the check in PreBind is to be as late as can
// be, so it comes after them and not beside them.
func (p *Plugin) PreBindPreFlight(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	result, status := p.DynamicResources.PreBindPreFlight(ctx, state, pod, nodeName)
	if s := searchOf(state); result != nil && s != nil && s.reserved != nil {
		result.AllowParallel = false
	}
	return result, status
}

// PreBind implements fwk.PreBindPlugin. It looks at everything the decision
// rested on once more, before the embedded plugin writes the allocation: once
// written it would stay.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	s := searchOf(state)
	if s == nil || s.reserved == nil {
		return p.DynamicResources.PreBind(ctx, state, pod, nodeName)
	}
	if err := p.recheck(s); err != nil {
		return p.bindFailed(s, err)
	}
	if status := p.DynamicResources.PreBind(ctx, state, pod, nodeName); !status.IsSuccess() {
		return p.bindFailed(s, classify(status.AsError()))
	}
	return nil
}

// recheck returns a BindError if the decision no longer holds.
func (p *Plugin) recheck(s *search) error {
	r := s.reserved
	node, err := p.handle.SharedInformerFactory().Core().V1().Nodes().Lister().Get(r.node.Name)
	if err != nil || node.UID != r.node.UID {
		return &BindError{v1alpha1.FailureNodeLost, fmt.Errorf("node %s is gone", r.node.Name)}
	}
	if err := p.recheckRevision(r); err != nil {
		return err
	}
	if versionOf(p.core.objects.Quota(s.pod.Namespace)) != r.quota {
		return &BindError{v1alpha1.FailureBindConflict, errors.New("the tenant's quota changed after the decision")}
	}
	wanted := map[view.PoolKey]bool{}
	for _, d := range r.devices {
		wanted[d.pool] = true
	}
	pools, err := p.pools(wanted)
	if err != nil {
		return err
	}
	tolerations := p.tolerations(s)
	for _, d := range r.devices {
		if err := recheckDevice(d, pools[d.pool], tolerations[d.key()]); err != nil {
			return err
		}
	}
	return nil
}

// pools returns the slices of some pools as they are now, with the taints of
// rules.
func (p *Plugin) pools(wanted map[view.PoolKey]bool) (map[view.PoolKey][]*resourceapi.ResourceSlice, error) {
	current, err := p.dra.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, &BindError{v1alpha1.FailureAPIUnavailable, fmt.Errorf("listing resource slices, %w", err)}
	}
	pools := map[view.PoolKey][]*resourceapi.ResourceSlice{}
	for _, slice := range current {
		if key := (view.PoolKey{Driver: slice.Spec.Driver, Pool: slice.Spec.Pool.Name}); wanted[key] {
			pools[key] = append(pools[key], slice)
		}
	}
	return pools, nil
}

// recheckRevision checks that the policy revision is neither gone nor
// withdrawn. A policy without revisions is revision 1 of itself.
func (p *Plugin) recheckRevision(r *reservation) error {
	d := r.decision
	if d.Policy == "" {
		return nil
	}
	revision := p.core.objects.Revision(d.Policy, d.PolicyRevision)
	switch {
	case revision == nil && p.core.objects.Policy(d.Policy) == nil:
		return &BindError{v1alpha1.FailurePolicyInvalid, fmt.Errorf("policy %s is gone", d.Policy)}
	case revision != nil && revision.Spec.State == v1alpha1.RevisionWithdrawn:
		return &BindError{v1alpha1.FailurePolicyInvalid, fmt.Errorf("revision %d of policy %s was withdrawn", d.PolicyRevision, d.Policy)}
	case revision == nil && d.PolicyRevision > 1:
		return &BindError{v1alpha1.FailurePolicyInvalid, fmt.Errorf("revision %d of policy %s is gone", d.PolicyRevision, d.Policy)}
	}
	return nil
}

// recheckDevice checks that a device is there, with the data that it was chosen
// for, and without a new taint that the claim does not tolerate.
func recheckDevice(d reservedDevice, pool []*resourceapi.ResourceSlice, tolerations []resourceapi.DeviceToleration) error {
	for _, slice := range pool {
		if slice == d.slice {
			return nil
		}
	}
	current, err := findDevice(pool, d.pool, d.device.Name)
	if err != nil {
		return &BindError{v1alpha1.FailureStaleSlice, err}
	}
	if err := current.usable(tolerations); err != nil {
		return err
	}
	before, after := d.device, current.device
	before.Taints, after.Taints = nil, nil
	if !apiequality.Semantic.DeepEqual(before, after) {
		return &BindError{v1alpha1.FailureStaleSlice, fmt.Errorf("the data of device %s changed after the decision", d.key())}
	}
	return nil
}

// usable returns a BindError if the device has a taint that is not tolerated.
func (d reservedDevice) usable(tolerations []resourceapi.DeviceToleration) error {
	for _, taint := range d.device.Taints {
		if taint.Effect == resourceapi.DeviceTaintEffectNone || tolerated(taint, tolerations) {
			continue
		}
		return &BindError{v1alpha1.FailureDeviceBecameUnhealthy, fmt.Errorf("device %s has the taint %s:%s", d.key(), taint.Key, taint.Effect)}
	}
	return nil
}

func tolerated(taint resourceapi.DeviceTaint, tolerations []resourceapi.DeviceToleration) bool {
	for _, t := range tolerations {
		if resourceclaim.ToleratesTaint(t, taint) {
			return true
		}
	}
	return false
}

// tolerations returns what each device's claim tolerates, by device.
func (p *Plugin) tolerations(s *search) map[string][]resourceapi.DeviceToleration {
	result := map[string][]resourceapi.DeviceToleration{}
	for _, pc := range s.claims {
		allocation := pc.claim.Status.Allocation
		if allocation == nil {
			allocation = p.dra.ResourceClaims().GetPendingAllocation(pc.claim.UID)
		}
		if allocation == nil {
			continue
		}
		for _, r := range allocation.Devices.Results {
			result[r.Driver+"/"+r.Pool+"/"+r.Device] = r.Tolerations
		}
	}
	return result
}

func (d reservedDevice) key() string { return d.pool.Driver + "/" + d.pool.Pool + "/" + d.device.Name }

// findDevice returns a device of a pool's newest generation.
func findDevice(pool []*resourceapi.ResourceSlice, key view.PoolKey, name string) (reservedDevice, error) {
	found := reservedDevice{pool: key}
	newest := int64(-1)
	for _, slice := range pool {
		newest = max(newest, slice.Spec.Pool.Generation)
	}
	for _, slice := range pool {
		if slice.Spec.Pool.Generation != newest {
			continue
		}
		for i := range slice.Spec.Devices {
			if slice.Spec.Devices[i].Name == name {
				found.slice, found.device = slice, slice.Spec.Devices[i]
				return found, nil
			}
		}
	}
	return found, fmt.Errorf("device %s/%s/%s is gone", key.Driver, key.Pool, name)
}

// classify gives an error of the embedded plugin's PreBind its class.
func classify(err error) error {
	class := v1alpha1.FailureBindConflict
	switch {
	case apierrors.IsNotFound(err):
		class = v1alpha1.FailureClaimGone
	case apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err), errors.Is(err, context.DeadlineExceeded):
		class = v1alpha1.FailureAPIUnavailable
	case apierrors.ReasonForError(err) == "":
		if unreachable(err) {
			class = v1alpha1.FailureAPIUnavailable
		}
	}
	return &BindError{class, err}
}

// bindFailed tells about a failure and returns the status that has the attempt
// repeated with backoff.
func (p *Plugin) bindFailed(s *search, err error) *fwk.Status {
	var failure *BindError
	if errors.As(err, &failure) {
		metrics.BindFailures.WithLabelValues(string(failure.Class)).Inc()
		p.core.publisher.Publish(outcome.OfFailure(s.pod, failure.Class, failure.Err.Error()), p.handle.EventRecorder())
	}
	return fwk.AsStatus(err)
}
