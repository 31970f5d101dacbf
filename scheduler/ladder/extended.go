package ladder

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/view"
)

// This file reads what a Pod asks for by extended resources that DRA serves,
// such as nvidia.com/gpu: a DeviceClass says that its devices are had by that
// name. The embedded plugin makes a claim for them itself, once it knows the
// node; there is none that the engine could be asked about before.
//
// So the engine is asked about a shadow of the Pod. Where a policy speaks for
// the resource, the shadow follows a variant of it: the same tiers and
// constraints, for the devices of the class only and as many as the Pod asks
// for. Whatever else the Pod wants of extended resources the shadow asks for by
// a claim of its own, which it names [v1alpha1.ExtendedRef]. Shadow, variant and
// claim exist in the engine alone.

// resourceAsked is an extended resource of a Pod that DRA serves.
type resourceAsked struct {
	name  corev1.ResourceName
	class *resourceapi.DeviceClass
	count int64
}

// extended is what a Pod asks for by extended resources that DRA serves, as the
// engine is asked about it. A nil one is of a Pod that asks for none.
type extended struct {
	// shadow is the Pod that the engine is asked about.
	shadow *corev1.Pod
	// revision is the policy's that speaks for a resource, and variant what it
	// says of it; nil where none does.
	revision, variant *v1alpha1.PolicyRevision
	// class is that of the resource that the policy speaks for.
	class string
	// claim asks for the devices that no policy speaks for, or is nil.
	claim *resourceapi.ResourceClaim

	// byPlugin are the nodes where a device plugin offers one of the resources,
	// with words that say so: there it is the device plugin that serves it.
	byPlugin map[string]string
	// last are those of them that are tried after all others: where a device
	// plugin offers the very resource that the policy speaks for, or all of them
	// where none does. trying are those that this round looks at, and tried says
	// that such a round has been.
	last, trying sets.Set[string]
	tried        bool
	// resolvable are the refused ones where preemption could help.
	resolvable sets.Set[string]
}

// policyOf is the policy that a Pod names, for its claim or for an extended
// resource, or "".
func policyOf(pod *corev1.Pod) string {
	_, policy := v1alpha1.ExtendedResourcePolicy(pod)
	return cmp.Or(pod.Labels[v1alpha1.LabelPolicy], policy)
}

// concernsLadder says whether Ladder may have something to say about the Pod: it
// has claims, names a policy or asks for an extended resource.
func concernsLadder(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || policyOf(pod) != "" || len(resourcesNamed(pod)) > 0
}

// answersFor says whether Ladder answers for the devices of a Pod without claims: it
// names a policy, or has a tenant, whose limits count, or that is not known yet.
func (p *Plugin) answersFor(pod *corev1.Pod) bool {
	return policyOf(pod) != "" || len(resourcesNamed(pod)) > 0 && (!p.core.objects.Ready() || p.core.objects.Quota(pod.Namespace) != nil)
}

// followsByResource says whether a Pod names a policy for an extended resource
// rather than for a claim.
func followsByResource(pod *corev1.Pod) bool {
	policy := policyOf(pod)
	return policy != "" && !v1alpha1.HasPolicyClaim(pod, policy) && len(resourcesNamed(pod)) > 0
}

// resourcesNamed are the extended resources that containers of the Pod ask for,
// by name.
func resourcesNamed(pod *corev1.Pod) []corev1.ResourceName {
	found := sets.New[corev1.ResourceName]()
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name, quantity := range containers[i].Resources.Requests {
				if !quantity.IsZero() && util.IsDRAExtendedResourceName(name) {
					found.Insert(name)
				}
			}
		}
	}
	return sets.List(found)
}

// servedByDRA returns the extended resources that the Pod asks for and DRA serves, by
// name.
func servedByDRA(pod *corev1.Pod, resolve func(corev1.ResourceName) *resourceapi.DeviceClass) []resourceAsked {
	var out []resourceAsked
	for _, name := range resourcesNamed(pod) {
		if class := resolve(name); class != nil {
			out = append(out, resourceAsked{name: name, class: class, count: devicesFor(pod, name)})
		}
	}
	return out
}

