package nvml

// This file is about MIG instances that are none of the devices that are
// published: no claim has them, since they are left over or made by someone
// else, or a claim has what is not published any more.

import (
	"context"
	"slices"

	"k8s.io/klog/v2"
)

// others are the instances that are none of what is published.
type others struct {
	// unknown are those that no claim has.
	unknown []partition
	// unpublished are claims', from before the configuration was changed.
	unpublished []partition
}

// others finds them among the instances that are there. Those are asked for
// before the claims are, so an instance that was made meanwhile is never an
// unknown one: its claim is recorded first. It is false where it can't be known.
func (i *Inventory) others(ctx context.Context, g *gpu, present []instance) (others, bool) {
	var found others
	i.mu.Lock()
	held, name, facts := i.held, g.Address.name(), g.facts
	i.mu.Unlock()
	if held == nil || facts == nil {
		return found, false
	}
	if len(present) == 0 {
		return found, true
	}
	limited, cancel := context.WithTimeout(ctx, i.config.CallLimit)
	defer cancel()
	devices, err := held(limited)
	if err != nil {
		klog.FromContext(ctx).V(1).Info("Taking all MIG instances for claims'", "gpu", name, "reason", err.Error())
		return found, false
	}
	policy := &i.config.Policy.Publish
	whole, _ := biggest(facts.Profiles)
	for n := range present {
		p := present[n].partition
		published := false
		switch {
		case slices.Contains(devices, p.name(name)):
			published = policy.partitions() && policy.profile(p.Name)
		case p.is(whole) && slices.Contains(devices, name):
			published = policy.wholeMIG()
		default:
			found.unknown = append(found.unknown, p)
			continue
		}
		if !published {
			found.unpublished = append(found.unpublished, p)
		}
	}
	return found, true
}

// takeOthers takes in instances that are none of what is published. Of those
// that no claim has it believes what it has seen twice, since a claim may just
// have ended. They are destroyed, if that is asked for and they were there from
// the start. The place of the others is taken, until they are gone. mu is held.
func (i *Inventory) takeOthers(ctx context.Context, s *session, g *gpu, found others) {
	confirmed := []partition{}
	for _, p := range found.unknown {
		if slices.ContainsFunc(g.unknown, p.is) {
			confirmed = append(confirmed, p)
		}
	}
	g.unknown = found.unknown
	places := slices.Clone(found.unpublished)
	switch {
	case !i.config.RemoveUnknown || g.cleaned:
		places = append(places, confirmed...)
	case len(confirmed) == len(found.unknown): // otherwise one more look
		g.cleaned = true
		if len(confirmed) > 0 {
			b := &board{session: s, caller: g.calls.within(i.config.EditLimit), handle: g.handle, profiles: g.facts.Profiles}
			go i.remove(ctx, g, g.Address.name(), b, confirmed)
		}
	}
	same := slices.EqualFunc(places, g.taken, func(a, b partition) bool { return a.is(b) })
	if same {
		return
	}
	for _, p := range places {
		if !slices.ContainsFunc(g.taken, p.is) {
			klog.FromContext(ctx).Info("A MIG instance is there that is none of the published devices: nor is its place", "gpu", g.Address.name(), "profile", p.Name, "start", p.placement.Start,
				"ofAClaim", slices.ContainsFunc(found.unpublished, p.is))
		}
	}
	g.taken = places
	i.publish(ctx, g)
	i.tell()
}

// remove destroys instances that no claim has.
func (i *Inventory) remove(ctx context.Context, g *gpu, name string, b *board, all []partition) {
	g.changing.Lock()
	defer g.changing.Unlock()
	for _, p := range all {
		// Once more: a claim may have been given it while this waited.
		present, err := b.find(ctx, p)
		if err == nil && present != nil {
			if still, known := i.others(ctx, g, []instance{*present}); known && len(still.unknown) > 0 {
				err = b.destroy(ctx, present)
			}
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Leaving a MIG instance that no claim has", "gpu", name, "profile", p.Name, "start", p.placement.Start)
		}
	}
}
