package decidetest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// ask is one request of one claim: its alternatives in order.
type ask struct {
	claim        int
	claimRef     string
	request      string
	alternatives []*alternative
	ranking      v1alpha1.Ranking
	// constraints of the claim; each carries the requests that it binds.
	constraints []resourceapi.DeviceConstraint
	// wishes are attributes that the devices should share.
	wishes []string
}

// alternative is what one tier, or one sub-request, wants.
type alternative struct {
	// title is the tier's name in records, result the request's in allocations.
	title, result string
	// tier is the place among the policy's tiers, -1 without a policy.
	tier       int
	count      int
	all, admin bool
	// oneModel: all devices must be of one model.
	oneModel bool

	// driver and models, where a policy speaks; driver "" otherwise.
	driver string
	models []string
	// selectors of the tier, or of the class and the request.
	selectors []string
	after     time.Duration
	// hard are the policy's constraints.
	hard        v1alpha1.Constraints
	capacity    quantities
	tolerations []resourceapi.DeviceToleration
}

// asks resolves what the Pod wants.
func (c *Cluster) asks(name types.NamespacedName) ([]*ask, error) {
	pod := c.Pod(name)
	if pod == nil {
		return nil, fmt.Errorf("pod %s is not there", name)
	}
	var out []*ask
	for i, ref := range pod.Spec.ResourceClaims {
		spec := c.claimSpec(pod, ref)
		if spec == nil {
			return nil, fmt.Errorf("claim %s of pod %s is not there", ref.Name, name)
		}
		claimRef := ""
		if len(pod.Spec.ResourceClaims) > 1 || pod.Labels[v1alpha1.LabelPolicy] != "" {
			claimRef = ref.Name
		}
		for _, r := range spec.Devices.Requests {
			a, err := c.plainAsk(r)
			if err != nil {
				return nil, err
			}
			a.claim, a.claimRef, a.constraints = i, claimRef, spec.Devices.Constraints
			out = append(out, a)
		}
	}
	if policy := pod.Labels[v1alpha1.LabelPolicy]; policy != "" {
		spec, err := c.policySpec(pod, policy)
		if err != nil {
			return nil, err
		}
		// The policy's claim is decided as if it had been made, after the others.
		a := policyAsk(spec)
		a.claim = len(pod.Spec.ResourceClaims)
		if a.claim > 0 {
			a.claimRef = v1alpha1.ClaimRefName
		}
		out = append(out, a)
		for _, other := range out {
			other.ranking = a.ranking
		}
	}
	return out, nil
}

// revisionOf is the number of the revision that the Pod gets: the pinned one,
// the active one, or the newest one; 0 where the policy has none.
func (c *Cluster) revisionOf(pod *corev1.Pod, policy string) int64 {
	if pin, err := strconv.ParseInt(pod.Labels[v1alpha1.LabelPolicyRevision], 10, 64); err == nil {
		return pin
	}
	for _, p := range c.Policies {
		if p.Name == policy && p.Spec.ActiveRevision != nil {
			return *p.Spec.ActiveRevision
		}
	}
	newest := int64(0)
	for _, r := range c.Revisions {
		if r.Spec.Policy == policy {
			newest = max(newest, r.Spec.Revision)
		}
	}
	return newest
}

// policySpec is the content of the Pod's revision, or of the policy itself
// where there are no revisions.
func (c *Cluster) policySpec(pod *corev1.Pod, policy string) (*v1alpha1.AcceleratorPolicySpec, error) {
	number := c.revisionOf(pod, policy)
	for _, r := range c.Revisions {
		if r.Spec.Policy == policy && r.Spec.Revision == number {
			return &r.Spec.PolicySpec, nil
		}
	}
	for _, p := range c.Policies {
		if p.Name == policy && number <= 1 {
			return &p.Spec, nil
		}
	}
	return nil, fmt.Errorf("revision %d of policy %s is not there", number, policy)
}

