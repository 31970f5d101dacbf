// Package catalog_test tries the shipped admission policies against a real API
// server: a Pod with the label of a policy gets its claim and its scheduler;
// every way around it is refused in words.
package catalog_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

var prepare sync.Once

// server returns an API server with the catalog applied and these objects:
// namespace team-a (tier=gold), namespace team-b; policy h100-first, ready, with
// usable revisions 1 and 3 of which 3 is active; policy gold-only, ready,
// selecting team-a; policy unready, without any revision.
func server(t *testing.T) *apiserver.Server {
	t.Helper()
	s := apiserver.Get(t)
	prepare.Do(func() {
		objects, err := catalog.Admission(catalog.DefaultAccounts())
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			apiserver.Create(t, s.Client, object)
		}
		apiserver.Create(t, s.Client, namespace("team-a", "tier", "gold"))
		apiserver.Create(t, s.Client, namespace("team-b", "tier", "silver"))
		apiserver.Create(t, s.Client, namespace("team-c", "", ""))
		createPolicy(t, s.Client, "h100-first", nil, 3, 1, 3)
		createPolicy(t, s.Client, "gold-only", &metav1.LabelSelector{
			MatchLabels: map[string]string{"tier": "gold"},
		}, 1, 1)
		createPolicy(t, s.Client, "unready", nil, 0)
		// Policies and parameters reach the API server by watches of its own.
		apiserver.WaitFor(t, "the catalog to take effect", func(ctx context.Context) error {
			for _, name := range []string{"h100-first", "gold-only"} {
				p := pod("team-a", name)
				if err := s.Client.Create(ctx, p, client.DryRunAll); err != nil {
					return err
				}
				if len(p.Spec.ResourceClaims) == 0 {
					return fmt.Errorf("a Pod of %s got no claim", name)
				}
			}
			for message, p := range map[string]*corev1.Pod{
				"no AcceleratorPolicy named": pod("team-a", "nothing"),
				"has no ready revision":      pod("team-a", "unready"),
			} {
				err := s.Client.Create(ctx, p, client.DryRunAll)
				if err == nil {
					return fmt.Errorf("Pod %s was not refused", p.Name)
				}
				if !strings.Contains(err.Error(), message) {
					return fmt.Errorf("refusing Pod %s in other words, %w", p.Name, err)
				}
			}
			return nil
		})
	})
	return s
}

func namespace(name, label, value string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if label != "" {
		ns.Labels = map[string]string{label: value}
	}
	return ns
}

// createPolicy makes a policy and gives it the status that the controller
// would: active 0 means not ready.
func createPolicy(t *testing.T, c client.Client, name string, selector *metav1.LabelSelector, active int64, usable ...int64) {
	t.Helper()
	policy := &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.AcceleratorPolicySpec{
			Tiers:             []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}},
			NamespaceSelector: selector,
		},
	}
	apiserver.Create(t, c, policy)
	policy.Status.UsableRevisions = usable
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "RevisionWithdrawn", Message: "revision 1 is withdrawn"}
	if active > 0 {
		policy.Status.ActiveRevision = active
		policy.Status.LatestRevision = active
		policy.Status.TemplateName = v1alpha1.RevisionName(name, active)
		ready = metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready"}
	}
	ready.LastTransitionTime = metav1.Now()
	policy.Status.Conditions = []metav1.Condition{ready}
	if err := c.Status().Update(t.Context(), policy); err != nil {
		t.Fatalf("writing the status of policy %s: %v", name, err)
	}
}

func pod(namespace, policy string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "p-", Labels: map[string]string{"app": "train"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/train:1"}}},
	}
	if policy != "" {
		p.Labels[v1alpha1.LabelPolicy] = policy
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func pin(revision string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPolicyRevision] = revision }
}

func verdict(text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{catalog.AnnotationClaimTemplate: text} }
}

func claim(template string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: &template,
		})
	}
}
