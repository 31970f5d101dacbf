//go:build e2e

package suites

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
)

// Names of the variables by which the harness tells the suites where they run.
const (
	envProvider   = "LADDER_E2E_PROVIDER"
	envCluster    = "LADDER_E2E_CLUSTER"
	envKubeconfig = "KUBECONFIG"
	envArtifacts  = "LADDER_E2E_ARTIFACTS"
	envImage      = "LADDER_E2E_IMAGE"
	envNamespace  = "LADDER_E2E_NAMESPACE"
	envDriver     = "LADDER_E2E_DRIVER"
	envFull       = "LADDER_E2E_FULL"
)

// The kinds of clusters.
const (
	onLab  = "lab"
	onKind = "kind"
)

// settings are what the suites are told.
type settings struct {
	provider, cluster, kubeconfig string
	// artifacts is the folder for what is left of a failure.
	artifacts string
	// image is the driver's image, whose /ladder-probe is the test workload.
	image string
	// namespace is that of Ladder's installation.
	namespace string
	// driver is what drives the GPUs of a kind cluster: fake or nvml.
	driver string
	// full runs all suites; otherwise only the core of them.
	full bool
}

// readSettings reads the variables. Without any, the suites run on a lab of
// their own; kind needs a cluster with Ladder installed, so all are needed.
func readSettings(get func(string) string) (*settings, error) {
	s := &settings{
		provider: get(envProvider), cluster: get(envCluster), kubeconfig: get(envKubeconfig),
		artifacts: get(envArtifacts), image: get(envImage), namespace: get(envNamespace),
		driver: get(envDriver), full: get(envFull) == "1",
	}
	if s.provider == "" {
		s.provider = onLab
	}
	if s.driver == "" {
		s.driver = "fake"
	}
	if s.namespace == "" {
		s.namespace = "ladder-system"
	}
	switch s.provider {
	case onLab:
		return s, nil
	case onKind:
		var missing []string
		for _, v := range []struct{ name, value string }{
			{envCluster, s.cluster}, {envKubeconfig, s.kubeconfig}, {envImage, s.image},
		} {
			if v.value == "" {
				missing = append(missing, v.name)
			}
		}
		if len(missing) > 0 {
			return nil, fmt.Errorf("the suites on kind need a cluster with Ladder in it and %s set: `go tool mage e2e -provider kind` does all of that",
				strings.Join(missing, ", "))
		}
		return s, nil
	default:
		return nil, fmt.Errorf("%s is %q, it can be %s or %s", envProvider, s.provider, onLab, onKind)
	}
}

var (
	testenv env.Environment
	// here is the cluster that the suites run on; nil in a dry run.
	here *world
	seed = flag.Uint64("seed", 0, "seed of what the suites draw; 0: a new one")
)

func TestMain(m *testing.M) {
	log.SetLogger(klog.Background())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	cfg, err := envconf.NewFromFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	s, err := readSettings(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	labels := cfg.Labels()
	labels["provider"] = []string{s.provider}
	if !s.full {
		labels["core"] = []string{"true"}
	}
	cfg.WithLabels(labels)
	testenv = env.NewWithConfig(cfg)
	var ended error
	if !cfg.DryRunMode() {
		testenv.Setup(func(ctx context.Context, _ *envconf.Config) (context.Context, error) {
			here, err = newWorld(ctx, s)
			return ctx, err
		})
		// The framework only logs what goes wrong at the end.
		testenv.Finish(func(ctx context.Context, _ *envconf.Config) (context.Context, error) {
			if here != nil {
				ended = here.end(ctx)
			}
			return ctx, nil
		})
	}
	code := testenv.Run(m)
	if ended != nil {
		fmt.Fprintln(os.Stderr, ended)
		code = max(code, 1)
	}
	return code
}
