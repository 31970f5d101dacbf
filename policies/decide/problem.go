package decide

// A Pod as a problem: ordered claims of ordered requests of ordered
// alternatives. A policy's request has its tiers as alternatives.

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// problem is what a Pod asks for.
type problem struct {
	pod      *pod
	revision *revision // nil: no policy
	claims   []*claimProblem
	requests []*request // of the claims that are not allocated, in order
	alts     []*alternative
	ranking  v1alpha1.Ranking
}

// claimProblem is one claim of the Pod.
type claimProblem struct {
	ref         string // the name under which the Pod refers to it
	several     bool   // the Pod has other claims too
	obj         *resourceapi.ResourceClaim
	allocated   *resourceapi.AllocationResult
	requests    []*request
	constraints []*constraint
	policy      bool
}

// alternativeNamed finds the alternative of a decided device.
func (p *problem) alternativeNamed(d *v1alpha1.DecidedDevice) *alternative {
	for _, c := range p.claims {
		if d.Claim != "" && c.ref != d.Claim {
			continue
		}
		for _, r := range c.requests {
			for _, a := range r.alts {
				if a.requestName() == d.Request {
					return a
				}
			}
		}
	}
	return nil
}

// mainClaim is the policy's claim, or the Pod's only one, or nil.
func (p *problem) mainClaim() *claimProblem {
	for _, c := range p.claims {
		if c.policy {
			return c
		}
	}
	if len(p.claims) == 1 {
		return p.claims[0]
	}
	return nil
}

// problemOf reads the Pod. A revision other than 0 overrules the policy's.
func (st *State) problemOf(p *pod, number int64) (*problem, error) {
	prob := &problem{pod: p, ranking: v1alpha1.RankingPacked}
	place := -1
	if name := p.obj.Labels[v1alpha1.LabelPolicy]; name != "" {
		r, err := st.revisionOf(p.obj)
		if err != nil {
			return nil, err
		}
		if other := st.revisions[name][number]; other != nil {
			r = other
		}
		prob.revision, prob.ranking = r, cmp.Or(r.spec.Ranking, v1alpha1.RankingPacked)
		place, _ = policyClaim(p.obj, name)
	}
	for i := range p.obj.Spec.ResourceClaims {
		c, err := st.readClaim(prob, &p.obj.Spec.ResourceClaims[i], i == place)
		if err != nil {
			return nil, fmt.Errorf("Pod %s, spec.resourceClaims[%d]: %w", p.key, i, err)
		}
		if c != nil {
			prob.claims = append(prob.claims, c)
		}
	}
	if prob.revision != nil && place < 0 {
		prob.claims = append(prob.claims, policyClaimOf(prob.revision, v1alpha1.ClaimRefName))
	}
	for _, c := range prob.claims {
		c.several = len(prob.claims) > 1
		for _, r := range c.requests {
			for i, a := range r.alts {
				a.index = i
			}
			if c.allocated != nil {
				continue // nothing is searched for it
			}
			r.index = len(prob.requests)
			prob.requests = append(prob.requests, r)
			for _, a := range r.alts {
				a.place = len(prob.alts)
				prob.alts = append(prob.alts, a)
			}
		}
	}
	return prob, nil
}

