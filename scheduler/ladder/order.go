package ladder

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// OrderName is the name of the plugin Order in the registry and in
// configurations.
const OrderName = "LadderOrder"

// Order is the QueueSort plugin: which of the Pods that wait is tried first. It
// is a plugin of its own because a scheduler has one QueueSort for all profiles
// and kube-scheduler enables another by default.
//
// Higher priority comes first, then the older Pod, then namespace and name,
// byte-wise. The order is total and every part of it is fixed when the Pod is
// created, so it does not depend on when a scheduler learned of the Pod or how
// often it tried.
type Order struct{}

var _ fwk.QueueSortPlugin = Order{}

// NewOrder makes the plugin for a profile.
func NewOrder(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return Order{}, nil }

// Name implements fwk.Plugin.
func (Order) Name() string { return OrderName }

// Less implements fwk.QueueSortPlugin.
func (Order) Less(a, b fwk.QueuedEntityInfo) bool { return placeOf(a).compare(placeOf(b)) < 0 }

// place is where something stands in the queue.
type place struct {
	priority  int32
	created   time.Time
	namespace string
	name      string
	kind      fwk.EntityKeyType
}

// placeOf returns a Pod's place, or that of a group of Pods, which stands where
// its PodGroup was created.
func placeOf(e fwk.QueuedEntityInfo) place {
	p := place{priority: e.GetPriority(), kind: e.Type()}
	switch e := e.(type) {
	case *framework.QueuedPodInfo:
		p.created, p.namespace, p.name = e.Pod.CreationTimestamp.Time, e.Pod.Namespace, e.Pod.Name
	case *framework.QueuedPodGroupInfo:
		p.created, p.namespace, p.name = e.GetCreationTimestamp(), e.GetNamespace(), e.GetName()
	default:
		p.created = e.GetTimestamp()
	}
	return p
}

// compare is negative where p comes before o.
func (p place) compare(o place) int {
	return cmp.Or(
		cmp.Compare(o.priority, p.priority),
		p.created.Compare(o.created),
		cmp.Compare(p.namespace, o.namespace),
		cmp.Compare(p.name, o.name),
		cmp.Compare(p.kind, o.kind),
	)
}
