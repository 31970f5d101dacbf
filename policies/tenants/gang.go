package tenants

// Gangs: the Pods of a PodGroup that start together. As many of them as it
// starts with are one entry of the engine, from when the last of these is there
// until all have ended. The rules are published in docs/quota.md#gangs.

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// gang is a PodGroup as its Pods stand now. Pods that end do not count.
type gang struct {
	id string
	// total Pods are there, of those that it starts with.
	total, least int
	// need is how many Pods of a policy start together: those that follow none
	// have no gate to wait at.
	need int
	// core are the Pods that make the entry; missing, how many more it is
	// charged for.
	core    []string
	missing int
	// open: its turn has come, and torn: it is being evicted.
	open, torn bool
	opening
	inside map[string]bool
}

// opening is for whom the turn of a gang was, and which models these may use;
// none: any.
type opening struct {
	turn   turn
	models []string
}

// turn counts Pods by what makes them alike: see kindOf.
type turn map[string]int

// kindOf is what Pods of a gang have in common that may take each other's place:
// what they ask for by their policy, and whether and for whom that can be taken
// back. It doesn't change while a Pod lives.
func kindOf(pod *corev1.Pod) string {
	return fmt.Sprintf("%s %d %t", templateOf(pod), ptr.Deref(pod.Spec.Priority, 0), preemptible(pod))
}

// turnOn is the turn by which a Pod was let in, as it says.
func turnOn(pod *corev1.Pod) turn {
	var t turn
	if err := json.Unmarshal([]byte(pod.Annotations[v1alpha1.AnnotationTurn]), &t); err != nil {
		return nil
	}
	return t
}

// OpeningOf are the annotations that a Pod gets when an action opens its gate:
// the turn of its gang, and the models that it may use.
func (m *Mirror) OpeningOf(a fair.Action) map[string]string {
	says := map[string]string{}
	if g, _ := m.gangOf(a.ID); g != nil && g.inside[a.ID] && len(g.turn) > 0 {
		text, err := json.Marshal(g.turn)
		if err != nil {
			panic(err) // strings and numbers
		}
		says[v1alpha1.AnnotationTurn] = string(text)
	}
	if len(a.Models) > 0 {
		says[v1alpha1.AnnotationTurnModels] = strings.Join(either(a.Models), ",")
	}
	return says
}

// ServeGroups says that the cluster serves PodGroups. Without it what a Pod says
// of its group counts for nothing. Call it before the first Put.
func (m *Mirror) ServeGroups() { m.grouped = true }

// gangID is the engine's name of a PodGroup's Pods.
func gangID(g *schedulingapi.PodGroup) string {
	return "group/" + g.Namespace + "/" + g.Name + "/" + string(g.UID)
}

// UIDOf is the UID of what an ID of the engine stands for: a Pod, or the
// PodGroup of a gang.
func UIDOf(id string) types.UID { return types.UID(id[strings.LastIndex(id, "/")+1:]) }

// groupAt is the PodGroup that the ID stands for, if it is there.
func (m *Mirror) groupAt(id string) *schedulingapi.PodGroup {
	parts := strings.Split(id, "/")
	if len(parts) != 4 {
		return nil
	}
	group := m.groups[types.NamespacedName{Namespace: parts[1], Name: parts[2]}]
	if group == nil || gangID(group) != id {
		return nil
	}
	return group
}

// groupOf is the PodGroup that a Pod names.
func (m *Mirror) groupOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	if !m.grouped || pod.Spec.SchedulingGroup == nil {
		return types.NamespacedName{}, false
	}
	name := ptr.Deref(pod.Spec.SchedulingGroup.PodGroupName, "")
	return types.NamespacedName{Namespace: pod.Namespace, Name: name}, name != ""
}

// gang reads how a PodGroup stands; nil where its Pods are each on their own.
func (m *Mirror) gang(group *schedulingapi.PodGroup) *gang {
	key := keyOf(group)
	if g, ok := m.seen[key]; ok {
		return g
	}
	g := m.readGang(group, key)
	if m.seen != nil {
		m.seen[key] = g
	}
	return g
}

