package health

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// fieldPool is the index of slices and claims by the pools of their devices.
const fieldPool = "ladder.health.pool"

func poolKey(driver, pool string) string { return driver + "/" + pool }

type index struct {
	object  client.Object
	field   string
	extract client.IndexerFunc
}

func indexes() []index {
	return []index{
		{&resourcev1.ResourceSlice{}, fieldPool, func(o client.Object) []string {
			spec := &o.(*resourcev1.ResourceSlice).Spec
			return []string{poolKey(spec.Driver, spec.Pool.Name)}
		}},
		{&resourcev1.ResourceClaim{}, fieldPool, func(o client.Object) []string {
			return poolsOf(o.(*resourcev1.ResourceClaim))
		}},
	}
}

// poolsOf are the pools of the devices that a claim has, each once.
func poolsOf(claim *resourcev1.ResourceClaim) []string {
	if claim.Status.Allocation == nil {
		return nil
	}
	var keys []string
	seen := map[string]bool{}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if key := poolKey(r.Driver, r.Pool); !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// claimChanged lets pass claims whose devices or consumers changed. Whether they
// are of a policy their consumers say: what stands on a claim its owner can change.
func claimChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return isUsed(e.Object.(*resourcev1.ResourceClaim)) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*resourcev1.ResourceClaim), e.ObjectNew.(*resourcev1.ResourceClaim)
			return !apiequality.Semantic.DeepEqual(before.Status.Allocation, after.Status.Allocation) ||
				!apiequality.Semantic.DeepEqual(before.Status.ReservedFor, after.Status.ReservedFor)
		},
		DeleteFunc:  func(e event.DeleteEvent) bool { return isUsed(e.Object.(*resourcev1.ResourceClaim)) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// isUsed says whether a claim has devices and somebody who uses them.
func isUsed(claim *resourcev1.ResourceClaim) bool {
	return claim.Status.Allocation != nil && len(claim.Status.ReservedFor) > 0
}

// failuresChanged lets pass slices that say something new of failed devices.
func failuresChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return len(failuresIn(e.Object)) > 0 },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return !apiequality.Semantic.DeepEqual(failuresIn(e.ObjectOld), failuresIn(e.ObjectNew))
		},
		DeleteFunc:  func(e event.DeleteEvent) bool { return len(failuresIn(e.Object)) > 0 },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// failuresIn are the taints for failure in a slice, by device.
func failuresIn(object client.Object) map[string][]resourcev1.DeviceTaint {
	found := map[string][]resourcev1.DeviceTaint{}
	for _, device := range object.(*resourcev1.ResourceSlice).Spec.Devices {
		for i := range device.Taints {
			if isFailure(&device.Taints[i]) {
				found[device.Name] = append(found[device.Name], device.Taints[i])
			}
		}
	}
	return found
}

// isFailureRule lets pass rules that stand for failure, before or after.
func isFailureRule() predicate.Predicate {
	is := func(o client.Object) bool { return isFailure(&o.(*resourcev1.DeviceTaintRule).Spec.Taint) }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return is(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return (is(e.ObjectOld) || is(e.ObjectNew)) && e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration()
		},
		DeleteFunc:  func(e event.DeleteEvent) bool { return is(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// claimsOfSlice are the claims with devices of a slice's pool.
func (c *Controller) claimsOfSlice(ctx context.Context, object client.Object) []reconcile.Request {
	spec := &object.(*resourcev1.ResourceSlice).Spec
	return c.claims(ctx, func(*resourcev1.ResourceClaim) bool { return true }, client.MatchingFields{fieldPool: poolKey(spec.Driver, spec.Pool.Name)})
}

// claimsOfRule are the claims with devices that a rule selects.
func (c *Controller) claimsOfRule(ctx context.Context, object client.Object) []reconcile.Request {
	rule := object.(*resourcev1.DeviceTaintRule)
	return c.claims(ctx, func(claim *resourcev1.ResourceClaim) bool {
		if claim.Status.Allocation == nil {
			return false
		}
		for i := range claim.Status.Allocation.Devices.Results {
			if hits(rule, &claim.Status.Allocation.Devices.Results[i]) {
				return true
			}
		}
		return false
	})
}

func (c *Controller) claims(ctx context.Context, want func(*resourcev1.ResourceClaim) bool, options ...client.ListOption) []reconcile.Request {
	var list resourcev1.ResourceClaimList
	if err := c.client.List(ctx, &list, options...); err != nil {
		log.FromContext(ctx).Error(err, "listing claims") // a read of the cache: it is being stopped
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if claim := &list.Items[i]; isUsed(claim) && want(claim) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(claim)})
		}
	}
	return requests
}

const (
	// page is how many Pods one request returns.
	page = 500
	// resumeAgain is when the Pods are asked for again after an error.
	resumeAgain = 10 * time.Second
)

// resume finds, at the start, the claims of Pods that say that their device has
// failed: it may have recovered while no controller ran, and then nothing else
// would take the word back. It does not hold the start up.
func (c *Controller) resume(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		for {
			requests, err := c.unfinished(ctx)
			if err == nil {
				for _, request := range requests {
					queue.Add(request)
				}
				return
			}
			if ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "Pods with failed devices not found; trying again")
			}
			select {
			case <-ctx.Done():
				return
			case <-c.clock.After(resumeAgain):
			}
		}
	}()
	return nil
}

// unfinished are the claims of the Pods that say that their device has failed.
// From then on they are known.
func (c *Controller) unfinished(ctx context.Context) ([]reconcile.Request, error) {
	var requests []reconcile.Request
	next := ""
	for {
		pods := &corev1.PodList{}
		if err := c.reader.List(ctx, pods, client.HasLabels{v1alpha1.LabelPolicy}, client.Limit(page), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("listing pods, %w", err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if condition := v1alpha1.AcceleratorCondition(pod); condition == nil || condition.Reason != ReasonDeviceFailed {
				continue
			}
			for j := range pod.Spec.ResourceClaims {
				name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[j])
				if err != nil || name == nil {
					continue
				}
				claim := types.NamespacedName{Namespace: pod.Namespace, Name: *name}
				c.remember(claim)
				requests = append(requests, reconcile.Request{NamespacedName: claim})
			}
		}
		if next = pods.Continue; next == "" {
			return requests, nil
		}
	}
}
