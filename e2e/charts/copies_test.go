package charts_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/crds"
	"gpuladder.dev/ladder/policies/catalog"
)

// copied are the folders of the chart that hold files of another module: Helm
// reads nothing outside a chart. They are rewritten with -update.
func copied(t *testing.T) map[string]map[string][]byte {
	t.Helper()
	pick := func(files fs.FS, pattern string, names ...string) map[string][]byte {
		matches, err := fs.Glob(files, pattern)
		if err != nil || len(matches) == 0 {
			t.Fatalf("%s: %v, %v", pattern, matches, err)
		}
		found := map[string][]byte{}
		for _, m := range matches {
			if len(names) > 0 && !slices.Contains(names, path.Base(m)) {
				continue
			}
			content, err := fs.ReadFile(files, m)
			if err != nil {
				t.Fatal(err)
			}
			found[path.Base(m)] = content
		}
		return found
	}
	return map[string]map[string][]byte{
		"crds/files":               pick(crds.FS, "*.yaml"),
		"policies/files/admission": without(pick(catalog.FS, "admission/*.yaml"), "device-classes.yaml"),
		"../files":                 pick(catalog.FS, "admission/*.yaml", "device-classes.yaml"),
		"policies/files/guard":     pick(catalog.FS, "guard/*.yaml", "allocations.yaml", "claims.yaml", "pods.yaml"),
		"policies/files/policies":  pick(catalog.FS, "policies/*.yaml"),
		"driver/files":             pick(catalog.FS, "guard/*.yaml", "slices.yaml"),
		"controller/files":         pick(catalog.FS, "quota/*.yaml"),
	}
}

func without(files map[string][]byte, name string) map[string][]byte {
	delete(files, name)
	return files
}

func TestCopiesAreTheirSources(t *testing.T) {
	all := 0
	for folder, sources := range copied(t) {
		dir := filepath.Join(chartDir(t), "charts", folder)
		for name, want := range sources {
			sameFile(t, filepath.Join(dir, name), want)
			all++
		}
		left, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range left {
			if _, ok := sources[filepath.Base(file)]; ok {
				continue
			}
			if !*update {
				t.Errorf("%s has no source any more; `go test ./charts -update` removes it", file)
			} else if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	guards, err := fs.Glob(catalog.FS, "guard/*.yaml")
	if err != nil || len(guards) != 4 {
		t.Errorf("the guard has the files %v, %v: name the new one in this test and in the chart", guards, err)
	}
	if all < 15 {
		t.Errorf("only %d files are compared", all)
	}
}

// The kinds are installed as they were generated, and kept at uninstall unless
// that is turned off.
func TestCRDs(t *testing.T) {
	for variation, keep := range map[string]bool{"default": true, "minimal": false} {
		rendered := map[string]*unstructured.Unstructured{}
		for _, object := range render(t, variation) {
			if object.GetKind() == "CustomResourceDefinition" {
				rendered[object.GetName()] = object.DeepCopy()
			}
		}
		if len(rendered) != len(crds.All()) {
			t.Errorf("%s: %d kinds are rendered, want %d", variation, len(rendered), len(crds.All()))
		}
		for name, doc := range crds.All() {
			want := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(doc, &want.Object); err != nil {
				t.Fatal(err)
			}
			got := rendered[want.GetName()]
			if got == nil {
				t.Errorf("%s: %v is not rendered", variation, name)
				continue
			}
			annotations := got.GetAnnotations()
			if kept := annotations["helm.sh/resource-policy"] == "keep"; kept != keep {
				t.Errorf("%s: %s is kept: %v, want %v", variation, want.GetName(), kept, keep)
			}
			delete(annotations, "helm.sh/resource-policy")
			got.SetAnnotations(annotations)
			if !equality.Semantic.DeepEqual(got.Object, want.Object) {
				t.Errorf("%s: %s differs from what was generated", variation, want.GetName())
			}
		}
	}
}

// The chart replaces names by text, catalog.Admission and catalog.Guard do the
// same in Go: both must come to the same.
func TestPoliciesAreTheCatalogs(t *testing.T) {
	guard := catalog.DefaultGuard()
	replace := catalog.DefaultGuard()
	replace.Schedulers = append(replace.Schedulers, "default-scheduler")
	nvidia := catalog.DefaultGuard()
	nvidia.Drivers = append(nvidia.Drivers, "gpu.nvidia.com")
	nvidia.Allocators = append(nvidia.Allocators, "system:kube-scheduler")
	for variation, guard := range map[string]catalog.Guard{"default": guard, "replace": replace, "nvidia": nvidia} {
		accounts := catalog.DefaultAccounts()
		accounts.OtherSchedulers = guard.Allocators[1:]
		want, err := catalog.Admission(accounts)
		if err != nil {
			t.Fatal(err)
		}
		guarding, err := guard.Objects()
		if err != nil {
			t.Fatal(err)
		}
		quota, err := catalog.Quota(catalog.DefaultAccounts())
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range slices.Concat(want, guarding, quota) {
			if variation == "nvidia" && strings.Contains(object.GetName(), "guard-slices") {
				continue // comes with the driver, which is off
			}
			got := find(t, render(t, variation), object.GetKind(), object.GetName())
			if !equality.Semantic.DeepEqual(got.Object["spec"], object.Object["spec"]) {
				t.Errorf("%s: %s %s differs from the catalog's:\n%v\n%v", variation, object.GetKind(), object.GetName(), got.Object["spec"], object.Object["spec"])
			}
			if got.GetLabels()["app.kubernetes.io/managed-by"] != "Helm" {
				t.Errorf("%s: %s has the labels %v", variation, key(got), got.GetLabels())
			}
		}
	}
}

// Installed elsewhere, no account of ladder-system is left.
func TestAccountsFollowTheNamespace(t *testing.T) {
	objects, err := helm(t, "helm4").Template(t.Context(), append(foreign, "--namespace", "elsewhere", "--values", variations(t)["full"])...)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		raw, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "ladder-system") {
			t.Errorf("%s still names ladder-system: %s", key(object), raw)
		}
	}
}

func TestCatalogPolicies(t *testing.T) {
	policies, err := catalog.Policies()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range policies {
		got := find(t, render(t, "full"), "AcceleratorPolicy", want.Name)
		if got.GetLabels()["app.kubernetes.io/part-of"] != "ladder" {
			t.Errorf("%s has the labels %v", want.Name, got.GetLabels())
		}
		raw, err := catalog.FS.ReadFile("policies/" + want.Name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var source map[string]any
		if err := yaml.Unmarshal(raw, &source); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(got.Object["spec"], source["spec"]) {
			t.Errorf("%s differs from the catalog's", want.Name)
		}
	}
}
