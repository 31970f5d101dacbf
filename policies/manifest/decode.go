package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// header is what every object says about itself. Values of a wrong type are
// left to the strict decoder, which names them.
type header struct {
	APIVersion any             `json:"apiVersion"`
	Kind       any             `json:"kind"`
	Metadata   json.RawMessage `json:"metadata"`
}

// list is the outside of a List.
type list struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metav1.ListMeta   `json:"metadata"`
	Items      []json.RawMessage `json:"items"`
}

// ownObject is what our own kinds can do.
type ownObject interface {
	Default()
	Validate() field.ErrorList
}

// add reads one file's text into the set.
func (s *Set) add(file string, data []byte) error {
	shift := 0 // further JSON values count as documents too
	for _, doc := range split(data) {
		src := Source{File: file, Document: doc.number + shift}
		if why := notText(doc.text); why != "" {
			return &Error{Source: src, Msg: why}
		}
		if doc.trailing {
			return &Error{Source: src, Msg: "text stands after the end of the document (...); put --- between documents"}
		}
		values, err := toJSON(doc.text, s.maxValues)
		if err != nil {
			err.Source = src
			return err
		}
		for i, raw := range values {
			src.Document = doc.number + shift + i
			if err := s.addValue(src, raw, nil); err != nil {
				return err
			}
		}
		shift += max(len(values)-1, 0)
	}
	return nil
}

// addValue reads one JSON value: an object, or with inList nil a List of them.
// inList gives the version and kind of the items of a typed List.
func (s *Set) addValue(src Source, raw []byte, inList *schema.GroupVersionKind) error {
	var h header
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		return &Error{Source: src, Msg: "is not a Kubernetes object; give a mapping with apiVersion, kind and metadata"}
	}
	apiVersion, okVersion := h.APIVersion.(string)
	name, okKind := h.Kind.(string)
	if inList != nil && h.APIVersion == nil && h.Kind == nil && inList.Kind != "" {
		apiVersion, name = inList.ToAPIVersionAndKind()
		okVersion, okKind = true, true
	}
	object := describe(name, h.Metadata)
	switch {
	case !okKind || name == "":
		return &Error{Source: src, Object: object, Field: "kind", Msg: "is missing or no string; say which kind of object this is"}
	case !okVersion || apiVersion == "":
		return &Error{Source: src, Object: object, Field: "apiVersion", Msg: "is missing or no string; say which version of the kind this is"}
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return &Error{Source: src, Object: object, Field: "apiVersion", Msg: fmt.Sprintf("%q is not a group and version; write it as group/version", apiVersion)}
	}
	gvk := gv.WithKind(name)
	if k, ok := kinds[gvk.GroupKind()]; ok {
		return s.addObject(src, object, raw, gvk, k)
	}
	if isList(gvk, raw) {
		if inList != nil {
			return &Error{Source: src, Object: name, Msg: "a List inside a List is not read; take its items out"}
		}
		return s.addList(src, raw, gvk)
	}
	if own := kinds[schema.GroupKind{Group: "gpuladder.dev", Kind: "AcceleratorPolicy"}].gvk; gvk.Group == own.Group && !ownKindsNotRead[name] {
		return &Error{Source: src, Object: object, Field: "kind", Msg: fmt.Sprintf("%s has no kind %s; correct its spelling", gvk.Group, name)}
	}
	s.skipped[gvk.GroupKind()]++
	return nil
}

// isList says whether a kind that is not read itself is a list of objects.
func isList(gvk schema.GroupVersionKind, raw []byte) bool {
	if !strings.HasSuffix(gvk.Kind, "List") {
		return false
	}
	if gvk.Group == "" && gvk.Kind == "List" {
		return true
	}
	var l struct {
		Items *json.RawMessage `json:"items"`
	}
	return json.Unmarshal(raw, &l) == nil && l.Items != nil
}

// addList reads the items of a List.
func (s *Set) addList(src Source, raw []byte, gvk schema.GroupVersionKind) error {
	var l list
	if err := strict(raw, &l); err != nil {
		err.Source, err.Object = src, gvk.Kind
		return err
	}
	itemKind := gvk.GroupVersion().WithKind(strings.TrimSuffix(gvk.Kind, "List"))
	for i, item := range l.Items {
		src.Item = i + 1
		if err := s.addValue(src, item, &itemKind); err != nil {
			return err
		}
	}
	return nil
}

