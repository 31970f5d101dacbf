package invariants

import (
	"fmt"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const freed = "I9 a Pod that is gone leaves no device, CDI file or checkpoint entry"

// lifetime is how long a claim had devices, and since when it may no longer.
type lifetime struct {
	name string
	// node is where the claim's devices are, for the driver's pools.
	node string
	// due is when the claim's Pod was gone; zero while it is there.
	due time.Time
	// free is when the claim had no devices any more; zero while it has.
	free time.Time
}

// FreedDevices checks I9: within the bound after a Pod is gone, the claims that
// were made for it have no devices, and no later look at their node finds a CDI
// file or a checkpoint entry of theirs. Where nodes were looked at, each of
// their claims must have been looked for once after its time.
func FreedDevices(h History, within time.Duration) Report {
	claims := lifetimes(h)
	end := h.end()
	var violations, missing []string
	missing = append(missing, h.Gaps()...)
	checked := 0
	for _, uid := range sortedByDue(claims) {
		l := claims[uid]
		if l.due.IsZero() {
			continue
		}
		checked++
		bound := l.due.Add(within)
		switch {
		case !l.free.IsZero() && l.free.After(bound):
			violations = append(violations, fmt.Sprintf("%s: claim %s kept its devices for %s after its Pod was gone",
				l.free.Format(stamp), l.name, l.free.Sub(l.due).Round(time.Millisecond)))
		case l.free.IsZero() && end.After(bound):
			violations = append(violations, fmt.Sprintf("%s: claim %s still has its devices, its Pod is gone since %s",
				end.Format(stamp), l.name, l.due.Format(stamp)))
		case l.free.IsZero():
			missing = append(missing, fmt.Sprintf("claim %s has its devices, and its time is not over", l.name))
		}
		found, gap := onHost(h, uid, l, bound)
		violations, missing = append(violations, found...), append(missing, gap...)
	}
	return conclude(freed, checked, violations, missing)
}

// lifetimes follows the claims that were made for Pods.
func lifetimes(h History) map[types.UID]*lifetime {
	claims := map[types.UID]*lifetime{}
	ofPod := map[types.UID][]types.UID{}
	gone := map[types.UID]time.Time{}
	for _, e := range h {
		switch {
		case e.Claim != nil:
			owner := madeFor(e.Claim)
			if owner == "" {
				continue
			}
			l := claims[e.Claim.UID]
			has := e.Type != watch.Deleted && len(heldBy(e.Claim)) > 0
			if l == nil {
				if !has {
					continue
				}
				l = &lifetime{name: e.Claim.Namespace + "/" + e.Claim.Name, due: gone[owner]}
				claims[e.Claim.UID] = l
				ofPod[owner] = append(ofPod[owner], e.Claim.UID)
			}
			if has {
				l.free = time.Time{}
				l.node = heldBy(e.Claim)[0].Pool
			} else if l.free.IsZero() {
				l.free = e.At
			}
		case e.Pod != nil && e.Type == watch.Deleted:
			gone[e.Pod.UID] = e.At
			for _, uid := range ofPod[e.Pod.UID] {
				claims[uid].due = e.At
			}
		}
	}
	return claims
}

// madeFor is the Pod whose template made the claim, or empty.
func madeFor(claim *resourcev1.ResourceClaim) types.UID {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" {
		return ""
	}
	return owner.UID
}

// onHost looks through what was seen of the claim's node after the bound.
func onHost(h History, uid types.UID, l *lifetime, bound time.Time) (violations, missing []string) {
	looks, late := 0, 0
	for _, e := range h {
		if e.Host == nil || e.Host.Node != l.node {
			continue
		}
		looks++
		if !e.At.After(bound) {
			continue
		}
		late++
		if slices.Contains(e.Host.CDI, uid) {
			violations = append(violations, fmt.Sprintf("%s: node %s still has the CDI file of claim %s (%s)", e.At.Format(stamp), l.node, l.name, uid))
		}
		if slices.Contains(e.Host.Prepared, uid) {
			violations = append(violations, fmt.Sprintf("%s: node %s still has claim %s (%s) in its checkpoint", e.At.Format(stamp), l.node, l.name, uid))
		}
	}
	if looks > 0 && late == 0 {
		missing = append(missing, fmt.Sprintf("node %s was not looked at after the time of claim %s", l.node, l.name))
	}
	return violations, missing
}

func sortedByDue(claims map[types.UID]*lifetime) []types.UID {
	var uids []types.UID
	for uid := range claims {
		uids = append(uids, uid)
	}
	slices.SortFunc(uids, func(a, b types.UID) int {
		if c := claims[a].due.Compare(claims[b].due); c != 0 {
			return c
		}
		if a < b {
			return -1
		}
		return 1
	})
	return uids
}
