package ladder

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
)

// This file gives the Pods of a PodGroup one tier. kube-scheduler places them
// one after another and takes all of it back if too few fit; left alone the
// first would get H100 and the last A100, or the last nothing although A100 could
// have served all of them.
//
// So before the first Pod of a group is placed the engine is asked which tier
// can serve the group, and every one of its Pods keeps to that. The engine knows
// devices; what other plugins refuse shows only when the Pods are placed. If
// that fails the next attempt, at once, leaves the tier out, until none is left.
//
// kube-scheduler reserves for the Pods of a group twice: to find out whether
// they fit, and after all was given back, for good. See [Plugin.reserveAgain].

// groupKey identifies the Pods of a PodGroup that take one tier: those that
// follow the same policy.
type groupKey struct {
	group            types.NamespacedName
	policy, revision string
}

// groupKeyOf returns the key of a Pod that belongs to a group and follows a
// policy by its claim.
func groupKeyOf(pod *corev1.Pod) (groupKey, bool) {
	policy := pod.Labels[v1alpha1.LabelPolicy]
	if pod.Spec.SchedulingGroup == nil || policy == "" || followsByResource(pod) {
		return groupKey{}, false
	}
	name := ptr.Deref(pod.Spec.SchedulingGroup.PodGroupName, "")
	return groupKey{
		group:  types.NamespacedName{Namespace: pod.Namespace, Name: name},
		policy: policy, revision: cmp.Or(pod.Labels[v1alpha1.LabelPolicyRevision], revisionOfClaim(pod, policy)),
	}, name != ""
}

// revisionOfClaim is the revision that admission made the Pod's claim from, or "".
func revisionOfClaim(pod *corev1.Pod, policy string) string {
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.Name == v1alpha1.ClaimRefName {
			if n := v1alpha1.RevisionOfTemplate(ptr.Deref(ref.ResourceClaimTemplateName, ""), policy); n != 0 {
				return strconv.FormatInt(n, 10)
			}
		}
	}
	return ""
}

func (k groupKey) state() fwk.StateKey {
	return fwk.StateKey(strings.Join([]string{Name, "group", k.group.Namespace, k.group.Name, k.policy, k.revision}, "/"))
}

// groupPlan is what one attempt to place a group keeps to. tier is nil where
// the Pods may take what they can get.
type groupPlan struct {
	key  groupKey
	tier *decide.GroupTier
}

// Clone implements fwk.StateData.
func (g *groupPlan) Clone() fwk.StateData { return g }

// groups remembers, between attempts, which tiers other plugins keep a group
// from.
type groups struct {
	mu       sync.Mutex
	excluded map[groupKey]map[string]string
}

func newGroups() *groups { return &groups{excluded: map[groupKey]map[string]string{}} }

// exclude leaves a tier, by name, out of the group's next attempt.
func (g *groups) exclude(k groupKey, tier, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.excluded[k] == nil {
		g.excluded[k] = map[string]string{}
	}
	g.excluded[k][tier] = why
}

// of returns the tiers that are left out, with the reasons.
func (g *groups) of(k groupKey) map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.excluded[k])
}

// forget drops what is remembered of a group.
func (g *groups) forget(k groupKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.excluded, k)
}

// planGroup gives the search the tier of the Pod's group, where it has one. The
// caller holds the lock of the engine.
func (p *Plugin) planGroup(state fwk.CycleState, s *search) error {
	key, ok := groupKeyOf(s.pod)
	if !ok || s.plan != nil || !state.IsPodGroupSchedulingCycle() {
		return nil
	}
	cycle := state.GetPodGroupSchedulingCycle()
	if data, err := cycle.Read(key.state()); err == nil {
		if plan, ok := data.(*groupPlan); ok {
			s.plan = plan
			return nil
		}
	}
	tier, err := p.tierOfGroup(s, key)
	if err != nil {
		return err
	}
	s.plan = &groupPlan{key: key, tier: tier}
	cycle.Write(key.state(), s.plan)
	return nil
}

// groupError is an error about a group of which the Pod that is tried has no part.
type groupError struct{ err error }

// Error implements error.
func (e *groupError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *groupError) Unwrap() error { return e.err }

// blame returns what is wrong with the Pod itself, where no tier could be found
// for its group, or else that it is the group. The caller holds the lock of the
// engine.
func (p *Plugin) blame(s *search, err error) error {
	if _, own := p.core.engine.Candidates(s.query()); own != nil {
		return own
	}
	return &groupError{err}
}