// parked says whether the Pod may not be placed at all: its revision is
// withdrawn, or its policy does not select the namespace.
func (c *Cluster) parked(name types.NamespacedName) bool {
	pod := c.Pod(name)
	policy := pod.Labels[v1alpha1.LabelPolicy]
	if policy == "" {
		return false
	}
	spec, err := c.policySpec(pod, policy)
	if err != nil {
		return false
	}
	for _, r := range c.Revisions {
		if r.Spec.Policy == policy && r.Spec.State == v1alpha1.RevisionWithdrawn && r.Spec.Revision == c.revisionOf(pod, policy) {
			return true
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.NamespaceSelector)
	if spec.NamespaceSelector == nil || err != nil {
		return err != nil
	}
	return slices.ContainsFunc(c.Namespaces, func(ns *corev1.Namespace) bool {
		return ns.Name == name.Namespace && !selector.Matches(labels.Set(ns.Labels))
	})
}

func policyAsk(spec *v1alpha1.AcceleratorPolicySpec) *ask {
	a := &ask{
		request: v1alpha1.RequestName, ranking: cmp.Or(spec.Ranking, v1alpha1.RankingPacked),
	}
	for _, name := range spec.Constraints.MatchAttributes {
		a.constraints = append(a.constraints, match(name))
	}
	a.wishes = spec.PreferAttributes
	for i, t := range spec.Tiers {
		alt := &alternative{
			tier: i, title: t.Name, result: v1alpha1.RequestName + "/" + t.Name,
			count: int(spec.CountOf(&t)), driver: cmp.Or(spec.Driver, v1alpha1.DriverName),
			models: t.Models, selectors: t.Selectors, hard: spec.Constraints,
			tolerations: policyTolerations(spec.OnUnhealthy),
			oneModel:    spec.MixModels != v1alpha1.MixModelsWithinTier,
		}
		if t.After != nil {
			alt.after = t.After.Duration
		}
		a.alternatives = append(a.alternatives, alt)
	}
	return a
}

func match(attribute string) resourceapi.DeviceConstraint {
	full := resourceapi.FullyQualifiedName(attribute)
	return resourceapi.DeviceConstraint{MatchAttribute: &full}
}

// policyTolerations: a confirmed failure is tolerated, so that the taint alone
// deletes no Pod, unless the Pod is to be evicted at once; suspicion never is.
func policyTolerations(u v1alpha1.OnUnhealthy) []resourceapi.DeviceToleration {
	if u.Action == v1alpha1.UnhealthyEvict && (u.GracePeriod == nil || u.GracePeriod.Duration == 0) {
		return nil
	}
	return []resourceapi.DeviceToleration{{
		Key: v1alpha1.TaintFailed, Operator: resourceapi.DeviceTolerationOpExists,
		Effect: resourceapi.DeviceTaintEffectNoExecute,
	}}
}

// claimSpec finds the claim that a Pod's reference means, or the template from
// which it would be made.
func (c *Cluster) claimSpec(pod *corev1.Pod, ref corev1.PodResourceClaim) *resourceapi.ResourceClaimSpec {
	if ref.ResourceClaimName != nil {
		for _, claim := range c.Claims {
			if claim.Namespace == pod.Namespace && claim.Name == *ref.ResourceClaimName {
				return &claim.Spec
			}
		}
		return nil
	}
	for _, t := range c.Templates {
		if ref.ResourceClaimTemplateName != nil && t.Namespace == pod.Namespace && t.Name == *ref.ResourceClaimTemplateName {
			return &t.Spec.Spec
		}
	}
	return nil
}

func (c *Cluster) plainAsk(r resourceapi.DeviceRequest) (*ask, error) {
	a := &ask{request: r.Name, ranking: v1alpha1.RankingPacked}
	if e := r.Exactly; e != nil {
		alt := &alternative{
			tier: -1, title: r.Name, result: r.Name,
			count: max(int(e.Count), 1), all: e.AllocationMode == resourceapi.DeviceAllocationModeAll,
			admin: e.AdminAccess != nil && *e.AdminAccess, tolerations: e.Tolerations,
		}
		if e.Capacity != nil {
			alt.capacity = e.Capacity.Requests
		}
		a.alternatives = append(a.alternatives, alt)
		return a, c.addSelectors(alt, e.DeviceClassName, e.Selectors)
	}
	for _, s := range r.FirstAvailable {
		full := r.Name + "/" + s.Name
		alt := &alternative{
			tier: -1, title: full, result: full,
			count: max(int(s.Count), 1), all: s.AllocationMode == resourceapi.DeviceAllocationModeAll,
			tolerations: s.Tolerations,
		}
		if s.Capacity != nil {
			alt.capacity = s.Capacity.Requests
		}
		if err := c.addSelectors(alt, s.DeviceClassName, s.Selectors); err != nil {
			return nil, err
		}
		a.alternatives = append(a.alternatives, alt)
	}
	return a, nil
}

// addSelectors gives an alternative the selectors of its class, then its own.
func (c *Cluster) addSelectors(alt *alternative, class string, own []resourceapi.DeviceSelector) error {
	i := slices.IndexFunc(c.Classes, func(k *resourceapi.DeviceClass) bool { return k.Name == class })
	if i < 0 {
		return fmt.Errorf("device class %s is not there", class)
	}
	for _, s := range slices.Concat(c.Classes[i].Spec.Selectors, own) {
		alt.selectors = append(alt.selectors, s.CEL.Expression)
	}
	return nil
}
