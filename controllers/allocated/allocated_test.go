package allocated_test

import (
	"errors"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"gpuladder.dev/ladder/controllers/allocated"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train", UID: "pod-uid", Annotations: map[string]string{
			v1alpha1.AnnotationTier: "forged", v1alpha1.AnnotationModel: "H100", v1alpha1.AnnotationDigest: "sha256:d",
		}},
		Spec: corev1.PodSpec{NodeName: "n1", ResourceClaims: []corev1.PodResourceClaim{
			{Name: "accelerator", ResourceClaimTemplateName: ptr.To("h100-first-3")},
		}},
		Status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{
			{Name: "accelerator", ResourceClaimName: ptr.To("train-accelerator-x")},
		}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func claim(name string, results ...resourcev1.DeviceRequestAllocationResult) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(name + "-uid")},
		Status:     resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: results}}},
	}
}

func result(request, device string) resourcev1.DeviceRequestAllocationResult {
	return resourcev1.DeviceRequestAllocationResult{Request: request, Driver: v1alpha1.DriverName, Pool: "n1", Device: device}
}

// policyClaim is the claim that was made for pod from h100-first-3.
func policyClaim(results ...resourcev1.DeviceRequestAllocationResult) *resourcev1.ResourceClaim {
	c := claim("train-accelerator-x", results...)
	c.Labels = map[string]string{v1alpha1.LabelPolicy: "h100-first", v1alpha1.LabelPolicyRevision: "3"}
	c.Annotations = map[string]string{compile.AnnotationPolicyHash: "sha256:h"}
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "train", UID: "pod-uid", Controller: ptr.To(true)}}
	return c
}

func read(t *testing.T, p *corev1.Pod, objects ...client.Object) []allocated.Claim {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), resourcev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	claims, err := allocated.Claims(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), p)
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

func TestOfAPolicysPod(t *testing.T) {
	p := pod()
	claims := read(t, p, policyClaim(result("accelerator/a100", "gpu-0"), result("accelerator/a100", "gpu-1")))
	revision := &v1alpha1.PolicyRevision{Spec: v1alpha1.PolicyRevisionSpec{Hash: "sha256:h"}}
	revision.Spec.PolicySpec.Tiers = []v1alpha1.Tier{{Name: "h100"}, {Name: "a100"}}
	got := allocated.Of(p, claims, revision)
	want := v1alpha1.AllocationDecisionSpec{
		Pod: "train", PodUID: "pod-uid", Claim: "train-accelerator-x", Outcome: v1alpha1.OutcomeAllocated, Policy: "h100-first", PolicyRevision: 3,
		PolicyHash: "sha256:h", Tier: "a100", TierIndex: ptr.To[int32](1), Node: "n1", IdempotencyKey: "train-accelerator-x-uid/3", InputDigest: "sha256:d",
		Devices: []v1alpha1.DecidedDevice{
			{Driver: v1alpha1.DriverName, Pool: "n1", Device: "gpu-0", Request: "accelerator/a100", Model: "H100"},
			{Driver: v1alpha1.DriverName, Pool: "n1", Device: "gpu-1", Request: "accelerator/a100", Model: "H100"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got, want := allocated.Summary(p, &got), "H100 (tier a100, revision 3): n1/n1/gpu-0, n1/n1/gpu-1"; got != want {
		t.Errorf("the summary is %q, want %q", got, want)
	}
	if got := allocated.Of(p, claims, nil); got.TierIndex != nil || got.PolicyHash != "sha256:h" {
		t.Errorf("without the revision: place %v, hash %s", got.TierIndex, got.PolicyHash)
	}
}

func TestOfAPodWithoutPolicy(t *testing.T) {
	p := pod(func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationTier: "gpu/big"}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "mine", ResourceClaimName: ptr.To("shared")}}
	})
	got := allocated.Of(p, read(t, p, claim("shared", result("gpu/big", "gpu-3"))), nil)
	if got.Policy != "" || got.PolicyRevision != 0 || got.Tier != "gpu/big" || got.Claim != "shared" || got.IdempotencyKey != "shared-uid/0" ||
		len(got.Devices) != 1 || got.Devices[0].Model != "" || got.Devices[0].Claim != "" {
		t.Errorf("got %+v", got)
	}
	if got, want := allocated.Summary(p, &got), "device (tier gpu/big): n1/n1/gpu-3"; got != want {
		t.Errorf("the summary is %q, want %q", got, want)
	}
}

// A model is told of the policy's devices only, and only where it is one.
func TestSeveralClaims(t *testing.T) {
	both := func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append([]corev1.PodResourceClaim{{Name: "nic", ResourceClaimName: ptr.To("nic")}}, p.Spec.ResourceClaims...)
	}
	p := pod(both)
	objects := []client.Object{policyClaim(result("accelerator/h100", "gpu-0")), claim("nic", result("port", "nic-0"))}
	got := allocated.Of(p, read(t, p, objects...), nil)
	if len(got.Devices) != 2 || got.Devices[0].Claim != "nic" || got.Devices[0].Model != "" || got.Devices[1].Claim != "accelerator" || got.Devices[1].Model != "H100" {
		t.Errorf("got %+v", got.Devices)
	}
	if got.Claim != "train-accelerator-x" || got.Tier != "h100" {
		t.Errorf("the policy's claim is not the one told of: %s, %s", got.Claim, got.Tier)
	}
	p = pod(both, func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationModel] = "H100,H200" })
	if got := allocated.Of(p, read(t, p, objects...), nil); got.Devices[1].Model != "" {
		t.Errorf("of two models %s is said of a device", got.Devices[1].Model)
	}
}

