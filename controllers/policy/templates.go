package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

// ensureTemplates keeps the templates of every usable revision in every
// selected namespace, since a Pod may pin any of them, and removes the others.
// It goes on after an error, so that one namespace can't hold up the rest.
// waiting says that a template could not be removed or replaced yet.
func (c *Controller) ensureTemplates(ctx context.Context, policy *v1alpha1.AcceleratorPolicy, h *history) (waiting bool, err error) {
	namespaces, err := c.selectedNamespaces(ctx, policy)
	if err != nil {
		return false, err
	}
	var existing resourcev1.ResourceClaimTemplateList
	if err := c.client.List(ctx, &existing, client.MatchingLabels{v1alpha1.LabelPolicy: policy.Name}); err != nil {
		return false, fmt.Errorf("listing templates, %w", err)
	}
	found := make(map[types.NamespacedName]*resourcev1.ResourceClaimTemplate, len(existing.Items))
	for i := range existing.Items {
		found[client.ObjectKeyFromObject(&existing.Items[i])] = &existing.Items[i]
	}

	var errs []error
	for _, revision := range h.usable() {
		for _, namespace := range namespaces {
			key := types.NamespacedName{Namespace: namespace, Name: revision.Name}
			err := c.ensureTemplate(ctx, policy, revision, namespace, found[key])
			if errors.Is(err, errHeld) {
				setReady(policy, c.clock.Now(), false, reasonTemplateRefused, err.Error())
				waiting, err = true, nil
			}
			errs = append(errs, err)
			delete(found, key)
		}
	}
	for i := range existing.Items { // in the list's order, not the map's
		left := found[client.ObjectKeyFromObject(&existing.Items[i])]
		if left == nil {
			continue
		}
		removed, err := c.removeTemplate(ctx, h, left)
		waiting = waiting || !removed
		errs = append(errs, err)
	}
	return waiting, errors.Join(errs...)
}

// selectedNamespaces are the names of the namespaces that may use the policy
// now. The policy's own selector counts, not that of an old revision: who may
// use a policy is not rolled back with its content.
func (c *Controller) selectedNamespaces(ctx context.Context, policy *v1alpha1.AcceleratorPolicy) ([]string, error) {
	selector := labels.Everything()
	if s := policy.Spec.NamespaceSelector; s != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(s); err != nil {
			return nil, fmt.Errorf("reading spec.namespaceSelector, %w", err)
		}
	}
	var list corev1.NamespaceList
	if err := c.client.List(ctx, &list, client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("listing namespaces, %w", err)
	}
	var names []string
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp.IsZero() {
			names = append(names, list.Items[i].Name)
		}
	}
	return names, nil
}

// errHeld occurs for a template that is in the way and can't be replaced yet.
var errHeld = errors.New("it is being deleted, and is there until its finalizers are gone")

// ensureTemplate makes a template, or mends it. A template's spec can't be
// changed, so one with another spec is replaced: it was written by another
// version of the compiler, or by somebody else before the name was kept for the
// policy, and what it says is not what the revision means.
func (c *Controller) ensureTemplate(ctx context.Context, policy *v1alpha1.AcceleratorPolicy, revision *v1alpha1.PolicyRevision,
	namespace string, existing *resourcev1.ResourceClaimTemplate,
) error {
	want, err := compile.Template(revision, namespace)
	if err != nil {
		return err
	}
	if err := controllerutil.SetControllerReference(revision, want, c.client.Scheme()); err != nil {
		return wrap("owning template", want.Name, err)
	}
	if existing == nil {
		err := c.client.Create(ctx, want)
		if !apierrors.IsAlreadyExists(err) {
			return wrapTemplate("creating", want, ignoreGoneNamespace(err))
		}
		existing = &resourcev1.ResourceClaimTemplate{}
		if err := c.reader.Get(ctx, client.ObjectKeyFromObject(want), existing); err != nil {
			return wrapTemplate("reading", want, err)
		}
	}
	if !apiequality.Semantic.DeepEqual(existing.Spec, want.Spec) {
		if existing.DeletionTimestamp != nil {
			return wrapTemplate("replacing", want, errHeld)
		}
		if err := c.client.Delete(ctx, existing, client.Preconditions{UID: &existing.UID}); client.IgnoreNotFound(err) != nil {
			return wrapTemplate("replacing", want, err)
		}
		c.event(policy, corev1.EventTypeWarning, "TemplateReplaced", "Repair",
			"ResourceClaimTemplate %s/%s did not say what the revision says", namespace, want.Name)
		return wrapTemplate("replacing", want, c.client.Create(ctx, want))
	}
	if carries(existing.Labels, want.Labels) && carries(existing.Annotations, want.Annotations) &&
		apiequality.Semantic.DeepEqual(existing.OwnerReferences, want.OwnerReferences) {
		return nil
	}
	mended := existing.DeepCopy()
	mended.Labels = merged(existing.Labels, want.Labels)
	mended.Annotations = merged(existing.Annotations, want.Annotations)
	mended.OwnerReferences = want.OwnerReferences
	return wrapTemplate("mending", want, c.client.Update(ctx, mended))
}

// removeTemplate removes a template that should not be there: its revision is
// withdrawn or gone, or the namespace is no longer selected. In the latter case
// it stays until the claims of Pods that were admitted before have been made
// from it. The Pods of a withdrawn revision are parked, and get none.
func (c *Controller) removeTemplate(ctx context.Context, h *history, template *resourcev1.ResourceClaimTemplate) (removed bool, err error) {
	for _, revision := range h.usable() {
		if revision.Name != template.Name {
			continue
		}
		needed, err := c.neededByPod(ctx, template)
		if err != nil || needed {
			return false, err
		}
	}
	err = c.client.Delete(ctx, template, client.Preconditions{UID: &template.UID})
	return true, wrapTemplate("removing", template, client.IgnoreNotFound(err))
}

// neededByPod says whether a Pod waits for its claim to be made from the template.
func (c *Controller) neededByPod(ctx context.Context, template *resourcev1.ResourceClaimTemplate) (bool, error) {
	var pods corev1.PodList
	err := c.reader.List(ctx, &pods, client.InNamespace(template.Namespace),
		client.MatchingLabels{v1alpha1.LabelPolicy: template.Labels[v1alpha1.LabelPolicy]})
	if err != nil {
		return false, fmt.Errorf("listing the Pods of %s, %w", template.Namespace, err)
	}
	for i := range pods.Items {
		if waitsFor(&pods.Items[i], template.Name) {
			return true, nil
		}
	}
	return false, nil
}

func waitsFor(pod *corev1.Pod, template string) bool {
	if !pod.DeletionTimestamp.IsZero() || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimTemplateName == nil || *claim.ResourceClaimTemplateName != template {
			continue
		}
		made := false
		for _, status := range pod.Status.ResourceClaimStatuses {
			made = made || status.Name == claim.Name
		}
		if !made {
			return true
		}
	}
	return false
}

// ignoreGoneNamespace drops the error of writing into a namespace that is gone
// or on its way out, which the cache may not know yet.
func ignoreGoneNamespace(err error) error {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	var status apierrors.APIStatus
	if apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces" {
		return nil
	}
	return err
}

func wrapTemplate(doing string, template *resourcev1.ResourceClaimTemplate, err error) error {
	return wrap(doing+" template", template.Namespace+"/"+template.Name, err)
}

func carries(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func merged(have, want map[string]string) map[string]string {
	result := maps.Clone(have)
	if result == nil {
		result = make(map[string]string, len(want))
	}
	maps.Copy(result, want)
	return result
}
