package health_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const failed = "gpu-0 (taint gpu.gpuladder.dev/failed=xid-79:NoExecute) failed: "

// budget lets so many Pods of a workload be disrupted.
func (w *workload) budget(allowed int32) {
	w.t.Helper()
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: w.name}}
	pdb.Spec.MinAvailable = ptr.To(intstr.FromInt32(1))
	pdb.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.name}}
	if err := w.s.Client.Create(w.t.Context(), pdb); err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	apiserver.WaitFor(w.t, "the budget's status", func(ctx context.Context) error {
		if err := w.s.Client.Get(ctx, client.ObjectKeyFromObject(pdb), pdb); err != nil {
			return err
		}
		pdb.Status = policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: pdb.Generation, DisruptionsAllowed: allowed, CurrentHealthy: 1 + allowed, DesiredHealthy: 1, ExpectedPods: 1 + allowed,
		}
		return w.s.Client.Status().Update(ctx, pdb)
	})
}

// events counts the Events about the Pod, by reason.
func (w *workload) events() map[string]int {
	w.t.Helper()
	list := &eventsv1.EventList{}
	if err := w.s.Client.List(w.t.Context(), list, client.InNamespace(w.name)); err != nil {
		w.t.Fatal(err)
	}
	counts := map[string]int{}
	for _, e := range list.Items {
		if e.Regarding.UID == w.pod.UID {
			counts[e.Reason]++
		}
	}
	return counts
}

func (w *workload) requireEvents(want map[string]int) {
	w.t.Helper()
	apiserver.WaitFor(w.t, fmt.Sprintf("the Events %v", want), func(context.Context) error {
		got := w.events()
		for reason, n := range want {
			if got[reason] != n {
				return fmt.Errorf("there are %v", got)
			}
		}
		return nil
	})
}

// A disruption budget holds an eviction back for as long as it does, over a
// restart of the controller; then the Pod goes.
func TestRecreate(t *testing.T) {
	s := server(t)
	first := startController(t, s)
	w := place(t, s, "recreate", v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate})
	w.budget(0)
	w.fail(true)
	w.requireCondition(v1alpha1.ConditionAccelerator, corev1.ConditionFalse, "DeviceFailed", failed+"the Pod is evicted now", "held back: ", "recreate")
	w.requireEvents(map[string]int{"DeviceFailed": 1, "EvictionHeldBack": 1})
	first.End()
	startController(t, s)
	w.budget(1)
	apiserver.WaitFor(t, "the Pod to be evicted", func(ctx context.Context) error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(w.pod), w.pod); err != nil {
			return client.IgnoreNotFound(err)
		}
		if w.pod.DeletionTimestamp == nil {
			return errors.New("it is not being deleted")
		}
		return nil
	})
	w.requireCondition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI")
	if got := w.events(); got["DeviceFailed"] != 1 || got["EvictionHeldBack"] != 1 {
		t.Errorf("told again: %v", got)
	}
}

// End leaves the ending to the kubelet: the deadline has passed when it is set.
func TestEnd(t *testing.T) {
	s := server(t)
	startController(t, s)
	w := place(t, s, "end", v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEnd, GracePeriod: &metav1.Duration{Duration: 2 * time.Second}})
	w.fail(true)
	w.requireCondition(v1alpha1.ConditionAccelerator, corev1.ConditionFalse, "DeviceFailed", failed+"the Pod ends as failed at ")
	w.requireCondition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeviceFailed", failed)
	apiserver.WaitFor(t, "the deadline", func(ctx context.Context) error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(w.pod), w.pod); err != nil {
			return err
		}
		deadline := w.pod.Spec.ActiveDeadlineSeconds
		if deadline == nil {
			return errors.New("there is none")
		}
		if ends := w.pod.Status.StartTime.Add(time.Duration(*deadline) * time.Second); ends.After(time.Now().Add(time.Second)) {
			return fmt.Errorf("it is at %s", ends)
		}
		return nil
	})
	if w.pod.DeletionTimestamp != nil || w.pod.Status.Phase != corev1.PodRunning {
		t.Errorf("the Pod is %s, deleted %v: that is the kubelet's to do", w.pod.Status.Phase, w.pod.DeletionTimestamp)
	}
}

