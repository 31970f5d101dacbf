package policy

import (
	"context"
	"maps"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

// hasPolicy selects the objects that carry a policy's label.
func hasPolicy() labels.Selector {
	requirement, err := labels.NewRequirement(v1alpha1.LabelPolicy, selection.Exists, nil)
	if err != nil {
		panic(err) // a constant
	}
	return labels.NewSelector().Add(*requirement)
}

func policyOfLabel(_ context.Context, object client.Object) []reconcile.Request {
	name := object.GetLabels()[v1alpha1.LabelPolicy]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

func (c *Controller) everyPolicy(ctx context.Context, _ client.Object) []reconcile.Request {
	var policies v1alpha1.AcceleratorPolicyList
	if err := c.client.List(ctx, &policies); err != nil {
		log.FromContext(ctx).Error(err, "listing policies") // a read of the cache: it is being stopped
		return nil
	}
	requests := make([]reconcile.Request, 0, len(policies.Items))
	for i := range policies.Items {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: policies.Items[i].Name}})
	}
	return requests
}

// namespaceChanged lets pass what can change which namespaces are selected, or
// take templates away.
func namespaceChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels())
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false }, // its templates are gone with it
	}
}

func isLaddersClass() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(object client.Object) bool {
		for _, driver := range compile.Drivers() {
			if object.GetName() == compile.DeviceClassName(driver) {
				return true
			}
		}
		return false
	})
}

func sameClass(a, b *resourcev1.DeviceClass) bool {
	return apiequality.Semantic.DeepEqual(a.Spec, b.Spec)
}