func (m *Mirror) readGang(group *schedulingapi.PodGroup, key types.NamespacedName) *gang {
	if _, limited := m.tenant(group.Namespace); !limited || group.Spec.SchedulingPolicy.Gang == nil {
		return nil
	}
	least := int(group.Spec.SchedulingPolicy.Gang.MinCount)
	g := &gang{id: gangID(group), least: least, need: least, inside: map[string]bool{}}
	var gated, open []string
	started, left, follow := false, false, false
	for id := range m.peers[key] {
		pod := m.pods[id]
		switch {
		case over(pod):
			left = left || m.due(pod)
			continue
		case templateOf(pod) == "":
			g.need--
		case HasGate(pod) && !m.isAsked(id, fair.Open):
			gated = append(gated, id)
		default:
			open = append(open, id)
			started = started || m.hasDevices(id, pod)
			follow = follow || m.due(pod)
		}
		g.total++
	}
	if g.need < 1 && len(open) == 0 {
		return nil
	}
	slices.SortFunc(gated, m.byJoining)
	slices.SortFunc(open, m.byJoining)
	if g.open = len(open) > 0; g.open {
		gated = m.letIn(g, open, gated)
	}
	g.torn = g.open && (m.torn[g.id] || left && follow)
	g.core = open
	if !started && !g.torn {
		// Before it has started all that it starts with belong to it. Where its
		// turn has come already they are let in at once, but none that it was not for.
		lack := max(g.need-len(open), 0)
		g.core = slices.Concat(open, gated[:min(lack, len(gated))])
		if g.open {
			g.missing = max(lack-len(gated), 0)
		}
	}
	slices.SortFunc(g.core, m.byJoining)
	for _, id := range g.core {
		g.inside[id] = true
	}
	return g
}

func (m *Mirror) kindsOf(ids []string) turn {
	t := turn{}
	for _, id := range ids {
		t[kindOf(m.pods[id])]++
	}
	return t
}

// letIn reads for whom the turn of a gang was, and for which models, and returns
// which of the Pods at their gates it was for, or who can take the place of one
// that is gone. Nothing that a PodGroup says afterwards lets in more. The oldest
// Pod counts: a later one may have had a turn of its own, for other models.
func (m *Mirror) letIn(g *gang, open, gated []string) []string {
	all := 0
	for _, id := range open {
		if g.opening = (opening{turnOn(m.pods[id]), m.modelsFor(id)}); len(g.turn) > 0 {
			break
		}
	}
	if len(g.turn) == 0 {
		g.opening = m.turns[g.id] // it is just being written
	}
	if len(g.turn) == 0 {
		g.need = 0 // by hand: the others have turns of their own
		return nil
	}
	left := maps.Clone(g.turn)
	for _, n := range g.turn {
		all += n
	}
	g.need = min(g.need, all)
	for _, id := range open {
		left[kindOf(m.pods[id])]--
	}
	return slices.DeleteFunc(gated, func(id string) bool {
		kind := kindOf(m.pods[id])
		left[kind]--
		return left[kind] < 0
	})
}

// due: the Pod was told that it is evicted by now.
func (m *Mirror) due(pod *corev1.Pod) bool {
	deadline, ok := deadlineOf(pod)
	return ok && !m.now.Before(deadline)
}

// byJoining orders the Pods of a gang: the oldest belong to it first.
func (m *Mirror) byJoining(a, b string) int {
	return cmp.Or(m.pods[a].CreationTimestamp.Compare(m.pods[b].CreationTimestamp.Time), cmp.Compare(a, b))
}

// complete: as many Pods are there as it starts with, or its turn has come.
func (g *gang) complete() bool { return g.open || len(g.core) >= g.need }

// hasDevices: the claim of the Pod's policy is allocated.
func (m *Mirror) hasDevices(id string, pod *corev1.Pod) bool {
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.Name == v1alpha1.ClaimRefName {
			claim := m.claimOf(pod, id, ref)
			return claim != nil && claim.Status.Allocation != nil
		}
	}
	return false
}

// gangOf is the gang of a Pod of a policy that has not ended, or nil. missing:
// it names a PodGroup that is not there.
func (m *Mirror) gangOf(id string) (g *gang, missing bool) {
	pod := m.pods[id]
	if over(pod) || templateOf(pod) == "" {
		return nil, false
	}
	key, ok := m.groupOf(pod)
	if _, limited := m.tenant(pod.Namespace); !ok || !limited {
		return nil, false
	}
	group := m.groups[key]
	if group == nil {
		return nil, true
	}
	return m.gang(group), false
}

// inGang: the Pod is told with its gang. blocked says why one that is not can't
// have a turn of its own yet.
func (m *Mirror) inGang(id string) (inside bool, blocked fair.Reason) {
	g, missing := m.gangOf(id)
	switch {
	case missing && HasGate(m.pods[id]):
		return false, ReasonGroupMissing
	case g == nil:
		return false, ""
	case g.inside[id]:
		return true, ""
	case !g.open || g.torn:
		return false, ReasonBehindGroup
	}
	return false, ""
}

