package v1alpha1

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// This file reads which policy a Pod follows, and how.

// RevisionOfTemplate is the revision of the policy that a claim template of this
// name is made of, as [RevisionName] names it; 0 where it is none of the policy's.
func RevisionOfTemplate(template, policy string) int64 {
	number, ok := strings.CutPrefix(template, policy+"-")
	revision, err := strconv.ParseInt(number, 10, 64)
	if !ok || policy == "" || err != nil || revision < 1 || RevisionName(policy, revision) != template {
		return 0
	}
	return revision
}

// HasPolicyClaim says whether one of the Pod's claims is the policy's.
func HasPolicyClaim(pod *corev1.Pod, policy string) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(ref corev1.PodResourceClaim) bool {
		return ref.Name == ClaimRefName || ref.ResourceClaimTemplateName != nil && RevisionOfTemplate(*ref.ResourceClaimTemplateName, policy) != 0
	})
}

// ExtendedResourcePolicy reads [AnnotationExtendedResourcePolicy], "policy" or
// "resource=policy"; "" for what is not said.
func ExtendedResourcePolicy(pod *corev1.Pod) (resource corev1.ResourceName, policy string) {
	value := pod.Annotations[AnnotationExtendedResourcePolicy]
	if name, policy, found := strings.Cut(value, "="); found {
		return corev1.ResourceName(name), policy
	}
	return "", value
}

// RecordSuffix is the length of what follows a Pod's name in the name of a record: a
// hyphen and 16 hexadecimal digits.
const RecordSuffix = 17

// RecordPrefix is what the names of a Pod's records begin with: its own name, cut
// where there is no room for all of it.
func RecordPrefix(pod string) string {
	const longest = 253 - RecordSuffix
	if len(pod) > longest {
		pod = strings.TrimRight(pod[:longest], "-.")
	}
	return pod
}
