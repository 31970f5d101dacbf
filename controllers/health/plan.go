package health

import (
	"context"
	"fmt"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// plan is what is to happen to a Pod that has a claim.
type plan struct {
	action v1alpha1.UnhealthyAction
	// due is when it happens.
	due time.Time
	// message is what the Pods say of it.
	message string
}

// plan says what the policy that a claim was made from wants done about its failed
// devices, of which there are some. The grace runs from the first failure. Where the
// revision is gone nothing is known of what it wanted: the Pod keeps the device, as
// its claim tolerates the taint.
func (c *Controller) plan(ctx context.Context, claim *resourcev1.ResourceClaim, name string, number int64, failed []failure) (plan, error) {
	p := plan{action: v1alpha1.UnhealthyKeep}
	revision, err := c.revision(ctx, claim, name, number)
	if err != nil {
		return p, err
	}
	what := failed[0].String()
	if more := len(failed) - 1; more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	if revision == nil {
		p.message = fmt.Sprintf("%s failed: nothing is done, since revision %d of policy %s is gone", what, number, name)
		return p, nil
	}
	unhealthy := revision.Spec.PolicySpec.OnUnhealthy
	p.action, p.due = unhealthy.Action, failed[0].since()
	when := "now"
	// The API server fills the time in; without one there is nothing to count from.
	if grace := unhealthy.GracePeriod; grace != nil && grace.Duration > 0 && !p.due.IsZero() {
		p.due = p.due.Add(grace.Duration)
		when = "at " + p.due.UTC().Format(time.RFC3339)
	}
	p.message = v1alpha1.ClipMessage(fmt.Sprintf("%s failed: %s (onUnhealthy %s of policy %s, revision %d)", what, consequence(p.action, when), p.action, name, number))
	return p, nil
}

func consequence(action v1alpha1.UnhealthyAction, when string) string {
	switch action {
	case v1alpha1.UnhealthyEvict:
		return "the Pod is deleted by taint eviction " + when
	case v1alpha1.UnhealthyRecreate:
		return "the Pod is evicted " + when + ", as disruption budgets allow"
	case v1alpha1.UnhealthyEnd:
		return "the Pod ends as failed " + when
	default:
		return "the Pod keeps it"
	}
}

// heldBack is what follows a plan's message while the eviction is refused.
const heldBack = "; held back: "

// isSaid says whether a condition's message is the plan's, held back or not.
func (p plan) isSaid(message string) bool {
	return message == p.message || strings.HasPrefix(message, p.message+heldBack)
}
