package fleet

// This file prints fleets and the objects made from them.

import (
	"bufio"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Write prints the fleet file.
func (f *Fleet) Write(w io.Writer) error {
	data, err := yaml.Marshal(f)
	if err != nil {
		return fmt.Errorf("encoding fleet, %w", err)
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("writing fleet, %w", err)
	}
	return nil
}

// WriteManifests prints the Nodes and then the ResourceSlices of the fleet as
// YAML documents, which `ladder decide` and `kubectl apply` read.
func (f *Fleet) WriteManifests(w io.Writer) error {
	nodes, made := f.Nodes(), f.Slices()
	objects := make([]runtime.Object, 0, len(nodes)+len(made))
	for _, node := range nodes {
		objects = append(objects, node)
	}
	for _, slice := range made {
		objects = append(objects, slice)
	}
	return WriteObjects(w, objects...)
}

// WriteObjects prints objects as YAML documents. Their kinds must be set.
func WriteObjects(w io.Writer, objects ...runtime.Object) error {
	out := bufio.NewWriter(w)
	for _, object := range objects {
		kind := object.GetObjectKind().GroupVersionKind().Kind
		data, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("encoding %s, %w", kind, err)
		}
		// The writer keeps its first error, which Flush returns.
		_, _ = out.WriteString("---\n")
		_, _ = out.Write(data)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("writing manifests, %w", err)
	}
	return nil
}
