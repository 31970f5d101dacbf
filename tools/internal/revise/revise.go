// Package revise does with the policies of a dump what ladder-controller would
// do next, so that one that was edited there is tried and not passed over for
// the revision that was made of it before.
package revise

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/manifest"
)

// Policies gives each policy that says something else than its newest revision
// the next one. The Pods that wait with the revision that went before, without
// having pinned it by their label, wait with the new one, as those will that are
// made in their place; so do they where spec.activeRevision was changed. A policy
// without revisions is left alone: it is revision 1 itself.
//
// It returns the set as it is then, and in a line for each policy what was done.
func Policies(set *manifest.Set) (*manifest.Set, []string) {
	e := look(set)
	if len(e.next) == 0 {
		return set, e.said
	}
	changed := e.apply()
	return changed, e.said
}

// Edited says whether new Pods of a policy would get another revision by what the
// set says than they got before.
func Edited(set *manifest.Set, policy string) bool { return look(set).next[policy] != nil }

// edits are the policies that new Pods would get another revision of.
type edits struct {
	set       *manifest.Set
	revisions map[string][]*v1alpha1.PolicyRevision
	next      map[string]*step
	order     []*step
	said      []string
}

// step is what becomes of one policy.
type step struct {
	policy *v1alpha1.AcceleratorPolicy
	source manifest.Source
	to     *v1alpha1.PolicyRevision
	made   bool
	// from are the revisions whose Pods go along.
	from  map[int64]bool
	moved int
}

func look(set *manifest.Set) *edits {
	e := &edits{set: set, revisions: map[string][]*v1alpha1.PolicyRevision{}, next: map[string]*step{}}
	for r := range manifest.All[*v1alpha1.PolicyRevision](set) {
		e.revisions[r.Spec.Policy] = append(e.revisions[r.Spec.Policy], r)
	}
	for p, o := range manifest.All[*v1alpha1.AcceleratorPolicy](set) {
		if len(e.revisions[p.Name]) > 0 {
			e.look(p, o)
		}
	}
	return e
}

func (e *edits) say(format string, args ...any) {
	e.said = append(e.said, fmt.Sprintf(format, args...))
}

// look finds which revision new Pods of a policy would get, by the rules of
// ladder-controller, and whether they got another one before.
func (e *edits) look(p *v1alpha1.AcceleratorPolicy, o manifest.Object) {
	highest := p.Status.LatestRevision
	var own []*v1alpha1.PolicyRevision
	for _, r := range e.revisions[p.Name] {
		highest = max(highest, r.Spec.Revision)
		// Those of an earlier policy of this name count for the number alone.
		if owner := metav1.GetControllerOf(r); owner == nil || p.UID == "" || owner.UID == p.UID {
			own = append(own, r)
		}
	}
	slices.SortFunc(own, func(a, b *v1alpha1.PolicyRevision) int { return cmp.Compare(a.Spec.Revision, b.Spec.Revision) })
	s := &step{policy: p, source: o.Source, from: map[int64]bool{p.Status.ActiveRevision: true}}
	var newestUsable int64
	for _, r := range own {
		s.to = r
		if usable(r) {
			newestUsable = r.Spec.Revision
		}
	}
	if s.to != nil {
		s.from[newestUsable], s.from[s.to.Spec.Revision] = true, true
	}
	if s.to == nil || s.to.Spec.PolicySpec.ContentHash() != p.Spec.ContentHash() {
		made, err := compile.Revision(p, highest+1)
		switch {
		case err != nil:
			e.say("%s: ladder-controller would make no revision of what it says here, so the one before is used: %s", o, strings.Join(strings.Fields(err.Error()), " "))
		case p.Spec.ActiveRevision != nil:
			e.say("%s: what it says here is in none of its revisions and is not tried, since spec.activeRevision names revision %d; take that field out to try it", o, *p.Spec.ActiveRevision)
		default:
			s.to, s.made = made, true
		}
	}
	if n := p.Spec.ActiveRevision; n != nil {
		i := slices.IndexFunc(own, func(r *v1alpha1.PolicyRevision) bool { return r.Spec.Revision == *n })
		if i < 0 {
			return
		}
		s.to = own[i]
	}
	if s.to != nil && usable(s.to) && (s.made || isRenamed(p, s.to.Spec.Revision)) {
		e.next[p.Name] = s
		e.order = append(e.order, s)
	}
}

func usable(r *v1alpha1.PolicyRevision) bool {
	return r.Spec.State != v1alpha1.RevisionWithdrawn && r.DeletionTimestamp.IsZero()
}

