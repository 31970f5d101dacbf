// Package allocated tells what a bound Pod has, from what Kubernetes itself
// keeps of it: the allocations of its claims, and the annotations that came
// with the Binding. Allocations are the truth about devices; the annotations
// add what no claim says.
package allocated

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

// Claim is one claim of a Pod.
type Claim struct {
	// Ref is the name by which the Pod refers to it.
	Ref string
	*resourcev1.ResourceClaim
}

// Policy is the policy and revision that a claim of a Pod was made from; an empty
// name for a claim of another kind. The label of the Pod and the template that it
// names say so, which nobody can change. Of a claim that was not made for the Pod
// its own labels do, as they came from a template.
func Policy(pod *corev1.Pod, claim *resourcev1.ResourceClaim) (name string, revision int64) {
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		made, _, err := resourceclaim.Name(pod, ref)
		if err != nil || made == nil || *made != claim.Name || ref.ResourceClaimTemplateName == nil {
			continue
		}
		name = pod.Labels[v1alpha1.LabelPolicy]
		if revision = v1alpha1.RevisionOfTemplate(*ref.ResourceClaimTemplateName, name); revision != 0 {
			return name, revision
		}
	}
	name, revision = claim.Labels[v1alpha1.LabelPolicy], revisionOf(claim.Labels[v1alpha1.LabelPolicyRevision])
	if name == "" || revision == 0 {
		return "", 0
	}
	return name, revision
}

// revisionOf reads the number of a revision; 0 where it is none.
func revisionOf(number string) int64 {
	revision, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0
	}
	return max(revision, 0)
}

// MadeFrom says whether a claim was made from this revision. A policy that was
// deleted and made again has another one of the same name: it came after the
// claim, and most likely says something else.
func MadeFrom(claim *resourcev1.ResourceClaim, revision *v1alpha1.PolicyRevision) bool {
	return !revision.CreationTimestamp.After(claim.CreationTimestamp.Time) || claim.Annotations[compile.AnnotationPolicyHash] == revision.Spec.Hash
}

// extendedPolicy is the policy and revision that a Pod follows by an extended
// resource, and the resource; no name where it follows none.
func extendedPolicy(pod *corev1.Pod) (name string, revision int64, resource string) {
	of, name := v1alpha1.ExtendedResourcePolicy(pod)
	name = cmp.Or(name, pod.Labels[v1alpha1.LabelPolicy])
	revision = cmp.Or(revisionOf(pod.Labels[v1alpha1.LabelPolicyRevision]), revisionOf(pod.Annotations[v1alpha1.AnnotationRevision]))
	if name == "" || revision == 0 || v1alpha1.HasPolicyClaim(pod, name) {
		return "", 0, ""
	}
	return name, revision, string(of)
}

// Claims reads the claims of a Pod, in the order in which it names them, and then
// the one for its extended resources. Claims that were not made yet, are gone or
// belong to another Pod are left out.
func Claims(ctx context.Context, reader client.Reader, pod *corev1.Pod) ([]Claim, error) {
	var claims []Claim
	add := func(ref, name string, mustCheckOwner bool) error {
		claim := &resourcev1.ResourceClaim{}
		switch err := reader.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: name}, claim); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("reading claim %s/%s, %w", pod.Namespace, name, err)
		}
		if !mustCheckOwner || resourceclaim.IsForPod(pod, claim, false) == nil {
			claims = append(claims, Claim{Ref: ref, ResourceClaim: claim})
		}
		return nil
	}
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, mustCheckOwner, err := resourceclaim.Name(pod, ref)
		if err != nil || name == nil {
			continue // not made yet, or never will be
		}
		if err := add(ref.Name, *name, mustCheckOwner); err != nil {
			return nil, err
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		if err := add(v1alpha1.ExtendedRef, status.ResourceClaimName, true); err != nil {
			return nil, err
		}
	}
	return claims, nil
}

