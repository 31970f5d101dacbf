package policy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/e2e/integration/internal/running"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
)

func h100Policy(name string) *v1alpha1.AcceleratorPolicy {
	return &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}}},
	}
}

func addTier(name string) func(*v1alpha1.AcceleratorPolicy) {
	return func(p *v1alpha1.AcceleratorPolicy) {
		p.Spec.Tiers = append(p.Spec.Tiers, v1alpha1.Tier{Name: name, Models: []string{strings.ToUpper(name)}})
	}
}

func requireEvent(t *testing.T, s *apiserver.Server, policy, reason string) {
	t.Helper()
	apiserver.WaitFor(t, "event "+reason, func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := s.Client.List(ctx, &list); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == policy && e.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(list.Items))
	})
}

// TestLifeOfAPolicy is a policy from its creation to a withdrawn revision, with
// Pods that come in between.
func TestLifeOfAPolicy(t *testing.T) {
	s := server(t)
	createNamespace(t, s, "life", nil)
	running.Controller(t, s)
	pod := func(pin string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "life", GenerateName: "p-", Labels: map[string]string{v1alpha1.LabelPolicy: "life"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/train:1"}}},
		}
		if pin != "" {
			p.Labels[v1alpha1.LabelPolicyRevision] = pin
		}
		return p
	}
	requirePodGets := func(pin, template string) {
		t.Helper()
		apiserver.WaitFor(t, "a Pod to be given "+template, func(ctx context.Context) error {
			p := pod(pin)
			if err := s.Client.Create(ctx, p, client.DryRunAll); err != nil {
				return err
			}
			if got := ptr.Deref(p.Spec.ResourceClaims[0].ResourceClaimTemplateName, ""); got != template {
				return fmt.Errorf("given %s", got)
			}
			return nil
		})
	}
	requirePodRefused := func(pin, words string) {
		t.Helper()
		apiserver.WaitFor(t, "a Pod to be refused: "+words, func(ctx context.Context) error {
			if err := s.Client.Create(ctx, pod(pin), client.DryRunAll); err == nil || !strings.Contains(err.Error(), words) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
	}

	createPolicy(t, s, h100Policy("life"))
	requireStatus(t, s, "life", 1, metav1.ConditionTrue, "RevisionActive")
	first := requireTemplate(t, s, "life", "life-1")
	requirePodGets("", "life-1")
	requireEvent(t, s, "life", "RevisionCreated")

	policy := h100Policy("life")
	edit(t, s, policy, addTier("a100"))
	requireStatus(t, s, "life", 2, metav1.ConditionTrue, "RevisionActive")
	second := requireTemplate(t, s, "life", "life-2")
	if got := len(second.Spec.Spec.Devices.Requests[0].FirstAvailable); got != 2 {
		t.Errorf("revision 2 has %d alternatives, want 2", got)
	}
	requirePodGets("", "life-2")
	requirePodGets("1", "life-1")

	edit(t, s, policy, func(p *v1alpha1.AcceleratorPolicy) { p.Spec.ActiveRevision = ptr.To[int64](1) })
	requireStatus(t, s, "life", 1, metav1.ConditionTrue, "RevisionActive")
	requirePodGets("", "life-1")
	requireEvent(t, s, "life", "RevisionActivated")
	again := requireTemplate(t, s, "life", "life-1")
	if again.UID != first.UID || again.ResourceVersion != first.ResourceVersion {
		t.Error("going back wrote the template of revision 1 again")
	}

	edit(t, s, policy, func(p *v1alpha1.AcceleratorPolicy) { p.Spec.ActiveRevision = ptr.To[int64](9) })
	requireStatus(t, s, "life", 0, metav1.ConditionFalse, "RevisionNotFound")
	requirePodRefused("", "there is no revision 9")

	revision := &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: "life-2"}}
	edit(t, s, policy, func(p *v1alpha1.AcceleratorPolicy) { p.Spec.ActiveRevision = nil })
	requireStatus(t, s, "life", 2, metav1.ConditionTrue, "RevisionActive")
	edit(t, s, revision, func(r *v1alpha1.PolicyRevision) { r.Spec.State = v1alpha1.RevisionWithdrawn })
	requireStatus(t, s, "life", 0, metav1.ConditionFalse, "RevisionWithdrawn")
	requireNoTemplate(t, s, "life", "life-2")
	requirePodRefused("", "revision 2 is withdrawn")
	requirePodRefused("2", "no usable revision 2")
	requirePodGets("1", "life-1")

	edit(t, s, revision, func(r *v1alpha1.PolicyRevision) { r.Spec.State = v1alpha1.RevisionUsable })
	requireTemplate(t, s, "life", "life-2")
	requireStatus(t, s, "life", 2, metav1.ConditionTrue, "RevisionActive")
}

