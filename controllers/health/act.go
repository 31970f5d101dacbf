package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/controllers/allocated"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Reasons of the Pod's condition gpuladder.dev/Accelerator, and of Events.
const (
	// ReasonDeviceFailed: a device of the Pod has failed.
	ReasonDeviceFailed = "DeviceFailed"
	// ReasonEvictionHeldBack: a disruption budget does not let the Pod go yet.
	ReasonEvictionHeldBack = "EvictionHeldBack"
	// reasonAllocated is the scheduler's, and comes back with the device.
	reasonAllocated = "Allocated"
)

// An eviction that is held back is asked for again, and a device that is in no
// slice looked for, after one second, doubled each time up to a minute.
const (
	firstWait   = time.Second
	longestWait = time.Minute
)

// carryOut does what a plan says to a bound Pod: it tells first, and acts when
// the time has come. It returns when to go on.
func (c *Controller) carryOut(ctx context.Context, pod *corev1.Pod, p plan) (time.Duration, error) {
	if existing := v1alpha1.AcceleratorCondition(pod); existing == nil || existing.Reason != ReasonDeviceFailed || !p.isSaid(existing.Message) {
		if err := c.tell(ctx, pod, corev1.ConditionFalse, ReasonDeviceFailed, p.message); err != nil {
			return 0, err
		}
		told.WithLabelValues(string(p.action)).Inc()
		c.recorder.Eventf(pod, nil, corev1.EventTypeWarning, ReasonDeviceFailed, string(p.action), "%s", p.message)
	}
	if p.action != v1alpha1.UnhealthyRecreate && p.action != v1alpha1.UnhealthyEnd {
		return 0, nil
	}
	if wait := p.due.Sub(c.clock.Now()); wait > 0 {
		return wait, nil
	}
	if p.action == v1alpha1.UnhealthyRecreate {
		return c.evict(ctx, pod, p)
	}
	return 0, c.end(ctx, pod, p)
}

// evict asks the Eviction API to delete the Pod.
func (c *Controller) evict(ctx context.Context, pod *corev1.Pod, p plan) (time.Duration, error) {
	err := c.client.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	})
	words, refused := refusal(err)
	switch {
	case err == nil:
		actions.WithLabelValues(string(v1alpha1.UnhealthyRecreate), resultDone).Inc()
		c.forgetPod(pod.UID)
		return 0, nil
	case apierrors.IsNotFound(err):
		c.forgetPod(pod.UID)
		return 0, nil
	case apierrors.IsConflict(err):
		return c.wait(pod.UID), nil // replaced by another of its name, or the budget was changing
	case !refused:
		actions.WithLabelValues(string(v1alpha1.UnhealthyRecreate), resultFailed).Inc()
		return 0, fmt.Errorf("evicting pod %s/%s, %w", pod.Namespace, pod.Name, err)
	}
	actions.WithLabelValues(string(v1alpha1.UnhealthyRecreate), resultHeldBack).Inc()
	// Said once: the words of a budget hold numbers that come and go.
	if existing := v1alpha1.AcceleratorCondition(pod); existing == nil || !strings.HasPrefix(existing.Message, p.message+heldBack) {
		message := v1alpha1.ClipMessage(p.message + heldBack + words)
		if err := c.tell(ctx, pod, corev1.ConditionFalse, ReasonDeviceFailed, message); err != nil {
			return 0, err
		}
		c.recorder.Eventf(pod, nil, corev1.EventTypeWarning, ReasonEvictionHeldBack, string(p.action), "%s", message)
	}
	return c.wait(pod.UID), nil
}

// refusal tells an eviction that a disruption budget refuses, and why, from
// other errors. Two budgets for one Pod are an internal error to the API.
func refusal(err error) (words string, refused bool) {
	var status apierrors.APIStatus
	switch {
	case err == nil || !errors.As(err, &status):
		return "", false
	case apierrors.IsTooManyRequests(err) && apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		for _, cause := range status.Status().Details.Causes {
			if cause.Type == policyv1.DisruptionBudgetCause && cause.Message != "" {
				return cause.Message, true
			}
		}
		return status.Status().Message, true
	case apierrors.IsInternalError(err) && strings.Contains(err.Error(), "more than one PodDisruptionBudget"):
		return status.Status().Message, true
	}
	return "", false
}

