package v1alpha1

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestRevisionOfTemplate(t *testing.T) {
	for template, want := range map[string]int64{
		RevisionName("h100-first", 7): 7, "h100-first-0": 0, "h100-first-07": 0, "h100-first-x": 0, "h100-first": 0, "other-7": 0, "": 0,
	} {
		if got := RevisionOfTemplate(template, "h100-first"); got != want {
			t.Errorf("template %q: revision %d, want %d", template, got, want)
		}
	}
	if got := RevisionOfTemplate("-7", ""); got != 0 {
		t.Errorf("no policy: revision %d", got)
	}
}

func TestHowAPolicyIsFollowed(t *testing.T) {
	pod := &corev1.Pod{}
	if HasPolicyClaim(pod, "p") {
		t.Error("there is no claim")
	}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("q-1")}}
	if HasPolicyClaim(pod, "p") {
		t.Error("it is another's")
	}
	for _, ref := range []corev1.PodResourceClaim{{Name: ClaimRefName}, {Name: "gpu", ResourceClaimTemplateName: ptr.To("p-1")}} {
		pod.Spec.ResourceClaims[0] = ref
		if !HasPolicyClaim(pod, "p") {
			t.Errorf("%v is the policy's", ref)
		}
	}
	for value, want := range map[string][2]string{"": {}, "p": {"", "p"}, "nvidia.com/gpu=p": {"nvidia.com/gpu", "p"}} {
		pod.Annotations = map[string]string{AnnotationExtendedResourcePolicy: value}
		if resource, policy := ExtendedResourcePolicy(pod); string(resource) != want[0] || policy != want[1] {
			t.Errorf("%q: resource %q, policy %q", value, resource, policy)
		}
	}
}

func TestRecordPrefix(t *testing.T) {
	long := strings.Repeat("a", 235) + "-.z"
	for pod, want := range map[string]string{"p": "p", long: strings.Repeat("a", 235)} {
		if got := RecordPrefix(pod); got != want {
			t.Errorf("%s: %s", pod, got)
		}
	}
}
