//go:build e2e

package suites

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/e2e/invariants"
)

// nodes is what a provider with real nodes can do.
type nodes interface {
	// sees tells what the containers of a running Pod see, by container.
	sees(ctx context.Context, pod *corev1.Pod) (map[string][]string, error)
	// host tells what lies on a node.
	host(ctx context.Context, node string) (*invariants.Host, error)
	// exec runs a command on a node and returns its standard output.
	exec(ctx context.Context, node string, argv ...string) (string, error)
}

// looks checks that the containers of a Pod see exactly the devices of its
// claims, and records it.
func (s *scene) looks(ctx context.Context, t *testing.T, node nodes, pod *corev1.Pod) {}

// nodesAreClean waits until no node has a trace of a claim of the suite.
func (s *scene) nodesAreClean(ctx context.Context, t *testing.T, node nodes) {}

func kubeletStatus(ctx context.Context, t *testing.T, s *scene) {
	if _, ok := s.provider.(nodes); !ok {
		t.Skip("no kubelet runs in a lab")
	}
}