// Of says what the Pod got, as a record does: without the evidence, the
// attempts and the time, which are not kept. revision is the one of the name of
// that which the Pod follows; nil where it is not known.
func Of(pod *corev1.Pod, claims []Claim, revision *v1alpha1.PolicyRevision) v1alpha1.AllocationDecisionSpec {
	spec := v1alpha1.AllocationDecisionSpec{
		Pod: pod.Name, PodUID: pod.UID, Outcome: v1alpha1.OutcomeAllocated, Node: pod.Spec.NodeName,
		Tier: pod.Annotations[v1alpha1.AnnotationTier], InputDigest: pod.Annotations[v1alpha1.AnnotationDigest],
	}
	main := mainClaim(pod, claims)
	subject := pod.UID
	isModel := func(string) bool { return true }
	if main != nil {
		spec.Claim, spec.PolicyHash = main.Name, main.Annotations[compile.AnnotationPolicyHash]
		if main.Ref == v1alpha1.ExtendedRef { // there was no claim yet when it was decided
			spec.Policy, spec.PolicyRevision, _ = extendedPolicy(pod)
			isModel = inPolicy(pod)
		} else {
			subject = main.UID
			spec.Policy, spec.PolicyRevision = Policy(pod, main.ResourceClaim)
		}
	}
	spec.IdempotencyKey = string(subject) + "/" + strconv.FormatInt(spec.PolicyRevision, 10)
	models := strings.Split(pod.Annotations[v1alpha1.AnnotationModel], ",")
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		isMain := main != nil && claim.Ref == main.Ref
		for _, r := range claim.Status.Allocation.Devices.Results {
			device := v1alpha1.DecidedDevice{Driver: r.Driver, Pool: r.Pool, Device: r.Device, Request: r.Request}
			if len(claims) > 1 {
				device.Claim = claim.Ref
			}
			if isMain && len(models) == 1 && isModel(r.Request) { // of several it is not known which is whose
				device.Model = models[0]
			}
			if tier, ok := strings.CutPrefix(r.Request, v1alpha1.RequestName+"/"); ok && isMain && spec.Policy != "" {
				spec.Tier = tier // the claim knows better than an annotation
			}
			spec.Devices = append(spec.Devices, device)
		}
	}
	if revision != nil && spec.Policy != "" && MadeFrom(main.ResourceClaim, revision) {
		spec.PolicyHash = revision.Spec.Hash
		at := slices.IndexFunc(revision.Spec.PolicySpec.Tiers, func(t v1alpha1.Tier) bool { return t.Name == spec.Tier })
		if at >= 0 {
			spec.TierIndex = ptr.To(int32(at))
		}
	}
	return spec
}

// mainClaim is the claim that follows the policy, or the only one.
func mainClaim(pod *corev1.Pod, claims []Claim) *Claim {
	for i := range claims {
		if claims[i].Ref == v1alpha1.ExtendedRef {
			if name, _, _ := extendedPolicy(pod); name != "" {
				return &claims[i]
			}
		} else if name, _ := Policy(pod, claims[i].ResourceClaim); name != "" {
			return &claims[i]
		}
	}
	if len(claims) == 1 {
		return &claims[0]
	}
	return nil
}

// inPolicy says of which requests of the claim for a Pod's extended resources the
// Pod's model is: those for the resource that the policy speaks for, or all where
// there is but one.
func inPolicy(pod *corev1.Pod) func(request string) bool {
	_, _, resource := extendedPolicy(pod)
	requests, resources := map[string]bool{}, map[string]bool{}
	for _, m := range pod.Status.ExtendedResourceClaimStatus.RequestMappings {
		resources[m.ResourceName] = true
		requests[m.RequestName] = requests[m.RequestName] || m.ResourceName == resource
	}
	return func(request string) bool { return len(resources) == 1 || requests[request] }
}

// Summary says what the Pod got in one line, in the words of the scheduler:
// "H100 (tier h100, revision 3): node/pool/device".
func Summary(pod *corev1.Pod, spec *v1alpha1.AllocationDecisionSpec) string {
	models := strings.ReplaceAll(pod.Annotations[v1alpha1.AnnotationModel], ",", "+")
	return v1alpha1.ClipMessage(spec.Summary(models))
}