// devicesFor is how many devices the claim has that the embedded plugin makes
// for a resource. Containers that run at the same time have devices of their
// own. An init container that ends uses those of the containers that start with
// or after it, and what it needs beyond them is shared by all that end.
func devicesFor(pod *corev1.Pod, name corev1.ResourceName) int64 {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	lasting := func(i int) bool {
		return i >= len(pod.Spec.InitContainers) || ptr.Deref(containers[i].RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
	}
	var later, beyond int64 // of those that last, from the end up to here
	for i := len(containers) - 1; i >= 0; i-- {
		quantity := containers[i].Resources.Requests[name]
		n, ok := quantity.AsInt64()
		switch {
		case !ok:
		case lasting(i):
			later += n
		default:
			beyond = max(beyond, n-later)
		}
	}
	return later + beyond
}

// spokenFor returns which of the resources a policy speaks for, and which
// policy; nil where none does. A Pod follows one policy at most.
func spokenFor(pod *corev1.Pod, resources []resourceAsked) (*resourceAsked, string, error) {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("Pod %s, "+format+", %w", append(append([]any{keyOf(pod)}, args...), decide.ErrInvalid)...)
	}
	label := pod.Labels[v1alpha1.LabelPolicy]
	name, policy := v1alpha1.ExtendedResourcePolicy(pod)
	const annotation = v1alpha1.AnnotationExtendedResourcePolicy
	switch byClaim := v1alpha1.HasPolicyClaim(pod, cmp.Or(label, policy)); {
	case byClaim && policy != "":
		return nil, "", invalid("metadata.annotations[%s]: a claim of the Pod follows a policy already and a Pod follows one; leave out the annotation, "+
			"or the label %s and the claim", annotation, v1alpha1.LabelPolicy)
	case byClaim:
		return nil, "", nil
	case label != "" && policy != "" && label != policy:
		return nil, "", invalid("metadata.annotations[%s]: names policy %q, the label %s policy %q; a Pod follows one",
			annotation, policy, v1alpha1.LabelPolicy, label)
	}
	if policy = cmp.Or(policy, label); policy == "" {
		return nil, "", nil
	}
	var names []string
	for i := range resources {
		if resources[i].name == name || name == "" && len(resources) == 1 {
			for j := range resources {
				if i != j && resources[i].class.Name == resources[j].class.Name {
					return nil, "", invalid("the DeviceClass %s serves %s and %s, so that the policy %q can't speak for one of them alone; ask for one of the two",
						resources[i].class.Name, resources[i].name, resources[j].name, policy)
				}
			}
			return &resources[i], policy, nil
		}
		names = append(names, string(resources[i].name))
	}
	if name != "" {
		return nil, "", invalid("metadata.annotations[%s]: the Pod asks for no %s that a DeviceClass serves, but for %s",
			annotation, name, strings.Join(names, ", "))
	}
	return nil, "", invalid("the policy %q can speak for one extended resource and the Pod asks for %s; say which by the annotation %s: %s=%s",
		policy, strings.Join(names, ", "), annotation, names[0], policy)
}

// pinned is the revision that the Pod's label names, or 0.
func pinned(pod *corev1.Pod) (int64, error) {
	label, ok := pod.Labels[v1alpha1.LabelPolicyRevision]
	if !ok {
		return 0, nil
	}
	number, err := strconv.ParseInt(label, 10, 64)
	if err != nil || number < 1 {
		return 0, fmt.Errorf("Pod %s, metadata.labels[%s]: %q is not a revision, %w", keyOf(pod), v1alpha1.LabelPolicyRevision, label, decide.ErrInvalid)
	}
	return number, nil
}

// variantOf is what a revision of a policy says of an extended resource. The
// Pod says how many devices it wants, so that the policy's counts do not count,
// nor tiers that differ from earlier ones by their count alone.
func variantOf(revision *v1alpha1.PolicyRevision, r resourceAsked) (*v1alpha1.PolicyRevision, error) {
	v := &v1alpha1.PolicyRevision{}
	v.Name = fmt.Sprintf("%s-%d for %d %s", revision.Spec.Policy, revision.Spec.Revision, r.count, r.name)
	v.Spec = *revision.Spec.DeepCopy()
	v.Spec.Policy = fmt.Sprintf("%s for %d %s", revision.Spec.Policy, r.count, r.name)
	spec := &v.Spec.PolicySpec
	spec.Default()
	spec.Count = ptr.To(int32(min(r.count, maxAsked)))
	if len(r.class.Spec.Selectors) > 0 {
		var expressions []string
		for i, s := range r.class.Spec.Selectors {
			if s.CEL == nil {
				return nil, fmt.Errorf("DeviceClass %s, spec.selectors[%d]: unknown kind of selector, %w", r.class.Name, i, decide.ErrInvalid)
			}
			// A comment at the end of one must not reach the next.
			expressions = append(expressions, "("+s.CEL.Expression+"\n)")
		}
		spec.Constraints.Selectors = append(slices.Clone(spec.Constraints.Selectors), strings.Join(expressions, " && "))
	}
	// The embedded plugin's claim tolerates no taint.
	spec.OnUnhealthy = v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEvict, GracePeriod: &metav1.Duration{}}
	tiers := spec.Tiers
	spec.Tiers = nil
	for i := range tiers {
		tiers[i].Count = nil
		spec.Tiers = append(spec.Tiers, tiers[i])
		path := field.NewPath("spec")
		unreachable := func(e *field.Error) bool { return e.Field == path.Child("tiers").String() }
		if slices.ContainsFunc(spec.Validate(path), unreachable) {
			spec.Tiers = spec.Tiers[:len(spec.Tiers)-1]
		}
	}
	return v, nil
}

