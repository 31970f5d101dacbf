package ladder

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	fwk "k8s.io/kube-scheduler/framework"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/metrics"
	"gpuladder.dev/ladder/scheduler/outcome"
	"gpuladder.dev/ladder/scheduler/retry"
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

// classify gives an error of the API server, or of the embedded plugin, its
// class.
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

// unreachable says whether no answer came from the API server.
func unreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network)
}

// failed takes over a failure between decision and bind. The class decides: the
// Pod is tried again after the policy's backoff, as long as attempts and time
// are left, or it waits for a change that can help. What it returns has
// kube-scheduler put the Pod back; PreEnqueue then keeps it.
//
// Attempts are counted by the decision's idempotency key. An attempt that fails
// after the allocation was written leaves it to the next one, which finds the
// devices allocated and takes no others.
func (p *Plugin) failed(s *search, d *decide.Decision, err error) *fwk.Status {
	var failure *BindError
	if !errors.As(err, &failure) {
		return fwk.AsStatus(err)
	}
	metrics.BindFailures.WithLabelValues(string(failure.Class)).Inc()
	h := holdOf(failure.Class)
	o := outcome.OfFailure(s.pod, failure.Class, failure.Err.Error())
	if retry.Retryable(failure.Class) {
		state := p.core.waiting.failed(s.pod.UID, p.limits(d), retry.Key(d.IdempotencyKey))
		h = backoff(state)
		if state.GaveUp != "" {
			o = outcome.OfGivingUp(s.pod, failure.Class, failure.Err.Error())
			h = holdForGood(failure.Class, s.devices(), d.Node)
			metrics.GaveUp.WithLabelValues(string(state.GaveUp.Reason())).Inc()
		}
	}
	if h != nil {
		h.class, h.unchanged = failure.Class, p.unchanged(s, failure, h)
	}
	p.core.publisher.Publish(o.With(p.core.waiting.failureText(s.pod.UID)), p.handle.EventRecorder())
	p.core.waiting.park(s.pod, p.handle, noTime, h, s.seen)
	return fwk.AsStatus(err)
}

// unchanged returns whether what failed would fail again, for a hold that only
// a change ends.
func (p *Plugin) unchanged(s *search, failure *BindError, h *hold) func() bool {
	if failure.Class == v1alpha1.FailureAPIUnavailable {
		return nil // the API server is asked
	}
	// A failure that the second look finds is found again as long as it is one.
	found := s.reserved != nil && p.recheck(s) != nil
	return func() bool {
		return p.core.waiting.version() == s.seen.changes && p.sameClaims(s) && !p.gone(h) && (!found || p.recheck(s) != nil)
	}
}

// gone says whether the node or a pool that the hold names is not there, so that
// no change of it will end the hold.
func (p *Plugin) gone(h *hold) bool {
	if h.node != "" {
		if _, err := p.handle.SharedInformerFactory().Core().V1().Nodes().Lister().Get(h.node); apierrors.IsNotFound(err) {
			return true
		}
	}
	if len(h.pools) == 0 {
		return false
	}
	pools, err := p.pools(h.pools)
	return err == nil && slices.ContainsFunc(h.pools.UnsortedList(), func(key view.PoolKey) bool { return len(pools[key]) == 0 })
}

// sameClaims says whether the Pod's claims are as they were decided on, but for what
// trying the Pod has written.
func (p *Plugin) sameClaims(s *search) bool {
	for _, pc := range s.claims {
		current, err := p.dra.ResourceClaims().Get(pc.claim.Namespace, pc.claim.Name)
		if err != nil || current.UID != pc.claim.UID || !sameButTried(pc.claim, current, s) {
			return false
		}
	}
	return true
}

// sameButTried says whether two versions of a claim differ at most in the Pod's
// own reservation, and in the allocation that was reserved for it.
func sameButTried(before, after *resourceapi.ResourceClaim, s *search) bool {
	if before.Status.Allocation == nil && after.Status.Allocation != nil && s.reserved != nil &&
		!slices.ContainsFunc(results(after), func(r resourceapi.DeviceRequestAllocationResult) bool { return !s.reserved.has(r) }) {
		after = after.DeepCopy()
		after.Status.Allocation = nil
	}
	return sameButOwn(before, after, s.pod.UID)
}

// has says whether the device is among those that were reserved.
func (r *reservation) has(result resourceapi.DeviceRequestAllocationResult) bool {
	return slices.ContainsFunc(r.devices, func(d reservedDevice) bool {
		return d.pool == view.PoolKey{Driver: result.Driver, Pool: result.Pool} && d.device.Name == result.Device
	})
}

// limits are the bounds of the policy that a decision was made with.
func (p *Plugin) limits(d *decide.Decision) retry.Limits {
	if spec := p.specOf(d); spec != nil {
		return retry.LimitsOf(spec.Retry)
	}
	return retry.LimitsOf(v1alpha1.RetryPolicy{})
}

// specOf returns what a decision's policy says, or nil.
func (p *Plugin) specOf(d *decide.Decision) *v1alpha1.AcceleratorPolicySpec {
	if d.Policy == "" {
		return nil
	}
	if r := p.core.objects.Revision(d.Policy, d.PolicyRevision); r != nil {
		return &r.Spec.PolicySpec
	}
	if policy := p.core.objects.Policy(d.Policy); policy != nil {
		return &policy.Spec
	}
	return nil
}

// PreEnqueue implements fwk.PreEnqueuePlugin: a Pod whose claims are not there
// waits for them, and a held one for the end of its hold.
func (p *Plugin) PreEnqueue(ctx context.Context, pod *corev1.Pod) *fwk.Status {
	if status := p.DynamicResources.PreEnqueue(ctx, pod); !status.IsSuccess() {
		return status
	}
	if p.core.parks || !concernsLadder(pod) {
		return nil // Park asks
	}
	if why := p.core.waiting.held(pod, p.handle); why != "" {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why)
	}
	return nil
}
