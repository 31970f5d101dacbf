package publish

// This file publishes the slices of many nodes at once.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// LabelPublisher marks the slices that [Direct] wrote, with the value
// PublisherDirect.
const (
	LabelPublisher  = "gpuladder.dev/publisher"
	PublisherDirect = "direct"
)

// Options are how [Direct] goes about it. The zero value is good.
type Options struct {
	// Parallelism is how many pools are written at a time. Default: 16.
	Parallelism int
	// Backoff is how a pool is tried again after an error that may pass, such
	// as a conflict or an API server that is busy. Default: eight attempts over
	// about 20 seconds.
	Backoff wait.Backoff
	// Partial leaves alone the pools that are not among the given slices.
	// Otherwise those that Direct wrote earlier are deleted.
	Partial bool
}

// Summary counts slices by what was done to them.
type Summary struct {
	Created, Updated, Deleted, Unchanged int
}

func (s *Summary) add(other Summary) {
	s.Created += other.Created
	s.Updated += other.Updated
	s.Deleted += other.Deleted
	s.Unchanged += other.Unchanged
}

// Direct makes the API server hold the given slices of Ladder's driver, in the
// shape in which the kubelet plugin library publishes them: owned by their
// Node, one generation for each pool, a new generation when more than one slice
// of a pool changes. What is already right is not written. Slices of a given
// pool that are not among the given ones are deleted, whoever wrote them.
//
// Every slice needs a node that exists. One pool that fails does not keep the
// others from being written; the error says how many failed, with the first
// few. It is safe to call again, also after an error or at the same time as
// another one with the same slices.
func Direct(ctx context.Context, client kubernetes.Interface, slices []*resourcev1.ResourceSlice, options Options) (Summary, error) {
	var total Summary
	wanted, err := byPool(slices)
	if err != nil {
		return total, err
	}
	if options.Parallelism <= 0 {
		options.Parallelism = 16
	}
	if options.Backoff.Steps == 0 {
		options.Backoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2.2, Jitter: 0.2, Steps: 8, Cap: 15 * time.Second}
	}
	d := &direct{client: client, backoff: options.Backoff}
	var owners map[string]types.UID
	existing := map[string][]*resourcev1.ResourceSlice{}
	err = d.retry(ctx, func(ctx context.Context) error {
		var err error
		if owners, err = d.nodes(ctx); err != nil {
			return err
		}
		found, err := d.list(ctx, fields.Everything())
		clear(existing)
		for _, slice := range found {
			existing[slice.Spec.Pool.Name] = append(existing[slice.Spec.Pool.Name], slice)
		}
		return err
	})
	if err != nil {
		return total, fmt.Errorf("looking up what is published, %w", err)
	}

	work := make([]poolState, 0, len(wanted))
	given := map[string]bool{}
	for _, pool := range wanted {
		given[pool.name] = true
		owner, exists := owners[pool.node]
		if !exists {
			return total, fmt.Errorf("publishing pool %s, there is no node %q: slices belong to a Node, create it first", pool.name, pool.node)
		}
		pool.owner = owner
		pool.existing = existing[pool.name]
		work = append(work, pool)
	}
	if !options.Partial {
		work = append(work, abandoned(existing, given)...)
	}

	// Each pool has a place of its own for its result: no lock, and the order
	// of errors is that of the pools.
	summaries, errs := make([]Summary, len(work)), make([]error, len(work))
	var group errgroup.Group
	group.SetLimit(options.Parallelism)
	for i := range work {
		group.Go(func() error {
			summaries[i], errs[i] = d.pool(ctx, work[i])
			return nil
		})
	}
	_ = group.Wait() // each error is in its place
	for _, summary := range summaries {
		total.add(summary)
	}
	return total, summarize(errs)
}

// direct is one call of [Direct].
type direct struct {
	client  kubernetes.Interface
	backoff wait.Backoff
}

// maxShownErrors is how many pools' errors are told in full.
const maxShownErrors = 3

func summarize(errs []error) error {
	var shown []error
	failed := 0
	for _, err := range errs {
		if err == nil {
			continue
		}
		if failed++; failed <= maxShownErrors {
			shown = append(shown, err)
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("publishing slices, %d of %d pools failed, %w", failed, len(errs), errors.Join(shown...))
}

// nodes are the UIDs of all nodes by name.
func (d *direct) nodes(ctx context.Context) (map[string]types.UID, error) {
	uids := map[string]types.UID{}
	list := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return d.client.CoreV1().Nodes().List(ctx, options)
	}))
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		node, ok := object.(*corev1.Node)
		if !ok {
			return fmt.Errorf("unexpected %T in a list of nodes", object)
		}
		uids[node.Name] = node.UID
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing nodes, %w", err)
	}
	return uids, nil
}

// list returns the slices of Ladder's driver that match.
func (d *direct) list(ctx context.Context, match fields.Selector) ([]*resourcev1.ResourceSlice, error) {
	options := metav1.ListOptions{FieldSelector: fields.AndSelectors(
		fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, v1alpha1.DriverName), match,
	).String()}
	var found []*resourcev1.ResourceSlice
	list := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return d.client.ResourceV1().ResourceSlices().List(ctx, options)
	}))
	err := list.EachListItem(ctx, options, func(object runtime.Object) error {
		slice, ok := object.(*resourcev1.ResourceSlice)
		if !ok {
			return fmt.Errorf("unexpected %T in a list of slices", object)
		}
		// A server that does not know the selector returns everything.
		if slice.Spec.Driver == v1alpha1.DriverName {
			found = append(found, slice)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing slices, %w", err)
	}
	return found, nil
}
