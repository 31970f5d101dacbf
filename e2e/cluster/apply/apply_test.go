package apply

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	discoveryfake "k8s.io/client-go/discovery/fake"
	clientgotesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const twoDocuments = `# a comment only
---
apiVersion: v1
kind: ConfigMap
metadata: {name: one, namespace: default}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: two, namespace: default}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: three, namespace: default}}
`

func names(objects []*unstructured.Unstructured) string {
	var all []string
	for _, o := range objects {
		all = append(all, o.GetName())
	}
	return strings.Join(all, " ")
}

func TestDecode(t *testing.T) {
	objects, err := Decode("some.yaml", []byte(twoDocuments))
	if err != nil || names(objects) != "one two three" {
		t.Errorf("Decode = %q, %v", names(objects), err)
	}
	for name, content := range map[string]string{
		"no kind":  "apiVersion: v1\nkind: Pod\n---\nmetadata: {name: x}\n",
		"no YAML":  "apiVersion: v1\nkind: Pod\n---\n\t{\n",
		"a scalar": "apiVersion: v1\nkind: Pod\n---\njust words\n",
	} {
		if _, err := Decode("some.yaml", []byte(content)); err == nil || !strings.Contains(err.Error(), "some.yaml, document 2") {
			t.Errorf("%s: %v, want the file and the document", name, err)
		}
	}
}

func TestDecodeFSGoesByName(t *testing.T) {
	file := func(name string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\n")}
	}
	fsys := fstest.MapFS{"d/b.yaml": file("b"), "d/a.yaml": file("a"), "d/c.txt": file("c"), "e.yaml": file("e")}
	objects, err := DecodeFS(fsys, "d")
	if err != nil || names(objects) != "a b" {
		t.Errorf("DecodeFS = %q, %v", names(objects), err)
	}
	fsys["d/c.yaml"] = &fstest.MapFile{Data: []byte("x: 1")}
	if _, err := DecodeFS(fsys, "d"); err == nil || !strings.Contains(err.Error(), "d/c.yaml") {
		t.Errorf("DecodeFS of a bad file = %v", err)
	}
}

// failing is a client whose first answers are errors.
func failing(t *testing.T, errs ...error) (client.Client, *int) {
	t.Helper()
	calls := 0
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			calls++
			var options client.ApplyOptions
			options.ApplyOptions(opts)
			if options.FieldManager != FieldOwner || options.Force == nil || !*options.Force {
				t.Errorf("applied with %+v, want it forced by %s", options, FieldOwner)
			}
			if calls <= len(errs) {
				return errs[calls-1]
			}
			return c.Apply(ctx, o, opts...)
		},
	}), &calls
}

func configMaps(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := Decode("some.yaml", []byte(twoDocuments))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestErrorsThatPassAreWaitedOut(t *testing.T) {
	gk := schema.GroupKind{Kind: "ConfigMap"}
	resource := schema.GroupResource{Resource: "configmaps"}
	c, calls := failing(t,
		&meta.NoKindMatchError{GroupKind: gk}, io.ErrUnexpectedEOF,
		apierrors.NewServiceUnavailable("starting"), apierrors.NewNotFound(resource, "one"),
		apierrors.NewConflict(resource, "one", errors.New("somebody else")),
	)
	if err := Objects(t.Context(), c, configMaps(t)...); err != nil {
		t.Fatal(err)
	}
	if *calls != 5+3 {
		t.Errorf("%d calls, want 5 that fail and 3 that do not", *calls)
	}
	var stored corev1.ConfigMapList
	if err := c.List(t.Context(), &stored); err != nil || len(stored.Items) != 3 {
		t.Errorf("%d objects are stored, %v", len(stored.Items), err)
	}
}

func TestErrorsForGoodAreToldAtOnce(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "one", errors.New("not you"))
	c, calls := failing(t, refused)
	err := Objects(t.Context(), c, configMaps(t)...)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "applying ConfigMap default/one") || *calls != 1 {
		t.Errorf("Objects = %v after %d calls", err, *calls)
	}
}

func TestTheLastAnswerIsToldWhenTimeIsUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	unavailable := apierrors.NewServiceUnavailable("still starting")
	c, _ := failing(t, unavailable, unavailable, unavailable, unavailable)
	err := Objects(ctx, c, configMaps(t)...)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still starting") {
		t.Errorf("Objects = %v", err)
	}
}

func TestEstablished(t *testing.T) {
	objects, err := Decode("crd.yaml", []byte(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.test}
spec:
  group: example.test
  names: {plural: things, kind: Thing}
  versions:
  - {name: v1, served: true}
  - {name: v0, served: false}
`))
	if err != nil {
		t.Fatal(err)
	}
	crd := objects[0].DeepCopy()
	c := fake.NewClientBuilder().WithObjects(crd).Build()
	d := &discoveryfake.FakeDiscovery{Fake: &clientgotesting.Fake{}}
	short := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		return Established(ctx, c, d, objects...)
	}
	if err := short(); err == nil || !strings.Contains(err.Error(), "Established is not True") {
		t.Errorf("before its condition: %v", err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); err != nil {
		t.Fatal(err)
	}
	condition := map[string]any{"type": "Established", "status": "True"}
	if err := unstructured.SetNestedSlice(crd.Object, []any{condition}, "status", "conditions"); err != nil {
		t.Fatal(err)
	}
	if err := c.Status().Update(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	if err := short(); err == nil {
		t.Error("established before discovery lists it")
	}
	d.Resources = []*metav1.APIResourceList{{GroupVersion: "example.test/v1", APIResources: []metav1.APIResource{{Name: "things"}}}}
	if err := short(); err != nil {
		t.Errorf("when it is served: %v", err)
	}
}
