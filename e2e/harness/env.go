package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"gpuladder.dev/ladder/e2e/charts"
	"gpuladder.dev/ladder/e2e/cluster/jsonfile"
	"gpuladder.dev/ladder/e2e/images"
)

// Namespace is where the harness installs Ladder, and Release what Helm calls
// the installation.
const (
	Namespace = "ladder-system"
	Release   = "ladder"
)

// driverImage is the image that holds the test workload.
const driverImage = "ladder-driver"

// env is what the suites are told, or the test of a release.
type env struct {
	Variables map[string]string `json:"variables"`
}

// env describes the cluster with the images in it.
func (h *harness) env(built *images.Set) *env {
	if h.Bare { // nothing for the suites, which want Ladder
		return &env{Variables: map[string]string{
			charts.EnvKubeconfig: h.cluster.Kubeconfig(),
			charts.EnvTag:        built.Tag,
		}}
	}
	return &env{Variables: map[string]string{
		"LADDER_E2E_PROVIDER":  "kind",
		"LADDER_E2E_CLUSTER":   h.Name,
		"LADDER_E2E_DRIVER":    string(h.Driver),
		"LADDER_E2E_IMAGE":     built.Reference(driverImage),
		"LADDER_E2E_NAMESPACE": Namespace,
		"KUBECONFIG":           h.cluster.Kubeconfig(),
	}}
}

// Env returns the variables by which tests reach the cluster that Up brought
// up, as NAME=VALUE, sorted. No value holds a space.
func Env(o Options) ([]string, error) {
	o.complete()
	e, err := readEnv(o.Name)
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, fmt.Errorf("looking for cluster %s, the harness has not brought it up; `ladder-lab e2e up` does", o.Name)
	}
	lines := make([]string, 0, len(e.Variables))
	for name, value := range e.Variables {
		lines = append(lines, name+"="+value)
	}
	slices.Sort(lines)
	return lines, nil
}

func (e *env) write(name string) error {
	path, err := stateFile(name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("remembering cluster %s, %w", name, err)
	}
	if err := jsonfile.Write(path, e); err != nil {
		return fmt.Errorf("remembering cluster %s, %w", name, err)
	}
	return nil
}

// readEnv returns nil where nothing is remembered.
func readEnv(name string) (*env, error) {
	path, err := stateFile(name)
	if err != nil {
		return nil, err
	}
	e := &env{}
	if err := jsonfile.Read(path, e); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("looking for cluster %s, %w", name, err)
	}
	return e, nil
}
