package crds

import (
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestAll(t *testing.T) {
	var kinds []string
	for _, doc := range All() {
		var crd struct {
			Kind string `json:"kind"`
			Spec struct {
				Group string `json:"group"`
				Names struct {
					Kind string `json:"kind"`
				} `json:"names"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(doc, &crd); err != nil {
			t.Fatalf("decoding a CRD, %v", err)
		}
		if crd.Kind != "CustomResourceDefinition" || crd.Spec.Group != "gpuladder.dev" {
			t.Errorf("kind %q of group %q", crd.Kind, crd.Spec.Group)
		}
		kinds = append(kinds, crd.Spec.Names.Kind)
	}
	want := []string{"AcceleratorPolicy", "AllocationDecision", "DeviceMigration", "PolicyRevision", "TenantQuota"}
	if !slices.Equal(kinds, want) {
		t.Errorf("kinds %q, want %q", kinds, want)
	}
}
