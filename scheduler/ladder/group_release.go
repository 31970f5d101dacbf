package ladder

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// This file gives back what is allocated to Pods of a PodGroup that can't be
// placed. kube-scheduler runs PostFilter for none of them: when the group has
// failed it asks once, for all.

const groupSearchesKey fwk.StateKey = Name + "/group/searches"

// groupSearches are the searches of one attempt to place a group.
type groupSearches struct{ all []*search }

// Clone implements fwk.StateData.
func (g *groupSearches) Clone() fwk.StateData { return g }

// searchesOf returns the searches of a group's attempt so far, or nil.
func searchesOf(cycle fwk.PodGroupCycleState) *groupSearches {
	data, err := cycle.Read(groupSearchesKey)
	if err != nil {
		return nil
	}
	g, _ := data.(*groupSearches)
	return g
}

// remember adds a search to those of the Pod's group, if it is tried with one.
func (s *search) remember(state fwk.CycleState) {
	if !state.IsPodGroupSchedulingCycle() {
		return
	}
	cycle := state.GetPodGroupSchedulingCycle()
	g := searchesOf(cycle)
	if g == nil {
		g = &groupSearches{}
		cycle.Write(groupSearchesKey, g)
	}
	if !slices.Contains(g.all, s) {
		g.all = append(g.all, s)
	}
}

// failed are the searches of the Pods for which there was no node, one of each.
func (g *groupSearches) failed() []*search {
	if g == nil {
		return nil
	}
	done := sets.New[types.UID]()
	for _, s := range g.all {
		if s.reserved != nil {
			done.Insert(s.pod.UID)
		}
	}
	var failed []*search
	for _, s := range g.all {
		if !done.Has(s.pod.UID) {
			done.Insert(s.pod.UID)
			failed = append(failed, s)
		}
	}
	return failed
}

// spoiled are searches of the Pods that were not tried, since it was in vain with
// one before them, and that have devices which can't be used any more: for as long
// as they have these no tier serves the group, and they are never tried.
func (p *Plugin) spoiled(group fwk.PodGroupInfo, tried []*search) []*search {
	var found []*search
	for _, pod := range group.GetUnscheduledPods() {
		if slices.ContainsFunc(tried, func(s *search) bool { return s.pod.UID == pod.UID }) {
			continue
		}
		claims, toDecide, _ := p.claimsToDecide(pod)
		var failure *BindError
		if toDecide && errors.As(p.recheckAllocated(claims), &failure) {
			found = append(found, &search{pod: pod, claims: claims})
		}
	}
	for _, child := range group.GetChildren() {
		found = append(found, p.spoiled(child, tried)...)
	}
	return found
}

// PodGroupPostFilter implements fwk.PodGroupPostFilterPlugin. As long as devices
// are given back no other Pod need be preempted. The rest is the embedded
// plugin's, if it came to prepare itself for any of the Pods.
func (p *Plugin) PodGroupPostFilter(ctx context.Context, state fwk.PodGroupCycleState, group fwk.PodGroupInfo, schedule fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	released := false
	failed := searchesOf(state).failed()
	for _, s := range slices.Concat(failed, p.spoiled(group, failed)) {
		some, err := p.release(ctx, s)
		if err != nil {
			p.core.waiting.park(s.pod, p.handle, p.core.clock.Now().Add(releaseAgain), nil, s.seen)
			return nil, fwk.AsStatus(err)
		}
		released = released || some
	}
	if released {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "devices that were allocated before were given back")
	}
	if _, err := state.Read(embeddedKey); err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	return p.DynamicResources.PodGroupPostFilter(ctx, state, group, schedule)
}
