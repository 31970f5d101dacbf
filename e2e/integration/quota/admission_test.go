package quota_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
)

// waitGated waits until the admission policies know a quota and a policy.
func waitGated(t *testing.T, s *apiserver.Server, namespace, policy string, want bool) {
	t.Helper()
	apiserver.WaitFor(t, "the admission policies to take effect in "+namespace, func(ctx context.Context) error {
		p := pod(namespace, "try", policy)
		if err := s.Client.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if got := slices.Contains(gates(p), v1alpha1.GateQuota); got != want {
			return fmt.Errorf("a Pod has the gates %q", gates(p))
		}
		return nil
	})
}

func TestGateIsPut(t *testing.T) {
	s := server(t)
	namespace(t, s, "gate-a")
	namespace(t, s, "gate-b")
	namespace(t, s, "gate-free")
	policy(t, s, "gate")
	waitGated(t, s, "gate-a", "gate", false) // nobody is held back without a quota
	q := quota(t, s, "gate-1", []string{"gate-a"}, part("H100", 0, 1))
	quota(t, s, "gate-2", []string{"gate-b", "elsewhere"}, part("H100", 0, 1))
	waitGated(t, s, "gate-a", "gate", true)
	waitGated(t, s, "gate-b", "gate", true)

	own := func(names ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, n := range names {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: n})
			}
		}
	}
	unlabelled := func(p *corev1.Pod) { p.Labels = nil }
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want []string
	}{
		"a tenant's":              {pod("gate-a", "p1", "gate"), []string{v1alpha1.GateQuota}},
		"another tenant's":        {pod("gate-b", "p2", "gate"), []string{v1alpha1.GateQuota}},
		"no tenant's":             {pod("gate-free", "p3", "gate"), nil},
		"without a policy":        {pod("gate-a", "p4", "", unlabelled), nil},
		"brings the gate":         {pod("gate-a", "p5", "gate", own(v1alpha1.GateQuota)), []string{v1alpha1.GateQuota}},
		"has a gate of its own":   {pod("gate-a", "p6", "gate", own("example.com/mine")), []string{"example.com/mine", v1alpha1.GateQuota}},
		"brings both":             {pod("gate-a", "p7", "gate", own(v1alpha1.GateQuota, "example.com/mine")), []string{v1alpha1.GateQuota, "example.com/mine"}},
		"has a claim and is held": {pod("gate-a", "p8", "gate"), []string{v1alpha1.GateQuota}},
	} {
		t.Run(name, func(t *testing.T) {
			apiserver.Create(t, s.Client, test.pod)
			t.Cleanup(func() { remove(t, s, test.pod) })
			got := gates(test.pod)
			slices.Sort(got)
			slices.Sort(test.want)
			if !slices.Equal(got, test.want) {
				t.Errorf("got gates %q, want %q", got, test.want)
			}
			if test.pod.Labels != nil && (len(test.pod.Spec.ResourceClaims) != 1 || test.pod.Spec.SchedulerName != v1alpha1.SchedulerName) {
				t.Errorf("the claim or the scheduler is missing: %+v", test.pod.Spec)
			}
		})
	}
	remove(t, s, q)
	waitGated(t, s, "gate-a", "gate", false)
}

// Who may edit a namespace can't open its gates, not even for his own Pods.
func TestGateIsOpenedInTurnOnly(t *testing.T) {
	s := server(t)
	namespace(t, s, "turn")
	policy(t, s, "turn")
	quota(t, s, "turn", []string{"turn"}, part("H100", 0, 1))
	waitGated(t, s, "turn", "turn", true)
	apiserver.Create(t, s.Client, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "quota-admin"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"tenantquotas"}, Verbs: []string{"*"}}},
	})
	apiserver.Create(t, s.Client, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "quota-admin"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "quota-admin"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "boss"}},
	})
	apiserver.Create(t, s.Client, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "turn", Name: "boss"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: edit},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "boss"}},
	})
	open := func(c client.Client, name string) error {
		p := pod("turn", name, "turn")
		apiserver.Create(t, s.Client, p)
		t.Cleanup(func() { remove(t, s, p) })
		before := p.DeepCopy()
		p.Spec.SchedulingGates = nil
		return c.Patch(t.Context(), p, client.MergeFrom(before))
	}
	apiserver.RequireRefused(t, open(as(t, s, "dev"), "by-dev"), "ladder-quota-gate", "spec.schedulingGates", "not by dev")
	for name, user := range map[string]string{"by-controller": catalog.DefaultAccounts().Controller, "by-boss": "boss"} {
		if err := open(as(t, s, user), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// All else about a Pod that waits can be changed.
	p := pod("turn", "other", "turn")
	apiserver.Create(t, as(t, s, "dev"), p)
	t.Cleanup(func() { remove(t, s, p) })
	p.Annotations["example.com/note"] = "x"
	if err := as(t, s, "dev").Update(t.Context(), p); err != nil {
		t.Error(err)
	}
}

// A Pod can't be made unfit for reclaim later, nor can a notice be forged.
func TestNoticeIsTheControllers(t *testing.T) {
	s := server(t)
	namespace(t, s, "notice")
	policy(t, s, "notice")
	waitGated(t, s, "notice", "notice", false)
	dev := as(t, s, "dev")
	for _, key := range []string{
		v1alpha1.AnnotationReclaimDeadline, v1alpha1.AnnotationReclaimFor, v1alpha1.AnnotationReclaims, v1alpha1.AnnotationReclaimed,
		v1alpha1.AnnotationTurn, v1alpha1.AnnotationTurnModels,
	} {
		forged := pod("notice", "forged", "notice", func(p *corev1.Pod) { p.Annotations = map[string]string{key: "1"} })
		apiserver.RequireRefused(t, dev.Create(t.Context(), forged), "ladder-quota-reclaim", "gpuladder.dev/reclaim-deadline", "written by", "not by dev")
	}

	firm := pod("notice", "firm", "notice", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPreemptible] = "false" })
	apiserver.Create(t, dev, firm)
	plain := pod("notice", "plain", "notice")
	apiserver.Create(t, dev, plain)
	t.Cleanup(func() { remove(t, s, firm); remove(t, s, plain) })
	plain.Labels[v1alpha1.LabelPreemptible] = "false"
	apiserver.RequireRefused(t, dev.Update(t.Context(), plain), "ladder-quota-reclaim", "takes effect when a Pod is created")

	if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(plain), plain); err != nil {
		t.Fatal(err)
	}
	noticed := plain.DeepCopy()
	noticed.Annotations[v1alpha1.AnnotationReclaimDeadline] = "2026-01-01T00:00:00Z"
	noticed.Annotations[v1alpha1.AnnotationReclaimFor] = "u"
	noticed.Annotations[v1alpha1.AnnotationReclaims] = "2"
	noticed.Annotations[v1alpha1.AnnotationTurnModels] = "H100"
	if err := as(t, s, catalog.DefaultAccounts().Controller).Patch(t.Context(), noticed, client.MergeFrom(plain)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{v1alpha1.AnnotationReclaimDeadline, v1alpha1.AnnotationReclaims, v1alpha1.AnnotationTurnModels} {
		without := noticed.DeepCopy()
		delete(without.Annotations, key)
		apiserver.RequireRefused(t, dev.Update(t.Context(), without), "ladder-quota-reclaim", "not by dev")
	}
}

