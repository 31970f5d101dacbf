package tenants

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// life is what was seen of a Pod, as times of observation; zero: not yet.
type life struct {
	client.ObjectKey
	seen, opened, bound, gone time.Time
	// freed is when its claim gave its devices back.
	freed time.Time
	// ended: it was deleted by us, and before it had a node if dropped.
	ended, dropped bool
}

// follower reads a history as it grows.
type follower struct {
	read  int // entries
	lives map[types.UID]*life
	live  map[types.UID]*life // those that are not gone
	holds map[types.UID]bool  // Pods whose claim has devices
	// moved is when a Pod was last let in, bound or gone, or a device changed
	// hands.
	moved time.Time
}

func newFollower() *follower {
	return &follower{lives: map[types.UID]*life{}, live: map[types.UID]*life{}, holds: map[types.UID]bool{}}
}

// take reads more entries.
func (f *follower) take(entries invariants.History) {
	f.read += len(entries)
	for _, e := range entries {
		switch {
		case e.Pod != nil:
			f.pod(e.At, e.Type, e.Pod)
		case e.Claim != nil:
			f.claim(e.At, e.Type, e.Claim)
		}
	}
}

func (f *follower) of(uid types.UID) *life {
	l := f.lives[uid]
	if l == nil {
		l = &life{}
		f.lives[uid] = l
	}
	return l
}

func (f *follower) pod(at time.Time, kind watch.EventType, p *corev1.Pod) {
	l := f.of(p.UID)
	if l.seen.IsZero() {
		l.ObjectKey, l.seen = client.ObjectKeyFromObject(p), at
		f.live[p.UID] = l
	}
	if kind == watch.Deleted {
		l.gone, f.moved = at, at
		delete(f.live, p.UID)
		return
	}
	if l.opened.IsZero() && !gated(p) {
		l.opened, f.moved = at, at
	}
	if l.bound.IsZero() && p.Spec.NodeName != "" {
		l.bound, f.moved = at, at
	}
}

func gated(p *corev1.Pod) bool {
	for _, g := range p.Spec.SchedulingGates {
		if g.Name == v1alpha1.GateQuota {
			return true
		}
	}
	return false
}

// claim notes when a Pod's claim is given devices and gives them back. It may be
// heard of before its Pod.
func (f *follower) claim(at time.Time, kind watch.EventType, c *resourcev1.ResourceClaim) {
	owner := metav1.GetControllerOf(c)
	if owner == nil {
		return
	}
	had, has := f.holds[owner.UID], kind != watch.Deleted && c.Status.Allocation != nil
	switch {
	case had == has:
		return
	case has:
		f.holds[owner.UID] = true
	default:
		delete(f.holds, owner.UID)
		f.of(owner.UID).freed = at
	}
	f.moved = at
}

// count counts the Pods that are there: all, those with an open gate, and of
// those the ones with a node.
func (f *follower) count() (all, opened, bound int) {
	for _, l := range f.live {
		if !l.opened.IsZero() {
			opened++
		}
		if !l.bound.IsZero() {
			bound++
		}
	}
	return len(f.live), opened, bound
}
