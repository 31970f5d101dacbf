package tenants

// Where an object is found, and what else to look at again when one changes.

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/fair"
)

// renew looks again at all Pods of a revision.
func (m *Mirror) renew(revision string) {
	delete(m.tiers, revision)
	for id, pod := range m.pods {
		if templateOf(pod) == revision {
			m.mark(id)
		}
	}
}

// mark has work looked at again, and with a Pod all that are of its PodGroup.
func (m *Mirror) mark(id string) {
	m.dirty[id] = true
	if pod := m.pods[id]; pod != nil {
		m.markGroup(pod)
	}
}

func (m *Mirror) markGroup(pod *corev1.Pod) {
	key, ok := m.groupOf(pod)
	if !ok {
		return
	}
	for id := range m.peers[key] {
		m.dirty[id] = true
	}
	if group := m.groups[key]; group != nil {
		m.dirty[gangID(group)] = true
	}
}

func (m *Mirror) setPod(pod *corev1.Pod, gone bool) {
	id, key := IDOf(pod.Namespace, pod.Name, pod.UID), keyOf(pod)
	group, grouped := m.groupOf(pod)
	if m.pods[id] != nil || !gone {
		m.bequeath(id, pod)
	}
	gone = gone || len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil && !HasGate(pod) && !grouped
	if other, ok := m.podAt[key]; ok && (other != id || gone) {
		if other != id && gone {
			return // of one that was replaced already
		}
		m.forget(other)
	}
	if gone {
		return
	}
	if old := m.pods[id]; old != nil {
		m.disown(id, old)
		m.unindex(id, old)
	}
	m.pods[id], m.podAt[key], m.podOf[pod.UID] = pod, id, id
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		if m.controlled[owner.UID] == nil {
			m.controlled[owner.UID] = map[string]bool{}
		}
		m.controlled[owner.UID][id] = true
	}
	if grouped {
		if m.peers[group] == nil {
			m.peers[group] = map[string]bool{}
		}
		m.peers[group][id] = true
	}
	if m.isAsked(id, fair.Open) && !HasGate(pod) {
		delete(m.asked, id)
	}
	if len(modelsOn(pod)) == 0 {
		delete(m.widened, id)
	}
	m.mark(id)
	eachNamed(pod, func(claim types.NamespacedName) { m.link(m.users, claim, id) })
	eachMade(pod, func(claim types.NamespacedName) { m.link(m.made, claim, id) })
	m.touchOwned(id)
}

// touchOwned looks again at the claims that say they were made for a Pod.
func (m *Mirror) touchOwned(id string) {
	for key := range m.owned[id] {
		m.touch(m.claims[key])
	}
}

// link notes that a Pod has to do with a claim, and looks again at whom it
// concerns.
func (m *Mirror) link(index map[types.NamespacedName]map[string]bool, key types.NamespacedName, id string) {
	if index[key] == nil {
		index[key] = map[string]bool{}
	}
	index[key][id] = true
	if claim := m.claims[key]; claim != nil {
		m.touch(claim)
	}
}

// unindex takes back what link noted of a Pod.
func (m *Mirror) unindex(id string, pod *corev1.Pod) {
	unlink := func(index map[types.NamespacedName]map[string]bool, key types.NamespacedName) {
		if claim := m.claims[key]; claim != nil {
			m.touch(claim)
		}
		if delete(index[key], id); len(index[key]) == 0 {
			delete(index, key)
		}
	}
	eachNamed(pod, func(claim types.NamespacedName) { unlink(m.users, claim) })
	eachMade(pod, func(claim types.NamespacedName) { unlink(m.made, claim) })
}

// disown drops a Pod from those of its controller.
func (m *Mirror) disown(id string, pod *corev1.Pod) {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		if delete(m.controlled[owner.UID], id); len(m.controlled[owner.UID]) == 0 {
			delete(m.controlled, owner.UID)
		}
	}
}

// forget drops a Pod that is gone.
func (m *Mirror) forget(id string) {
	pod := m.pods[id]
	delete(m.pods, id)
	delete(m.podAt, keyOf(pod))
	delete(m.podOf, pod.UID)
	delete(m.asked, id)
	delete(m.widened, id)
	delete(m.inherited, id)
	m.disown(id, pod)
	m.dirty[id] = true
	m.markGroup(pod)
	if group, ok := m.groupOf(pod); ok {
		if delete(m.peers[group], id); len(m.peers[group]) == 0 {
			delete(m.peers, group)
		}
	}
	m.unindex(id, pod)
	m.touchOwned(id)
}

// eachNamed visits the claims that a Pod names.
func eachNamed(pod *corev1.Pod, visit func(claim types.NamespacedName)) {
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimName != nil {
			visit(types.NamespacedName{Namespace: pod.Namespace, Name: *ref.ResourceClaimName})
		}
	}
}

// eachMade visits the claims that were made for a Pod, that for extended resources
// included, as its status says, which no tenant can write.
func eachMade(pod *corev1.Pod, visit func(claim types.NamespacedName)) {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			visit(types.NamespacedName{Namespace: pod.Namespace, Name: *s.ResourceClaimName})
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		visit(types.NamespacedName{Namespace: pod.Namespace, Name: s.ResourceClaimName})
	}
}

func (m *Mirror) setClaim(claim *resourceapi.ResourceClaim, gone bool) {
	key := keyOf(claim)
	if old := m.claims[key]; old != nil {
		if gone && old.UID != claim.UID {
			return
		}
		m.fleet.hold(old, -1)
		m.touch(old)
		delete(m.claims, key)
		if id := ownerID(old); id != "" {
			if delete(m.owned[id], key); len(m.owned[id]) == 0 {
				delete(m.owned, id)
			}
		}
	}
	m.newHolds = true
	if gone {
		return
	}
	m.claims[key] = claim
	m.fleet.hold(claim, 1)
	if id := ownerID(claim); id != "" {
		if m.owned[id] == nil {
			m.owned[id] = map[types.NamespacedName]bool{}
		}
		m.owned[id][key] = true
	}
	m.touch(claim)
}

// touch looks again at all that a claim concerns.
func (m *Mirror) touch(claim *resourceapi.ResourceClaim) {
	m.dirty[claimID(claim)] = true
	if id := ownerID(claim); id != "" {
		m.mark(id)
	}
	for _, index := range []map[types.NamespacedName]map[string]bool{m.users, m.made} {
		for id := range index[keyOf(claim)] {
			m.mark(id)
		}
	}
}

func (m *Mirror) setGroup(group *schedulingapi.PodGroup, gone bool) {
	key := keyOf(group)
	if old := m.groups[key]; old != nil {
		if gone && old.UID != group.UID {
			return
		}
		m.dirty[gangID(old)] = true
		delete(m.podOf, old.UID)
		if gone || old.UID != group.UID {
			m.closeGang(old)
		}
	}
	put(m.groups, key, group, gone)
	if !gone {
		m.podOf[group.UID] = gangID(group)
		m.dirty[gangID(group)] = true
	}
	for id := range m.peers[key] {
		m.dirty[id] = true
	}
}
