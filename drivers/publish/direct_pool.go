package publish

// This file brings one pool into the state that is wanted.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// poolState is a pool as it should be and as it was last seen.
type poolState struct {
	name  string
	node  string
	owner types.UID
	// wanted is in order of name; empty if the pool is to go.
	wanted   []*resourcev1.ResourceSlice
	existing []*resourcev1.ResourceSlice
}

// byPool groups slices, in the order in which the pools first appear.
func byPool(given []*resourcev1.ResourceSlice) ([]poolState, error) {
	var pools []poolState
	index := map[string]int{}
	for _, slice := range given {
		node := ptr.Deref(slice.Spec.NodeName, "")
		switch {
		case slice.Name == "" || node == "":
			return nil, fmt.Errorf("publishing slice %q, it needs a name and a node", slice.Name)
		case slice.Spec.Driver != v1alpha1.DriverName:
			return nil, fmt.Errorf("publishing slice %s, its driver is %q, not %q", slice.Name, slice.Spec.Driver, v1alpha1.DriverName)
		}
		at, known := index[slice.Spec.Pool.Name]
		if !known {
			at = len(pools)
			index[slice.Spec.Pool.Name] = at
			pools = append(pools, poolState{name: slice.Spec.Pool.Name, node: node})
		}
		if pools[at].node != node {
			return nil, fmt.Errorf("publishing pool %s, it spans the nodes %s and %s", slice.Spec.Pool.Name, pools[at].node, node)
		}
		pools[at].wanted = append(pools[at].wanted, slice)
	}
	for i := range pools {
		slices.SortFunc(pools[i].wanted, func(a, b *resourcev1.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	}
	return pools, nil
}

// abandoned are the pools that Direct wrote earlier and that are not given now.
// Only its own slices go; nobody else's.
func abandoned(existing map[string][]*resourcev1.ResourceSlice, given map[string]bool) []poolState {
	var pools []poolState
	for name, found := range existing {
		if given[name] {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(found), func(slice *resourcev1.ResourceSlice) bool {
			return slice.Labels[LabelPublisher] != PublisherDirect
		})
		if len(own) > 0 {
			pools = append(pools, poolState{name: name, existing: own})
		}
	}
	slices.SortFunc(pools, func(a, b poolState) int { return cmp.Compare(a.name, b.name) })
	return pools
}

// pool writes one pool, and looks again at what is there before it tries again.
func (d *direct) pool(ctx context.Context, pool poolState) (Summary, error) {
	var done Summary
	first := true
	err := d.retry(ctx, func(ctx context.Context) error {
		if !first {
			found, err := d.list(ctx, fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorNodeName, pool.nodeOf()))
			if err != nil {
				return err
			}
			pool.existing = slices.DeleteFunc(found, func(slice *resourcev1.ResourceSlice) bool {
				return slice.Spec.Pool.Name != pool.name ||
					len(pool.wanted) == 0 && slice.Labels[LabelPublisher] != PublisherDirect
			})
		}
		first = false
		return d.sync(ctx, &pool, &done)
	})
	if err != nil {
		return done, fmt.Errorf("writing pool %s, %w", pool.name, err)
	}
	// What an attempt wrote before it failed is found right by the next one.
	done.Unchanged = max(0, len(pool.wanted)-done.Created-done.Updated)
	return done, nil
}

// nodeOf is the node of the pool, also of one that is to go.
func (p *poolState) nodeOf() string {
	if p.node == "" && len(p.existing) > 0 {
		return ptr.Deref(p.existing[0].Spec.NodeName, "")
	}
	return p.node
}

// sync makes the calls that turn existing into wanted and counts them in done.
func (d *direct) sync(ctx context.Context, pool *poolState, done *Summary) error {
	api := d.client.ResourceV1().ResourceSlices()
	plan := pool.plan()
	for _, slice := range plan.obsolete {
		err := api.Delete(ctx, slice.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &slice.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting slice %s, %w", slice.Name, err)
		}
		done.Deleted++
	}
	for _, slice := range plan.updates {
		stored, err := api.Update(ctx, slice, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("updating slice %s, %w", slice.Name, errVanished)
		}
		if err != nil {
			return fmt.Errorf("updating slice %s, %w", slice.Name, err)
		}
		done.Updated++
		if err := checkStored(slice, stored); err != nil {
			return err
		}
	}
	for _, slice := range plan.creates {
		stored, err := api.Create(ctx, slice, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating slice %s, %w", slice.Name, err)
		}
		done.Created++
		if err := checkStored(slice, stored); err != nil {
			return err
		}
	}
	return nil
}

// plan is what has to be done to a pool.
type plan struct {
	obsolete, updates, creates []*resourcev1.ResourceSlice
}

// plan follows the library: the generation stays as long as one call is enough,
// since a reader then never sees a mixture of old and new slices.
func (p *poolState) plan() plan {
	existing := map[string]*resourcev1.ResourceSlice{}
	var generation int64
	for _, slice := range p.existing {
		existing[slice.Name] = slice
		generation = max(generation, slice.Spec.Pool.Generation)
	}
	goal := resourcev1.ResourcePool{Name: p.name, Generation: generation, ResourceSliceCount: int64(len(p.wanted))}
	if generation == 0 {
		goal.Generation = 1
	}
	var made plan
	differ := map[string]bool{}
	for _, slice := range p.wanted {
		current, exists := existing[slice.Name]
		if exists && !p.same(current, slice, goal) {
			differ[slice.Name] = true
		}
		if !exists {
			made.creates = append(made.creates, p.desired(nil, slice))
		}
	}
	bump := generation > 0 && (len(made.creates) > 0 || len(differ) > 1)
	if bump {
		goal.Generation = generation + 1
	}
	for _, slice := range p.wanted {
		current, exists := existing[slice.Name]
		delete(existing, slice.Name)
		if exists && (bump || differ[slice.Name]) {
			made.updates = append(made.updates, p.desired(current, slice))
		}
	}
	for _, slice := range slices.Concat(made.updates, made.creates) {
		slice.Spec.Pool = goal
	}
	for _, slice := range p.existing {
		if _, left := existing[slice.Name]; left {
			made.obsolete = append(made.obsolete, slice)
		}
	}
	return made
}

// desired is the slice to write, over the current one if there is one.
func (p *poolState) desired(current, wanted *resourcev1.ResourceSlice) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: wanted.Name}}
	if current != nil {
		slice = current.DeepCopy()
	}
	slice.OwnerReferences = p.owners()
	if slice.Labels == nil {
		slice.Labels = map[string]string{}
	}
	slice.Labels[LabelPublisher] = PublisherDirect
	slice.Spec = *wanted.Spec.DeepCopy()
	return slice
}