// wait is how long until a Pod is looked at again.
func (c *Controller) wait(pod types.UID) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.waits[pod]
	c.waits[pod]++
	if before > 6 { // more doublings than up to the longest wait
		return longestWait
	}
	return min(firstWait<<before, longestWait)
}

// end has the kubelet end the Pod as failed, by a deadline that has passed. A
// phase that another than the kubelet writes would say that the containers have
// ended while they run, and give the Pod's healthy devices away under them; the
// kubelet says so only when they have. The condition DisruptionTarget lets a
// Job's podFailurePolicy tell this from a fault of the program.
func (c *Controller) end(ctx context.Context, pod *corev1.Pod, p plan) error {
	seconds := int64(1)
	if pod.Status.StartTime != nil {
		seconds = max(1, int64(math.Ceil(c.clock.Since(pod.Status.StartTime.Time).Seconds())))
	}
	if set := pod.Spec.ActiveDeadlineSeconds; set != nil && *set <= seconds {
		return nil // it ends, or has its own end before
	}
	target := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: ReasonDeviceFailed, Message: p.message,
		LastTransitionTime: metav1.NewTime(c.clock.Now()),
	}
	if err := c.patchStatus(ctx, pod, target); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"spec":     map[string]any{"activeDeadlineSeconds": seconds},
	})
	if err != nil {
		return fmt.Errorf("encoding a deadline, %w", err)
	}
	err = c.client.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or replaced by another of its name
	}
	if err != nil {
		actions.WithLabelValues(string(v1alpha1.UnhealthyEnd), resultFailed).Inc()
		return fmt.Errorf("setting a deadline for pod %s/%s, %w", pod.Namespace, pod.Name, err)
	}
	actions.WithLabelValues(string(v1alpha1.UnhealthyEnd), resultDone).Inc()
	return nil
}

// tellRecovery takes back what was told of a device that is well again. A device
// that is in no slice may be as it was: what was told stays, and it is looked
// for again after the time that is returned.
func (c *Controller) tellRecovery(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	if existing := v1alpha1.AcceleratorCondition(pod); existing == nil || existing.Reason != ReasonDeviceFailed {
		return 0, nil
	}
	claims, err := allocated.Claims(ctx, c.client, pod)
	if err != nil {
		return 0, err
	}
	missing := false
	for _, claim := range claims { // another claim of the Pod may have failed as well
		state, err := c.state(ctx, claim.ResourceClaim)
		if err != nil || len(state.failed) > 0 {
			return 0, err
		}
		missing = missing || state.missing
	}
	if missing {
		return c.wait(pod.UID), nil
	}
	spec := allocated.Of(pod, claims, nil)
	message := allocated.Summary(pod, &spec)
	if err := c.tell(ctx, pod, corev1.ConditionTrue, reasonAllocated, message); err != nil {
		return 0, err
	}
	c.forgetPod(pod.UID)
	c.recorder.Eventf(pod, nil, corev1.EventTypeNormal, "DeviceRecovered", "Recover", "%s", message)
	return 0, nil
}

// tell sets the condition gpuladder.dev/Accelerator.
func (c *Controller) tell(ctx context.Context, pod *corev1.Pod, status corev1.ConditionStatus, reason, message string) error {
	condition := corev1.PodCondition{
		Type: v1alpha1.ConditionAccelerator, Status: status, Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(c.clock.Now()),
	}
	if existing := v1alpha1.AcceleratorCondition(pod); existing != nil && existing.Status == status {
		condition.LastTransitionTime = existing.LastTransitionTime
	}
	return c.patchStatus(ctx, pod, condition)
}

// patchStatus writes conditions. The UID keeps it off a Pod of the same name
// that was created later.
func (c *Controller) patchStatus(ctx context.Context, pod *corev1.Pod, conditions ...corev1.PodCondition) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"conditions": conditions},
	})
	if err != nil {
		return fmt.Errorf("encoding conditions, %w", err)
	}
	if err := c.client.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		return fmt.Errorf("writing the condition of pod %s/%s, %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