// What is not there, not made yet or another Pod's is nobody's.
func TestClaimsOfOthers(t *testing.T) {
	foreign := policyClaim(result("accelerator/h100", "gpu-0"))
	foreign.OwnerReferences[0].UID = "another"
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		objects []client.Object
	}{
		"gone":          {pod(), nil},
		"of another":    {pod(), []client.Object{foreign}},
		"not made yet":  {pod(func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = nil }), []client.Object{policyClaim()}},
		"another space": {pod(func(p *corev1.Pod) { p.Namespace = "team-b" }), []client.Object{policyClaim()}},
	} {
		t.Run(name, func(t *testing.T) {
			if claims := read(t, test.pod, test.objects...); len(claims) != 0 {
				t.Errorf("got %d claims", len(claims))
			}
		})
	}
}

// byResource is a Pod that follows a policy by an extended resource, and asks for
// another one too.
func byResource(change ...func(*corev1.Pod)) *corev1.Pod {
	return pod(append([]func(*corev1.Pod){func(p *corev1.Pod) {
		p.Annotations = map[string]string{
			v1alpha1.AnnotationExtendedResourcePolicy: "nvidia.com/gpu=h100-first", v1alpha1.AnnotationRevision: "3",
			v1alpha1.AnnotationTier: "a100", v1alpha1.AnnotationModel: "A100",
		}
		p.Spec.ResourceClaims, p.Status.ResourceClaimStatuses = nil, nil
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: "train-extended-resources-x",
			RequestMappings: []corev1.ContainerExtendedResourceRequest{
				{ContainerName: "main", ResourceName: "example.com/nic", RequestName: "container-0-request-0"},
				{ContainerName: "main", ResourceName: "nvidia.com/gpu", RequestName: "container-0-request-1"},
			},
		}
	}}, change...)...)
}

// specialClaim is the one that was made for the extended resources of the Pod.
func specialClaim() *resourcev1.ResourceClaim {
	c := claim("train-extended-resources-x", result("container-0-request-0", "nic-0"), result("container-0-request-1", "gpu-0"))
	c.OwnerReferences = policyClaim().OwnerReferences
	return c
}

func TestOfAPodByExtendedResource(t *testing.T) {
	p := byResource()
	revision := &v1alpha1.PolicyRevision{Spec: v1alpha1.PolicyRevisionSpec{Hash: "sha256:h"}}
	revision.Spec.PolicySpec.Tiers = []v1alpha1.Tier{{Name: "h100"}, {Name: "a100"}}
	got := allocated.Of(p, read(t, p, specialClaim()), revision)
	want := v1alpha1.AllocationDecisionSpec{
		Pod: "train", PodUID: "pod-uid", Claim: "train-extended-resources-x", Outcome: v1alpha1.OutcomeAllocated, Policy: "h100-first", PolicyRevision: 3,
		PolicyHash: "sha256:h", Tier: "a100", TierIndex: ptr.To[int32](1), Node: "n1", IdempotencyKey: "pod-uid/3",
		Devices: []v1alpha1.DecidedDevice{
			{Driver: v1alpha1.DriverName, Pool: "n1", Device: "nic-0", Request: "container-0-request-0"},
			{Driver: v1alpha1.DriverName, Pool: "n1", Device: "gpu-0", Request: "container-0-request-1", Model: "A100"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestPolicyByExtendedResource(t *testing.T) {
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[key] = value }
	}
	labelled := func(labels map[string]string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Labels = labels } }
	const annotation = v1alpha1.AnnotationExtendedResourcePolicy
	for name, test := range map[string]struct {
		pod      *corev1.Pod
		policy   string
		revision int64
	}{
		"for one of two":    {byResource(), "h100-first", 3},
		"for the only one":  {byResource(annotated(annotation, "h100-first")), "h100-first", 3},
		"by the label":      {byResource(annotated(annotation, ""), labelled(map[string]string{v1alpha1.LabelPolicy: "p"})), "p", 3},
		"pinned":            {byResource(labelled(map[string]string{v1alpha1.LabelPolicyRevision: "2"})), "h100-first", 2},
		"no policy":         {byResource(annotated(annotation, "")), "", 0},
		"unknown revision":  {byResource(annotated(v1alpha1.AnnotationRevision, "")), "", 0},
		"a claim has it":    {byResource(func(p *corev1.Pod) { p.Spec.ResourceClaims = pod().Spec.ResourceClaims }), "", 0},
		"another's claim":   {byResource(func(p *corev1.Pod) { p.UID = "another" }), "", 0},
		"not allocated yet": {byResource(func(p *corev1.Pod) { p.Status.ExtendedResourceClaimStatus = nil }), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := allocated.Of(test.pod, read(t, test.pod, specialClaim()), nil)
			if got.Policy != test.policy || got.PolicyRevision != test.revision {
				t.Errorf("got %q, %d", got.Policy, got.PolicyRevision)
			}
		})
	}
}

