package charts_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

func TestLint(t *testing.T) {
	for _, name := range []string{binaries.Helm3, binaries.Helm4} {
		for _, variation := range sorted(variations(t)) {
			t.Run(name+"/"+variation, func(t *testing.T) {
				args := []string{"lint", chartDir(t), "--strict", "--namespace", "ladder-system", "--values", variations(t)[variation]}
				// lint can't be told which kinds there are.
				if variation == "full" {
					args = append(args, "--set", "policies.catalog=null,monitoring.serviceMonitors.enabled=false,monitoring.alerts.enabled=false")
				}
				if _, err := helm(t, name).Run(t.Context(), args...); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Helm 3 and Helm 4 make the same of the chart.
func TestBothHelmsRenderTheSame(t *testing.T) {
	three := helm(t, binaries.Helm3)
	for variation, file := range variations(t) {
		t.Run(variation, func(t *testing.T) {
			others, err := three.Template(t.Context(), append(foreign, "--values", file)...)
			if err != nil {
				t.Fatal(err)
			}
			texts := func(objects []*unstructured.Unstructured) []string {
				var list []string
				for _, object := range objects {
					raw, err := yaml.Marshal(object.Object)
					if err != nil {
						t.Fatal(err)
					}
					list = append(list, string(raw))
				}
				slices.Sort(list)
				return list
			}
			a, b := texts(render(t, variation)), texts(others)
			if len(a) != len(b) {
				t.Fatalf("Helm 4 renders %d objects, Helm 3 %d", len(a), len(b))
			}
			for i := range a {
				if a[i] != b[i] {
					t.Errorf("Helm 4:\n%s\nHelm 3:\n%s", a[i], b[i])
				}
			}
		})
	}
}

// Every object is accepted by an API server of the version that the chart is
// for, with no field that it does not know. The kinds of the Prometheus
// operator are judged in monitoring_test.go.
func TestAPIServerAcceptsEveryObject(t *testing.T) {
	for _, variation := range sorted(variations(t)) {
		t.Run(variation, func(t *testing.T) {
			c, _ := server(t)
			seen := map[string]bool{}
			for _, object := range render(t, variation) {
				if seen[key(object)] {
					t.Errorf("%s is rendered twice", key(object))
				}
				seen[key(object)] = true
				if strings.HasPrefix(object.GetAPIVersion(), "monitoring.coreos.com/") {
					continue
				}
				err := c.Patch(t.Context(), object.DeepCopy(), client.Apply, client.DryRunAll, //nolint:staticcheck // Apply takes no field validation
					client.FieldOwner("test"), client.ForceOwnership, client.FieldValidation("Strict"))
				if err != nil {
					t.Errorf("%s: %v", key(object), err)
				}
			}
			if len(seen) < 10 {
				t.Errorf("only %d objects are rendered", len(seen))
			}
		})
	}
}

// The check above can fail.
func TestAPIServerRefusesUnknownFields(t *testing.T) {
	c, _ := server(t)
	object := find(t, render(t, "default"), "Deployment", "ladder-scheduler").DeepCopy()
	if err := unstructured.SetNestedField(object.Object, "yes", "spec", "template", "spec", "unheardOf"); err != nil {
		t.Fatal(err)
	}
	err := c.Patch(t.Context(), object, client.Apply, client.DryRunAll, //nolint:staticcheck // as above
		client.FieldOwner("test"), client.ForceOwnership, client.FieldValidation("Strict"))
	if err == nil || !strings.Contains(err.Error(), "unheardOf") {
		t.Errorf("got %v", err)
	}
}

// What is installed, by kind and name, and the images that it needs.
func TestInventory(t *testing.T) {
	for _, variation := range sorted(variations(t)) {
		t.Run(variation, func(t *testing.T) {
			var list, images []string
			for _, object := range render(t, variation) {
				line := key(object)
				if hook := object.GetAnnotations()["helm.sh/hook"]; hook != "" {
					line += " (" + hook + ")"
				}
				list = append(list, line)
				for _, c := range containers(object) {
					images = append(images, fmt.Sprint(c["image"]))
				}
			}
			slices.Sort(list)
			slices.Sort(images)
			golden(t, variation+".txt", strings.Join(append(list, "\nimages:\n"+strings.Join(slices.Compact(images), "\n")), "\n")+"\n")
		})
	}
}

// podSpec returns the Pod's spec of a workload; nil for other kinds.
func podSpec(object *unstructured.Unstructured) map[string]any {
	path := []string{"spec", "template", "spec"}
	switch object.GetKind() {
	case "Pod":
		path = []string{"spec"}
	case "Deployment", "DaemonSet", "StatefulSet", "Job":
	default:
		return nil
	}
	spec, _, _ := unstructured.NestedMap(object.Object, path...)
	return spec
}

func containers(object *unstructured.Unstructured) []map[string]any {
	var list []map[string]any
	for _, field := range []string{"initContainers", "containers"} {
		some, _, _ := unstructured.NestedSlice(podSpec(object), field)
		for _, c := range some {
			list = append(list, c.(map[string]any))
		}
	}
	return list
}

// golden compares with testdata/golden, or rewrites it with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	sameFile(t, filepath.Join("testdata", "golden", name), []byte(got))
}

func sameFile(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with `go test ./charts -update`", err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is out of date, rewrite it with `go test ./charts -update`; it should be:\n%s", path, want)
	}
}
