// Package objects reads the objects of Ladder's group for the scheduler and
// writes the records of its decisions.
package objects

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// probeInterval is how often a kind that the API server does not serve yet is
// looked for.
const probeInterval = time.Second

// NewClient returns a REST client for Ladder's group.
func NewClient(config *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building scheme, %w", err)
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = &v1alpha1.GroupVersion
	// Custom resources have no protobuf form.
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("building client for %s, %w", v1alpha1.GroupVersion, err)
	}
	return client, nil
}

// Watcher keeps copies of policies, revisions and quotas and tells of changes.
//
// A kind whose CRD is not installed counts as empty: the scheduler must be
// able to place the Pods that install it. It is looked for until it is served.
type Watcher struct {
	client    rest.Interface
	notify    func(obj runtime.Object, deleted bool)
	ready     func()
	policies  *watched
	revisions *watched
	quotas    *watched
}

// watched is one kind.
type watched struct {
	resource string
	example  runtime.Object
	informer cache.SharedInformer
	absent   atomic.Bool
}

// NewWatcher returns a Watcher; notify is called for each change, in the order
// of the changes of one kind, and ready whenever Ready has become true.
func NewWatcher(client rest.Interface, notify func(obj runtime.Object, deleted bool), ready func()) *Watcher {
	w := &Watcher{client: client, notify: notify, ready: ready}
	w.policies = w.kind("acceleratorpolicies", &v1alpha1.AcceleratorPolicy{})
	w.revisions = w.kind("policyrevisions", &v1alpha1.PolicyRevision{})
	w.quotas = w.kind("tenantquotas", &v1alpha1.TenantQuota{})
	return w
}

func (w *Watcher) kinds() []*watched { return []*watched{w.policies, w.revisions, w.quotas} }

func (w *Watcher) kind(resource string, example runtime.Object) *watched {
	lw := cache.NewListWatchFromClient(w.client, resource, "", fields.Everything())
	return &watched{resource: resource, example: example, informer: cache.NewSharedInformer(lw, example, 0)}
}

// Start begins watching. It returns at once; watching ends with ctx.
func (w *Watcher) Start(ctx context.Context) error {
	for _, k := range w.kinds() {
		if err := k.informer.SetTransform(dropManagedFields); err != nil {
			return fmt.Errorf("watching %s, %w", k.resource, err)
		}
		if _, err := k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { w.tell(obj, false) },
			UpdateFunc: func(old, obj any) {
				if matters(old, obj) {
					w.tell(obj, false)
				}
			},
			DeleteFunc: func(obj any) { w.tell(obj, true) },
		}); err != nil {
			return fmt.Errorf("watching %s, %w", k.resource, err)
		}
		go w.run(ctx, k)
	}
	return nil
}

// run waits until the kind is served, then watches it.
func (w *Watcher) run(ctx context.Context, k *watched) {
	logger := klog.FromContext(ctx)
	err := wait.PollUntilContextCancel(ctx, probeInterval, true, func(ctx context.Context) (bool, error) {
		err := w.client.Get().Resource(k.resource).Param("limit", "1").Do(ctx).Error()
		switch {
		case err == nil:
			return true, nil
		case apierrors.IsNotFound(err):
			if !k.absent.Swap(true) {
				logger.Info("Kind is not served; scheduling without it until its CRD is installed", "resource", k.resource, "group", v1alpha1.GroupName)
				if w.Ready() {
					w.ready()
				}
			}
		default:
			logger.Error(err, "Reading failed; Pods with claims wait until it works", "resource", k.resource, "group", v1alpha1.GroupName)
		}
		return false, nil
	})
	if err != nil {
		return
	}
	k.absent.Store(false)
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), k.informer.HasSynced) && w.Ready() {
			w.ready()
		}
	}()
	k.informer.RunWithContext(ctx)
}

// Ready says whether every kind has been read once or is known to be absent.
func (w *Watcher) Ready() bool {
	for _, k := range w.kinds() {
		if !k.absent.Load() && !k.informer.HasSynced() {
			return false
		}
	}
	return true
}

// Policy returns a policy, or nil.
func (w *Watcher) Policy(name string) *v1alpha1.AcceleratorPolicy {
	return get[*v1alpha1.AcceleratorPolicy](w.policies, name)
}

// Revision returns a policy's revision, or nil.
func (w *Watcher) Revision(policy string, revision int64) *v1alpha1.PolicyRevision {
	return get[*v1alpha1.PolicyRevision](w.revisions, v1alpha1.RevisionName(policy, revision))
}

// Quota returns the quota of the tenant that the namespace belongs to, or nil.
func (w *Watcher) Quota(namespace string) *v1alpha1.TenantQuota {
	var found *v1alpha1.TenantQuota
	for _, obj := range w.quotas.informer.GetStore().List() {
		q, ok := obj.(*v1alpha1.TenantQuota)
		if !ok || (found != nil && found.Name < q.Name) {
			continue
		}
		for _, ns := range q.Spec.Namespaces {
			if ns == namespace {
				found = q
			}
		}
	}
	return found
}

// Ping asks the API server for anything and returns its error.
func (w *Watcher) Ping(ctx context.Context) error {
	err := w.client.Get().Resource(w.policies.resource).Param("limit", "1").Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("asking the API server, %w", err)
	}
	return nil
}

// matters says whether a change touches more than metadata and status, which
// controllers write all the time. Of a status only a policy's active revision
// counts.
func matters(old, current any) bool {
	before, err := meta.Accessor(old)
	if err != nil {
		return true
	}
	after, err := meta.Accessor(current)
	if err != nil || before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() {
		return true
	}
	a, ok := old.(*v1alpha1.AcceleratorPolicy)
	if !ok {
		return false
	}
	b, ok := current.(*v1alpha1.AcceleratorPolicy)
	return !ok || a.Status.ActiveRevision != b.Status.ActiveRevision
}

func (w *Watcher) tell(obj any, deleted bool) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if o, ok := obj.(runtime.Object); ok {
		w.notify(o, deleted)
	}
}

func get[T runtime.Object](k *watched, name string) T {
	var none T
	obj, exists, err := k.informer.GetStore().GetByKey(name)
	if err != nil || !exists {
		return none
	}
	typed, ok := obj.(T)
	if !ok {
		return none
	}
	return typed
}

// dropManagedFields saves the memory of what nobody reads.
func dropManagedFields(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}