// What is asked for beside the policy's claim is told of, and is not the policy's.
func TestExtendedResourceBesideAClaim(t *testing.T) {
	p := pod(func(p *corev1.Pod) {
		p.Status.ExtendedResourceClaimStatus = byResource().Status.ExtendedResourceClaimStatus
	})
	got := allocated.Of(p, read(t, p, policyClaim(result("accelerator/h100", "gpu-1")), specialClaim()), nil)
	if got.Claim != "train-accelerator-x" || got.Policy != "h100-first" || len(got.Devices) != 3 {
		t.Fatalf("got %+v", got)
	}
	for i, want := range []v1alpha1.DecidedDevice{{Claim: "accelerator", Model: "H100"}, {Claim: v1alpha1.ExtendedRef}, {Claim: v1alpha1.ExtendedRef}} {
		if d := got.Devices[i]; d.Claim != want.Claim || d.Model != want.Model {
			t.Errorf("device %d is %+v", i, d)
		}
	}
}

func TestPolicyOfAClaim(t *testing.T) {
	for name, test := range map[string]struct {
		labels   map[string]string
		policy   string
		revision int64
	}{
		"a policy's":    {map[string]string{v1alpha1.LabelPolicy: "p", v1alpha1.LabelPolicyRevision: "12"}, "p", 12},
		"none":          {nil, "", 0},
		"no revision":   {map[string]string{v1alpha1.LabelPolicy: "p"}, "", 0},
		"not a number":  {map[string]string{v1alpha1.LabelPolicy: "p", v1alpha1.LabelPolicyRevision: "x"}, "", 0},
		"not a policy":  {map[string]string{v1alpha1.LabelPolicyRevision: "1"}, "", 0},
		"revision zero": {map[string]string{v1alpha1.LabelPolicy: "p", v1alpha1.LabelPolicyRevision: "0"}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			policy, revision := allocated.Policy(&corev1.Pod{}, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Labels: test.labels}})
			if policy != test.policy || revision != test.revision {
				t.Errorf("got %q, %d", policy, revision)
			}
		})
	}
}

// What a Pod was made with says which policy it follows, whatever has become of its
// claim.
func TestPolicyIsThePods(t *testing.T) {
	follows := func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelPolicy: "h100-first"} }
	template := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.ResourceClaims[0].ResourceClaimTemplateName = &name }
	}
	forged := map[string]string{v1alpha1.LabelPolicy: "q", v1alpha1.LabelPolicyRevision: "9"}
	for name, test := range map[string]struct {
		pod      *corev1.Pod
		labels   map[string]string
		policy   string
		revision int64
	}{
		"labels are gone":    {pod(follows), nil, "h100-first", 3},
		"labels of another":  {pod(follows), forged, "h100-first", 3},
		"another's template": {pod(follows, template("mine")), forged, "q", 9},
		"nearly its name":    {pod(follows, template("h100-first-03")), forged, "q", 9},
		"follows none":       {pod(), nil, "", 0},
		"of another claim":   {pod(follows, func(p *corev1.Pod) { p.Status.ResourceClaimStatuses[0].ResourceClaimName = ptr.To("x") }), forged, "q", 9},
	} {
		t.Run(name, func(t *testing.T) {
			c := policyClaim()
			c.Labels = test.labels
			if policy, revision := allocated.Policy(test.pod, c); policy != test.policy || revision != test.revision {
				t.Errorf("got %q, %d", policy, revision)
			}
		})
	}
}

// A revision that came after the claim is another one of its name, unless it says
// the same.
func TestMadeFrom(t *testing.T) {
	made := metav1.Unix(1000, 0)
	for name, test := range map[string]struct {
		revision int64
		hash     string
		want     bool
	}{
		"before":             {900, "sha256:h", true},
		"before, forged":     {900, "sha256:x", true},
		"in the same second": {1000, "sha256:x", true},
		"made again":         {1001, "sha256:x", false},
		"again the same":     {1001, "sha256:h", true},
	} {
		c := policyClaim()
		c.CreationTimestamp = made
		revision := &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(test.revision, 0)}}
		revision.Spec.Hash = test.hash
		if got := allocated.MadeFrom(c, revision); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
		revision.Spec.PolicySpec.Tiers = []v1alpha1.Tier{{Name: "a100"}}
		c.Annotations = map[string]string{compile.AnnotationPolicyHash: "sha256:h"}
		c.Status.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{result("accelerator/a100", "gpu-0")}
		got := allocated.Of(pod(), []allocated.Claim{{Ref: "accelerator", ResourceClaim: c}}, revision)
		if (got.TierIndex != nil) != test.want || !test.want && got.PolicyHash != "sha256:h" {
			t.Errorf("%s: the place of the tier is %v, the hash %s", name, got.TierIndex, got.PolicyHash)
		}
	}
}