func (p *poolState) owners() []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: p.node, UID: p.owner, Controller: ptr.To(true),
	}}
}

func (p *poolState) same(current, wanted *resourcev1.ResourceSlice, goal resourcev1.ResourcePool) bool {
	return current.Spec.Pool == goal &&
		current.Labels[LabelPublisher] == PublisherDirect &&
		apiequality.Semantic.DeepEqual(current.OwnerReferences, p.owners()) &&
		ptr.Equal(current.Spec.NodeName, wanted.Spec.NodeName) &&
		sameContent(current, wanted)
}

// sameContent compares what the slices hold.
func sameContent(a, b *resourcev1.ResourceSlice) bool {
	return resourceslice.DevicesDeepEqual(a.Spec.Devices, b.Spec.Devices) &&
		apiequality.Semantic.DeepEqual(a.Spec.SharedCounters, b.Spec.SharedCounters)
}

// checkStored finds out whether the API server dropped a field that it, or one
// of its feature gates, does not know.
func checkStored(sent, stored *resourcev1.ResourceSlice) error {
	if sameContent(stored, sent) {
		return nil
	}
	return &resourceslice.DroppedFieldsError{PoolName: sent.Spec.Pool.Name, DesiredSlice: sent, ActualSlice: stored}
}

// retry does something until it succeeds, fails for good, or has been tried
// often enough; then it returns the last error.
func (d *direct) retry(ctx context.Context, do func(context.Context) error) error {
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, d.backoff, func(ctx context.Context) (bool, error) {
		last = do(ctx)
		if last != nil && !retryable(last) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil && last != nil && !errors.Is(err, last) {
		// The loop ended for its own reason: out of attempts, or ctx is done.
		return errors.Join(err, last)
	}
	return err
}

// errVanished occurs when a slice was deleted after it was looked at.
var errVanished = errors.New("the slice is gone")

// retryable tells errors that may pass from those that stay. That a slice came
// or went since it was looked at passes.
func retryable(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, errVanished) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsTimeout(err) ||
		utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err)
}
