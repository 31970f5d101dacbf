package ladder

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
)

const gpuName corev1.ResourceName = "nvidia.com/gpu"

// asking is a container that asks for devices by the resource.
func asking(n int64, change ...func(*corev1.Container)) corev1.Container {
	c := corev1.Container{}
	if n > 0 {
		c.Resources.Requests = corev1.ResourceList{gpuName: *resource.NewQuantity(n, resource.DecimalSI)}
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func sidecar(c *corev1.Container) { c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways) }

// resourcePod is a Pod of one container that asks for n devices by the resource.
func resourcePod(n int64, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := testPod()
	pod.Spec.Containers = []corev1.Container{asking(n)}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func withLabel(policy string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelPolicy: policy} }
}

func withAnnotation(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationExtendedResourcePolicy: value}
	}
}

// turnFor says which models the Pod's turn is for, after other changes.
func turnFor(models string, change ...func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, f := range change {
			f(p)
		}
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.AnnotationTurnModels, models)
	}
}

func withClaim(ref, template string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: ref, ResourceClaimTemplateName: &template})
	}
}

func classNamed(name string, selectors ...string) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, s := range selectors {
		class.Spec.Selectors = append(class.Spec.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	return class
}

func TestDevicesForAResource(t *testing.T) {
	for name, test := range map[string]struct {
		inits, containers []corev1.Container
		want              int64
	}{
		"one container":                     {nil, []corev1.Container{asking(2)}, 2},
		"two at the same time":              {nil, []corev1.Container{asking(2), asking(0), asking(1)}, 3},
		"an init container reuses":          {[]corev1.Container{asking(2)}, []corev1.Container{asking(1), asking(1)}, 2},
		"it needs more":                     {[]corev1.Container{asking(5)}, []corev1.Container{asking(1), asking(1)}, 5},
		"two that end share what is beyond": {[]corev1.Container{asking(3), asking(4)}, []corev1.Container{asking(1)}, 4},
		"a sidecar lasts":                   {[]corev1.Container{asking(1, sidecar)}, []corev1.Container{asking(1)}, 2},
		"none of an earlier sidecar":        {[]corev1.Container{asking(1, sidecar), asking(3)}, []corev1.Container{asking(1)}, 4},
		"those of a later sidecar":          {[]corev1.Container{asking(3), asking(1, sidecar)}, []corev1.Container{asking(1)}, 3},
		"none":                              {nil, []corev1.Container{asking(0)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pod := testPod()
			pod.Spec.InitContainers, pod.Spec.Containers = test.inits, test.containers
			assert.Equal(t, test.want, devicesFor(pod, gpuName))
		})
	}
}

func TestResourcesThatDRAServes(t *testing.T) {
	pod := resourcePod(1, func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests["example.com/nic"] = resource.MustParse("2")
		p.Spec.Containers[0].Resources.Requests["example.com/zero"] = resource.MustParse("0")
		p.Spec.Containers[0].Resources.Requests["example.com/plugin"] = resource.MustParse("1")
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
		p.Spec.Containers[0].Resources.Requests["deviceclass.resource.kubernetes.io/big"] = resource.MustParse("1")
	})
	class := classNamed("c")
	got := servedByDRA(pod, func(name corev1.ResourceName) *resourceapi.DeviceClass {
		if name == "example.com/plugin" {
			return nil
		}
		return class
	})
	assert.Equal(t, []resourceAsked{
		{"deviceclass.resource.kubernetes.io/big", class, 1}, {"example.com/nic", class, 2}, {gpuName, class, 1},
	}, got)
}

