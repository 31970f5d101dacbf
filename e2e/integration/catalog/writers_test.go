package catalog_test

import (
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
)

const (
	tenant    = "tenant@example.com"
	collector = "system:serviceaccount:kube-system:generic-garbage-collector"
)

func template(t *testing.T, policy string, revision int64, namespace string) *resourcev1.ResourceClaimTemplate {
	t.Helper()
	p := &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec:       v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}}},
	}
	r, err := compile.Revision(p, revision)
	if err != nil {
		t.Fatal(err)
	}
	template, err := compile.Template(r, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return template
}

func TestTemplatesAreTheControllers(t *testing.T) {
	s := server(t)
	controller := apiserver.AsMaster(t, s, catalog.DefaultAccounts().Controller)
	stranger := apiserver.AsMaster(t, s, tenant)

	apiserver.RequireRefused(t, stranger.Create(t.Context(), template(t, "h100-first", 3, "team-a")), "ladder-claim-templates", tenant)
	scheduler := apiserver.AsMaster(t, s, catalog.DefaultAccounts().Scheduler)
	apiserver.RequireRefused(t, scheduler.Create(t.Context(), template(t, "h100-first", 3, "team-a")), "ladder-claim-templates", catalog.DefaultAccounts().Controller)

	ours := template(t, "h100-first", 3, "team-a")
	if err := controller.Create(t.Context(), ours); err != nil {
		t.Fatalf("the controller is refused: %v", err)
	}
	changed := ours.DeepCopy()
	changed.Annotations = nil
	apiserver.RequireRefused(t, stranger.Update(t.Context(), changed), "ladder-claim-templates", tenant)
	changed = ours.DeepCopy()
	delete(changed.Labels, v1alpha1.LabelPolicy)
	apiserver.RequireRefused(t, stranger.Update(t.Context(), changed), "ladder-claim-templates", tenant)
	apiserver.RequireRefused(t, stranger.Delete(t.Context(), ours), "ladder-claim-templates", tenant)
	if err := apiserver.AsMaster(t, s, collector).Delete(t.Context(), ours); err != nil {
		t.Errorf("the garbage collector is refused: %v", err)
	}
}

func TestTemplateNamesAreKept(t *testing.T) {
	s := server(t)
	stranger := apiserver.AsMaster(t, s, tenant)
	unlabelled := func(policy string, revision int64) *resourcev1.ResourceClaimTemplate {
		tmpl := template(t, policy, revision, "team-a")
		tmpl.Labels = nil
		return tmpl
	}
	apiserver.RequireRefused(t, stranger.Create(t.Context(), unlabelled("h100-first", 12)), "ladder-claim-template-names",
		"h100-first-12 is kept for a revision of AcceleratorPolicy h100-first")
	for _, name := range []string{"h100-first-x", "h100-first-01", "h100-firstling-1", "own-1", "h100-first"} {
		tmpl := unlabelled("own", 1)
		tmpl.Name = name
		if err := stranger.Create(t.Context(), tmpl); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Made before there was such a policy, a template can't take its labels on.
	tmpl := unlabelled("own", 2)
	apiserver.Create(t, stranger, tmpl)
	tmpl.Labels = map[string]string{v1alpha1.LabelPolicy: "own"}
	apiserver.RequireRefused(t, stranger.Update(t.Context(), tmpl), "ladder-claim-templates", tenant)
}

func TestDecisionsAreLaddersOwn(t *testing.T) {
	s := server(t)
	accounts := catalog.DefaultAccounts()
	decision := func(name string) *v1alpha1.AllocationDecision { return allocationDecision("team-a", name) }

	apiserver.RequireRefused(t, apiserver.AsMaster(t, s, tenant).Create(t.Context(), decision("forged")), "ladder-decisions", tenant, accounts.Scheduler)
	for name, user := range map[string]string{"by-scheduler": accounts.Scheduler, "by-controller": accounts.Controller} {
		d := decision(name)
		if err := apiserver.AsMaster(t, s, user).Create(t.Context(), d); err != nil {
			t.Fatalf("%s is refused: %v", user, err)
		}
		changed := d.DeepCopy()
		changed.Labels = map[string]string{"changed": "yes"}
		apiserver.RequireRefused(t, apiserver.AsMaster(t, s, tenant).Update(t.Context(), changed), "ladder-decisions", tenant)
		apiserver.RequireRefused(t, apiserver.AsMaster(t, s, tenant).Delete(t.Context(), d), "ladder-decisions", tenant)
		if err := apiserver.AsMaster(t, s, collector).Delete(t.Context(), d); err != nil {
			t.Errorf("the garbage collector is refused: %v", err)
		}
	}
	if err := apiserver.AsMaster(t, s, collector).Create(t.Context(), decision("collected")); !apierrors.IsForbidden(err) {
		t.Errorf("the garbage collector may only delete, got %v", err)
	}
}

func allocationDecision(namespace, name string) *v1alpha1.AllocationDecision {
	return &v1alpha1.AllocationDecision{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.AllocationDecisionSpec{Pod: name, Outcome: v1alpha1.OutcomePending, EngineVersion: "1"},
	}
}
