// Package policy is the controller that turns AcceleratorPolicies into numbered
// revisions and their claim templates. It decides nothing about devices: what a
// revision and a template say is package compile's.
package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

const (
	// recheck is how soon a template is looked at again that Pods still need, or
	// that finalizers hold.
	recheck = 15 * time.Second
	// catchUp is how soon to go on after a write that met a newer object: the
	// cache only has to catch up.
	catchUp = time.Second
)

// Controller keeps a policy's revisions, templates and status. Everything it
// needs to know is in the API: it can stop at any point and go on from there.
type Controller struct {
	clock  clock.PassiveClock
	client client.Client
	// reader reads past the cache: Pods, which are not cached, and templates
	// that are in the way without carrying Ladder's labels.
	reader   client.Reader
	recorder events.EventRecorder
}

// NewController builds a Controller; c reads from the cache of [CacheOptions],
// reader from the API server.
func NewController(clk clock.PassiveClock, c client.Client, reader client.Reader, recorder events.EventRecorder) *Controller {
	return &Controller{clock: clk, client: c, reader: reader, recorder: recorder}
}

// CacheOptions limits what the manager keeps in memory to what this controller
// reads: of the templates only Ladder's.
func CacheOptions() cache.Options {
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&resourcev1.ResourceClaimTemplate{}: {Label: hasPolicy()},
	}}
}

// Reconcile brings one policy up to date: a revision of its content, templates
// of every usable revision in every selected namespace, and the status.
func (c *Controller) Reconcile(ctx context.Context, policy *v1alpha1.AcceleratorPolicy) (reconcile.Result, error) {
	if !policy.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // revisions and templates follow by owner reference; claims are the Pods'
	}
	waiting, err := c.reconcile(ctx, policy.DeepCopy())
	switch {
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		return reconcile.Result{RequeueAfter: catchUp}, nil
	case err != nil:
		return reconcile.Result{}, err
	case waiting:
		return reconcile.Result{RequeueAfter: recheck}, nil
	default:
		return reconcile.Result{}, nil
	}
}

func (c *Controller) reconcile(ctx context.Context, policy *v1alpha1.AcceleratorPolicy) (waiting bool, err error) {
	policy.Spec.Default()
	stored := policy.DeepCopy()

	if err := c.ensureDeviceClass(ctx, policy.Spec.Driver); err != nil {
		return false, err
	}
	revisions, err := c.listRevisions(ctx, c.client, policy)
	if err != nil {
		return false, err
	}
	invalid := compile.Check(&policy.Spec).ToAggregate()
	if invalid == nil {
		if revisions, err = c.ensureRevision(ctx, policy, revisions); err != nil {
			return false, err
		}
	}
	if err := c.adopt(ctx, policy, revisions); err != nil {
		return false, err
	}
	choose(policy, revisions, invalid, c.clock.Now())
	waiting, templatesErr := c.ensureTemplates(ctx, policy, revisions)
	if templatesErr != nil && !apierrors.IsConflict(templatesErr) {
		setReady(policy, c.clock.Now(), false, reasonTemplateRefused, templatesErr.Error())
	}
	return waiting, errors.Join(templatesErr, c.writeStatus(ctx, stored, policy))
}

// ensureDeviceClass makes the driver's class, or mends it.
func (c *Controller) ensureDeviceClass(ctx context.Context, driver string) error {
	want := compile.DeviceClass(driver)
	class := &resourcev1.DeviceClass{}
	err := c.client.Get(ctx, types.NamespacedName{Name: want.Name}, class)
	if apierrors.IsNotFound(err) {
		return wrap("creating device class", want.Name, client.IgnoreAlreadyExists(c.client.Create(ctx, want)))
	}
	if err != nil {
		return wrap("reading device class", want.Name, err)
	}
	if sameClass(class, want) {
		return nil
	}
	class.Spec = want.Spec
	return wrap("mending device class", want.Name, c.client.Update(ctx, class))
}

func wrap(doing, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s, %w", doing, name, err)
}

// Name is the controller's, in metrics, logs and events.
func (c *Controller) Name() string { return "policy" }

// Register adds the controller to a manager whose cache has [CacheOptions].
func (c *Controller) Register(_ context.Context, m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&v1alpha1.AcceleratorPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&v1alpha1.PolicyRevision{}).
		Watches(&resourcev1.ResourceClaimTemplate{}, handler.EnqueueRequestsFromMapFunc(policyOfLabel)).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(c.everyPolicy), builder.WithPredicates(namespaceChanged())).
		Watches(&resourcev1.DeviceClass{}, handler.EnqueueRequestsFromMapFunc(c.everyPolicy), builder.WithPredicates(isLaddersClass())).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}
