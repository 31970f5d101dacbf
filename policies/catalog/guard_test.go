package catalog_test

import (
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
)

// rendered returns the guard's objects as text, by kind and name.
func rendered(t *testing.T, guard catalog.Guard) map[string]string {
	t.Helper()
	objects, err := guard.Objects()
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, object := range objects {
		raw, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		texts[object.GetKind()+"/"+object.GetName()] = string(raw)
		if object.GetLabels()[compile.LabelManagedBy] != compile.ManagedBy {
			t.Errorf("%s %s does not say that it is Ladder's", object.GetKind(), object.GetName())
		}
	}
	return texts
}

func TestGuardOfTheFilesIsTheDefault(t *testing.T) {
	texts := rendered(t, catalog.DefaultGuard())
	for _, name := range []string{"ladder-guard-allocations", "ladder-guard-claims", "ladder-guard-pods", "ladder-guard-slices"} {
		if texts["ValidatingAdmissionPolicy/"+name] == "" || texts["ValidatingAdmissionPolicyBinding/"+name] == "" {
			t.Errorf("%s or its binding is missing", name)
		}
	}
	if len(texts) != 8 {
		t.Errorf("got %d objects, want 4 policies and their bindings", len(texts))
	}
}

func TestGuardPoliciesComeBeforeTheirBindings(t *testing.T) {
	objects, err := catalog.DefaultGuard().Objects()
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, object := range objects {
		kinds = append(kinds, object.GetKind())
	}
	if !slices.IsSorted(kinds) {
		t.Errorf("got the order %v", kinds)
	}
}

// Every name of the default installation is replaced, and lands where CEL reads it.
func TestGuardIsReplacedEverywhere(t *testing.T) {
	texts := rendered(t, catalog.Guard{
		Drivers:    []string{"gpu.gpuladder.dev", "gpu.nvidia.com"},
		Allocators: []string{"user:hand", "user:o'hand"},
		Schedulers: []string{"ladder-scheduler", "default-scheduler"},
		Driver:     "user:driver",
	})
	for name, text := range texts {
		if strings.Contains(text, "ladder-system") {
			t.Errorf("%s still names a default account: %s", name, text)
		}
	}
	for name, want := range map[string][]string{
		"allocations": {
			`[\"gpu.gpuladder.dev\",\"gpu.nvidia.com\"]`, `[\"user:hand\",\"user:o'hand\"]`, `[\"ladder-scheduler\",\"default-scheduler\"]`,
		},
		"claims": {`[\"gpu.gpuladder.dev\",\"gpu.nvidia.com\"]`, `[\"user:hand\",\"user:o'hand\"]`},
		"pods":   {`[\"gpu.gpuladder.dev\",\"gpu.nvidia.com\"]`, `[\"ladder-scheduler\",\"default-scheduler\"]`},
		"slices": {`\"user:driver\"`},
	} {
		for _, w := range want {
			if text := texts["ValidatingAdmissionPolicy/ladder-guard-"+name]; !strings.Contains(text, w) {
				t.Errorf("ladder-guard-%s lacks %s: %s", name, w, text)
			}
		}
	}
}

func TestGuardWithoutNames(t *testing.T) {
	text := rendered(t, catalog.Guard{})["ValidatingAdmissionPolicy/ladder-guard-allocations"]
	if strings.Contains(text, `"null"`) || !strings.Contains(text, `"[]"`) {
		t.Errorf("an empty list is not CEL: %s", text)
	}
}
