// Package policy_test runs the real ladder-controller, under the account and
// with the roles that an installation gives it, against a real API server that
// has the shipped admission policies.
package policy_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/process"
	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
)

// within is the longest that anything here may take on a busy machine.
const within = 60 * time.Second

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

var install sync.Once

// server returns an API server with the shipped admission policies and with
// the accounts and roles that the lab installs.
func server(t *testing.T) *apiserver.Server {
	t.Helper()
	s := apiserver.Get(t)
	install.Do(func() {
		roles, err := apply.DecodeFS(os.DirFS("../../cluster/lab"), "manifests")
		if err != nil {
			t.Fatal(err)
		}
		if err := apply.Objects(t.Context(), s.Client, roles...); err != nil {
			t.Fatal(err)
		}
		objects, err := catalog.Admission(catalog.DefaultAccounts())
		if err != nil {
			t.Fatal(err)
		}
		if err := apply.Objects(t.Context(), s.Client, objects...); err != nil {
			t.Fatal(err)
		}
	})
	return s
}

// controller is a running ladder-controller.
type controller struct {
	*process.Process
	probe string // address of /healthz and /readyz
	log   string
}

// startController runs ladder-controller until the test ends; then it must end
// by itself and without an error when it is asked to.
func startController(t *testing.T, s *apiserver.Server, args ...string) *controller {
	t.Helper()
	programs, err := binaries.Ensure(t.Context(), os.Stderr, binaries.LadderController)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := &controller{probe: freeAddress(t), log: filepath.Join(dir, "log")}
	c.Process, err = process.Start(process.Spec{
		Name: "ladder-controller", Path: programs.Path(binaries.LadderController), Log: c.log,
		Args: append([]string{
			"--kubeconfig=" + kubeconfig(t, s.Config, dir), "--health-probe-bind-address=" + c.probe, "--metrics-bind-address=0",
		}, args...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Stop(context.WithoutCancel(t.Context()), 20*time.Second)
		if err := c.Exit(); err != nil {
			t.Errorf("ladder-controller ended with %v", err)
		}
		if t.Failed() {
			t.Logf("ladder-controller's log:\n%s", process.Tail(c.log, 40))
		}
	})
	eventually(t, "ladder-controller to be ready", func(ctx context.Context) error {
		for _, path := range []string{"/healthz", "/readyz"} {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.probe+path, nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("%s answers %s", path, response.Status)
			}
		}
		return nil
	})
	return c
}

// kubeconfig reaches the server as the controller's service account.
func kubeconfig(t *testing.T, config *rest.Config, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
			Impersonate:       catalog.DefaultAccounts().Controller,
			ImpersonateGroups: []string{"system:serviceaccounts", "system:serviceaccounts:ladder-system", "system:authenticated"},
		}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, within, true, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v, last: %v", what, err, last)
	}
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
	eventually(t, "an edit of "+object.GetName(), func(ctx context.Context) error {
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
	eventually(t, fmt.Sprintf("policy %s to have revision %d active, Ready=%s because %s", name, active, ready, reason), func(ctx context.Context) error {
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
	eventually(t, "template "+namespace+"/"+name, func(ctx context.Context) error {
		return s.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, template)
	})
	return template
}

func requireNoTemplate(t *testing.T, s *apiserver.Server, namespace, name string) {
	t.Helper()
	eventually(t, "template "+namespace+"/"+name+" to be gone", func(ctx context.Context) error {
		err := s.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &resourcev1.ResourceClaimTemplate{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there, %w", err)
	})
}