func TestWhichPolicySpeaksForWhat(t *testing.T) {
	of := func(name corev1.ResourceName, class string) resourceAsked {
		return resourceAsked{name: name, class: &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}}}
	}
	nic, gpu := of("example.com/nic", "nic"), of(gpuName, "gpu")
	for name, test := range map[string]struct {
		pod       *corev1.Pod
		resources []resourceAsked
		want      corev1.ResourceName
		err       string
	}{
		"none":                     {resourcePod(1), []resourceAsked{gpu}, "", ""},
		"by the annotation":        {resourcePod(1, withAnnotation("p")), []resourceAsked{gpu}, gpuName, ""},
		"by the label":             {resourcePod(1, withLabel("p")), []resourceAsked{gpu}, gpuName, ""},
		"both say the same":        {resourcePod(1, withLabel("p"), withAnnotation("p")), []resourceAsked{gpu}, gpuName, ""},
		"they differ":              {resourcePod(1, withLabel("p"), withAnnotation("q")), []resourceAsked{gpu}, "", `names policy "q"`},
		"the claim follows it":     {resourcePod(1, withLabel("p"), withClaim("accelerator", "p-1")), []resourceAsked{gpu}, "", ""},
		"under another name":       {resourcePod(1, withLabel("p"), withClaim("x", "p-12")), []resourceAsked{gpu}, "", ""},
		"a claim of its own":       {resourcePod(1, withLabel("p"), withClaim("x", "other")), []resourceAsked{gpu}, gpuName, ""},
		"the claim and a resource": {resourcePod(1, withLabel("p"), withClaim("accelerator", "p-1"), withAnnotation("p")), []resourceAsked{gpu}, "", "leave out the annotation"},
		"one of several":           {resourcePod(1, withAnnotation("nvidia.com/gpu=p")), []resourceAsked{nic, gpu}, gpuName, ""},
		"which of several":         {resourcePod(1, withAnnotation("p")), []resourceAsked{nic, gpu}, "", "example.com/nic=p"},
		"two of one class":         {resourcePod(1, withAnnotation("nvidia.com/gpu=p")), []resourceAsked{of("deviceclass.resource.kubernetes.io/gpu", "gpu"), gpu}, "", "ask for one of the two"},
		"one that is not there":    {resourcePod(1, withAnnotation("example.com/x=p")), []resourceAsked{gpu}, "", "asks for no example.com/x"},
	} {
		t.Run(name, func(t *testing.T) {
			got, policy, err := spokenFor(test.pod, test.resources)
			switch {
			case test.err != "":
				require.ErrorIs(t, err, decide.ErrInvalid)
				assert.ErrorContains(t, err, test.err)
			case test.want == "":
				require.NoError(t, err)
				assert.Nil(t, got)
			default:
				require.NoError(t, err)
				require.NotNil(t, got)
				assert.Equal(t, test.want, got.name)
				assert.Equal(t, "p", policy)
			}
		})
	}
}

func TestWhoConcernsLadder(t *testing.T) {
	for name, test := range map[string]struct {
		pod                  *corev1.Pod
		concerns, byResource bool
	}{
		"neither":                  {testPod(), false, false},
		"a resource without":       {resourcePod(1), true, false},
		"claims":                   {resourcePod(0, withClaim("x", "t")), true, false},
		"a resource with a policy": {resourcePod(1, withAnnotation("p")), true, true},
		"and a claim for it":       {resourcePod(1, withLabel("p"), withClaim("accelerator", "p-1")), true, false},
		"a policy, no resource":    {resourcePod(0, withLabel("p")), true, false},
	} {
		assert.Equal(t, test.concerns, concernsLadder(test.pod), name)
		assert.Equal(t, test.byResource, followsByResource(test.pod), name)
	}
	grouped := member("a", "one", func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{asking(1)} })
	_, ok := groupKeyOf(grouped)
	assert.False(t, ok, "it takes what it can get")
}

func aRevision(tiers ...v1alpha1.Tier) *v1alpha1.PolicyRevision {
	r := &v1alpha1.PolicyRevision{}
	r.Name, r.Spec.Policy, r.Spec.Revision = "h100-first-3", "h100-first", 3
	r.Spec.PolicySpec.Tiers = tiers
	r.Default()
	return r
}

func tier(name string, count int32, models ...string) v1alpha1.Tier {
	t := v1alpha1.Tier{Name: name, Models: models}
	if count > 0 {
		t.Count = ptr.To(count)
	}
	return t
}

func tierNames(r *v1alpha1.PolicyRevision) string {
	var names []string
	for _, t := range r.Spec.PolicySpec.Tiers {
		names = append(names, t.Name)
	}
	return strings.Join(names, " ")
}

