//go:build e2e

package suites

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// dumpAll writes what there is to say about a failed suite into the folder of
// artifacts: objects, events, the logs of components. What can't be written is
// told, and no further failure.
func (s *scene) dumpAll(ctx context.Context) {
	if s.artifacts == "" {
		dir, err := os.MkdirTemp("", "ladder-e2e-")
		if err != nil {
			s.t.Logf("writing down what happened, %v", err)
			return
		}
		s.artifacts = dir
	}
	dir := filepath.Join(s.artifacts, s.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Logf("writing down what happened, %v", err)
		return
	}
	s.t.Logf("what there is to say about the failure is in %s", dir)
	kinds := map[string]client.ObjectList{
		"pods": &corev1.PodList{}, "claims": &resourcev1.ResourceClaimList{}, "slices": &resourcev1.ResourceSliceList{},
		"templates": &resourcev1.ResourceClaimTemplateList{}, "policies": &v1alpha1.AcceleratorPolicyList{},
		"revisions": &v1alpha1.PolicyRevisionList{}, "decisions": &v1alpha1.AllocationDecisionList{}, "quotas": &v1alpha1.TenantQuotaList{},
		"events": &eventsv1.EventList{}, "nodes": &corev1.NodeList{},
	}
	for name, list := range kinds {
		if err := s.dumpList(ctx, filepath.Join(dir, name+".yaml"), list); err != nil {
			s.t.Log(err)
		}
	}
	if err := s.provider.dump(ctx, dir); err != nil {
		s.t.Log(err)
	}
}

func (s *scene) dumpList(ctx context.Context, file string, list client.ObjectList) error {
	if err := s.client.List(ctx, list); err != nil {
		return fmt.Errorf("writing %s, %w", file, err)
	}
	content, err := yaml.Marshal(list)
	if err != nil {
		return fmt.Errorf("writing %s, %w", file, err)
	}
	return os.WriteFile(file, content, 0o644)
}