// readClaim reads one entry of the Pod's claims; nil where none is needed.
func (st *State) readClaim(prob *problem, ref *corev1.PodResourceClaim, isPolicy bool) (*claimProblem, error) {
	obj, template, err := st.findClaim(prob.pod.obj, ref)
	if err != nil {
		return nil, err
	}
	var spec *resourceapi.ResourceClaimSpec
	switch {
	case obj != nil:
		spec = &obj.Spec
	case template != nil:
		spec = &template.Spec.Spec
	case ref.ResourceClaimTemplateName != nil && isPolicy:
		// Decided as if the claim had been made.
	case ref.ResourceClaimTemplateName != nil && !st.claimWanted(prob.pod.obj, ref.Name):
		return nil, nil
	case ref.ResourceClaimTemplateName != nil:
		return nil, fmt.Errorf("ResourceClaimTemplate %q, %w", *ref.ResourceClaimTemplateName, ErrNotFound)
	default:
		return nil, fmt.Errorf("ResourceClaim %q, %w", ptr.Deref(ref.ResourceClaimName, ""), ErrNotFound)
	}
	var c *claimProblem
	if isPolicy {
		c = policyClaimOf(prob.revision, ref.Name)
		if spec != nil {
			if err := madeFrom(spec, prob.revision); err != nil {
				return nil, err
			}
		}
	} else if c, err = st.plainClaim(spec, ref.Name); err != nil {
		return nil, err
	}
	if obj != nil {
		c.obj, c.allocated = obj, obj.Status.Allocation
	}
	return c, nil
}

// claimWanted is false where Kubernetes says that the Pod needs no claim for
// this entry.
func (st *State) claimWanted(obj *corev1.Pod, entry string) bool {
	for _, s := range obj.Status.ResourceClaimStatuses {
		if s.Name == entry {
			return s.ResourceClaimName != nil
		}
	}
	return true
}

// findClaim finds the claim of an entry, or the template it will be made from.
func (st *State) findClaim(obj *corev1.Pod, ref *corev1.PodResourceClaim) (*resourceapi.ResourceClaim, *resourceapi.ResourceClaimTemplate, error) {
	name, generated := ptr.Deref(ref.ResourceClaimName, ""), false
	for _, s := range obj.Status.ResourceClaimStatuses {
		if name == "" && s.Name == ref.Name {
			name, generated = ptr.Deref(s.ResourceClaimName, ""), true
		}
	}
	if name != "" {
		c := st.claims[types.NamespacedName{Namespace: obj.Namespace, Name: name}]
		if c == nil {
			return nil, nil, fmt.Errorf("ResourceClaim %q, %w", name, ErrNotFound)
		}
		if generated {
			if err := resourceclaim.IsForPod(obj, c.obj, true); err != nil {
				return nil, nil, fmt.Errorf("%w, %w", err, ErrInvalid)
			}
		}
		return c.obj, nil, nil
	}
	var found *resourceapi.ResourceClaim
	if obj.UID != "" && ref.ResourceClaimTemplateName != nil {
		for _, c := range st.claimsOf[obj.UID] {
			if c.obj.Namespace == obj.Namespace && c.obj.Annotations[resourceapi.PodResourceClaimAnnotation] == ref.Name &&
				(found == nil || c.obj.Name < found.Name) {
				found = c.obj
			}
		}
	}
	if found != nil {
		return found, nil, nil
	}
	return nil, st.templates[types.NamespacedName{Namespace: obj.Namespace, Name: ptr.Deref(ref.ResourceClaimTemplateName, "")}].get(), nil
}

// madeFrom checks that a claim has the request and the alternatives that the
// revision's template makes.
func madeFrom(spec *resourceapi.ResourceClaimSpec, rev *revision) error {
	wrong := func(why string) error {
		return fmt.Errorf("the claim was not made from revision %d of policy %q: %s, %w", rev.number, rev.policy, why, ErrInvalid)
	}
	if len(spec.Devices.Requests) != 1 || spec.Devices.Requests[0].Name != v1alpha1.RequestName {
		return wrong("it must have the one request " + v1alpha1.RequestName)
	}
	r := &spec.Devices.Requests[0]
	if r.Exactly != nil {
		if len(rev.spec.Tiers) != 1 {
			return wrong("it has no alternatives")
		}
		return nil
	}
	same := slices.EqualFunc(r.FirstAvailable, rev.spec.Tiers, func(s resourceapi.DeviceSubRequest, t v1alpha1.Tier) bool {
		return s.Name == t.Name
	})
	if !same {
		return wrong("its alternatives are not the policy's tiers")
	}
	return nil
}
