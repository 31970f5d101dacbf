//go:build e2e

package suites

import (
	"context"
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/e2e/workload"
)

// Ways to hold the scheduler at a certain point, for as long as a test wants.

// denial is what a refused request is told.
const denial = "held back by a test"

// hold refuses some requests of the suite's namespace.
type hold struct {
	s      *scene
	name   string
	policy *admissionv1.ValidatingAdmissionPolicy
	// refused tells whether such a request is refused now, by trying.
	refused func(ctx context.Context) (bool, error)
}

// holdBindings refuses to bind Pods: what was decided is written to claims, and
// the Pod still gets no node.
func (s *scene) holdBindings(ctx context.Context, t *testing.T) *hold {
	t.Helper()
	h := &hold{s: s, name: "bindings", refused: func(ctx context.Context) (bool, error) {
		nobody := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "nobody"}, Target: corev1.ObjectReference{Kind: "Node", Name: "none"}}
		err := s.kube.CoreV1().Pods(s.ns).Bind(ctx, nobody, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return isDenial(err), nil
	}}
	h.refuse(ctx, t, admissionv1.Create, "", "pods/binding")
	return h
}

// holdClaims refuses to change the status of claims: what was decided is known
// to the scheduler alone.
func (s *scene) holdClaims(ctx context.Context, t *testing.T) *hold {
	t.Helper()
	probe := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "probe"}}
	probe.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "none", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "none"}}}
	if err := s.client.Create(ctx, probe); err != nil {
		t.Fatalf("creating a claim to try with, %v", err)
	}
	s.atEnd(func(ctx context.Context) error { return client.IgnoreNotFound(s.client.Delete(ctx, probe)) })
	h := &hold{s: s, name: "claims", refused: func(ctx context.Context) (bool, error) {
		_, err := s.kube.ResourceV1().ResourceClaims(s.ns).UpdateStatus(ctx, probe, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return isDenial(err), nil
	}}
	h.refuse(ctx, t, admissionv1.Update, "resource.k8s.io", "resourceclaims/status")
	return h
}

func isDenial(err error) bool { return err != nil && contains(err.Error(), denial) }

// refuse makes an admission policy and returns when it is in force.
func (h *hold) refuse(ctx context.Context, t *testing.T, operation admissionv1.OperationType, group, what string) {
	t.Helper()
	name := h.s.ns + "-" + h.name
	ours := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: h.s.ns}}
	h.policy = &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: ours,
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{operation},
					Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{what}},
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "false", Message: denial}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	for _, o := range []client.Object{h.policy, binding} {
		h.s.atEnd(func(ctx context.Context) error { return client.IgnoreNotFound(h.s.client.Delete(ctx, o)) })
		if err := h.s.client.Create(ctx, o); err != nil {
			t.Fatalf("holding %s, %v", h.name, err)
		}
	}
	h.until(ctx, t, true)
}

// release lets such requests through again.
func (h *hold) release(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := h.s.client.Delete(ctx, h.policy); err != nil {
		t.Fatalf("releasing %s, %v", h.name, err)
	}
	h.until(ctx, t, false)
}

// until waits until the API server acts as it was told to: it learns of
// admission policies by watching them, which nobody else sees.
func (h *hold) until(ctx context.Context, t *testing.T, held bool) {
	t.Helper()
	err := workload.WaitFor(ctx, within.admission, fmt.Sprintf("the hold on %s to be %t", h.name, held), func(ctx context.Context) (bool, string, error) {
		is, err := h.refused(ctx)
		return is == held, fmt.Sprintf("it is %t", is), err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// volume holds a Pod between Reserve and the writing of its claim: the
// scheduler waits for a volume that only the test provides.
type volume struct {
	s     *scene
	claim *corev1.PersistentVolumeClaim
}

// holdVolume returns a volume and makes a Pod need it.
func (s *scene) holdVolume(ctx context.Context, t *testing.T) (*volume, func(*corev1.Pod)) {
	t.Helper()
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Provisioner: "e2e.gpuladder.dev/by-hand", VolumeBindingMode: &wait,
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "held"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class.Name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
	for _, o := range []client.Object{class, claim} {
		s.atEnd(func(ctx context.Context) error { return client.IgnoreNotFound(s.client.Delete(ctx, o)) })
		if err := s.client.Create(ctx, o); err != nil {
			t.Fatalf("making a volume to wait for, %v", err)
		}
	}
	return &volume{s, claim}, func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "held", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
	}
}

// held waits until the scheduler has chosen a node and waits for the volume,
// and returns the node.
func (v *volume) held(ctx context.Context, t *testing.T) string {
	t.Helper()
	node := ""
	v.s.await(ctx, t, within.decided, "the scheduler to choose a node and wait for the volume", func() (bool, string) {
		if c := watchlog.Get[*corev1.PersistentVolumeClaim](v.s.log, client.ObjectKeyFromObject(v.claim)); c != nil {
			node = c.Annotations["volume.kubernetes.io/selected-node"]
		}
		return node != "", "no node is selected"
	})
	return node
}

// provide does what a provisioner and the volume controller do. The lab has
// neither.
func (v *volume) provide(ctx context.Context, t *testing.T) {
	t.Helper()
	claim := watchlog.Get[*corev1.PersistentVolumeClaim](v.s.log, client.ObjectKeyFromObject(v.claim)).DeepCopy()
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: v.s.ns},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: *claim.Spec.StorageClassName, AccessModes: claim.Spec.AccessModes,
			Capacity:                      claim.Spec.Resources.Requests,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: "/tmp/" + v.s.ns, Type: new(corev1.HostPathDirectoryOrCreate),
			}},
		},
	}
	v.s.atEnd(func(ctx context.Context) error { return client.IgnoreNotFound(v.s.client.Delete(ctx, pv)) })
	if err := v.s.client.Create(ctx, pv); err != nil {
		t.Fatalf("providing the volume, %v", err)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes"}},"spec":{"volumeName":%q}}`, pv.Name)
	if err := v.s.client.Patch(ctx, claim, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatalf("binding the volume, %v", err)
	}
}