// addObject decodes one object strictly, defaults and validates it.
func (s *Set) addObject(src Source, object string, raw []byte, gvk schema.GroupVersionKind, k kind) error {
	if gvk.Version != k.gvk.Version {
		msg := fmt.Sprintf("%s is not read; use %s", gvk.GroupVersion(), k.gvk.GroupVersion())
		if k.gvk.Group != "gpuladder.dev" {
			resource := strings.TrimSuffix(fmt.Sprintf("%s.%s.%s", k.resource, k.gvk.Version, k.gvk.Group), ".")
			msg += fmt.Sprintf(", as `kubectl get %s -o yaml` prints it", resource)
		}
		return &Error{Source: src, Object: object, Field: "apiVersion", Msg: msg}
	}
	obj := k.make()
	if err := strict(raw, obj); err != nil {
		err.Source, err.Object = src, object
		return err
	}
	obj.GetObjectKind().SetGroupVersionKind(k.gvk)
	meta := obj.(metav1.Object)
	meta.SetManagedFields(nil)
	fail := func(path, msg string) error {
		return &Error{Source: src, Object: object, Field: path, Msg: msg}
	}
	name := meta.GetName()
	if name == "" {
		return fail("metadata.name", "is missing; give the object a name")
	}
	if why := utilvalidation.IsDNS1123Subdomain(name); len(why) > 0 {
		return fail("metadata.name", fmt.Sprintf("%q is not a name: %s", clip(name), why[0]))
	}
	switch namespace := meta.GetNamespace(); {
	case !k.namespaced && namespace != "":
		return fail("metadata.namespace", fmt.Sprintf("a %s has no namespace; leave it out", k.gvk.Kind))
	case k.namespaced && namespace == "":
		meta.SetNamespace(metav1.NamespaceDefault)
	case k.namespaced:
		if why := utilvalidation.IsDNS1123Label(namespace); len(why) > 0 {
			return fail("metadata.namespace", fmt.Sprintf("%q is not a namespace: %s", clip(namespace), why[0]))
		}
	}
	o := Object{Object: obj, Source: src}
	object = o.String()
	if own, ok := obj.(ownObject); ok {
		own.Default()
		if errs := own.Validate(); len(errs) > 0 {
			return &Error{
				Source: src, Object: object, Field: errs[0].Field,
				Msg: errs[0].ErrorBody() + more(len(errs)-1), All: errs,
			}
		}
	}
	if err := s.cel.selectors(obj); err != nil {
		wrong := &Error{Source: src, Object: object, Field: err.Field, Msg: err.Detail, All: field.ErrorList{err}}
		if _, policy := obj.(*v1alpha1.AcceleratorPolicy); !policy || !FromCluster(meta) {
			return wrong
		}
		s.uncompiled = append(s.uncompiled, wrong) // an API server can't compile CEL of a kind like ours
	}
	if first, ok := s.index[o.key()]; ok {
		return fail("metadata.name", fmt.Sprintf("is given twice, first in %s; keep one", s.Objects[first].Source))
	}
	s.index[o.key()] = len(s.Objects)
	s.Objects = append(s.Objects, o)
	return nil
}

// strict decodes JSON; what is wrong comes back with its field, without a source.
func strict(raw []byte, into any) *Error {
	wrong, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		var value any
		if kjson.UnmarshalCaseSensitivePreserveInts(raw, &value) == nil {
			if path, why := locate(reflect.TypeOf(into), value, ""); why != "" {
				return &Error{Field: path, Msg: why}
			}
		}
		return &Error{Msg: strings.TrimPrefix(err.Error(), "json: ")}
	}
	if len(wrong) == 0 {
		return nil
	}
	path := ""
	if f, ok := wrong[0].(interface{ FieldPath() string }); ok {
		path = f.FieldPath()
	}
	msg := "unknown field; correct its spelling and place, or take it out"
	if strings.HasPrefix(wrong[0].Error(), "duplicate") {
		msg = "is given twice; keep one"
	}
	return &Error{Field: path, Msg: msg + more(len(wrong)-1)}
}

// more says that an object has further mistakes.
func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more in this object)", n)
}

// describe gives "Kind namespace/name" as far as the header tells them.
func describe(kind string, metadata json.RawMessage) string {
	var m struct {
		Name      any `json:"name"`
		Namespace any `json:"namespace"`
	}
	if len(metadata) > 0 {
		_ = json.Unmarshal(metadata, &m) // a wrong metadata is the strict decoder's to tell
	}
	name, _ := m.Name.(string)
	namespace, _ := m.Namespace.(string)
	if name != "" && namespace != "" {
		name = namespace + "/" + name
	}
	return strings.TrimSpace(kind + " " + name)
}
