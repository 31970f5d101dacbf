package quota

// What changes in the cluster, from the watches to the next round.

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// watched are the kinds that count, PodGroups beside where they are served.
func watched() []client.Object {
	return []client.Object{
		&corev1.Pod{}, &corev1.Node{}, &resourcev1.ResourceClaim{}, &resourcev1.ResourceSlice{}, &resourcev1.DeviceTaintRule{},
		&v1alpha1.TenantQuota{}, &v1alpha1.PolicyRevision{},
	}
}

// servesGroups: the cluster has PodGroups, of the version that is read here.
func servesGroups(mapper meta.RESTMapper) (bool, error) {
	group := schedulingv1beta1.SchemeGroupVersion
	_, err := mapper.RESTMapping(schema.GroupKind{Group: group.Group, Kind: "PodGroup"}, group.Version)
	switch {
	case meta.IsNoMatchError(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("asking for PodGroups, %w", err)
	}
	return true, nil
}

// CacheOptions adds to o what keeps the controller's objects small in memory.
func CacheOptions(o cache.Options) cache.Options {
	if o.ByObject == nil {
		o.ByObject = map[client.Object]cache.ByObject{}
	}
	o.ByObject[&corev1.Pod{}] = cache.ByObject{Transform: slimPod}
	o.ByObject[&corev1.Node{}] = cache.ByObject{Transform: slimNode}
	for _, object := range []client.Object{&resourcev1.ResourceClaim{}, &resourcev1.ResourceSlice{}} {
		o.ByObject[object] = cache.ByObject{Transform: cache.TransformStripManagedFields()}
	}
	return o
}

// slimPod keeps of a Pod what the controller reads.
func slimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	annotations := map[string]string{}
	for key, value := range pod.Annotations {
		if strings.HasPrefix(key, v1alpha1.GroupName+"/") {
			annotations[key] = value
		}
	}
	var conditions []corev1.PodCondition
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget {
			conditions = append(conditions, condition)
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
			Annotations: annotations, CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
			OwnerReferences: pod.OwnerReferences,
		},
		Spec: corev1.PodSpec{
			SchedulingGates: pod.Spec.SchedulingGates, Priority: pod.Spec.Priority, ResourceClaims: pod.Spec.ResourceClaims,
			SchedulingGroup: pod.Spec.SchedulingGroup, TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, Conditions: conditions,
			ResourceClaimStatuses: pod.Status.ResourceClaimStatuses, ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
		},
	}, nil
}

// slimNode keeps of a node what says whether it takes Pods.
func slimNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels,
			CreationTimestamp: node.CreationTimestamp, DeletionTimestamp: node.DeletionTimestamp,
		},
		Spec: corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable},
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			slim.Status.Conditions = []corev1.NodeCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	return slim, nil
}

// change is an object that is new, has changed or is gone.
type change struct {
	object metav1.Object
	gone   bool
}

// feed holds changes until the next round takes them.
type feed struct {
	mutex   sync.Mutex
	changes []change
	// changed holds a token where there are changes.
	changed chan struct{}
}

func newFeed() *feed { return &feed{changed: make(chan struct{}, 1)} }

func (f *feed) add(object metav1.Object, gone bool) {
	f.mutex.Lock()
	f.changes = append(f.changes, change{object, gone})
	f.mutex.Unlock()
	f.poke()
}

// poke asks for a round.
func (f *feed) poke() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *feed) take() []change {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	taken := f.changes
	f.changes = nil
	return taken
}

// follow feeds on informers, and returns when it has all that is there: before
// that nothing may be decided.
func (f *feed) follow(ctx context.Context, informers []cache.Informer) error {
	synced := make([]toolscache.InformerSynced, 0, len(informers))
	for _, informer := range informers {
		registration, err := informer.AddEventHandler(f.handler())
		if err != nil {
			return fmt.Errorf("watching, %w", err)
		}
		synced = append(synced, registration.HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}

func (f *feed) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { f.tell(object, false) },
		UpdateFunc: func(old, object any) {
			if matters(old, object) {
				f.tell(object, false)
			}
		},
		DeleteFunc: func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			f.tell(object, true)
		},
	}
}

func (f *feed) tell(object any, gone bool) {
	if o, ok := object.(metav1.Object); ok {
		f.add(o, gone)
	}
}

// matters is false for the many changes that change nothing here: a node's
// heartbeat, the status of a PodGroup, and that which this controller writes.
func matters(old, object any) bool {
	switch o := object.(type) {
	case *corev1.Node:
		was, ok := old.(*corev1.Node)
		return !ok || was.UID != o.UID || was.Spec.Unschedulable != o.Spec.Unschedulable || readiness(was) != readiness(o) ||
			was.DeletionTimestamp.IsZero() != o.DeletionTimestamp.IsZero()
	case *v1alpha1.TenantQuota:
		was, ok := old.(*v1alpha1.TenantQuota)
		return !ok || was.UID != o.UID || was.Generation != o.Generation
	case *schedulingv1beta1.PodGroup:
		was, ok := old.(*schedulingv1beta1.PodGroup)
		return !ok || was.UID != o.UID || !equality.Semantic.DeepEqual(was.Spec.SchedulingPolicy, o.Spec.SchedulingPolicy)
	}
	was, ok := old.(metav1.Object)
	is, same := object.(metav1.Object)
	return !ok || !same || was.GetUID() != is.GetUID() || was.GetResourceVersion() != is.GetResourceVersion()
}

func readiness(node *corev1.Node) corev1.ConditionStatus {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status
		}
	}
	return ""
}
