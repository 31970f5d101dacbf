package ladder

import (
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/retry"
	"gpuladder.dev/ladder/scheduler/view"
)

// cause is a kind of change that Pods wait for.
type cause uint16

const (
	// causeSlices: devices appeared, or changed.
	causeSlices cause = 1 << iota
	// causeNodes: a node appeared, or its labels or resources changed.
	causeNodes
	// causeHealth: a node's taints or conditions changed.
	causeHealth
	// causeClasses: a device class appeared or changed.
	causeClasses
	// causeOwn: the Pod or one of its claims changed.
	causeOwn
	// causeOthers: devices of another claim or Pod became free.
	causeOthers
	// causeObjects: a policy, revision, quota or namespace changed.
	causeObjects
	// causeAPI: the API server answers again.
	causeAPI
	// causeNew: a node or a slice appeared, whichever.
	causeNew
)

// hold keeps a Pod out of the scheduling queue.
type hold struct {
	class v1alpha1.FailureClass
	why   string
	// until is the end of a backoff; zero where only a change ends the hold.
	until time.Time
	// wakes are the changes that end it. Of slices only those of the pools
	// count, and of nodes only the one that is named, where there are any.
	wakes cause
	pools sets.Set[view.PoolKey]
	node  string
	// healthAside says that a change of a slice's taints alone changes nothing.
	healthAside bool
	// gaveUp says that the Pod used up its attempts or its time.
	gaveUp bool
	// unchanged looks, once the Pod is in the queue, whether what failed still
	// does: a change may have come after the failure and before that.
	unchanged func() bool
	// armed says that PreEnqueue knows of the hold.
	armed bool
}

// backoff is the hold after a failure that is tried again.
func backoff(state retry.State) *hold {
	return &hold{until: state.Next, why: "waiting until " + state.Next.UTC().Format(time.RFC3339) + " after a failed attempt"}
}

// holdOf returns the hold of a class of which nothing but a change can help, or
// nil where the scheduling queue may try the Pod at any time.
func holdOf(class v1alpha1.FailureClass) *hold {
	h := &hold{class: class, why: string(class) + ": waiting for a change that can help"}
	switch class {
	case v1alpha1.FailureUnsatisfiable, v1alpha1.FailureQuotaNeverFits:
		// Found with every device free and healthy and every node usable, so
		// that none of that matters.
		h.wakes, h.healthAside = causeSlices|causeNodes|causeClasses|causeOwn|causeObjects, true
	case v1alpha1.FailurePolicyInvalid:
		h.wakes = causeClasses | causeOwn | causeObjects
	case v1alpha1.FailureClaimGone:
		h.wakes = causeOwn
	default:
		return nil
	}
	return h
}

// holdForGood returns the hold of a retryable class that is not tried again.
// What the failure was about ends it, also by being gone, for nothing will be
// heard of it then; and so does whatever may give the Pod another place.
func holdForGood(class v1alpha1.FailureClass, devices []reservedDevice, node string) *hold {
	h := &hold{class: class, why: string(class) + ": no further attempt until a change can help", gaveUp: true, wakes: causeOwn | causeObjects | causeOthers | causeNew}
	switch class {
	case v1alpha1.FailureStaleSlice, v1alpha1.FailureDeviceBecameUnhealthy:
		h.wakes |= causeSlices
		h.pools = sets.New[view.PoolKey]()
		for _, d := range devices {
			h.pools.Insert(d.pool)
		}
	case v1alpha1.FailureNodeLost:
		h.wakes |= causeNodes | causeHealth
		h.node = node
	case v1alpha1.FailureAPIUnavailable:
		h.wakes |= causeAPI
	}
	return h
}

// minds says whether a change of this kind may end the Pod's wait.
func (p *parkedPod) minds(c cause) bool { return p.hold == nil || p.hold.wakes&c != 0 }

// mindsSlice says whether this change of a slice may; old is nil for a new one,
// and current for one that is gone.
func (p *parkedPod) mindsSlice(old, current *resourceapi.ResourceSlice) bool {
	switch {
	case p.hold == nil:
		return current != nil
	case current == nil:
		return p.hold.pools.Has(poolOfSlice(old))
	case old == nil && p.hold.wakes&causeNew != 0:
		return true
	case p.hold.wakes&causeSlices == 0:
		return false
	case p.hold.pools != nil && !p.hold.pools.Has(poolOfSlice(current)):
		return false
	}
	return !p.hold.healthAside || old == nil || !sameButTaints(old, current)
}

// wrote says whether a change of a claim is only what the scheduler itself writes
// when it tries the Pod: the reservation for it, with the allocation or without.
// That changes nothing for a Pod that is held.
func (p *parkedPod) wrote(before, after *resourceapi.ResourceClaim) bool {
	return p.hold != nil && before != nil && after != nil && sameButOwn(before, after, p.pod.UID)
}

// sameButOwn says whether two versions of a claim differ at most in the Pod's own
// reservation, and in an allocation that came with it.
func sameButOwn(before, after *resourceapi.ResourceClaim, pod types.UID) bool {
	left, right := before.Status.DeepCopy(), after.Status.DeepCopy()
	own := func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod }
	if left.Allocation == nil && slices.ContainsFunc(right.ReservedFor, own) {
		right.Allocation = nil
	}
	left.ReservedFor, right.ReservedFor = slices.DeleteFunc(left.ReservedFor, own), slices.DeleteFunc(right.ReservedFor, own)
	return apiequality.Semantic.DeepEqual(left, right)
}

func poolOfSlice(s *resourceapi.ResourceSlice) view.PoolKey {
	return view.PoolKey{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name}
}

// mindsNode says whether a change of this node may.
func (p *parkedPod) mindsNode(c cause, name string) bool {
	if p.hold == nil || p.hold.wakes&c&causeNew != 0 {
		return true
	}
	return p.hold.wakes&c != 0 && (p.hold.node == "" || p.hold.node == name)
}

// waitsForNode says whether it is this node that the Pod is held for.
func (p *parkedPod) waitsForNode(name string) bool { return p.hold != nil && p.hold.node == name }

// sameButTaints says whether two versions of a slice differ at most in the
// taints of their devices.
func sameButTaints(a, b *resourceapi.ResourceSlice) bool {
	if len(a.Spec.Devices) != len(b.Spec.Devices) {
		return false
	}
	left, right := a.Spec, b.Spec
	left.Devices, right.Devices = nil, nil
	if !apiequality.Semantic.DeepEqual(left, right) {
		return false
	}
	for i := range a.Spec.Devices {
		left, right := a.Spec.Devices[i], b.Spec.Devices[i]
		left.Taints, right.Taints = nil, nil
		if !apiequality.Semantic.DeepEqual(left, right) {
			return false
		}
	}
	return true
}
