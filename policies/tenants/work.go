package tenants

// What a Pod asks for and holds, read from the Pod, its claims and its policy.

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// Reasons why a Pod waits that the engine does not know of, beside its own.
const (
	// ReasonRevisionMissing: there is no revision that the Pod was admitted with.
	ReasonRevisionMissing fair.Reason = "RevisionMissing"
	// ReasonRevisionWithdrawn: the revision is withdrawn; the scheduler would park the Pod.
	ReasonRevisionWithdrawn fair.Reason = "RevisionWithdrawn"
	// ReasonNoSuchDevices: no device of the fleet is what any tier asks for.
	ReasonNoSuchDevices fair.Reason = "NoSuchDevices"
	// ReasonOpenRefused: the API server refused to open the gate.
	ReasonOpenRefused fair.Reason = "OpenRefused"
	// ReasonGroupMissing: the PodGroup that the Pod belongs to is not there.
	ReasonGroupMissing fair.Reason = "GroupMissing"
	// ReasonGroupIncomplete: fewer Pods of the gang are there than it starts with.
	ReasonGroupIncomplete fair.Reason = "GroupIncomplete"
	// ReasonBehindGroup: the gang has as many Pods as it starts with; others of
	// it have their turn when it is open.
	ReasonBehindGroup fair.Reason = "BehindGroup"
)

// phase is where work is in its life.
type phase int8

const (
	waiting phase = iota
	open
	releasing
)

// work is what the engine is told of a Pod, of a gang, or of claims that outlive
// their Pod.
type work struct {
	entry fair.Entry
	phase phase
	// models that it may use once it is open, sorted; empty: any.
	models []string
	// policy: the first request is the policy's.
	policy  bool
	decided bool
	devices []fair.Devices
	started time.Time
	notice  *fair.ReclaimNoticed
	served  []served
	// Of a gang: its Pods, and what those without devices ask for while others
	// have theirs.
	pods []string
	rest []fair.Request
}

// served is a Pod that got devices: the models that it asks for first, and what
// it has.
type served struct {
	wanted  []string
	devices []fair.Devices
}

// known: it was told what at least a part of the work was given.
func (w *work) known() bool { return w.decided || len(w.devices) > 0 }

// shares: a claim of others is among what the work asks for.
func (w *work) shares() bool {
	return slices.ContainsFunc(w.entry.Requests, func(r fair.Request) bool { return r.Claim != "" })
}

// IDOf is the engine's name of a Pod. Pods of one second are served by it.
func IDOf(namespace, name string, uid types.UID) string {
	return namespace + "/" + name + "/" + string(uid)
}

// SplitID is the inverse of IDOf; false where it is not a Pod's.
func SplitID(id string) (namespace, name string, uid types.UID, ok bool) {
	parts := strings.Split(id, "/")
	if len(parts) != 3 {
		return "", "", "", false
	}
	return parts[0], parts[1], types.UID(parts[2]), true
}

// claimID names the work that stands for a claim which belongs to no Pod.
func claimID(c *resourceapi.ResourceClaim) string {
	return "claim/" + c.Namespace + "/" + c.Name + "/" + string(c.UID)
}

// HasGate: the Pod waits for its tenant's turn.
func HasGate(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == v1alpha1.GateQuota })
}

// over: the Pod is ending or has ended; its claims tell what it still holds.
func over(pod *corev1.Pod) bool {
	return pod == nil || !pod.DeletionTimestamp.IsZero() || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// preemptible: what the Pod borrows can be taken back. Admission keeps the
// label as it was only on Pods with a policy, so only theirs counts.
func preemptible(pod *corev1.Pod) bool {
	return pod.Labels[v1alpha1.LabelPolicy] == "" || pod.Labels[v1alpha1.LabelPreemptible] != "false"
}

// ownerID is the Pod that a claim says it was made for, or "". Whoever may
// update claims can change that: see [Mirror.holder].
func ownerID(c *resourceapi.ResourceClaim) string {
	for _, ref := range c.OwnerReferences {
		if ref.Kind == "Pod" && ptr.Deref(ref.Controller, false) {
			return IDOf(c.Namespace, ref.Name, ref.UID)
		}
	}
	return ""
}

// templateOf is the claim template that the Pod's policy gave it, or "".
func templateOf(pod *corev1.Pod) string {
	if pod.Labels[v1alpha1.LabelPolicy] == "" {
		return ""
	}
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.Name == v1alpha1.ClaimRefName {
			return ptr.Deref(ref.ResourceClaimTemplateName, "")
		}
	}
	return ""
}

