package quota

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/tenants"
)

func TestMatters(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: "1"}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if change != nil {
			n.ResourceVersion = "2"
			change(n)
		}
		return n
	}
	quota := func(generation int64, version string) *v1alpha1.TenantQuota {
		return &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{UID: "u", Generation: generation, ResourceVersion: version}}
	}
	pod := func(version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
	}
	group := func(least int32, version string) *schedulingv1beta1.PodGroup {
		g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: version}}
		g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: least}
		return g
	}
	for name, test := range map[string]struct {
		old, object any
		want        bool
	}{
		"heartbeat":         {node(nil), node(func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }), false},
		"cordoned":          {node(nil), node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), true},
		"not ready":         {node(nil), node(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }), true},
		"ending":            {node(nil), node(func(n *corev1.Node) { n.DeletionTimestamp = ptr.To(metav1.Now()) }), true},
		"another node":      {node(nil), node(func(n *corev1.Node) { n.UID = "v" }), true},
		"own status":        {quota(1, "1"), quota(1, "2"), false},
		"spec of a quota":   {quota(1, "1"), quota(2, "2"), true},
		"Pod":               {pod("1"), pod("2"), true},
		"resync of a Pod":   {pod("1"), pod("1"), false},
		"status of a group": {group(2, "1"), group(2, "2"), false},
		"size of a gang":    {group(2, "1"), group(3, "2"), true},
		"without what was":  {nil, pod("1"), true},
	} {
		if got := matters(test.old, test.object); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestFeedKeepsTheOrder(t *testing.T) {
	f := newFeed()
	h := f.handler()
	a := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}
	b := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "2"}}
	h.OnAdd(a, true)
	h.OnUpdate(a, b)
	h.OnUpdate(b, b)
	h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "a", Obj: b})
	h.OnDelete("nonsense")
	if got := f.take(); len(got) != 3 || got[0].object != a || got[1].object != b || got[1].gone || !got[2].gone || got[2].object != b {
		t.Errorf("got %+v", got)
	}
	select {
	case <-f.changed:
	default:
		t.Error("nobody was woken")
	}
	if got := f.take(); len(got) != 0 {
		t.Errorf("got %+v twice", got)
	}
}

// What is dropped from memory is nothing that is read.
func TestSlim(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "n", UID: "u", Labels: map[string]string{v1alpha1.LabelPolicy: "h"},
			Annotations:   map[string]string{v1alpha1.AnnotationModel: "H100", "example.com/large": "text"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}, OwnerReferences: []metav1.OwnerReference{{Name: "j"}},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c"}}, Priority: ptr.To[int32](3), SchedulingGates: []corev1.PodSchedulingGate{{Name: "g"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "r"}}, SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")},
			TerminationGracePeriodSeconds: ptr.To[int64](9),
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Message: "long", ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "r"}},
			ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "e"}, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady}, {Type: corev1.DisruptionTarget, Reason: tenants.EvictionReason},
			},
		},
	}
	got, err := slimPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	slim, ok := got.(*corev1.Pod)
	if !ok || slim.Annotations[v1alpha1.AnnotationModel] != "H100" || len(slim.Annotations) != 1 || slim.Labels[v1alpha1.LabelPolicy] != "h" ||
		*slim.Spec.Priority != 3 || len(slim.Spec.SchedulingGates) != 1 || len(slim.Spec.ResourceClaims) != 1 || slim.Spec.SchedulingGroup == nil || slim.Status.Phase != corev1.PodRunning || slim.UID != "u" ||
		len(slim.OwnerReferences) != 1 || len(slim.Status.Conditions) != 1 || slim.Status.Conditions[0].Reason != tenants.EvictionReason ||
		*slim.Spec.TerminationGracePeriodSeconds != 9 || len(slim.Status.ResourceClaimStatuses) != 1 || slim.Status.ExtendedResourceClaimStatus == nil {
		t.Errorf("lost what is read: %+v", got)
	}
	if len(slim.Spec.Containers) != 0 || len(slim.ManagedFields) != 0 || slim.Status.Message != "" {
		t.Errorf("kept what is not read: %+v", slim)
	}
	for _, transform := range []toolscache.TransformFunc{slimPod, slimNode} {
		unknown := toolscache.DeletedFinalStateUnknown{Key: "a"}
		if got, err := transform(unknown); err != nil || got != any(unknown) {
			t.Errorf("got %v, %v of what is no object", got, err)
		}
	}
	if options := CacheOptions(cache.Options{}); len(options.ByObject) != 4 {
		t.Errorf("got %d kinds, want 4", len(options.ByObject))
	}
}