func TestNamespacesComeAndGo(t *testing.T) {
	s := server(t)
	running.Controller(t, s)
	policy := h100Policy("spaces")
	policy.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"spaces": "yes"}}
	createPolicy(t, s, policy)
	requireStatus(t, s, "spaces", 1, metav1.ConditionTrue, "RevisionActive")

	later := createNamespace(t, s, "spaces-later", map[string]string{"spaces": "yes"})
	other := createNamespace(t, s, "spaces-other", nil)
	requireTemplate(t, s, later.Name, "spaces-1")
	edit(t, s, other, func(ns *corev1.Namespace) { ns.Labels["spaces"] = "yes" })
	requireTemplate(t, s, other.Name, "spaces-1")
	edit(t, s, later, func(ns *corev1.Namespace) { delete(ns.Labels, "spaces") })
	requireNoTemplate(t, s, later.Name, "spaces-1")
	requireTemplate(t, s, other.Name, "spaces-1")
}

// TestDriftIsRepaired changes what the controller made, and puts something in
// its way.
func TestDriftIsRepaired(t *testing.T) {
	s := server(t)
	createNamespace(t, s, "drift", nil)
	squatter := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "drift", Name: "drift-1"},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "mine", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "any"}}},
		}}},
	}
	if err := s.Client.Create(t.Context(), squatter); err != nil {
		t.Fatal(err)
	}
	running.Controller(t, s)
	createPolicy(t, s, h100Policy("drift"))
	requireStatus(t, s, "drift", 1, metav1.ConditionTrue, "RevisionActive")
	template := requireTemplate(t, s, "drift", "drift-1")
	if template.Spec.Spec.Devices.Requests[0].Name != v1alpha1.RequestName {
		t.Error("a template that was in the way was taken for the policy's")
	}
	requireEvent(t, s, "drift", "TemplateReplaced")

	// Only the controller may do this while the admission policies are there:
	// a garbage collector that goes wrong.
	if err := apiserver.AsMaster(t, s, "system:serviceaccount:kube-system:generic-garbage-collector").Delete(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	apiserver.WaitFor(t, "the template to come back", func(ctx context.Context) error {
		again := &resourcev1.ResourceClaimTemplate{}
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(template), again); err != nil {
			return err
		}
		if again.UID == template.UID {
			return fmt.Errorf("still the old one")
		}
		return nil
	})
	class := compile.DeviceClass(v1alpha1.DriverName)
	edit(t, s, class, func(c *resourcev1.DeviceClass) { c.Spec.Selectors[0].CEL.Expression = "true" })
	apiserver.WaitFor(t, "the class to be mended", func(ctx context.Context) error {
		if err := s.Client.Get(ctx, types.NamespacedName{Name: class.Name}, class); err != nil {
			return err
		}
		if got := class.Spec.Selectors[0].CEL.Expression; got == "true" {
			return fmt.Errorf("still %q", got)
		}
		return nil
	})
}

