package policy

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// ConditionReady says whether new Pods are served, and if not, why.
const ConditionReady = "Ready"

// Reasons of the condition Ready.
const (
	// reasonActive: new Pods get the active revision.
	reasonActive = "RevisionActive"
	// reasonInvalid: the spec can't be compiled. New Pods get the revision
	// that was made before, if there is one.
	reasonInvalid = "Invalid"
	// reasonNotFound: spec.activeRevision names a revision that is not there.
	reasonNotFound = "RevisionNotFound"
	// reasonWithdrawn: the revision that should be active is withdrawn.
	reasonWithdrawn = "RevisionWithdrawn"
	// reasonTemplateRefused: a template could not be written.
	reasonTemplateRefused = "TemplateRefused"
)

const (
	maxMessage         = 1024 // of a condition: enough for a person, not the API's limit of 32 Ki
	maxUsableRevisions = 1024 // the schema's limit
)

// choose fills in the status: which revision is active, which are usable, and
// whether the policy is ready. There is no quiet fallback: an activeRevision
// that is not there or withdrawn leaves the policy without an active revision,
// and new Pods are refused in words, rather than given one that nobody chose.
// Only a spec that is invalid leaves its last good revision active, since a
// typo must not stop workloads.
func choose(policy *v1alpha1.AcceleratorPolicy, h *history, invalid error, now time.Time) {
	status := &policy.Status
	status.ObservedGeneration = policy.Generation
	status.LatestRevision = h.highest
	status.UsableRevisions = nil
	for _, r := range h.usable() {
		status.UsableRevisions = append(status.UsableRevisions, r.Spec.Revision)
	}
	if extra := len(status.UsableRevisions) - maxUsableRevisions; extra > 0 {
		status.UsableRevisions = status.UsableRevisions[extra:]
	}

	wanted := h.latest()
	if n := policy.Spec.ActiveRevision; n != nil {
		wanted = h.find(*n)
	}
	status.ActiveRevision, status.TemplateName = 0, ""
	if wanted != nil && isUsable(wanted) {
		status.ActiveRevision = wanted.Spec.Revision
		status.TemplateName = wanted.Name
	}
	switch {
	case invalid != nil:
		setReady(policy, now, false, reasonInvalid, invalid.Error())
	case wanted == nil && policy.Spec.ActiveRevision != nil:
		setReady(policy, now, false, reasonNotFound, fmt.Sprintf("spec.activeRevision: there is no revision %d", *policy.Spec.ActiveRevision))
	case !isUsable(wanted):
		setReady(policy, now, false, reasonWithdrawn, fmt.Sprintf(
			"revision %d is withdrawn; name another one in spec.activeRevision or change the spec", wanted.Spec.Revision))
	default:
		setReady(policy, now, true, reasonActive, fmt.Sprintf("new Pods get revision %d", wanted.Spec.Revision))
	}
}

func setReady(policy *v1alpha1.AcceleratorPolicy, now time.Time, ready bool, reason, message string) {
	condition := metav1.Condition{
		Type: ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: oneLine(message),
		ObservedGeneration: policy.Generation, LastTransitionTime: metav1.NewTime(now),
	}
	if ready {
		condition.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&policy.Status.Conditions, condition)
}

// oneLine makes a message of several errors fit for a condition, and for the
// refusal of a Pod that repeats it: one line, not too long.
func oneLine(message string) string {
	message = strings.ReplaceAll(message, "\n", "; ")
	if len(message) > maxMessage {
		return strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	return message
}

// writeStatus writes the status if it changed, and tells of a change of the
// active revision or of readiness. stored is the policy as it was read.
func (c *Controller) writeStatus(ctx context.Context, stored, policy *v1alpha1.AcceleratorPolicy) error {
	was := meta.FindStatusCondition(stored.Status.Conditions, ConditionReady)
	is := meta.FindStatusCondition(policy.Status.Conditions, ConditionReady)
	if was != nil && was.Status == is.Status {
		is.LastTransitionTime = was.LastTransitionTime // it was another one only in between
	}
	if apiequality.Semantic.DeepEqual(stored.Status, policy.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
	if err := c.client.Status().Patch(ctx, policy.DeepCopy(), patch); err != nil {
		return wrap("writing the status of policy", policy.Name, client.IgnoreNotFound(err))
	}
	before, after := stored.Status.ActiveRevision, policy.Status.ActiveRevision
	if after != before && after != 0 {
		c.event(policy, corev1.EventTypeNormal, "RevisionActivated", "Activate", "new Pods get revision %d", after)
	}
	if is.Status == metav1.ConditionFalse && (was == nil || was.Reason != is.Reason || was.Message != is.Message) {
		c.event(policy, corev1.EventTypeWarning, is.Reason, "Reconcile", "%s", is.Message)
	}
	return nil
}
