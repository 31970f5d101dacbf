package quota

// The status of TenantQuotas: written when it has changed, and not too often.

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	// statusEvery is the least time between two looks at the status of a quota.
	statusEvery = 3 * time.Second
	// statusAnyway is when it is looked at although nothing changed: what a Pod
	// waits for changes with the time, too.
	statusAnyway = 30 * time.Second
)

// written is when a quota's status was looked at last, and whether something
// has happened since.
type written struct {
	at    time.Time
	stale bool
}

// writeStatus brings the status of each quota up to date where it is time, and
// returns when it will be time again.
func (c *Controller) writeStatus(ctx context.Context, now time.Time, changed bool) time.Time {
	next := now.Add(statusAnyway)
	seen := map[string]bool{}
	for _, q := range c.mirror.Quotas() {
		seen[q.Name] = true
		w := c.status[q.Name]
		if w == nil {
			w = &written{at: now.Add(-statusAnyway)}
			c.status[q.Name] = w
		}
		w.stale = w.stale || changed
		due := w.at.Add(statusAnyway)
		if w.stale {
			due = w.at.Add(statusEvery)
		}
		if now.Before(due) {
			if due.Before(next) {
				next = due
			}
			continue
		}
		w.at, w.stale = now, false
		if err := c.writeOne(ctx, now, q); err != nil && ctx.Err() == nil {
			w.stale = true
			log.FromContext(ctx).Info("Status not written, tried again", "quota", q.Name, "err", err.Error())
			next = now.Add(statusEvery)
		}
	}
	for name := range c.status {
		if !seen[name] {
			delete(c.status, name)
			forget(name)
		}
	}
	return next
}

// writeOne writes the status of a quota if it has changed.
func (c *Controller) writeOne(ctx context.Context, now time.Time, q *v1alpha1.TenantQuota) error {
	status := c.mirror.Status(q)
	measure(q.Name, &status, now)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stored := &v1alpha1.TenantQuota{}
	if err := c.client.Get(ctx, types.NamespacedName{Name: q.Name}, stored); err != nil {
		return client.IgnoreNotFound(err)
	}
	wanted := stored.DeepCopy()
	conditions := wanted.Status.Conditions
	for _, condition := range status.Conditions {
		condition.LastTransitionTime = metav1.NewTime(now)
		meta.SetStatusCondition(&conditions, condition)
	}
	wanted.Status = status
	wanted.Status.Conditions = conditions
	if apiequality.Semantic.DeepEqual(stored.Status, wanted.Status) {
		return nil
	}
	if err := c.client.Status().Patch(ctx, wanted.DeepCopy(), client.MergeFrom(stored)); err != nil {
		return client.IgnoreNotFound(err)
	}
	was := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.ConditionReady)
	is := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if is != nil && is.Status == metav1.ConditionFalse && (was == nil || was.Reason != is.Reason || was.Message != is.Message) {
		c.recorder.Eventf(stored, nil, corev1.EventTypeWarning, is.Reason, "Count", "%s", is.Message)
	}
	return nil
}