// look reads what the work of this ID is now. blocked says why a Pod that
// waits is not the engine's yet; stray: its gate is nobody's business.
func (m *Mirror) look(id string, now time.Time) (w *work, blocked fair.Reason, stray bool) {
	pod := m.pods[id]
	if over(pod) {
		return m.left(id), "", false
	}
	gated := HasGate(pod)
	_, limited := m.tenant(pod.Namespace)
	w, blocked = m.read(id, pod, now)
	if !w.decided {
		w.devices, w.started = nil, time.Time{}
	}
	switch {
	case gated && !limited, gated && !w.policy && blocked == "":
		stray = true
	case gated && blocked != "":
		return nil, blocked, false
	}
	if len(w.entry.Requests) == 0 {
		return nil, "", stray
	}
	w.notice = m.noticeOf(pod, w)
	return w, "", stray
}

// read is what a Pod asks for and has, whatever it waits for. blocked says why
// it could not be let in.
func (m *Mirror) read(id string, pod *corev1.Pod, now time.Time) (w *work, blocked fair.Reason) {
	tenant, limited := m.tenant(pod.Namespace)
	reclaims := m.Reclaims(id)
	w = &work{phase: open, decided: true, entry: fair.Entry{
		ID: id, Tenant: tenant, Priority: ptr.Deref(pod.Spec.Priority, 0), Created: pod.CreationTimestamp.UTC(),
		Preemptible: limited && preemptible(pod) && !now.Before(m.spared[id]),
		Reclaims:    reclaims.Times, Reclaimed: reclaims.At,
	}}
	if HasGate(pod) {
		w.phase = waiting
	} else {
		w.models = m.modelsFor(id)
	}
	if template := templateOf(pod); template != "" {
		blocked = m.ask(w, template)
		if blocked == "" && now.Before(m.paused[id]) {
			blocked = ReasonOpenRefused
		}
	}
	m.hold(w, pod, id)
	w.entry.Preemptible = w.entry.Preemptible && !m.namesUndecided(pod)
	if w.policy && w.decided && w.phase == open && len(w.devices) > 0 {
		w.served = []served{{w.entry.Requests[0].Alternatives[0].Models, w.devices}}
	}
	return w, blocked
}

// ask adds what the policy lets the Pod have.
func (m *Mirror) ask(w *work, template string) (blocked fair.Reason) {
	revision := m.revisions[template]
	if revision == nil {
		return ReasonRevisionMissing
	}
	t := m.tiersOf(revision)
	switch {
	case revision.Spec.State == v1alpha1.RevisionWithdrawn:
		blocked = ReasonRevisionWithdrawn
	case len(t.alternatives) == 0:
		return ReasonNoSuchDevices
	}
	w.policy, w.decided = true, false
	w.entry.Requests = []fair.Request{{Alternatives: t.alternatives}}
	w.entry.Preempts = revision.Spec.PolicySpec.Preempts
	return blocked
}

