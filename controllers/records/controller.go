// Package records is the controller that removes AllocationDecisions whose time
// is over. It watches nothing: now and then it reads the metadata of all of
// them, so that a cluster with many records costs no memory in between.
package records

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	// interval is the time between two rounds.
	interval = 10 * time.Minute
	// page is how many objects one request returns.
	page = 500
)

// Controller removes records by a Retention.
type Controller struct {
	clock     clock.WithTicker
	client    client.Writer
	reader    client.Reader
	retention Retention
}

// NewController builds a Controller; reader reads from the API server and not
// from a cache.
func NewController(clk clock.WithTicker, c client.Writer, reader client.Reader, retention Retention) *Controller {
	return &Controller{clock: clk, client: c, reader: reader, retention: retention}
}

// Name is the controller's, in logs.
func (c *Controller) Name() string { return "records" }

// Register adds the controller to a manager. It works where the manager leads.
func (c *Controller) Register(_ context.Context, m ctrl.Manager) error {
	return m.Add(manager.RunnableFunc(c.run))
}

// run removes records until ctx ends.
func (c *Controller) run(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName(c.Name())
	ticker := c.clock.NewTicker(interval)
	defer ticker.Stop()
	for {
		switch removed, err := c.Round(ctx); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			logger.Error(err, "Records not removed; another round follows", "removed", removed)
		case removed > 0:
			logger.Info("Records removed", "removed", removed)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// Round removes the records whose time is over now and returns how many it
// removed.
func (c *Controller) Round(ctx context.Context) (int, error) {
	if c.retention == (Retention{}) {
		return 0, nil
	}
	var all []record
	err := c.each(ctx, v1alpha1.GroupVersion.WithKind("AllocationDecisionList"), "", func(o *metav1.PartialObjectMetadata) {
		all = append(all, record{
			key: client.ObjectKeyFromObject(o), uid: o.UID, created: o.CreationTimestamp.Time, instead: o.Annotations[v1alpha1.AnnotationRebuilt],
		})
	})
	if err != nil {
		return 0, err
	}
	now := c.clock.Now()
	candidates := c.retention.expired(all, living{}, now)
	if len(candidates) == 0 {
		return 0, nil
	}
	there, err := c.pods(ctx, candidates)
	if err != nil {
		return 0, err
	}
	removed := 0
	var errs []error
	for _, r := range c.retention.expired(all, there, now) {
		decision := &v1alpha1.AllocationDecision{ObjectMeta: metav1.ObjectMeta{Namespace: r.key.Namespace, Name: r.key.Name}}
		err := c.client.Delete(ctx, decision, client.Preconditions{UID: &r.uid})
		switch {
		case err == nil:
			removed++
		case ctx.Err() != nil:
			return removed, ctx.Err()
		case client.IgnoreNotFound(err) != nil:
			errs = append(errs, fmt.Errorf("removing record %s, %w", r.key, err))
		}
	}
	return removed, errors.Join(errs...)
}

// pods reads the Pods of the namespaces in which records may be removed.
func (c *Controller) pods(ctx context.Context, candidates []record) (living, error) {
	there := living{pods: sets.New[types.NamespacedName](), named: sets.New[types.NamespacedName]()}
	last := ""
	for _, r := range candidates { // by namespace
		if r.key.Namespace == last {
			continue
		}
		last = r.key.Namespace
		err := c.each(ctx, schema.GroupVersionKind{Version: "v1", Kind: "PodList"}, last, func(o *metav1.PartialObjectMetadata) {
			there.pods.Insert(types.NamespacedName{Namespace: o.Namespace, Name: v1alpha1.RecordPrefix(o.Name)})
			if named := o.Annotations[v1alpha1.AnnotationRecord]; named != "" {
				there.named.Insert(types.NamespacedName{Namespace: o.Namespace, Name: named})
			}
		})
		if err != nil {
			return living{}, err
		}
	}
	return there, nil
}

// each calls f for the metadata of each object of a kind, page by page.
func (c *Controller) each(ctx context.Context, kind schema.GroupVersionKind, namespace string, f func(*metav1.PartialObjectMetadata)) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	next := ""
	for {
		if err := c.reader.List(ctx, list, client.InNamespace(namespace), client.Limit(page), client.Continue(next)); err != nil {
			return fmt.Errorf("listing %s, %w", kind.Kind, err)
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}