// isRenamed says whether spec.activeRevision was set, changed or taken out after
// the controller had looked at the policy: it would have written another status.
func isRenamed(p *v1alpha1.AcceleratorPolicy, wanted int64) bool {
	return p.Status.ObservedGeneration > 0 && p.Status.ObservedGeneration == p.Generation && p.Status.ActiveRevision != wanted
}

// apply makes the set that the steps lead to.
func (e *edits) apply() *manifest.Set {
	made := map[types.UID][]*resourcev1.ResourceClaim{}
	for c := range manifest.All[*resourcev1.ResourceClaim](e.set) {
		if owner := metav1.GetControllerOf(c); owner != nil && owner.Kind == "Pod" {
			made[owner.UID] = append(made[owner.UID], c)
		}
	}
	pods := map[*corev1.Pod]*corev1.Pod{}
	gone := map[*resourcev1.ResourceClaim]bool{}
	for pod := range manifest.All[*corev1.Pod](e.set) {
		s := e.next[pod.Labels[v1alpha1.LabelPolicy]]
		if s == nil || !manifest.Undecided(pod) {
			continue
		}
		var claims []*resourcev1.ResourceClaim
		if pod.UID != "" {
			claims = made[pod.UID]
		}
		if again, without := s.move(pod, claims); again != nil {
			s.moved++
			pods[pod] = again
			for _, c := range without {
				gone[c] = true
			}
		}
	}
	var more []manifest.Object
	for _, s := range e.order {
		if s.made {
			more = append(more, manifest.Object{Object: s.to, Source: s.source})
		}
		e.tell(s)
	}
	return e.set.Rewrite(func(o manifest.Object) runtime.Object {
		switch object := o.Object.(type) {
		case *corev1.Pod:
			if again := pods[object]; again != nil {
				return again
			}
		case *resourcev1.ResourceClaim:
			if gone[object] {
				return nil
			}
		}
		return o.Object
	}, more...)
}

// move gives a Pod as it would be made now, and its claims that would not be
// there; nil where the Pod stays as it is.
func (s *step) move(pod *corev1.Pod, claims []*resourcev1.ResourceClaim) (*corev1.Pod, []*resourcev1.ResourceClaim) {
	if _, pinned := pod.Labels[v1alpha1.LabelPolicyRevision]; pinned {
		return nil, nil
	}
	place := slices.IndexFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return ptr.Deref(c.ResourceClaimTemplateName, "") != "" && s.isFrom(*c.ResourceClaimTemplateName)
	})
	if place < 0 {
		return nil, nil
	}
	name := pod.Spec.ResourceClaims[place].Name
	claims = slices.DeleteFunc(slices.Clone(claims), func(c *resourcev1.ResourceClaim) bool {
		return c.Namespace != pod.Namespace || c.Annotations[resourcev1.PodResourceClaimAnnotation] != name
	})
	if slices.ContainsFunc(claims, func(c *resourcev1.ResourceClaim) bool { return c.Status.Allocation != nil }) {
		return nil, nil // it has its devices already
	}
	again := pod.DeepCopy()
	template := v1alpha1.RevisionName(s.policy.Name, s.to.Spec.Revision)
	again.Spec.ResourceClaims[place].ResourceClaimTemplateName = &template
	if _, ok := again.Annotations[catalog.AnnotationClaimTemplate]; ok {
		again.Annotations[catalog.AnnotationClaimTemplate] = template
	}
	again.Status.ResourceClaimStatuses = slices.DeleteFunc(again.Status.ResourceClaimStatuses, func(c corev1.PodResourceClaimStatus) bool {
		return c.Name == name
	})
	if len(again.Status.ResourceClaimStatuses) == 0 {
		again.Status.ResourceClaimStatuses = nil // as it is read, and so as a journal gives it back
	}
	return again, claims
}

// isFrom says whether a template is that of a revision whose Pods go along.
func (s *step) isFrom(template string) bool {
	for n := range s.from {
		if n != s.to.Spec.Revision && template == v1alpha1.RevisionName(s.policy.Name, n) {
			return true
		}
	}
	return false
}

// tell puts a step into words.
func (e *edits) tell(s *step) {
	along := ""
	if s.moved > 0 {
		along = fmt.Sprintf(", as do the Pods here that wait with an older one (%d); in the cluster such Pods keep theirs until they are made anew", s.moved)
	}
	before := "none"
	if n := s.policy.Status.ActiveRevision; n > 0 {
		before = fmt.Sprint(n)
	}
	if s.made {
		e.say("AcceleratorPolicy %s: it says something else than its newest revision. New Pods get it as revision %d, which ladder-controller would make%s", s.policy.Name, s.to.Spec.Revision, along)
		return
	}
	e.say("AcceleratorPolicy %s: new Pods get revision %d by what it says here, while its status has %s%s", s.policy.Name, s.to.Spec.Revision, before, along)
}
