package catalog_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
)

// uses lists the containers that use the claim of the policy.
func uses(p *corev1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, r := range c.Resources.Claims {
			if r.Name == v1alpha1.ClaimRefName {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

func requireAdmitted(t *testing.T, p *corev1.Pod, template string, containers ...string) {
	t.Helper()
	var templates []string
	for _, c := range p.Spec.ResourceClaims {
		if c.Name == v1alpha1.ClaimRefName {
			templates = append(templates, ptr.Deref(c.ResourceClaimTemplateName, ""))
		}
	}
	if !slices.Equal(templates, []string{template}) {
		t.Errorf("got claims from templates %q, want one from %s", templates, template)
	}
	if got := uses(p); !slices.Equal(got, containers) {
		t.Errorf("containers %q use the claim, want %q", got, containers)
	}
	if p.Spec.SchedulerName != v1alpha1.SchedulerName {
		t.Errorf("got scheduler %s, want %s", p.Spec.SchedulerName, v1alpha1.SchedulerName)
	}
	if got := p.Annotations[catalog.AnnotationClaimTemplate]; got != template {
		t.Errorf("the Pod says that it was admitted with %q, want %q", got, template)
	}
}

func TestPodIsAdmitted(t *testing.T) {
	s := server(t)
	other := func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "nic", ResourceClaimName: ptr.To("nic")})
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "nic"}}
	}
	second := func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Image: "example.com/log:1"})
	}
	initial := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "example.com/init:1"}}
	}
	onlySecond := func(p *corev1.Pod) {
		p.Spec.Containers[1].Resources.Claims = []corev1.ResourceClaim{{Name: v1alpha1.ClaimRefName}}
	}
	for _, test := range []struct {
		name       string
		pod        *corev1.Pod
		template   string
		containers []string
	}{
		{"active revision", pod("team-a", "h100-first"), "h100-first-3", []string{"main"}},
		{
			"two containers and an init container", pod("team-a", "h100-first", second, initial),
			"h100-first-3",
			[]string{"init", "main", "second"},
		},
		{"the Pod chooses the container", pod("team-a", "h100-first", second, onlySecond), "h100-first-3", []string{"second"}},
		{"pinned to an older revision", pod("team-a", "h100-first", pin("1")), "h100-first-1", []string{"main"}},
		{"pinned to the active revision", pod("team-b", "h100-first", pin("3")), "h100-first-3", []string{"main"}},
		{"namespace selected", pod("team-a", "gold-only"), "gold-only-1", []string{"main"}},
		{"another claim stays", pod("team-a", "h100-first", other), "h100-first-3", []string{"main"}},
		{"the right claim by hand", pod("team-a", "h100-first", claim("h100-first-3")), "h100-first-3", []string{"main"}},
		{"a forged verdict is replaced", pod("team-a", "h100-first", verdict("other-1")), "h100-first-3", []string{"main"}},
		{"a forged refusal is replaced", pod("team-a", "h100-first", verdict("refused: no")), "h100-first-3", []string{"main"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := s.Client.Create(t.Context(), test.pod); err != nil {
				t.Fatal(err)
			}
			requireAdmitted(t, test.pod, test.template, test.containers...)
			if test.name == "another claim stays" {
				if len(test.pod.Spec.ResourceClaims) != 2 || len(test.pod.Spec.Containers[0].Resources.Claims) != 2 {
					t.Errorf("got claims %+v, used %+v, want both", test.pod.Spec.ResourceClaims, test.pod.Spec.Containers[0].Resources.Claims)
				}
			}
		})
	}
}

