// Package health is the controller that does what a policy's onUnhealthy says
// to bound Pods whose device has failed, as far as Kubernetes doesn't do it,
// and that tells Pods about it.
//
// A confirmed failure is the taint gpu.gpuladder.dev/failed:NoExecute on a
// device, set by the driver or by a DeviceTaintRule. For Evict Kubernetes' own
// taint eviction is enough: the claim tolerates the taint for the grace period.
// For Recreate, End and Keep the claim tolerates it without limit, which keeps
// taint eviction away.
package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"gpuladder.dev/ladder/controllers/allocated"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Controller acts on claims with a failed device. All it has to remember is in
// the API: taints with their times, the conditions of Pods, deadlines.
type Controller struct {
	clock  clock.Clock
	client client.Client
	// reader reads past the cache: Pods, which are not cached, since they are
	// looked at only when something has failed.
	reader   client.Reader
	recorder events.EventRecorder

	mu sync.Mutex
	// told are the claims with Pods that say their device has failed.
	told sets.Set[types.NamespacedName]
	// waits counts, for each Pod, how often in a row its eviction was held back or
	// its device was in no slice.
	waits map[types.UID]int
}

// NewController builds a Controller; c reads claims, slices, rules and
// revisions from a cache with the indexes that Register adds.
func NewController(clk clock.Clock, c client.Client, reader client.Reader, recorder events.EventRecorder) *Controller {
	return &Controller{
		clock: clk, client: c, reader: reader, recorder: recorder,
		told: sets.New[types.NamespacedName](), waits: map[types.UID]int{},
	}
}

// bindingSoon is when a Pod is looked at again that has a claim with a failed
// device reserved but no node yet: it is about to be bound, or never will be.
const bindingSoon = 5 * time.Second

// Reconcile looks at one claim: which of its devices have failed, which bound Pods
// use it, and what their policy says of that.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	claim := &resourcev1.ResourceClaim{}
	switch err := c.client.Get(ctx, request.NamespacedName, claim); {
	case apierrors.IsNotFound(err):
		c.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading claim %s, %w", request, err)
	}
	state, err := c.state(ctx, claim)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(state.failed) == 0 && !c.wasTold(request.NamespacedName) {
		return reconcile.Result{}, nil
	}
	var result reconcile.Result
	var errs []error
	for _, consumer := range claim.Status.ReservedFor {
		again, err := c.treat(ctx, claim, consumer, state.failed)
		if err != nil {
			errs = append(errs, err)
		}
		if again > 0 && (result.RequeueAfter == 0 || again < result.RequeueAfter) {
			result.RequeueAfter = again
		}
	}
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err // with the queue's backoff
	}
	if len(state.failed) == 0 && result.RequeueAfter == 0 {
		c.forget(request.NamespacedName)
	} else {
		c.remember(request.NamespacedName)
	}
	return result, nil
}

// treat brings one consumer of a claim up to date. It returns when to look
// again, zero for when something changes.
func (c *Controller) treat(ctx context.Context, claim *resourcev1.ResourceClaim, consumer resourcev1.ResourceClaimConsumerReference, failed []failure) (time.Duration, error) {
	if consumer.APIGroup != "" || consumer.Resource != "pods" {
		return 0, nil
	}
	pod := &corev1.Pod{}
	switch err := c.reader.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: consumer.Name}, pod); {
	case apierrors.IsNotFound(err):
		c.forgetPod(consumer.UID)
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading pod %s/%s, %w", claim.Namespace, consumer.Name, err)
	case pod.UID != consumer.UID || pod.DeletionTimestamp != nil || isFinished(pod):
		c.forgetPod(consumer.UID)
		return 0, nil // its devices are on their way back
	case len(failed) == 0:
		return c.tellRecovery(ctx, pod)
	}
	name, number := allocated.Policy(pod, claim)
	switch {
	case name == "":
		return 0, nil // no policy, nothing that onUnhealthy could say
	case pod.Spec.NodeName == "":
		return bindingSoon, nil
	}
	plan, err := c.plan(ctx, claim, name, number, failed)
	if err != nil {
		return 0, err
	}
	return c.carryOut(ctx, pod, plan)
}

func isFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (c *Controller) wasTold(claim types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told.Has(claim)
}

func (c *Controller) remember(claim types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told.Insert(claim)
}

func (c *Controller) forget(claim types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told.Delete(claim)
}

func (c *Controller) forgetPod(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waits, pod)
}

// Name is the controller's, in metrics, logs and events.
func (c *Controller) Name() string { return "health" }

// Register adds the controller to a manager.
func (c *Controller) Register(ctx context.Context, m ctrl.Manager) error {
	for _, index := range indexes() {
		if err := m.GetFieldIndexer().IndexField(ctx, index.object, index.field, index.extract); err != nil {
			return fmt.Errorf("indexing %T, %w", index.object, err)
		}
	}
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&resourcev1.ResourceClaim{}, builder.WithPredicates(claimChanged())).
		Watches(&resourcev1.ResourceSlice{}, handler.EnqueueRequestsFromMapFunc(c.claimsOfSlice), builder.WithPredicates(failuresChanged())).
		Watches(&resourcev1.DeviceTaintRule{}, handler.EnqueueRequestsFromMapFunc(c.claimsOfRule), builder.WithPredicates(isFailureRule())).
		WatchesRawSource(source.Func(c.resume)).
		Complete(c)
}

// revision reads the revision of a policy that a claim was made from; nil where it
// is gone.
func (c *Controller) revision(ctx context.Context, claim *resourcev1.ResourceClaim, policy string, number int64) (*v1alpha1.PolicyRevision, error) {
	revision := &v1alpha1.PolicyRevision{}
	err := c.client.Get(ctx, types.NamespacedName{Name: v1alpha1.RevisionName(policy, number)}, revision)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading revision %d of policy %s, %w", number, policy, err)
	}
	if !allocated.MadeFrom(claim, revision) {
		return nil, nil
	}
	revision.Default()
	return revision, nil
}
