package charts_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpuladder.dev/ladder/e2e/charts"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

var update = flag.Bool("update", false, "rewrite what is generated: the chart's copies, golden files, docs/operating.md")

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	stopParts()
	if err := stopServer(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if dir, err := home(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// foreign are the kinds that a cluster with Ladder and the Prometheus operator
// has beside Kubernetes' own.
var foreign = []string{
	"--api-versions=gpuladder.dev/v1alpha1/AcceleratorPolicy",
	"--api-versions=monitoring.coreos.com/v1/ServiceMonitor",
	"--api-versions=monitoring.coreos.com/v1/PrometheusRule",
}

var home = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "ladder-charts-") })

// helm returns one of the two programs. With -short the test is skipped: the
// programs are built at the first use.
func helm(t testing.TB, name string) *charts.Helm {
	t.Helper()
	if testing.Short() {
		t.Skip("builds Helm")
	}
	dir, err := home()
	if err != nil {
		t.Fatal(err)
	}
	h, err := charts.NewHelm(t.Context(), os.Stderr, name, filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func chartDir(t testing.TB) string {
	t.Helper()
	dir, err := charts.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func repository(t testing.TB) string {
	t.Helper()
	root, err := binaries.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// variations are the sets of values that the chart is tried with, by name.
func variations(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir(t), "ci", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 5 {
		t.Fatalf("found %d variations", len(files))
	}
	found := map[string]string{}
	for _, f := range files {
		found[strings.TrimSuffix(filepath.Base(f), ".yaml")] = f
	}
	return found
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

var cache sync.Map

// render renders a variation with Helm 4, once for each.
func render(t testing.TB, variation string) []*unstructured.Unstructured {
	t.Helper()
	file, ok := variations(t)[variation]
	if !ok {
		t.Fatalf("there is no variation %q", variation)
	}
	objects, _ := cache.LoadOrStore(variation, sync.OnceValues(func() ([]*unstructured.Unstructured, error) {
		return helm(t, binaries.Helm4).Template(t.Context(), append(foreign, "--values", file)...)
	}))
	list, err := objects.(func() ([]*unstructured.Unstructured, error))()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

func key(object *unstructured.Unstructured) string {
	return strings.TrimPrefix(fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName()), "/")
}

// find returns the rendered object of a kind and name.
func find(t testing.TB, objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == kind && object.GetName() == name {
			return object
		}
	}
	t.Fatalf("no %s %s is rendered", kind, name)
	return nil
}
