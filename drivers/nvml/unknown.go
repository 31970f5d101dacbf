package nvml

// This file is about MIG instances that no claim has: left over, or made by
// someone else.

import (
	"context"
	"slices"

	"k8s.io/klog/v2"
)

// unknown are the instances that no claim has. They are asked for before the
// claims are, so an instance that was made meanwhile is never among them: its
// claim is recorded first. It is false where it can't be known.
func (i *Inventory) unknown(ctx context.Context, g *gpu, present []instance) ([]partition, bool) {
	i.mu.Lock()
	held, name, facts := i.held, g.Address.name(), g.facts
	i.mu.Unlock()
	if held == nil || facts == nil {
		return nil, false
	}
	if len(present) == 0 {
		return nil, true
	}
	limited, cancel := context.WithTimeout(ctx, i.config.CallLimit)
	defer cancel()
	devices, err := held(limited)
	if err != nil {
		klog.FromContext(ctx).V(1).Info("Taking all MIG instances for claims'", "gpu", name, "reason", err.Error())
		return nil, false
	}
	whole, _ := biggest(facts.Profiles)
	var unknown []partition
	for n := range present {
		p := present[n].partition
		if slices.Contains(devices, p.name(name)) || p.is(whole) && slices.Contains(devices, name) {
			continue
		}
		unknown = append(unknown, p)
	}
	return unknown, true
}

// takeUnknown takes in instances that no claim has. It believes what it has seen
// twice, since a claim may just have ended. They are destroyed, if that is
// asked for and they were there from the start; otherwise their place is taken,
// until they are gone. mu is held.
func (i *Inventory) takeUnknown(ctx context.Context, s *session, g *gpu, unknown []partition) {
	confirmed := []partition{}
	for _, p := range unknown {
		if slices.ContainsFunc(g.unknown, p.is) {
			confirmed = append(confirmed, p)
		}
	}
	g.unknown = unknown
	if i.config.RemoveUnknown && !g.cleaned {
		if len(confirmed) < len(unknown) {
			return // one more look
		}
		g.cleaned = true
		if len(confirmed) > 0 {
			b := &board{session: s, caller: g.calls.within(i.config.EditLimit), handle: g.handle, profiles: g.facts.Profiles}
			go i.remove(ctx, g, g.Address.name(), b, confirmed)
			return
		}
	}
	same := slices.EqualFunc(confirmed, g.taken, func(a, b partition) bool { return a.is(b) })
	if same {
		return
	}
	for _, p := range confirmed {
		if !slices.ContainsFunc(g.taken, p.is) {
			klog.FromContext(ctx).Info("A MIG instance is there that no claim has: its place is not published", "gpu", g.Address.name(), "profile", p.Name, "start", p.placement.Start)
		}
	}
	g.taken = confirmed
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
			if still, known := i.unknown(ctx, g, []instance{*present}); known && len(still) > 0 {
				err = b.destroy(ctx, present)
			}
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Leaving a MIG instance that no claim has", "gpu", name, "profile", p.Name, "start", p.placement.Start)
		}
	}
}
