// Package apiserver gives the integration tests of a package one real
// kube-apiserver with etcd behind it and Ladder's CRDs installed.
//
//	func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }
//
//	func TestSomething(t *testing.T) {
//		server := apiserver.Get(t)
//		err := server.Client.Create(t.Context(), object)
//		…
//	}
//
// The server starts at the first Get and stops when Main returns, also after
// an interrupt. Both listen on loopback only.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/policies/api/crds"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Server is a running API server.
type Server struct {
	// Config reaches it with every right.
	Config *rest.Config
	// Client knows Ladder's kinds and those of client-go.
	Client client.Client
	// Scheme is the client's.
	Scheme *runtime.Scheme
}

var shared struct {
	sync.Mutex
	env    *envtest.Environment
	server *Server
	err    error
	// options are those of Main.
	options []Option
}

// Option changes the server before it starts.
type Option func(*envtest.Environment)

// PodGroups turns gangs on.
func PodGroups(env *envtest.Environment) {
	env.ControlPlane.GetAPIServer().Configure().
		Append("feature-gates", "GenericWorkload=true").
		Append("runtime-config", "scheduling.k8s.io/v1beta1=true")
}

// Main runs the tests of a package and stops the server, if one was started.
// The result is for os.Exit.
func Main(m *testing.M, options ...Option) int {
	shared.options = options
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		stop()
		os.Exit(1)
	}()
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// Get returns the package's server and starts it at the first call. With
// -short the test is skipped.
func Get(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a kube-apiserver")
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.env, shared.err = start(t.Context())
	}
	if shared.err != nil {
		t.Fatalf("%v", shared.err)
	}
	return shared.server
}

// startWithin bears a machine that is busy with other things.
const startWithin = 2 * time.Minute

func start(ctx context.Context) (*Server, *envtest.Environment, error) {
	programs, err := binaries.Ensure(ctx, os.Stderr, "etcd", "kube-apiserver")
	if err != nil {
		return nil, nil, fmt.Errorf("finding the programs of an API server, %w", err)
	}
	definitions, err := definitions()
	if err != nil {
		return nil, nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, fmt.Errorf("building a scheme, %w", err)
	}
	env := &envtest.Environment{
		ControlPlaneStartTimeout: startWithin,
		Scheme:                   scheme,
		BinaryAssetsDirectory:    programs.Dir,
		CRDs:                     definitions,
	}
	for _, option := range shared.options {
		option(env)
	}
	config, err := env.Start()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("starting an API server, %w", err), env.Stop())
	}
	// Tests are many and short; the server is theirs alone.
	config.QPS, config.Burst = 1000, 1000
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("building a client, %w", err), env.Stop())
	}
	return &Server{Config: config, Client: c, Scheme: scheme}, env, nil
}

func definitions() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var list []*apiextensionsv1.CustomResourceDefinition
	for _, doc := range crds.All() {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(doc, crd); err != nil {
			return nil, fmt.Errorf("decoding an embedded CRD, %w", err)
		}
		list = append(list, crd)
	}
	return list, nil
}

func stop() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.env == nil {
		return nil
	}
	err := shared.env.Stop()
	shared.env, shared.server, shared.err = nil, nil, errors.New("the API server has been stopped")
	if err != nil {
		return fmt.Errorf("stopping the API server, %w", err)
	}
	return nil
}
