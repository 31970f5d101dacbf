// Package apply writes manifests to a cluster by server-side apply, patiently:
// kinds that are just being defined and policies that are just being compiled
// by the API server need a moment.
package apply

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// FieldOwner is the name under which fields are applied.
const FieldOwner = "ladder-lab"

// interval is the wait between two tries.
const interval = 100 * time.Millisecond

// Decode reads YAML documents; List objects are taken apart, empty documents
// skipped. name is told in errors.
func Decode(name string, content []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for n := 1; ; n++ {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s, document %d, %w", name, n, err)
		}
		var fields map[string]any
		if err := yaml.Unmarshal(doc, &fields); err != nil {
			return nil, fmt.Errorf("reading %s, document %d, %w", name, n, err)
		}
		if len(fields) == 0 {
			continue
		}
		object := &unstructured.Unstructured{Object: fields}
		if object.GetKind() == "" || object.GetAPIVersion() == "" {
			return nil, fmt.Errorf("reading %s, document %d, it has no apiVersion or kind", name, n)
		}
		if !object.IsList() {
			objects = append(objects, object)
			continue
		}
		list, err := object.ToList()
		if err != nil {
			return nil, fmt.Errorf("reading %s, document %d, %w", name, n, err)
		}
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
	}
}

// DecodeFS reads every .yaml file of a folder, in the order of names.
func DecodeFS(fsys fs.FS, dir string) ([]*unstructured.Unstructured, error) {
	names, err := fs.Glob(fsys, path.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var objects []*unstructured.Unstructured
	for _, name := range names {
		content, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("reading %s, %w", name, err)
		}
		some, err := Decode(name, content)
		if err != nil {
			return nil, err
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

// Objects applies the objects in their order and returns when all are stored.
// Errors that pass by themselves are waited out until the context is done.
func Objects(ctx context.Context, c client.Client, objects ...*unstructured.Unstructured) error {
	for _, object := range objects {
		err := retry(ctx, passing, func() error {
			return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()),
				client.FieldOwner(FieldOwner), client.ForceOwnership)
		})
		if err != nil {
			return fmt.Errorf("applying %s %s, %w", object.GetKind(), client.ObjectKeyFromObject(object), err)
		}
	}
	return nil
}

// Established waits until every definition of a kind among the objects is
// served: its condition says so and discovery lists it.
func Established(ctx context.Context, c client.Client, d discovery.DiscoveryInterface, objects ...*unstructured.Unstructured) error {
	for _, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		if err := retry(ctx, always, func() error { return established(ctx, c, d, object) }); err != nil {
			return fmt.Errorf("waiting for %s to be served, %w", object.GetName(), err)
		}
	}
	return nil
}

func established(ctx context.Context, c client.Client, d discovery.DiscoveryInterface, crd *unstructured.Unstructured) error {
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(crd.GroupVersionKind())
	if err := c.Get(ctx, client.ObjectKeyFromObject(crd), now); err != nil {
		return err
	}
	conditions, _, err := unstructured.NestedSlice(now.Object, "status", "conditions")
	if err != nil {
		return err
	}
	isEstablished := slices.ContainsFunc(conditions, func(condition any) bool {
		fields, ok := condition.(map[string]any)
		return ok && fields["type"] == "Established" && fields["status"] == "True"
	})
	if !isEstablished {
		return errors.New("condition Established is not True")
	}
	group, _, err := unstructured.NestedString(now.Object, "spec", "group")
	if err != nil {
		return err
	}
	plural, _, err := unstructured.NestedString(now.Object, "spec", "names", "plural")
	if err != nil {
		return err
	}
	versions, _, err := unstructured.NestedSlice(now.Object, "spec", "versions")
	if err != nil {
		return err
	}
	for _, v := range versions {
		fields, ok := v.(map[string]any)
		if !ok || fields["served"] != true {
			continue
		}
		version, _ := fields["name"].(string)
		gv := schema.GroupVersion{Group: group, Version: version}
		list, err := d.ServerResourcesForGroupVersion(gv.String())
		if err != nil {
			return err
		}
		served := false
		for _, r := range list.APIResources {
			served = served || r.Name == plural
		}
		if !served {
			return fmt.Errorf("%s does not list %s yet", gv, plural)
		}
	}
	return nil
}

// passing says whether an error may go away by itself: the kind is not known
// yet, or the server is busy, starting or not reached.
func passing(err error) bool {
	if meta.IsNoMatchError(err) || discovery.IsGroupDiscoveryFailedError(err) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // no answer of the server at all
	}
	return apierrors.IsNotFound(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) ||
		apierrors.IsConflict(err)
}

func always(error) bool { return true }

// retry calls do until it succeeds, fails for good or the context is done; the
// last error is then told, not only that time is up.
func retry(ctx context.Context, passing func(error) bool, do func() error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := do()
		if err == nil || !passing(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, the last answer was: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}