// Keep tells, and takes the word back, also when the device recovered while no
// controller ran.
func TestKeepAndRecovery(t *testing.T) {
	s := server(t)
	first := startController(t, s)
	w := place(t, s, "keep", v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep})
	w.fail(true)
	w.requireCondition(v1alpha1.ConditionAccelerator, corev1.ConditionFalse, "DeviceFailed", failed+"the Pod keeps it (onUnhealthy Keep of policy keep, revision 1)")
	first.End()
	w.fail(false)
	startController(t, s)
	w.requireCondition(v1alpha1.ConditionAccelerator, corev1.ConditionTrue, "Allocated", "H100 (tier h100, revision 1): keep/keep/gpu-0")
	w.requireEvents(map[string]int{"DeviceFailed": 1, "DeviceRecovered": 1})
	if w.pod.DeletionTimestamp != nil || w.pod.Spec.ActiveDeadlineSeconds != nil {
		t.Error("something was done to the Pod")
	}
}

// The controller may set a deadline, not an image or a label.
func TestTheControllerMayNotChangePods(t *testing.T) {
	s := server(t)
	startController(t, s)
	w := place(t, s, "narrow", v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep})
	controller := apiserver.AsMaster(t, s, "system:serviceaccount:ladder-system:ladder-controller")
	for name, change := range map[string]func(*corev1.Pod){
		"an image": func(p *corev1.Pod) { p.Spec.Containers[0].Image = "example.com/other:1" },
		"a label":  func(p *corev1.Pod) { p.Labels["app"] = "other" },
	} {
		p := w.pod.DeepCopy()
		change(p)
		t.Run(name, func(t *testing.T) {
			apiserver.RequireRefused(t, controller.Patch(t.Context(), p, client.MergeFrom(w.pod)), "ladder-controller-pods", "ladder-controller")
		})
	}
	p := w.pod.DeepCopy()
	p.Spec.ActiveDeadlineSeconds = ptr.To[int64](3600)
	if err := controller.Patch(t.Context(), p, client.MergeFrom(w.pod)); err != nil {
		t.Errorf("a deadline is refused: %v", err)
	}
}

// The scheduler was killed between binding the Pod and writing its record.
func TestLostRecordIsRebuilt(t *testing.T) {
	s := server(t)
	startController(t, s, "--record-patience=1s")
	w := place(t, s, "lost", v1alpha1.OnUnhealthy{})
	record := &v1alpha1.AllocationDecision{}
	apiserver.WaitFor(t, "the record", func(ctx context.Context) error {
		list := &v1alpha1.AllocationDecisionList{}
		if err := s.Client.List(ctx, list, client.InNamespace("lost")); err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		record = &list.Items[0]
		return nil
	})
	if record.Annotations[v1alpha1.AnnotationRebuilt] != "lost-0123456789abcdef" {
		t.Errorf("the record's annotations are %v", record.Annotations)
	}
	spec := record.Spec
	if spec.PodUID != w.pod.UID || spec.Outcome != v1alpha1.OutcomeAllocated || spec.Policy != "lost" || spec.PolicyRevision != 1 || spec.PolicyHash == "" ||
		spec.Tier != "h100" || ptr.Deref(spec.TierIndex, -1) != 0 || spec.Node != "lost" || spec.InputDigest != "sha256:d" || len(spec.Devices) != 1 || spec.Devices[0].Model != "H100" {
		t.Errorf("the record is %+v", spec)
	}
	if len(spec.Tiers) != 0 || spec.DecidedAt != nil {
		t.Errorf("the record claims to know %+v, %v", spec.Tiers, spec.DecidedAt)
	}
}