// TestCompiledTemplatesAreAccepted gives a real API server every policy of the
// compiler's golden files and of the catalog, and the largest one possible.
// What is read back is what was compiled: the server filled nothing in, so the
// controller has nothing to mend.
func TestCompiledTemplatesAreAccepted(t *testing.T) {
	s := server(t)
	createNamespace(t, s, "compiled", nil)
	policies, err := catalog.Policies()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../../policies/compile/testdata/golden/*.policy.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found no golden policies, %v", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		policy := &v1alpha1.AcceleratorPolicy{}
		if err := yaml.UnmarshalStrict(raw, policy); err != nil {
			t.Fatal(err)
		}
		policies = append(policies, policy)
	}
	for _, driver := range compile.Drivers() {
		policies = append(policies, largest(driver))
	}
	for i, policy := range policies {
		t.Run(policy.Name, func(t *testing.T) {
			policy.Name = fmt.Sprintf("compiled-%d", i)
			if err := s.Client.Create(t.Context(), policy.DeepCopy(), client.DryRunAll); err != nil {
				t.Errorf("the policy itself: %v", err)
			}
			revision, err := compile.Revision(policy, 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Client.Create(t.Context(), revision.DeepCopy(), client.DryRunAll); err != nil {
				t.Errorf("the revision: %v", err)
			}
			want, err := compile.Template(revision, "compiled")
			if err != nil {
				t.Fatal(err)
			}
			got := want.DeepCopy()
			if err := apiserver.AsMaster(t, s, catalog.DefaultAccounts().Controller).Create(t.Context(), got, client.DryRunAll); err != nil {
				t.Fatalf("the template: %v", err)
			}
			if !apiequality.Semantic.DeepEqual(got.Spec, want.Spec) {
				t.Errorf("the server changed the template to %+v", got.Spec)
			}
			claim := &resourcev1.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "compiled", GenerateName: "c-"}, Spec: got.Spec.Spec,
			}
			if err := apiserver.AsMaster(t, s, apiserver.ClaimController).Create(t.Context(), claim, client.DryRunAll); err != nil {
				t.Errorf("a claim made from the template: %v", err)
			}
		})
	}
}

// largest is a policy that fills every limit.
func largest(driver string) *v1alpha1.AcceleratorPolicy {
	words := func(n int) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = strings.Repeat(string(rune('A'+i)), 64)
		}
		return list
	}
	selectors := func(n int, of string) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf("device.attributes[%q].?%s%d.orValue(%q) == %q", driver, of, i, "", "x")
		}
		return list
	}
	policy := h100Policy("largest-" + driver)
	policy.Spec = v1alpha1.AcceleratorPolicySpec{
		Driver: driver, Count: ptr.To[int32](32),
		Constraints: v1alpha1.Constraints{
			MinComputeCapability: "9999.999999.999999", MinDriverVersion: "999999.999999.999999",
			Architectures: words(16), Isolation: v1alpha1.IsolationExclusive, Selectors: selectors(8, "c"),
		},
		OnUnhealthy: v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEvict, GracePeriod: &metav1.Duration{Duration: time.Hour}},
	}
	for i := range 8 {
		policy.Spec.Tiers = append(policy.Spec.Tiers, v1alpha1.Tier{
			Name: strings.Repeat(string(rune('a'+i)), 63), Models: words(16), Selectors: selectors(8, string(rune('s'+i))),
		})
		policy.Spec.Constraints.MatchAttributes = append(policy.Spec.Constraints.MatchAttributes, fmt.Sprintf("resource.kubernetes.io/attribute%d", i))
	}
	return policy
}

// TestHandover: a second controller waits for the Lease, and works as soon as
// the first has ended in an orderly way.
func TestHandover(t *testing.T) {
	s := server(t)
	createNamespace(t, s, "handover", nil)
	lease := func(ctx context.Context) (string, error) {
		l := &coordinationv1.Lease{}
		if err := s.Client.Get(ctx, types.NamespacedName{Namespace: "ladder-system", Name: "ladder-controller"}, l); err != nil {
			return "", err
		}
		return ptr.Deref(l.Spec.HolderIdentity, ""), nil
	}
	before, err := lease(t.Context())
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if before != "" {
		t.Errorf("the Lease is still held by %s, whose process has ended", before)
	}
	var holder string
	first := running.Controller(t, s)
	apiserver.WaitFor(t, "the first to lead", func(ctx context.Context) (err error) {
		if holder, err = lease(ctx); err == nil && holder == "" {
			err = fmt.Errorf("nobody leads")
		}
		return err
	})
	running.Controller(t, s)
	createPolicy(t, s, h100Policy("handover"))
	requireStatus(t, s, "handover", 1, metav1.ConditionTrue, "RevisionActive")
	if now, err := lease(t.Context()); err != nil || now != holder {
		t.Errorf("%s leads now, want %s: %v", now, holder, err)
	}
	first.End()
	edit(t, s, h100Policy("handover"), addTier("a100"))
	requireStatus(t, s, "handover", 2, metav1.ConditionTrue, "RevisionActive")
	requireTemplate(t, s, "handover", "handover-2")
}