// hold adds what the Pod's claims were given.
func (m *Mirror) hold(w *work, pod *corev1.Pod, id string) {
	own := map[string]int64{} // of claims that no request speaks of
	for _, ref := range pod.Spec.ResourceClaims {
		claim := m.claimOf(pod, id, ref)
		if claim == nil || claim.Status.Allocation == nil {
			continue
		}
		named := ref.ResourceClaimName != nil
		if named && m.holder(claim) != "" {
			continue // it counts with the Pod that it was made for
		}
		counts := m.count(claim, pod)
		shared := ""
		switch {
		case w.policy && ref.Name == v1alpha1.ClaimRefName:
			w.decided = true
		case !named:
			add(own, counts)
		case len(counts) > 0:
			shared = string(claim.UID)
			if slices.ContainsFunc(w.entry.Requests, func(r fair.Request) bool { return r.Claim == shared }) {
				continue // named twice
			}
			w.entry.Requests = append(w.entry.Requests, fair.Request{Claim: shared, Alternatives: []fair.Alternative{{
				Models: slices.Sorted(maps.Keys(counts)), Count: total(counts),
			}}})
		}
		w.has(claim, pod, counts, shared)
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		claim := m.claims[types.NamespacedName{Namespace: pod.Namespace, Name: status.ResourceClaimName}]
		if claim != nil && claim.Status.Allocation != nil {
			counts := m.count(claim, pod)
			add(own, counts)
			w.has(claim, pod, counts, "")
		}
	}
	w.entry.Requests = append(w.entry.Requests, held(own)...)
}

// has adds what a Pod has of a claim.
func (w *work) has(claim *resourceapi.ResourceClaim, pod *corev1.Pod, counts map[string]int64, shared string) {
	if at := since(claim, pod); w.started.IsZero() || at.Before(w.started) {
		w.started = at
	}
	for _, model := range slices.Sorted(maps.Keys(counts)) {
		w.devices = append(w.devices, fair.Devices{Model: model, Count: counts[model], Claim: shared})
	}
}

// namesUndecided: the Pod names a claim of which nobody knows yet what it will
// hold. Should that be devices, they would be shared, and such Pods are not
// evicted for them: so it must not borrow before.
func (m *Mirror) namesUndecided(pod *corev1.Pod) bool {
	undecided := false
	eachNamed(pod, func(key types.NamespacedName) {
		claim := m.claims[key]
		undecided = undecided || claim == nil || claim.Status.Allocation == nil
	})
	return undecided
}

// holder is the Pod that a claim was made for, while that lives, or "". The
// Pod's status says so; where it says nothing yet, the claim.
func (m *Mirror) holder(claim *resourceapi.ResourceClaim) string {
	for _, id := range slices.Sorted(maps.Keys(m.made[keyOf(claim)])) {
		if !over(m.pods[id]) {
			return id
		}
	}
	id := ownerID(claim)
	pod := m.pods[id]
	if over(pod) {
		return ""
	}
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimName == nil && m.claimOf(pod, id, ref) == claim {
			return id
		}
	}
	return ""
}

// restOf is the ID by which a claim counts that no Pod has which lives and has
// been let in: that of the Pod that it was made for, or its own. "" where one
// has it.
func (m *Mirror) restOf(claim *resourceapi.ResourceClaim) string {
	if m.holder(claim) != "" {
		return ""
	}
	for id := range m.users[keyOf(claim)] {
		if pod := m.pods[id]; !over(pod) && !HasGate(pod) {
			return ""
		}
	}
	if id := ownerID(claim); id != "" && over(m.pods[id]) {
		return id
	}
	return claimID(claim)
}

// left is what is still held although its Pod has ended: for those whom the
// nodes have not released yet.
func (m *Mirror) left(id string) *work {
	var claims []*resourceapi.ResourceClaim
	for _, key := range slices.SortedFunc(maps.Keys(m.owned[id]), compareKeys) {
		if claim := m.claims[key]; m.restOf(claim) == id {
			claims = append(claims, claim)
		}
	}
	return m.remains(id, m.pods[id], claims...)
}

// leftOf is the same of a claim that belongs to no Pod.
func (m *Mirror) leftOf(claim *resourceapi.ResourceClaim) *work {
	if id := claimID(claim); m.restOf(claim) == id {
		return m.remains(id, nil, claim)
	}
	return nil
}