// entryOf is the ID of what the engine knows of a Pod.
func (m *Mirror) entryOf(id string) string {
	if g, _ := m.gangOf(id); g != nil && g.inside[id] {
		return g.id
	}
	return id
}

// Fellows are the Pods that share a Pod's fate: those of its gang, or it alone.
func (m *Mirror) Fellows(id string) []string {
	if g, _ := m.gangOf(id); g != nil && g.inside[id] {
		return slices.Clone(g.core)
	}
	return []string{id}
}

// lookAtGang reads what the work of a gang is now. blocked says why one that
// waits is not the engine's yet.
func (m *Mirror) lookAtGang(group *schedulingapi.PodGroup, now time.Time) (*work, fair.Reason) {
	g := m.gang(group)
	if g == nil || !g.open {
		m.closeGang(group)
	}
	switch {
	case g == nil || len(g.core) == 0:
		return nil, ""
	case !g.complete():
		return nil, ReasonGroupIncomplete
	}
	w, blocked := m.gather(g, now)
	if !g.open && blocked != "" {
		return nil, blocked
	}
	if len(w.entry.Requests) == 0 {
		return nil, ""
	}
	for _, id := range g.core {
		if notice := m.noticeOf(m.pods[id], w); notice != nil && (w.notice == nil || notice.Deadline.After(w.notice.Deadline)) {
			w.notice = notice
		}
	}
	m.finish(g, w, now)
	return w, ""
}

// closeGang drops what is known of a gang that was let in.
func (m *Mirror) closeGang(group *schedulingapi.PodGroup) {
	delete(m.torn, gangID(group))
	delete(m.turns, gangID(group))
}

// finish notes what the Pods of a gang have still to be given that others of it
// have: the end of their gate, a notice, an eviction.
func (m *Mirror) finish(g *gang, w *work, now time.Time) {
	for _, id := range g.core {
		pod := m.pods[id]
		gated := HasGate(pod)
		_, told := deadlineOf(pod)
		delete(m.unfinished, id)
		a := fair.Action{ID: id, Tenant: w.entry.Tenant}
		switch {
		case g.torn:
			a.Kind = fair.Evict
		case g.open && gated && !now.Before(m.paused[id]):
			a.Kind, a.Models = fair.Open, g.models
		case w.notice != nil && !gated && !told && !m.isAsked(id, fair.Cancel):
			a.Kind, a.For, a.Deadline = fair.Notice, w.notice.For, w.notice.Deadline
		default:
			continue
		}
		if !m.isAsked(id, a.Kind) {
			m.unfinished[id] = a
		}
	}
}

// isAsked: this was the last that was asked for of a Pod of a gang.
func (m *Mirror) isAsked(id string, kind fair.Kind) bool {
	last, ok := m.asked[id]
	return ok && last.Kind == kind
}

// each is an action about a gang as actions about its Pods.
func (m *Mirror) each(a fair.Action) []fair.Action {
	group := m.groupAt(a.ID)
	if group == nil {
		if g, _ := m.gangOf(a.ID); g != nil && a.Kind == fair.Open {
			m.asked[a.ID] = a // it joins those that are open
		}
		if a.Kind == fair.Widen && m.pods[a.ID] != nil {
			m.widen(a.ID)
		}
		return []fair.Action{a}
	}
	g := m.gang(group)
	if g == nil || a.Kind == fair.Cancel && g.torn {
		return nil
	}
	if a.Kind == fair.Open && !g.open {
		m.turns[g.id] = opening{m.kindsOf(g.core), a.Models}
	}
	var actions []fair.Action
	for _, id := range g.core {
		gated := HasGate(m.pods[id])
		switch a.Kind {
		case fair.Open, fair.Evict:
			if m.isAsked(id, a.Kind) || a.Kind == fair.Open && !gated {
				continue
			}
		case fair.Notice, fair.Cancel, fair.Widen:
			if gated {
				continue // there is nothing to tell to one that has nothing
			}
		}
		one := a
		one.ID = id
		if a.Kind == fair.Widen {
			m.widen(id)
		} else {
			m.asked[id] = one
		}
		actions = append(actions, one)
	}
	return actions
}

// Evicted tells that a Pod was evicted. The others of its gang follow, whatever
// comes.
func (m *Mirror) Evicted(id string) {
	if entry := m.entryOf(id); entry != id {
		m.torn[entry] = true
		m.mark(id)
	}
}

// Torn: others of the Pod's gang were evicted.
func (m *Mirror) Torn(id string) bool {
	g, _ := m.gangOf(id)
	return g != nil && g.torn
}
