package tenants

// Work that comes back: the Pod that a Job makes in place of one whose devices
// were taken back goes on with its count. Otherwise it would borrow again at
// once, only to lose the devices again.

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	// estateKept is how long a count waits for the Pod that goes on with it. No
	// cool-down is longer.
	estateKept = 24 * time.Hour
	// clockSkew is how far the API server's clock may be behind the controller's.
	clockSkew = 10 * time.Second
	// maxReclaims bounds what is read; cool-downs end growing long before.
	maxReclaims = 1000
	// EvictionReason is that of the condition DisruptionTarget that the Eviction
	// API writes.
	EvictionReason = "EvictionByEvictionAPI"
)

// Reclaims is how often the devices of some work were taken back, and when that
// was last.
type Reclaims struct {
	Times int64
	At    time.Time
}

// Annotations are those that say it on a Pod.
func (r Reclaims) Annotations() map[string]string {
	return map[string]string{
		v1alpha1.AnnotationReclaims:  strconv.FormatInt(r.Times, 10),
		v1alpha1.AnnotationReclaimed: r.At.UTC().Format(time.RFC3339),
	}
}

// ReclaimsOn is what a Pod says of itself, where nobody else can say it: zero
// where it says nothing.
func ReclaimsOn(pod *corev1.Pod) Reclaims {
	if pod.Labels[v1alpha1.LabelPolicy] == "" {
		return Reclaims{}
	}
	times, err := strconv.ParseInt(pod.Annotations[v1alpha1.AnnotationReclaims], 10, 64)
	if err != nil || times < 1 {
		return Reclaims{}
	}
	at, err := time.Parse(time.RFC3339, pod.Annotations[v1alpha1.AnnotationReclaimed])
	if err != nil {
		return Reclaims{}
	}
	return Reclaims{Times: min(times, maxReclaims), At: at.UTC()}
}

// estate is what a Pod leaves whose devices were taken back, until the Pod that
// came in its place is known and it is gone itself.
type estate struct {
	Reclaims
	namespace, heir string
}

// Reclaims is how often devices were taken back of the work that the Pod goes
// on with.
func (m *Mirror) Reclaims(id string) Reclaims {
	if r, ok := m.inherited[id]; ok {
		return r
	}
	if pod := m.pods[id]; pod != nil {
		return ReclaimsOn(pod)
	}
	return Reclaims{}
}

// Unsaid are annotations that Pods do not have as they should, by their IDs; nil
// stands for one that is to be taken off. Pods at their gates go on with a count,
// and others may use any model again.
func (m *Mirror) Unsaid() map[string]map[string]any {
	list := map[string]map[string]any{}
	for id, r := range m.inherited {
		if pod := m.pods[id]; HasGate(pod) && ReclaimsOn(pod) != r {
			list[id] = map[string]any{}
			for key, value := range r.Annotations() {
				list[id][key] = value
			}
		}
	}
	for id := range m.widened {
		if pod := m.pods[id]; !HasGate(pod) {
			list[id] = map[string]any{v1alpha1.AnnotationTurnModels: nil}
		}
	}
	return list
}

// evictedAt is when a Pod that had notice was evicted. Only the API server
// writes the condition, before it deletes the Pod.
func evictedAt(pod *corev1.Pod) (time.Time, bool) {
	deadline, noticed := deadlineOf(pod)
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == EvictionReason
	})
	if !noticed || at < 0 {
		return time.Time{}, false
	}
	evicted := pod.Status.Conditions[at].LastTransitionTime.UTC()
	// Before the deadline somebody else did it.
	return evicted, !evicted.Add(clockSkew).Before(deadline)
}

// bequeath notes what a Pod leaves that is evicted for its devices. Who has no
// controller is not replaced. Pods of gangs are left out: the gang is the entry.
func (m *Mirror) bequeath(id string, pod *corev1.Pod) {
	owner := metav1.GetControllerOfNoCopy(pod)
	evicted, ok := evictedAt(pod)
	if !ok || owner == nil || pod.Labels[v1alpha1.LabelPolicy] == "" || m.estates[owner.UID][id] != nil {
		return
	}
	if _, grouped := m.groupOf(pod); grouped {
		return
	}
	had, ok := m.inherited[id]
	if !ok {
		had = ReclaimsOn(pod)
	}
	if m.estates[owner.UID] == nil {
		m.estates[owner.UID] = map[string]*estate{}
	}
	m.estates[owner.UID][id] = &estate{Reclaims: Reclaims{Times: min(had.Times+1, maxReclaims), At: evicted}, namespace: pod.Namespace}
}

// inherit gives what Pods left to those that came in their place. First those
// that say so, so that who starts anew finds the same heirs.
func (m *Mirror) inherit(now time.Time) {
	for _, owner := range slices.SortedFunc(maps.Keys(m.estates), cmp.Compare[types.UID]) {
		left := m.estates[owner]
		ids := slices.SortedFunc(maps.Keys(left), func(a, b string) int { return cmp.Or(left[a].At.Compare(left[b].At), cmp.Compare(a, b)) })
		for _, find := range []func(types.UID, *estate) string{m.saidHeir, m.newHeir} {
			for _, id := range ids {
				if e := left[id]; e.heir == "" && now.Sub(e.At) <= estateKept {
					if e.heir = find(owner, e); e.heir != "" {
						m.inherited[e.heir] = e.Reclaims
						m.mark(e.heir)
					}
				}
			}
		}
		for _, id := range ids {
			if e := left[id]; m.pods[id] == nil && (e.heir != "" || now.Sub(e.At) > estateKept) {
				delete(left, id)
			}
		}
		if len(left) == 0 {
			delete(m.estates, owner)
		}
	}
}

// saidHeir is the Pod that says that it goes on with what was left.
func (m *Mirror) saidHeir(owner types.UID, e *estate) string {
	for _, id := range slices.Sorted(maps.Keys(m.controlled[owner])) {
		if _, has := m.inherited[id]; !has && m.pods[id].Namespace == e.namespace && ReclaimsOn(m.pods[id]) == e.Reclaims {
			return id
		}
	}
	return ""
}

// newHeir is the first Pod that the controller has made since the eviction, if it
// waits at its gate and goes on with nothing yet.
func (m *Mirror) newHeir(owner types.UID, e *estate) string {
	var heir string
	var created time.Time
	for _, id := range slices.Sorted(maps.Keys(m.controlled[owner])) {
		pod, told := m.pods[id], m.told[id]
		_, has := m.inherited[id]
		if has || over(pod) || !HasGate(pod) || told != nil && told.phase != waiting || pod.Namespace != e.namespace || ReclaimsOn(pod).Times > 0 {
			continue
		}
		if at := pod.CreationTimestamp.Time; !at.Before(e.At) && (heir == "" || at.Before(created)) {
			heir, created = id, at
		}
	}
	return heir
}
