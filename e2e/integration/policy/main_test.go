// Package policy_test runs the real ladder-controller, under the account and
// with the roles that an installation gives it, against a real API server that
// has the shipped admission policies.
package policy_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/e2e/integration/internal/running"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

var install sync.Once

// server returns an API server with the shipped admission policies and with
// the accounts and roles that the lab installs.
func server(t *testing.T) *apiserver.Server {
	t.Helper()
	s := apiserver.Get(t)
	install.Do(func() { running.Install(t, s, "../../cluster/lab") })
	return s
}

func createNamespace(t *testing.T, s *apiserver.Server, name string, labels map[string]string) *corev1.Namespace {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if err := s.Client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns
}

func createPolicy(t *testing.T, s *apiserver.Server, policy *v1alpha1.AcceleratorPolicy) {
	t.Helper()
	if err := s.Client.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
}

// edit changes an object as a user does, over conflicts with the controller.
func edit[T client.Object](t *testing.T, s *apiserver.Server, object T, change func(T)) {
	t.Helper()
	apiserver.WaitFor(t, "an edit of "+object.GetName(), func(ctx context.Context) error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change(object)
		return s.Client.Update(ctx, object)
	})
}

// requireStatus waits for a policy's status: active 0 means none.
func requireStatus(t *testing.T, s *apiserver.Server, name string, active int64, ready metav1.ConditionStatus, reason string) *v1alpha1.AcceleratorPolicy {
	t.Helper()
	policy := &v1alpha1.AcceleratorPolicy{}
	apiserver.WaitFor(t, fmt.Sprintf("policy %s to have revision %d active, Ready=%s because %s", name, active, ready, reason), func(ctx context.Context) error {
		if err := s.Client.Get(ctx, types.NamespacedName{Name: name}, policy); err != nil {
			return err
		}
		status := policy.Status
		template := ""
		if active > 0 {
			template = v1alpha1.RevisionName(name, active)
		}
		c := meta.FindStatusCondition(status.Conditions, "Ready")
		if status.ObservedGeneration != policy.Generation || status.ActiveRevision != active || status.TemplateName != template ||
			c == nil || c.Status != ready || c.Reason != reason {
			return fmt.Errorf("generation %d, status %+v", policy.Generation, status)
		}
		return nil
	})
	return policy
}

func requireTemplate(t *testing.T, s *apiserver.Server, namespace, name string) *resourcev1.ResourceClaimTemplate {
	t.Helper()
	template := &resourcev1.ResourceClaimTemplate{}
	apiserver.WaitFor(t, "template "+namespace+"/"+name, func(ctx context.Context) error {
		return s.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, template)
	})
	return template
}

func requireNoTemplate(t *testing.T, s *apiserver.Server, namespace, name string) {
	t.Helper()
	apiserver.WaitFor(t, "template "+namespace+"/"+name+" to be gone", func(ctx context.Context) error {
		err := s.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &resourcev1.ResourceClaimTemplate{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there, %w", err)
	})
}
