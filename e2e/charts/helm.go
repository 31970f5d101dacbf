// Package charts runs Helm, of both majors that are in use, on the chart of
// this repository. Its tests hold the chart to what it promises; suites against
// a cluster install it through this package.
package charts

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

const (
	// Release is the name under which the chart is installed.
	Release = "ladder"
	// Namespace is where.
	Namespace = "ladder-system"
)

// Variables by which the test of a release's life is told of its cluster.
const (
	// EnvKubeconfig is a cluster with real kubelets of its own, on which nothing of
	// Ladder is installed and whose nodes have the images.
	EnvKubeconfig = "LADDER_CHART_KUBECONFIG"
	// EnvTag is the tag of these images.
	EnvTag = "LADDER_IMAGE_TAG"
)

// Dir is the folder of the chart in the working tree.
func Dir() (string, error) {
	root, err := binaries.Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "charts", "ladder"), nil
}

// Helm is one of the two programs, with a home of its own, so that the user's
// repositories, plugins and settings are neither read nor changed.
type Helm struct {
	// Name is binaries.Helm3 or binaries.Helm4.
	Name string
	// Kubeconfig is the cluster's; empty where none is needed.
	Kubeconfig string
	path, home string
}

// NewHelm builds the program where it is missing. home is a folder for its
// settings and caches.
func NewHelm(ctx context.Context, progress io.Writer, name, home string) (*Helm, error) {
	set, err := binaries.Ensure(ctx, progress, name)
	if err != nil {
		return nil, err
	}
	return &Helm{Name: name, path: set.Path(name), home: home}, nil
}

// Run runs helm and returns what it printed. The error holds what it said.
func (h *Helm) Run(ctx context.Context, args ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, h.path, args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.Env = h.environment()
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("running %s %s, %w: %s", h.Name, strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return out.String(), nil
}

// environment is the caller's without what would lead helm elsewhere.
func (h *Helm) environment() []string {
	var env []string
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "HELM_") && !strings.HasPrefix(pair, "KUBECONFIG=") {
			env = append(env, pair)
		}
	}
	kubeconfig := h.Kubeconfig
	if kubeconfig == "" {
		kubeconfig = filepath.Join(h.home, "no-kubeconfig")
	}
	return append(env, "HELM_CACHE_HOME="+filepath.Join(h.home, "cache"), "HELM_CONFIG_HOME="+filepath.Join(h.home, "config"),
		"HELM_DATA_HOME="+filepath.Join(h.home, "data"), "KUBECONFIG="+kubeconfig)
}

// Template renders the chart, hooks included, and decodes what comes out: a key
// that stands twice in a map is an error. args are further ones of `helm
// template`.
func (h *Helm) Template(ctx context.Context, args ...string) ([]*unstructured.Unstructured, error) {
	chart, err := Dir()
	if err != nil {
		return nil, err
	}
	out, err := h.Run(ctx, append([]string{"template", Release, chart, "--namespace", Namespace}, args...)...)
	if err != nil {
		return nil, err
	}
	for i, doc := range strings.Split(out, "\n---\n") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &object); err != nil {
			return nil, fmt.Errorf("reading document %d of what %s rendered, %w:\n%s", i+1, h.Name, err, doc)
		}
	}
	return apply.Decode("the rendered chart", []byte(out))
}