// remains are claims whose devices are on their way back, unless something uses
// them that is no Pod.
func (m *Mirror) remains(id string, pod *corev1.Pod, claims ...*resourceapi.ResourceClaim) *work {
	own := map[string]int64{}
	w := &work{phase: releasing, decided: true, entry: fair.Entry{ID: id, Created: time.Unix(0, 0).UTC()}} // nobody's turn depends on it
	for _, claim := range claims {
		add(own, m.count(claim, pod))
		w.entry.Tenant, _ = m.tenant(claim.Namespace)
		if !claim.CreationTimestamp.IsZero() {
			w.entry.Created = claim.CreationTimestamp.UTC()
		}
		if slices.ContainsFunc(claim.Status.ReservedFor, func(c resourceapi.ResourceClaimConsumerReference) bool { return c.Resource != "pods" }) {
			w.phase = open
		}
	}
	if total(own) == 0 {
		return nil
	}
	w.entry.Requests = held(own)
	for _, model := range slices.Sorted(maps.Keys(own)) {
		w.devices = append(w.devices, fair.Devices{Model: model, Count: own[model]})
	}
	return w
}

// held are requests that ask for what is there already.
func held(own map[string]int64) []fair.Request {
	var requests []fair.Request
	for _, model := range slices.Sorted(maps.Keys(own)) {
		requests = append(requests, fair.Request{Alternatives: []fair.Alternative{{Models: []string{model}, Count: own[model]}}})
	}
	return requests
}

// claimOf finds the claim that a Pod's reference means: what the Pod's status
// says, and where it says nothing yet, what claims say, the first by name.
func (m *Mirror) claimOf(pod *corev1.Pod, id string, ref corev1.PodResourceClaim) *resourceapi.ResourceClaim {
	if ref.ResourceClaimName != nil {
		return m.claims[types.NamespacedName{Namespace: pod.Namespace, Name: *ref.ResourceClaimName}]
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == ref.Name {
			return m.claims[types.NamespacedName{Namespace: pod.Namespace, Name: ptr.Deref(s.ResourceClaimName, "")}]
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(m.owned[id]), compareKeys) {
		if claim := m.claims[key]; claim.Annotations[resourceapi.PodResourceClaimAnnotation] == ref.Name {
			return claim
		}
	}
	return nil
}

// count is what a claim has of each model: what the devices' slices say or
// said, else what was written on the Pod when it was bound.
func (m *Mirror) count(claim *resourceapi.ResourceClaim, pod *corev1.Pod) map[string]int64 {
	counts := map[string]int64{}
	for _, id := range devicesOf(claim) {
		model := m.fleet.models[id]
		if model == "" && pod != nil {
			if model, _, _ = strings.Cut(pod.Annotations[v1alpha1.AnnotationModel], ","); model != "" {
				m.fleet.models[id], m.newHolds = model, true
			}
		}
		if model != "" {
			counts[model]++
		}
	}
	return counts
}

func add(sum, counts map[string]int64) {
	for model, n := range counts {
		sum[model] += n
	}
}

func total(counts map[string]int64) int64 {
	var sum int64
	for _, n := range counts {
		sum += n
	}
	return sum
}

// since is when the work with a claim began.
func since(claim *resourceapi.ResourceClaim, pod *corev1.Pod) time.Time {
	for _, at := range []*metav1.Time{pod.Status.StartTime, claim.Status.Allocation.AllocationTimestamp} {
		if !at.IsZero() {
			return at.UTC()
		}
	}
	return pod.CreationTimestamp.UTC()
}

// deadlineOf is when the Pod will be evicted, if it was told.
func deadlineOf(pod *corev1.Pod) (time.Time, bool) {
	if pod == nil {
		return time.Time{}, false
	}
	deadline, err := time.Parse(time.RFC3339Nano, pod.Annotations[v1alpha1.AnnotationReclaimDeadline])
	return deadline, err == nil
}

// noticeOf is the notice that was written on the Pod, where nobody else can.
func (m *Mirror) noticeOf(pod *corev1.Pod, w *work) *fair.ReclaimNoticed {
	deadline, ok := deadlineOf(pod)
	if !ok || w.phase != open || !w.entry.Preemptible || pod.Labels[v1alpha1.LabelPolicy] == "" {
		return nil
	}
	return &fair.ReclaimNoticed{ID: w.entry.ID, For: m.podOf[types.UID(pod.Annotations[v1alpha1.AnnotationReclaimFor])], Deadline: deadline}
}