func TestVariant(t *testing.T) {
	revision := aRevision(tier("eight", 8, "H100"), tier("four", 4, "H100"), tier("late", 1, "H100"), tier("a100", 0, "A100"))
	revision.Spec.PolicySpec.Tiers[2].After = &metav1.Duration{Duration: time.Minute}
	revision.Spec.PolicySpec.Constraints.Selectors = []string{"true"}
	revision.Spec.PolicySpec.Constraints.MinMemory = resource.NewQuantity(1, resource.DecimalSI)
	before := revision.DeepCopy()
	class := classNamed("c", `device.driver == "d" // ours`, "!false")
	v, err := variantOf(revision, resourceAsked{gpuName, class, 2})
	require.NoError(t, err)
	assert.Equal(t, before, revision, "the policy is not changed")
	assert.Equal(t, "h100-first for 2 nvidia.com/gpu", v.Spec.Policy)
	assert.Equal(t, int64(3), v.Spec.Revision)
	spec := &v.Spec.PolicySpec
	assert.Equal(t, "eight a100", tierNames(v), "the Pod says how many, so that the second can never be used, nor the third")
	for i := range spec.Tiers {
		assert.Equal(t, int32(2), spec.CountOf(&spec.Tiers[i]))
	}
	assert.Equal(t, revision.Spec.PolicySpec.Constraints.MinMemory, spec.Constraints.MinMemory)
	require.Len(t, spec.Constraints.Selectors, 2)
	assert.Equal(t, "(device.driver == \"d\" // ours\n) && (!false\n)", spec.Constraints.Selectors[1])
	st := decide.NewState(decide.Options{NodeChecks: decide.ExternalNodeChecks})
	require.NoError(t, st.Put(v))

	many, err := variantOf(revision, resourceAsked{gpuName, class, 33})
	require.NoError(t, err)
	assert.ErrorIs(t, st.Put(many), decide.ErrInvalid, "more than a claim can hold")
	_, err = variantOf(revision, resourceAsked{gpuName, &resourceapi.DeviceClass{Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{}}}}, 1})
	assert.ErrorIs(t, err, decide.ErrInvalid)
}

// What users read names the policy and its tiers, not the variant.
func TestDecisionInTheWordsOfThePolicy(t *testing.T) {
	revision := aRevision(tier("eight", 8, "H100"), tier("four", 4, "H100"), tier("a100", 0, "A100"))
	d := decisionOf("h100-first for 1 nvidia.com/gpu", 3)
	d.Tier, d.TierIndex, d.PolicyHash = "a100", ptr.To[int32](1), "sha256:variant"
	got := (&extended{revision: revision}).named(d)
	assert.Equal(t, "h100-first", got.Policy)
	assert.Equal(t, revision.Spec.PolicySpec.ContentHash(), got.PolicyHash)
	assert.Equal(t, int32(2), *got.TierIndex)
	assert.Equal(t, "h100-first for 1 nvidia.com/gpu", d.Policy, "the engine's own is not changed")
	assert.Same(t, d, (*extended)(nil).named(d))
	assert.Same(t, d, (&extended{}).named(d), "no policy speaks for the resource")
}

func TestShadow(t *testing.T) {
	pod := resourcePod(1, withClaim("own", "t"))
	variant, err := variantOf(aRevision(tier("h100", 0, "H100")), resourceAsked{gpuName, classNamed("c"), 1})
	require.NoError(t, err)
	long := corev1.ResourceName("deviceclass.resource.kubernetes.io/" + strings.Repeat("x", 100))
	claim := claimOf(pod, []resourceAsked{{"example.com/nic", classNamed("nic"), 2}, {long, classNamed("x"), 1}})
	shadow := shadowOf(pod, variant, claim)
	assert.Equal(t, pod.UID, shadow.UID)
	assert.Equal(t, map[string]string{v1alpha1.LabelPolicy: "h100-first for 1 nvidia.com/gpu", v1alpha1.LabelPolicyRevision: "3"}, shadow.Labels)
	assert.Empty(t, pod.Labels, "the Pod is not changed")
	require.Len(t, shadow.Spec.ResourceClaims, 2)
	assert.Len(t, pod.Spec.ResourceClaims, 1)
	assert.Equal(t, claim.Name, *shadow.Spec.ResourceClaims[1].ResourceClaimName)
	require.Len(t, claim.Spec.Devices.Requests, 2)
	assert.Equal(t, "example.com/nic", claim.Spec.Devices.Requests[0].Name)
	assert.Equal(t, int64(2), claim.Spec.Devices.Requests[0].Exactly.Count)
	assert.Equal(t, "resource-1", claim.Spec.Devices.Requests[1].Name)
	assert.Nil(t, claimOf(pod, nil))
	assert.Equal(t, pod, shadowOf(pod, nil, nil))
}
