package policy

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

func names(requests []reconcile.Request) []string {
	var list []string
	for _, r := range requests {
		list = append(list, r.Name)
	}
	slices.Sort(list)
	return list
}

func TestWhatWakesAPolicy(t *testing.T) {
	other := testPolicy()
	other.Name, other.UID = "q", "other"
	w := newWorld(t, testPolicy(), other)
	requireEqual(t, "a namespace wakes", names(w.controller.everyPolicy(t.Context(), namespace("a", nil))), []string{"p", "q"})

	template := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelPolicy: "p"}}}
	requireEqual(t, "a template wakes", names(policyOfLabel(t.Context(), template)), []string{"p"})
	requireEqual(t, "a stranger's template wakes", names(policyOfLabel(t.Context(), &resourcev1.ResourceClaimTemplate{})), nil)
}

func TestPredicates(t *testing.T) {
	plain, labelled, annotated := namespace("a", nil), namespace("a", map[string]string{"gpu": "yes"}), namespace("a", nil)
	annotated.Annotations = map[string]string{"note": "x"}
	update := func(before, after *corev1.Namespace) bool {
		return namespaceChanged().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
	}
	if !update(plain, labelled) || !update(labelled, plain) {
		t.Error("a change of a namespace's labels does not pass")
	}
	if update(plain, annotated) {
		t.Error("a change that selects nothing else passes")
	}
	if !namespaceChanged().Create(event.CreateEvent{Object: plain}) || namespaceChanged().Delete(event.DeleteEvent{Object: plain}) {
		t.Error("a new namespace must pass, a deleted one must not")
	}
	for _, driver := range compile.Drivers() {
		if !isLaddersClass().Generic(event.GenericEvent{Object: compile.DeviceClass(driver)}) {
			t.Errorf("the class of %s does not pass", driver)
		}
	}
	nvidias := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NVIDIADriverName}}
	if isLaddersClass().Generic(event.GenericEvent{Object: nvidias}) {
		t.Error("NVIDIA's own class passes")
	}
}
