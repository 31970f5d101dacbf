// Package health_test runs the real ladder-controller, under its own account and
// roles, against a real API server, where devices of bound Pods fail and records
// get lost. There is no kubelet and no controller of Kubernetes: what they would
// do is done or looked at by the tests.
package health_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/e2e/integration/internal/running"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

var install sync.Once

func server(t *testing.T) *apiserver.Server {
	t.Helper()
	s := apiserver.Get(t)
	install.Do(func() { running.Install(t, s, "../../cluster/lab") })
	return s
}

// startController runs ladder-controller. The short lease lets another take over
// soon.
func startController(t *testing.T, s *apiserver.Server, args ...string) *running.Program {
	t.Helper()
	return running.Controller(t, s, append([]string{"--leader-election-lease=9s"}, args...)...)
}

// workload is one bound Pod with the device gpu-0 of a node of its own.
type workload struct {
	t    *testing.T
	s    *apiserver.Server
	name string // of namespace, policy, node and Pod
	pod  *corev1.Pod
}

// place makes a namespace, a policy and a Pod of it that runs on a device, as
// scheduler and kubelet leave it.
func place(t *testing.T, s *apiserver.Server, name string, unhealthy v1alpha1.OnUnhealthy) *workload {
	t.Helper()
	w := &workload{t: t, s: s, name: name}
	apiserver.Create(t, s.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	apiserver.Create(t, s.Client, &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.AcceleratorPolicySpec{
			Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}, {Name: "any"}}, OnUnhealthy: unhealthy,
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}},
		},
	})
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	slice.Spec = resourcev1.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To(name), Pool: resourcev1.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0"}, {Name: "gpu-1"}},
	}
	apiserver.Create(t, s.Client, slice)
	w.pod = w.admit()
	template := &resourcev1.ResourceClaimTemplate{}
	apiserver.WaitFor(t, "the policy's template", func(ctx context.Context) error {
		return s.Client.Get(ctx, types.NamespacedName{Namespace: name, Name: name + "-1"}, template)
	})
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name, Name: name + "-accelerator", Labels: template.Spec.Labels, Annotations: template.Spec.Annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: w.pod.Name, UID: w.pod.UID, Controller: ptr.To(true)}},
		},
		Spec: template.Spec.Spec,
	}
	apiserver.Create(t, apiserver.AsMaster(t, s, apiserver.ClaimController), claim)
	w.status(func(p *corev1.Pod) {
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: v1alpha1.ClaimRefName, ResourceClaimName: &claim.Name}}
	})
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
		Request: v1alpha1.RequestName + "/h100", Driver: v1alpha1.DriverName, Pool: name, Device: "gpu-0",
		Tolerations: claim.Spec.Devices.Requests[0].FirstAvailable[0].Tolerations,
	}}}}
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: w.pod.Name, UID: w.pod.UID}}
	if err := s.Client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	err := s.Client.SubResource("binding").Create(t.Context(), w.pod.DeepCopy(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name, Annotations: map[string]string{
			v1alpha1.AnnotationRevision: "1", v1alpha1.AnnotationTier: "h100", v1alpha1.AnnotationModel: "H100", v1alpha1.AnnotationDigest: "sha256:d",
			v1alpha1.AnnotationRecord: name + "-0123456789abcdef",
		}},
		Target: corev1.ObjectReference{Kind: "Node", Name: name},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.status(func(p *corev1.Pod) {
		p.Status.Phase, p.Status.StartTime = corev1.PodRunning, ptr.To(metav1.NewTime(time.Now().Add(-time.Minute)))
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			corev1.PodCondition{Type: v1alpha1.ConditionAccelerator, Status: corev1.ConditionTrue, Reason: "Allocated"},
		)
	})
	return w
}

// admit creates the Pod as soon as its policy is ready, and admission gives it its
// claim: without that it would be admitted as well.
func (w *workload) admit() *corev1.Pod {
	w.t.Helper()
	var pod *corev1.Pod
	apiserver.WaitFor(w.t, "the Pod to be admitted", func(ctx context.Context) error {
		pod = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: w.name, Labels: map[string]string{v1alpha1.LabelPolicy: w.name, "app": w.name}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/train:1"}}},
		}
		try := pod.DeepCopy()
		if err := w.s.Client.Create(ctx, try, client.DryRunAll); err != nil {
			return err
		}
		if len(try.Spec.ResourceClaims) == 0 {
			return errors.New("it would have no claim")
		}
		return w.s.Client.Create(ctx, pod)
	})
	return pod
}

func (w *workload) status(change func(*corev1.Pod)) {
	w.t.Helper()
	apiserver.WaitFor(w.t, "a status to be written", func(ctx context.Context) error {
		if err := w.s.Client.Get(ctx, client.ObjectKeyFromObject(w.pod), w.pod); err != nil {
			return err
		}
		change(w.pod)
		return w.s.Client.Status().Update(ctx, w.pod)
	})
}

// fail makes the driver tell that gpu-0 has failed, or that it is well again.
func (w *workload) fail(failed bool) {
	w.t.Helper()
	apiserver.WaitFor(w.t, "taints to be published", func(ctx context.Context) error {
		slice := &resourcev1.ResourceSlice{}
		if err := w.s.Client.Get(ctx, types.NamespacedName{Name: w.name}, slice); err != nil {
			return err
		}
		slice.Spec.Devices[0].Taints = nil
		if failed {
			slice.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{
				{Key: v1alpha1.TaintUnhealthy, Value: "xid-79", Effect: resourcev1.DeviceTaintEffectNoSchedule},
				{Key: v1alpha1.TaintFailed, Value: "xid-79", Effect: resourcev1.DeviceTaintEffectNoExecute},
			}
		}
		return w.s.Client.Update(ctx, slice)
	})
}

// requireCondition waits for a condition of the Pod and words in its message.
func (w *workload) requireCondition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason string, words ...string) {
	w.t.Helper()
	apiserver.WaitFor(w.t, fmt.Sprintf("%s=%s because of %s", kind, status, reason), func(ctx context.Context) error {
		if err := w.s.Client.Get(ctx, client.ObjectKeyFromObject(w.pod), w.pod); err != nil {
			return err
		}
		for _, c := range w.pod.Status.Conditions {
			if c.Type != kind {
				continue
			}
			for _, word := range words {
				if !strings.Contains(c.Message, word) {
					return fmt.Errorf("the condition lacks %q: %s", word, c.Message)
				}
			}
			if c.Status == status && c.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %+v", w.pod.Status.Conditions)
	})
}