// maxAsked is more devices than any policy allows, so that a larger number is
// refused as one.
const maxAsked = resourceapi.AllocationResultsMaxSize + 1

// claimOf is the claim by which a Pod's shadow asks for resources; nil for none.
func claimOf(pod *corev1.Pod, resources []resourceAsked) *resourceapi.ResourceClaim {
	if len(resources) == 0 {
		return nil
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: "extended resources of " + pod.Name, UID: "extended resources of " + pod.UID,
	}}
	for i, r := range resources {
		name := string(r.name)
		if len(name) > validation.DNS1123LabelMaxLength { // records have no room for more
			name = fmt.Sprintf("resource-%d", i)
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: name,
			Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: r.class.Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: r.count,
			},
		})
	}
	return claim
}

// shadowOf is the Pod that the engine is asked about.
func shadowOf(pod *corev1.Pod, variant *v1alpha1.PolicyRevision, claim *resourceapi.ResourceClaim) *corev1.Pod {
	shadow := *pod
	if variant != nil {
		shadow.Labels = maps.Clone(pod.Labels)
		if shadow.Labels == nil {
			shadow.Labels = map[string]string{}
		}
		shadow.Labels[v1alpha1.LabelPolicy] = variant.Spec.Policy
		shadow.Labels[v1alpha1.LabelPolicyRevision] = strconv.FormatInt(variant.Spec.Revision, 10)
	}
	if claim != nil {
		shadow.Spec.ResourceClaims = append(slices.Clone(pod.Spec.ResourceClaims),
			corev1.PodResourceClaim{Name: v1alpha1.ExtendedRef, ResourceClaimName: ptr.To(claim.Name)})
	}
	return &shadow
}

// onlyPluginNodes are the nodes where device plugins offer all of the resources.
func onlyPluginNodes(nodes []fwk.NodeInfo, resources []resourceAsked) sets.Set[string] {
	var found sets.Set[string]
	for _, r := range resources {
		one := sets.KeySet(pluginNodes(nodes, []resourceAsked{r}))
		if found == nil {
			found = one
		}
		found = found.Intersection(one)
	}
	return found
}

// pluginNodes are the nodes where a device plugin offers one of the resources.
func pluginNodes(nodes []fwk.NodeInfo, resources []resourceAsked) map[string]string {
	found := map[string]string{}
	for _, info := range nodes {
		if info.Node() == nil {
			continue
		}
		for _, r := range resources {
			if info.GetAllocatable().GetScalarResources()[r.name] > 0 {
				found[info.Node().Name] = fmt.Sprintf("a device plugin serves %s there", r.name)
				break
			}
		}
	}
	return found
}

// named is a decision about the shadow in the words of what users know.
func (e *extended) named(d *decide.Decision) *decide.Decision {
	if e == nil || e.revision == nil {
		return d
	}
	out := *d
	out.Policy, out.PolicyHash = e.revision.Spec.Policy, e.revision.Spec.PolicySpec.ContentHash()
	if i := slices.IndexFunc(e.revision.Spec.PolicySpec.Tiers, func(t v1alpha1.Tier) bool { return t.Name == d.Tier }); i >= 0 {
		out.TierIndex = ptr.To(int32(i))
	}
	return &out
}

// split separates what was decided for the Pod's own claims from what is for
// its extended resources.
func (e *extended) split(claims []podClaim, decided []v1alpha1.DecidedDevice) (own, others []v1alpha1.DecidedDevice) {
	if e == nil {
		return decided, nil
	}
	for _, d := range decided {
		if slices.ContainsFunc(claims, func(pc podClaim) bool { return pc.ref == d.Claim }) {
			own = append(own, d)
		} else {
			others = append(others, d)
		}
	}
	return own, others
}

// hasLast says whether nodes that the device plugin serves are still to be tried.
func (e *extended) hasLast() bool { return e != nil && !e.tried && len(e.last) > 0 }

// tries says whether this round looks at nodes that the device plugin serves.
func (e *extended) tries() bool { return e != nil && len(e.trying) > 0 }

// isSpecial says whether a claim was made by the embedded plugin for the Pod's
// extended resources.
func isSpecial(claim *resourceapi.ResourceClaim, pod types.UID) bool {
	owner, special := view.ExtendedResourcesOf(claim)
	return special && owner == pod
}
