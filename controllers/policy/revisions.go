package policy

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

// history is a policy's revisions.
type history struct {
	// own are the policy's, by number.
	own []v1alpha1.PolicyRevision
	// highest is the highest number that was ever given out, as far as is
	// known. A number is never given twice, even when its revision was deleted
	// or belonged to an earlier policy of the same name: claims and records
	// name it.
	highest int64
}

func (h *history) latest() *v1alpha1.PolicyRevision {
	if len(h.own) == 0 {
		return nil
	}
	return &h.own[len(h.own)-1]
}

// endsWith says whether the newest revision has this content.
func (h *history) endsWith(hash string) bool {
	latest := h.latest()
	return latest != nil && latest.Spec.Hash == hash
}

func (h *history) find(number int64) *v1alpha1.PolicyRevision {
	for i := range h.own {
		if h.own[i].Spec.Revision == number {
			return &h.own[i]
		}
	}
	return nil
}

// usable are the revisions that Pods may be placed with, by number.
func (h *history) usable() []*v1alpha1.PolicyRevision {
	var list []*v1alpha1.PolicyRevision
	for i := range h.own {
		if isUsable(&h.own[i]) {
			list = append(list, &h.own[i])
		}
	}
	return list
}

func isUsable(r *v1alpha1.PolicyRevision) bool {
	return r.Spec.State != v1alpha1.RevisionWithdrawn && r.DeletionTimestamp.IsZero()
}

// listRevisions reads the policy's history from the cache or past it.
func (c *Controller) listRevisions(ctx context.Context, from client.Reader, policy *v1alpha1.AcceleratorPolicy) (*history, error) {
	var list v1alpha1.PolicyRevisionList
	if err := from.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing revisions, %w", err)
	}
	h := &history{highest: policy.Status.LatestRevision}
	for i := range list.Items {
		r := &list.Items[i]
		if r.Spec.Policy != policy.Name {
			continue
		}
		h.highest = max(h.highest, r.Spec.Revision)
		// One whose owner is another policy of the same name is about to be
		// collected with its templates.
		if owner := metav1.GetControllerOf(r); owner == nil || owner.UID == policy.UID {
			h.own = append(h.own, *r)
		}
	}
	slices.SortFunc(h.own, func(a, b v1alpha1.PolicyRevision) int { return cmp.Compare(a.Spec.Revision, b.Spec.Revision) })
	return h, nil
}

// ensureRevision gives the policy's content the next number, unless it is what
// the newest revision says already. So the newest revision always is what the
// spec says, also when an edit is taken back; going back to an older number is
// spec.activeRevision.
//
// The cache may not show a revision that was made a moment ago, while the
// status already counts it. So that the same content never gets two numbers,
// the history is read past the cache before one is given out.
func (c *Controller) ensureRevision(ctx context.Context, policy *v1alpha1.AcceleratorPolicy, cached *history) (*history, error) {
	hash := policy.Spec.ContentHash()
	if cached.endsWith(hash) {
		return cached, nil
	}
	h, err := c.listRevisions(ctx, c.reader, policy)
	if err != nil || h.endsWith(hash) {
		return h, err
	}
	revision, err := compile.Revision(policy, h.highest+1)
	if err != nil {
		return nil, err
	}
	if err := controllerutil.SetControllerReference(policy, revision, c.client.Scheme()); err != nil {
		return nil, wrap("owning revision", revision.Name, err)
	}
	if err := c.client.Create(ctx, revision); err != nil {
		return nil, wrap("creating revision", revision.Name, err)
	}
	h.own = append(h.own, *revision)
	h.highest = revision.Spec.Revision
	c.event(policy, corev1.EventTypeNormal, "RevisionCreated", "Revise", "revision %d was made (%s)", revision.Spec.Revision, hash)
	return h, nil
}

// adopt takes over revisions that came without an owner, from a backup say, so
// that they are collected with the policy.
func (c *Controller) adopt(ctx context.Context, policy *v1alpha1.AcceleratorPolicy, h *history) error {
	for i := range h.own {
		if metav1.GetControllerOf(&h.own[i]) != nil {
			continue
		}
		adopted := h.own[i].DeepCopy()
		if err := controllerutil.SetControllerReference(policy, adopted, c.client.Scheme()); err != nil {
			return wrap("owning revision", adopted.Name, err)
		}
		if err := c.client.Update(ctx, adopted); err != nil {
			return wrap("adopting revision", adopted.Name, err)
		}
		h.own[i] = *adopted
	}
	return nil
}

func (c *Controller) event(about client.Object, kind, reason, action, note string, args ...any) {
	c.recorder.Eventf(about, nil, kind, reason, action, note, args...)
}