// tierOfGroup asks the engine which tier the group takes; nil where it need not
// take one.
func (p *Plugin) tierOfGroup(s *search, key groupKey) (*decide.GroupTier, error) {
	snapshot := p.handle.SnapshotSharedLister()
	group, err := snapshot.PodGroups().Get(key.group.Namespace, key.group.Name)
	if err != nil {
		return nil, fmt.Errorf("looking up PodGroup %s, %w", key.group, err)
	}
	gang := group.Spec.SchedulingPolicy.Gang
	if gang == nil {
		return nil, nil
	}
	members, err := snapshot.PodGroupStates().Get(key.group.Namespace, key.group.Name)
	if err != nil {
		return nil, fmt.Errorf("looking up the Pods of PodGroup %s, %w", key.group, err)
	}
	waiting, placed := slices.Collect(maps.Values(members.UnscheduledPods())), members.ScheduledPods()
	q := groupQuery(s, key, waiting, len(placed), int(gang.MinCount))
	for _, pod := range q.pods {
		if err := p.core.putPod(pod); err != nil {
			return nil, err
		}
	}
	q.Fixed = p.tierOfPlaced(key, placed)
	q.Excluded = p.core.groups.of(key)
	var tier *decide.GroupTier
	err = p.core.timed("group", func() (err error) {
		tier, err = p.core.engine.TierForGroup(q.GroupQuery)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("finding a tier for PodGroup %s, %w", key.group, err)
	}
	if tier != nil && tier.Tier == decide.NoTier {
		// What other plugins say may have changed until the group is tried again.
		p.core.groups.forget(key)
	}
	return tier, nil
}

// query is the engine's question with the Pods it is about.
type query struct {
	decide.GroupQuery
	pods []*corev1.Pod
}

// groupQuery asks for the tier of those of the group's Pods that wait and follow
// the policy. As many may stay without devices as the group has more Pods than
// it needs.
func groupQuery(s *search, key groupKey, waiting []*corev1.Pod, placed, needed int) query {
	q := query{GroupQuery: decide.GroupQuery{Now: s.now}}
	for _, pod := range waiting {
		if k, ok := groupKeyOf(pod); ok && k == key && pod.UID != s.pod.UID && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 {
			q.pods = append(q.pods, pod)
		}
	}
	q.pods = append(q.pods, s.pod)
	slices.SortFunc(q.pods, func(a, b *corev1.Pod) int { return placeOfPod(a).compare(placeOfPod(b)) })
	for _, pod := range q.pods {
		q.Pods = append(q.Pods, keyOf(pod))
	}
	spare := max(0, len(waiting)+placed-needed)
	q.Least = max(1, len(q.Pods)-spare)
	return q
}

// tierOfPlaced returns the tier of those of the group's Pods with this key that
// have devices; "" where none has.
func (p *Plugin) tierOfPlaced(key groupKey, placed []*corev1.Pod) string {
	slices.SortFunc(placed, func(a, b *corev1.Pod) int { return placeOfPod(a).compare(placeOfPod(b)) })
	for _, pod := range placed {
		if k, ok := groupKeyOf(pod); !ok || k != key {
			continue
		}
		for i := range pod.Spec.ResourceClaims {
			if tier := p.tierOfClaim(pod, &pod.Spec.ResourceClaims[i]); tier != "" {
				return tier
			}
		}
	}
	return ""
}

func (p *Plugin) tierOfClaim(pod *corev1.Pod, ref *corev1.PodResourceClaim) string {
	name, _, err := resourceclaim.Name(pod, ref)
	if ref.Name != v1alpha1.ClaimRefName || err != nil || name == nil {
		return ""
	}
	claim, err := p.dra.ResourceClaims().Get(pod.Namespace, *name)
	if err != nil {
		return ""
	}
	allocation := claim.Status.Allocation
	if allocation == nil {
		allocation = p.dra.ResourceClaims().GetPendingAllocation(claim.UID)
	}
	if allocation == nil {
		return ""
	}
	for _, r := range allocation.Devices.Results {
		if tier, ok := strings.CutPrefix(r.Request, v1alpha1.RequestName+"/"); ok {
			return tier
		}
	}
	return ""
}

// tryNextTier has the group tried without a tier that the engine thought could
// serve it, where other plugins refused a Pod all of its nodes. What they refuse a
// Pod that has devices already is its one node: they are given back first.
func (p *Plugin) tryNextTier(s *search, d *decide.Decision) {
	if s.plan == nil || s.plan.tier == nil || len(s.refused) == 0 || s.holds() {
		return
	}
	tiers := p.tiers(d)
	if i := s.plan.tier.Tier; i != decide.NoTier && i < len(tiers) {
		node := slices.Min(slices.Collect(maps.Keys(s.refused)))
		p.core.groups.exclude(s.plan.key, tiers[i].Name, fmt.Sprintf("Pod %s can't use it: node %s: %s", s.pod.Name, node, s.refused[node]))
		p.core.waiting.wakeSoon(s.pod.UID)
	}
}
