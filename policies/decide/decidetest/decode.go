package decidetest

import (
	"fmt"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// kinds makes an empty object of each kind that a decision depends on.
var kinds = map[string]func() runtime.Object{
	"Node":                  func() runtime.Object { return &corev1.Node{} },
	"Namespace":             func() runtime.Object { return &corev1.Namespace{} },
	"Pod":                   func() runtime.Object { return &corev1.Pod{} },
	"ResourceSlice":         func() runtime.Object { return &resourceapi.ResourceSlice{} },
	"DeviceTaintRule":       func() runtime.Object { return &resourceapi.DeviceTaintRule{} },
	"DeviceClass":           func() runtime.Object { return &resourceapi.DeviceClass{} },
	"ResourceClaim":         func() runtime.Object { return &resourceapi.ResourceClaim{} },
	"ResourceClaimTemplate": func() runtime.Object { return &resourceapi.ResourceClaimTemplate{} },
	"AcceleratorPolicy":     func() runtime.Object { return &v1alpha1.AcceleratorPolicy{} },
	"PolicyRevision":        func() runtime.Object { return &v1alpha1.PolicyRevision{} },
	"TenantQuota":           func() runtime.Object { return &v1alpha1.TenantQuota{} },
}

// Kinds are the names of the kinds, for tests that want to try each.
func Kinds() []string {
	return []string{
		"Node", "Namespace", "Pod", "ResourceSlice", "DeviceTaintRule", "DeviceClass", "ResourceClaim",
		"ResourceClaimTemplate", "AcceleratorPolicy", "PolicyRevision", "TenantQuota",
	}
}

// NewOfKind makes an empty object of a kind, or nil.
func NewOfKind(kind string) runtime.Object {
	if make, ok := kinds[kind]; ok {
		return make()
	}
	return nil
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

// DecodeYAML reads the documents of a file, strictly.
func DecodeYAML(data []byte) ([]runtime.Object, error) {
	var out []runtime.Object
	for i, doc := range separator.Split(string(data), -1) {
		var m metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &m); err != nil {
			return nil, fmt.Errorf("reading document %d, %w", i+1, err)
		}
		if m.Kind == "" {
			continue
		}
		obj := NewOfKind(m.Kind)
		if obj == nil {
			return nil, fmt.Errorf("reading document %d, kind %q is not known", i+1, m.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
			return nil, fmt.Errorf("reading document %d, %w", i+1, err)
		}
		out = append(out, obj)
	}
	return out, nil
}

// Newest is the newest creation of the objects, the evaluation time where
// nothing else is said.
func Newest(objects []runtime.Object) time.Time {
	var newest time.Time
	for _, o := range objects {
		if m, err := meta.Accessor(o); err == nil && m.GetCreationTimestamp().After(newest) {
			newest = m.GetCreationTimestamp().Time
		}
	}
	return newest
}
