// Package rebuild is the controller that writes the AllocationDecision of a
// bound Pod again where the scheduler's got lost: it was killed before it wrote
// it, or gave up. The Binding names the record; what it said about the devices
// stands in the Pod and its claims, and what it said about others is gone.
package rebuild

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"gpuladder.dev/ladder/controllers/allocated"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	// DefaultPatience is how long a record may be late before it counts as lost.
	DefaultPatience = time.Minute
	// writersTries is longer than the scheduler tries to write a record. Only
	// then is it certain that the one that was rebuilt stays the only one.
	writersTries = 15 * time.Minute
)

// Controller looks, once for each Pod that is bound, whether its record is
// there. It remembers nothing: after a restart it looks again.
type Controller struct {
	clock  clock.PassiveClock
	client client.Writer
	// reader reads from the API server: one Pod and its record at a time.
	reader   client.Reader
	patience time.Duration
}

// NewController builds a Controller that waits for a record as long as patience.
func NewController(clk clock.PassiveClock, c client.Writer, reader client.Reader, patience time.Duration) *Controller {
	return &Controller{clock: clk, client: c, reader: reader, patience: patience}
}

// Reconcile looks at one Pod.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pod := &corev1.Pod{}
	if err := c.reader.Get(ctx, request.NamespacedName, pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(wrap("reading pod", request.NamespacedName, err))
	}
	name := recordOf(pod)
	if name == "" {
		return reconcile.Result{}, nil
	}
	if late := c.clock.Since(boundAt(pod)); late < c.patience {
		return reconcile.Result{RequeueAfter: c.patience - late}, nil
	}
	written, err := c.exists(ctx, pod.Namespace, name)
	if err != nil {
		return reconcile.Result{}, err
	}
	rebuilt := rebuiltName(name)
	if written {
		return reconcile.Result{}, c.replaced(ctx, pod.Namespace, rebuilt)
	}
	if err := c.rebuild(ctx, pod, name, rebuilt); err != nil {
		return reconcile.Result{}, err
	}
	if left := writersTries - c.clock.Since(boundAt(pod)); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil // the scheduler's may come yet
	}
	return reconcile.Result{}, nil
}

// rebuild writes what is known of a decision. The label is the scheduler's too.
func (c *Controller) rebuild(ctx context.Context, pod *corev1.Pod, name, rebuilt string) error {
	claims, err := allocated.Claims(ctx, c.reader, pod)
	if err != nil {
		return err
	}
	if len(claims) == 0 {
		return nil // they went with the Pod, which is about to
	}
	record := &v1alpha1.AllocationDecision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: rebuilt, Annotations: map[string]string{v1alpha1.AnnotationRebuilt: name},
		},
		Spec: allocated.Of(pod, claims, nil),
	}
	if policy := record.Spec.Policy; policy != "" {
		record.Labels = map[string]string{v1alpha1.LabelPolicy: policy}
		revision := &v1alpha1.PolicyRevision{}
		err := c.reader.Get(ctx, types.NamespacedName{Name: v1alpha1.RevisionName(policy, record.Spec.PolicyRevision)}, revision)
		switch {
		case err == nil:
			record.Spec = allocated.Of(pod, claims, revision)
		case !apierrors.IsNotFound(err):
			return wrap("reading revision of policy", types.NamespacedName{Name: policy}, err)
		}
	}
	record.Spec.Message = v1alpha1.ClipMessage("Rebuilt, without the evidence: " + allocated.Summary(pod, &record.Spec))
	err = c.client.Create(ctx, record)
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if err != nil {
		return wrap("creating record", client.ObjectKeyFromObject(record), err)
	}
	rebuiltRecords.Inc()
	log.FromContext(ctx).Info("Record rebuilt, the scheduler's is missing", "record", rebuilt, "missing", name)
	return nil
}

// replaced removes a record that was rebuilt, now that the scheduler's is there.
func (c *Controller) replaced(ctx context.Context, namespace, rebuilt string) error {
	there, err := c.exists(ctx, namespace, rebuilt)
	if err != nil || !there {
		return err
	}
	record := &v1alpha1.AllocationDecision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: rebuilt}}
	return client.IgnoreNotFound(wrap("removing record", client.ObjectKeyFromObject(record), c.client.Delete(ctx, record)))
}

func (c *Controller) exists(ctx context.Context, namespace, name string) (bool, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	record := &metav1.PartialObjectMetadata{}
	record.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("AllocationDecision"))
	err := c.reader.Get(ctx, key, record)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, wrap("reading record", key, err)
}

func wrap(doing string, key types.NamespacedName, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s, %w", doing, key, err)
}

// recordOf is the record that a bound Pod's Binding named, or "".
func recordOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName == "" {
		return ""
	}
	return pod.Annotations[v1alpha1.AnnotationRecord]
}

// boundAt is when the Pod got its node, as far as it says.
func boundAt(pod *corev1.Pod) time.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionTrue && !condition.LastTransitionTime.IsZero() {
			return condition.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// hexDigits end the name of a record, after a hyphen.
const hexDigits = 16

// rebuiltName is another name of the same form, so that both records can be
// there and the Pod's name can be told from both.
func rebuiltName(name string) string {
	sum := sha256.Sum256([]byte("rebuilt:" + name))
	suffix := hex.EncodeToString(sum[:])[:hexDigits]
	if at := strings.LastIndexByte(name, '-'); at > 0 {
		name = name[:at]
	}
	return name + "-" + suffix
}

// Name is the controller's, in metrics and logs.
func (c *Controller) Name() string { return "rebuild" }

// Register adds the controller to a manager. It watches the metadata of Pods
// alone.
func (c *Controller) Register(_ context.Context, m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesMetadata(&corev1.Pod{}, c.whenBound()).
		Complete(c)
}

// whenBound looks at a Pod once it has been bound for a while: at its Binding,
// and at the start at every Pod that is bound.
func (c *Controller) whenBound() handler.EventHandler {
	add := func(object client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)}, c.patience)
	}
	named := func(object client.Object) bool { return object.GetAnnotations()[v1alpha1.AnnotationRecord] != "" }
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if named(e.Object) {
				add(e.Object, queue)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if named(e.ObjectNew) && !named(e.ObjectOld) {
				add(e.ObjectNew, queue)
			}
		},
	}
}