// TestAdmissionIsIdempotent sends an admitted Pod through admission again.
func TestAdmissionIsIdempotent(t *testing.T) {
	s := server(t)
	first := pod("team-a", "h100-first")
	if err := s.Client.Create(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	again := pod("team-a", "")
	again.Labels, again.Annotations = first.Labels, first.Annotations
	again.Spec.SchedulerName = first.Spec.SchedulerName
	again.Spec.ResourceClaims = first.Spec.ResourceClaims
	again.Spec.Containers[0].Resources.Claims = first.Spec.Containers[0].Resources.Claims
	if err := s.Client.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	requireAdmitted(t, again, "h100-first-3", "main")
}

func TestPodWithoutLabelIsLeftAlone(t *testing.T) {
	s := server(t)
	p := pod("team-a", "")
	if err := s.Client.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if len(p.Spec.ResourceClaims) > 0 || p.Spec.SchedulerName != corev1.DefaultSchedulerName || len(p.Annotations) > 0 {
		t.Errorf("got claims %v, scheduler %s, annotations %v", p.Spec.ResourceClaims, p.Spec.SchedulerName, p.Annotations)
	}
}

func TestPodIsRefused(t *testing.T) {
	s := server(t)
	for _, test := range []struct {
		name  string
		pod   *corev1.Pod
		words []string
	}{
		{"no such policy", pod("team-a", "nothing"), []string{"gpuladder.dev/policy", `there is no AcceleratorPolicy named "nothing"`}},
		{"empty label", pod("team-a", "", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPolicy] = "" }), []string{`there is no AcceleratorPolicy named ""`}},
		{
			"no such policy, everything forged", pod("team-a", "nothing", verdict("nothing-1"), claim("nothing-1"), func(p *corev1.Pod) {
				p.Spec.SchedulerName = v1alpha1.SchedulerName
				p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: v1alpha1.ClaimRefName}}
			}),
			[]string{`there is no AcceleratorPolicy named "nothing"`},
		},
		{"no ready revision", pod("team-a", "unready"), []string{"AcceleratorPolicy unready has no ready revision: revision 1 is withdrawn"}},
		{"namespace not selected", pod("team-b", "gold-only"), []string{"AcceleratorPolicy gold-only does not select namespace team-b"}},
		{"namespace without the label", pod("team-c", "gold-only"), []string{"AcceleratorPolicy gold-only does not select namespace team-c"}},
		{
			"namespace not selected, pinned and forged", pod("team-b", "gold-only", pin("1"), verdict("gold-only-1"), claim("gold-only-1")),
			[]string{"does not select namespace team-b"},
		},
		{"revision not there", pod("team-a", "h100-first", pin("7")), []string{"AcceleratorPolicy h100-first has no usable revision 7"}},
		{"revision withdrawn", pod("team-a", "h100-first", pin("2")), []string{"has no usable revision 2"}},
		{
			"revision not there, claim forged", pod("team-a", "h100-first", pin("2"), claim("h100-first-2"), verdict("h100-first-2")),
			[]string{"has no usable revision 2"},
		},
		{"revision zero", pod("team-a", "h100-first", pin("0")), []string{"gpuladder.dev/policy-revision must be a decimal number", `"0"`}},
		{"revision with zeros", pod("team-a", "h100-first", pin("03")), []string{"must be a decimal number"}},
		{"revision is text", pod("team-a", "h100-first", pin("latest")), []string{"must be a decimal number", `"latest"`}},
		{"revision is empty", pod("team-a", "h100-first", pin("")), []string{"must be a decimal number", `""`}},
		{"revision beyond any number", pod("team-a", "h100-first", pin("99999999999999999999")), []string{"must be a decimal number"}},
		{
			"another policy's template", pod("team-a", "h100-first", claim("gold-only-1")),
			[]string{`the claim "accelerator" belongs to AcceleratorPolicy h100-first`, "ResourceClaimTemplate h100-first-3", "leave it out"},
		},
		{"another revision's template", pod("team-a", "h100-first", claim("h100-first-1")), []string{"ResourceClaimTemplate h100-first-3"}},
		{"a claim by name", pod("team-a", "h100-first", func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimName: ptr.To("mine")}}
		}), []string{`the claim "accelerator" belongs to`}},
		{"another scheduler", pod("team-a", "h100-first", func(p *corev1.Pod) {
			p.Spec.SchedulerName = "volcano"
		}), []string{"spec.schedulerName", "placed by ladder-scheduler, not by volcano"}},
		{"a node by hand", pod("team-a", "h100-first", func(p *corev1.Pod) {
			p.Spec.NodeName = "n-1"
		}), []string{"spec.nodeName"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			apiserver.RequireRefused(t, s.Client.Create(t.Context(), test.pod), "ladder-pods", test.words...)
		})
	}
}

func TestLabelsAreFixed(t *testing.T) {
	s := server(t)
	for _, test := range []struct {
		name   string
		pod    *corev1.Pod
		change func(*corev1.Pod)
		words  string // empty: allowed
	}{
		{"another policy", pod("team-a", "h100-first"), func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPolicy] = "gold-only" }, "cannot be changed"},
		{"no policy", pod("team-a", "h100-first"), func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelPolicy) }, "cannot be changed"},
		{"a policy later", pod("team-a", ""), func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPolicy] = "h100-first" }, "create a new Pod"},
		{"another revision", pod("team-a", "h100-first", pin("3")), func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPolicyRevision] = "1" }, "cannot be changed"},
		{"a revision later", pod("team-a", "h100-first"), pin("3"), "cannot be changed"},
		{"the verdict", pod("team-a", "h100-first"), verdict("h100-first-1"), "gpuladder.dev/claim-template"},
		{"another label", pod("team-a", "h100-first"), func(p *corev1.Pod) { p.Labels["app"] = "other" }, ""},
		{"another label of a Pod without policy", pod("team-a", ""), func(p *corev1.Pod) { p.Labels["app"] = "other" }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			apiserver.Create(t, s.Client, test.pod)
			for _, write := range []struct {
				name string
				do   func(*corev1.Pod) error
			}{
				{"update", func(p *corev1.Pod) error { return s.Client.Update(t.Context(), p) }},
				{"status update", func(p *corev1.Pod) error { return s.Client.Status().Update(t.Context(), p) }},
			} {
				p := &corev1.Pod{}
				if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(test.pod), p); err != nil {
					t.Fatal(err)
				}
				test.change(p)
				err := write.do(p)
				if test.words != "" {
					apiserver.RequireRefused(t, err, "ladder-pods-fixed", test.words)
				} else if err != nil {
					t.Errorf("%s: %v", write.name, err)
				}
			}
		})
	}
}
