package ladder

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/metrics"
	"gpuladder.dev/ladder/scheduler/outcome"
	"gpuladder.dev/ladder/scheduler/view"
)

// This file is about claims that are allocated before the Pod has a node: an
// earlier attempt, perhaps of a scheduler that is no more, wrote the allocation
// and did not get as far as binding. The engine decides about such a Pod again.
// The devices are the answer as long as they can be used; otherwise they are
// given back, so that another attempt can choose others.

// releaseAgain is when giving back devices is tried again after an error.
const releaseAgain = 10 * time.Second

// recheckAllocated returns a BindError if a device that is allocated to the Pod
// already is gone or has a taint that the claim does not tolerate.
func (p *Plugin) recheckAllocated(claims []podClaim) error {
	wanted := sets.New[view.PoolKey]()
	for _, pc := range claims {
		for _, r := range results(pc.claim) {
			wanted.Insert(view.PoolKey{Driver: r.Driver, Pool: r.Pool})
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	pools, err := p.pools(wanted)
	if err != nil {
		return err
	}
	for _, pc := range claims {
		for _, r := range results(pc.claim) {
			key := view.PoolKey{Driver: r.Driver, Pool: r.Pool}
			found, err := findDevice(pools[key], key, r.Device)
			if err != nil {
				return &BindError{v1alpha1.FailureStaleSlice, err}
			}
			if err := found.usable(r.Tolerations); err != nil {
				return err
			}
		}
	}
	return nil
}

// results are the devices that are allocated to a claim.
func results(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	return claim.Status.Allocation.Devices.Results
}

// lost tells that devices of the Pod can't be used any more and parks it;
// PostFilter, or PodGroupPostFilter, gives them back, which wakes it.
func (p *Plugin) lost(pod *corev1.Pod, err error) *fwk.Status {
	var failure *BindError
	if !errors.As(err, &failure) {
		return fwk.AsStatus(err)
	}
	metrics.BindFailures.WithLabelValues(string(failure.Class)).Inc()
	o := outcome.OfFailure(pod, failure.Class, failure.Err.Error()).With(p.core.waiting.failureText(pod.UID))
	p.core.publisher.Publish(o, p.handle.EventRecorder())
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, failure.Error())
}

// release gives back what is allocated to a Pod that can't be placed, where
// nobody else has reserved it. It says whether there was something.
func (p *Plugin) release(ctx context.Context, s *search) (bool, error) {
	released := false
	for _, pc := range s.claims {
		if !onlyFor(pc.claim, s.pod) {
			continue
		}
		claim := pc.claim.DeepCopy()
		claim.Status.ReservedFor, claim.Status.Allocation, claim.Status.Devices = nil, nil, nil
		_, err := p.handle.ClientSet().ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		if err != nil {
			return released, fmt.Errorf("giving back the devices of claim %s, %w", klog.KObj(claim), err)
		}
		released = true
		klog.FromContext(ctx).V(2).Info("Devices given back, the Pod can't be placed on them", "pod", klog.KObj(s.pod), "claim", klog.KObj(claim))
	}
	return released, nil
}

// onlyFor says whether a claim is allocated and reserved for nobody but the Pod.
func onlyFor(claim *resourceapi.ResourceClaim, pod *corev1.Pod) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.UID != pod.UID {
			return false
		}
	}
	return true
}
