package charts_test

import (
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"gpuladder.dev/ladder/e2e/charts"
	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

var running struct {
	sync.Mutex
	env    *envtest.Environment
	client client.Client
	config *rest.Config
	err    error
}

// server returns an API server of the version that the chart is for. The kinds
// in it are those of the rendered chart.
func server(t *testing.T) (client.Client, *rest.Config) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a kube-apiserver")
	}
	running.Lock()
	defer running.Unlock()
	if running.env == nil {
		running.err = startServer(t)
	}
	if running.err != nil {
		t.Fatalf("starting an API server: %v", running.err)
	}
	return running.client, running.config
}

func startServer(t *testing.T) error {
	ctx := t.Context()
	programs, err := binaries.Ensure(ctx, os.Stderr, binaries.Etcd, binaries.APIServer)
	if err != nil {
		return err
	}
	running.env = &envtest.Environment{BinaryAssetsDirectory: programs.Dir, ControlPlaneStartTimeout: 2 * time.Minute}
	if running.config, err = running.env.Start(); err != nil {
		return err
	}
	if running.client, err = client.New(running.config, client.Options{}); err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: charts.Namespace}}
	if err := running.client.Create(ctx, namespace); err != nil {
		return err
	}
	discovery, err := kubernetes.NewForConfig(running.config)
	if err != nil {
		return err
	}
	for _, object := range render(t, "default") {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		if err := apply.Objects(ctx, running.client, object); err != nil {
			return err
		}
		if err := apply.Established(ctx, running.client, discovery.Discovery(), object); err != nil {
			return err
		}
	}
	return nil
}

func stopServer() error {
	running.Lock()
	defer running.Unlock()
	if running.env == nil {
		return nil
	}
	return running.env.Stop()
}