func TestNamespaceInTwoQuotasIsRefused(t *testing.T) {
	s := server(t)
	quota(t, s, "two-1", []string{"two-a", "two-b"}, part("H100", 0, 1))
	apiserver.WaitFor(t, "the admission policy to know the quota", func(ctx context.Context) error {
		other := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: "two-2"}, Spec: v1alpha1.TenantQuotaSpec{
			Namespaces: []string{"two-c", "two-b"}, Models: []v1alpha1.ModelQuota{part("H100", 0, 1)},
		}}
		err := s.Client.Create(ctx, other, client.DryRunAll)
		if err == nil {
			return fmt.Errorf("accepted")
		}
		if !strings.Contains(err.Error(), "spec.namespaces: two-b belongs to TenantQuota two-1") {
			return err
		}
		return nil
	})
	other := quota(t, s, "two-2", []string{"two-c"}, part("H100", 0, 1))
	other.Spec.Namespaces = []string{"two-a", "two-b", "two-c"}
	apiserver.RequireRefused(t, s.Client.Update(t.Context(), other), "ladder-quota-namespaces", "two-a, two-b belongs to TenantQuota two-1")
	// A change of one's own is no conflict with oneself.
	other.Spec.Namespaces = []string{"two-c", "two-d"}
	if err := s.Client.Update(t.Context(), other); err != nil {
		t.Error(err)
	}
}

// Two quotas that were written in the same moment can be mended and deleted: a
// namespace that a quota has already is not judged again.
func TestQuotasInConflictCanBeChanged(t *testing.T) {
	s := server(t)
	quota(t, s, "conflict-1", []string{"conflict-a", "conflict-b"}, part("H100", 0, 1))
	other := quota(t, s, "conflict-2", []string{"conflict-c"}, part("H100", 0, 1))
	waitUnguarded(t, s, func() {
		apiserver.WaitFor(t, "the second quota to have the namespace too", func(ctx context.Context) error {
			if err := s.Client.Get(ctx, client.ObjectKeyFromObject(other), other); err != nil {
				return err
			}
			other.Spec.Namespaces = []string{"conflict-a", "conflict-c"}
			return s.Client.Update(ctx, other)
		})
	})
	apiserver.WaitFor(t, "the admission policy to be back", func(ctx context.Context) error {
		more := other.DeepCopy()
		more.Spec.Namespaces = []string{"conflict-a", "conflict-b", "conflict-c"}
		err := s.Client.Update(ctx, more, client.DryRunAll)
		if err == nil {
			return fmt.Errorf("accepted")
		}
		if !strings.Contains(err.Error(), "spec.namespaces: conflict-b belongs to TenantQuota conflict-1") {
			return err
		}
		return nil
	})
	other.Labels = map[string]string{"example.com/team": "x"}
	other.Spec.Weight = ptr.To[int32](2)
	if err := s.Client.Update(t.Context(), other); err != nil {
		t.Errorf("changing what is not the conflict: %v", err)
	}
	// No garbage collector is here: the test takes the finalizer off as one would.
	if err := s.Client.Delete(t.Context(), other, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(other), other); err != nil || len(other.Finalizers) == 0 {
		t.Fatalf("not being deleted in the foreground: finalizers %q, %v", other.Finalizers, err)
	}
	other.Finalizers = nil
	if err := s.Client.Update(t.Context(), other); err != nil {
		t.Errorf("taking off the finalizer: %v", err)
	}
	if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(other), other); !apierrors.IsNotFound(err) {
		t.Errorf("the quota is still there: %v", err)
	}
}

// waitUnguarded runs do while namespaces may be in two quotas.
func waitUnguarded(t *testing.T, s *apiserver.Server, do func()) {
	t.Helper()
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
	if err := s.Client.Get(t.Context(), client.ObjectKey{Name: "ladder-quota-namespaces"}, binding); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Delete(t.Context(), binding.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	restored := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}, Spec: binding.Spec}
	defer func() {
		if err := s.Client.Create(context.WithoutCancel(t.Context()), restored); err != nil {
			t.Error(err)
		}
	}()
	do()
}
