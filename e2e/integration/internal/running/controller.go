// Package running starts Ladder's programs beside the API server of the
// integration tests.
package running

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/process"
	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/catalog"
)

// Install gives the API server the accounts and roles that the lab installs, and
// the shipped admission policies, those of quotas with Quotas. dir is the folder
// of the lab, from the test's.
func Install(t *testing.T, s *apiserver.Server, dir string, more ...Policies) {
	t.Helper()
	roles, err := apply.DecodeFS(os.DirFS(dir), "manifests")
	if err != nil {
		t.Fatal(err)
	}
	if err := apply.Objects(t.Context(), s.Client, roles...); err != nil {
		t.Fatal(err)
	}
	for _, policies := range append([]Policies{catalog.Admission}, more...) {
		objects, err := policies(catalog.DefaultAccounts())
		if err != nil {
			t.Fatal(err)
		}
		if err := apply.Objects(t.Context(), s.Client, objects...); err != nil {
			t.Fatal(err)
		}
	}
}

// Policies are shipped admission policies, such as those of [catalog.Quota].
type Policies func(catalog.Accounts) ([]*unstructured.Unstructured, error)

// Program is a running program. It has to end without an error, unless it is
// killed.
type Program struct {
	*process.Process
	t      *testing.T
	ended  bool
	killed bool
}

// Kill ends the program at once.
func (p *Program) Kill() {
	p.killed = true
	p.Process.Kill()
}

// End asks the program to end and waits until it has.
func (p *Program) End() {
	p.t.Helper()
	if p.ended {
		return
	}
	p.ended = true
	p.Stop(context.WithoutCancel(p.t.Context()), 20*time.Second)
	if err := p.Exit(); err != nil && !p.killed {
		p.t.Errorf("ladder-controller ended with %v", err)
	}
}

// Controller runs ladder-controller under its own account until it is ended or
// killed, or the test ends.
func Controller(t *testing.T, s *apiserver.Server, args ...string) *Program {
	t.Helper()
	programs, err := binaries.Ensure(t.Context(), os.Stderr, binaries.LadderController)
	if err != nil {
		t.Fatal(err)
	}
	log, probe := filepath.Join(t.TempDir(), "log"), freeAddress(t)
	p := &Program{t: t}
	p.Process, err = process.Start(process.Spec{
		Name: "ladder-controller", Path: programs.Path(binaries.LadderController), Log: log,
		Args: append([]string{
			"--kubeconfig=" + Kubeconfig(t, s.Config, catalog.DefaultAccounts().Controller),
			"--health-probe-bind-address=" + probe, "--metrics-bind-address=0",
		}, args...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.End()
		if t.Failed() {
			t.Logf("ladder-controller's log:\n%s", process.Tail(log, 60))
		}
	})
	apiserver.WaitFor(t, "ladder-controller to be ready", func(ctx context.Context) error {
		for _, path := range []string{"/healthz", "/readyz"} {
			if err := answers(ctx, "http://"+probe+path); err != nil {
				return err
			}
		}
		return nil
	})
	return p
}

// answers asks a probe.
func answers(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}

// Kubeconfig writes one that reaches the server as an account of ladder-system,
// or with every right where that is "".
func Kubeconfig(t *testing.T, config *rest.Config, account string) string {
	t.Helper()
	user := &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken}
	if account != "" {
		user.Impersonate = account
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:serviceaccounts:ladder-system", "system:authenticated"}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": user},
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
