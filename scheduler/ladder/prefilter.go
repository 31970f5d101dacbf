package ladder

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/metrics"
	"gpuladder.dev/ladder/scheduler/outcome"
	"gpuladder.dev/ladder/scheduler/view"
)

// PreFilter implements fwk.PreFilterPlugin: it finds the part of the order that
// this round looks at.
//
// A Pod without claims costs nothing here, unless it asks for an extended resource
// and follows a policy or has a tenant. One with a claim that is not there or is about to be
// allocated is the embedded plugin's business, and so is one whose claims are
// all allocated already, unless Ladder has to answer for it: because of its
// policy, or because it has told something about it before.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	claims, toDecide, none := p.claimsToDecide(pod)
	resources := p.askedByResource(pod)
	answers := none && p.answersFor(pod)
	toDecide = toDecide || len(resources) > 0 && answers
	if !toDecide {
		searchOf(state).abandon()
		if shared := p.sharedAndPending(state, pod, resources); shared != "" {
			o := outcome.OfFailure(pod, v1alpha1.FailurePolicyInvalid, fmt.Sprintf("the claim %q, which other Pods of the PodGroup use, is being allocated; "+
				"Pods of a PodGroup that share a claim can't ask for other devices, nor follow a policy, in the same moment", shared))
			// Not held: the whole group would be, also if the other Pod fails.
			return nil, p.park(pod, o, noTime, nil, sight{changes: p.core.waiting.version()})
		}
		if len(pod.Spec.ResourceClaims) == 0 && pod.Labels[v1alpha1.LabelPolicy] != "" && pod.Spec.NodeName == "" {
			o := outcome.OfFailure(pod, v1alpha1.FailurePolicyInvalid,
				fmt.Sprintf("the Pod names policy %q but has no claim; admission adds it when the Pod is created. "+
					"Nor does it ask for an extended resource that a DeviceClass serves", pod.Labels[v1alpha1.LabelPolicy]))
			return nil, p.park(pod, o, noTime, holdOf(v1alpha1.FailurePolicyInvalid), sight{changes: p.core.waiting.version()})
		}
		result, status := p.DynamicResources.PreFilter(ctx, state, pod, nodes)
		if answers && status.IsSuccess() {
			return nil, fwk.NewStatus(fwk.Unschedulable, "a DeviceClass has come to serve what the Pod asks for")
		}
		return result, status
	}
	if !p.core.objects.Ready() {
		searchOf(state).abandon()
		p.core.waiting.park(pod, p.handle, noTime, nil, sight{changes: p.core.waiting.version()})
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "policies and quotas have not been read yet")
	}
	if len(resources) > 0 {
		if left, err := p.leftBehind(pod); err != nil {
			return nil, fwk.AsStatus(err)
		} else if left {
			searchOf(state).abandon()
			p.core.waiting.park(pod, p.handle, p.core.clock.Now().Add(leftBehindAgain), nil, sight{changes: p.core.waiting.version()})
			if _, status := p.DynamicResources.PreFilter(ctx, state, pod, nodes); !status.IsSuccess() {
				return nil, status
			}
			return nil, fwk.NewStatus(fwk.Unschedulable, "a claim of an earlier attempt is being removed")
		}
	}
	s := begin(state, pod, p.core.clock.Now(), p.core.waiting.resume(pod.UID))
	s.claims, s.seen.changes = claims, p.core.waiting.version()
	s.remember(state)
	if err := p.recheckAllocated(claims); err != nil {
		return nil, p.lost(pod, err)
	}
	if err := p.extend(s, resources, nodes); err != nil {
		return nil, p.undecided(s, err)
	}
	if err := p.nextPart(state, s, nodes); err != nil {
		return nil, p.undecided(s, err)
	}
	if len(s.faulty) > 0 {
		if _, status := p.DynamicResources.PreFilter(ctx, state, pod, nodes); !status.IsSuccess() {
			return nil, status
		}
		return &fwk.PreFilterResult{NodeNames: s.faulty}, nil
	}
	if s.first != nil {
		first := s.first
		s.first, s.part, s.diagnosis = nil, nil, framework.Diagnosis{}
		return nil, p.core.waiting.yield(pod, p.handle, first)
	}
	if len(s.part) == 0 && p.triesLast(s) {
		return p.preFilterLast(ctx, state, s, nodes)
	}
	if len(s.part) == 0 {
		return nil, p.nothingLeft(ctx, state, s, nodes)
	}
	if status := p.prepare(ctx, state, s, s.part, nodes); !status.IsSuccess() {
		return nil, status
	}
	return &fwk.PreFilterResult{NodeNames: s.names()}, nil
}

// sharedAndPending names a claim that is not the Pod's own and for which another
// Pod of its PodGroup has just been given devices, where the Pod follows a policy
// or needs other devices as well; "" if there is none. The embedded plugin would
// place such a Pod by itself, past the policy and the tenant's limits.
func (p *Plugin) sharedAndPending(state fwk.CycleState, pod *corev1.Pod, resources []resourceAsked) string {
	if !state.IsPodGroupSchedulingCycle() {
		return ""
	}
	shared, more := "", policyOf(pod) != "" || len(resources) > 0
	for _, name := range claimNames(pod) {
		claim, err := p.dra.ResourceClaims().Get(name.Namespace, name.Name)
		switch {
		case err != nil:
		case p.dra.ResourceClaims().GetPendingAllocation(claim.UID) == nil:
			more = more || claim.Status.Allocation == nil
		case !metav1.IsControlledBy(claim, pod):
			shared = claim.Name
		}
	}
	if !more {
		return ""
	}
	return shared
}

// claimsToDecide returns the Pod's claims, and whether the engine has to decide
// about them. none says that there are none: a Pod whose claims are not there yet
// or are being allocated has some.
func (p *Plugin) claimsToDecide(pod *corev1.Pod) (claims []podClaim, toDecide, none bool) {
	if pod.Spec.NodeName != "" {
		return nil, false, false
	}
	undecided := false
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.Name(pod, ref)
		if err != nil {
			return nil, false, false
		}
		if name == nil {
			// The template made no claim for this Pod.
			continue
		}
		claim, err := p.dra.ResourceClaims().Get(pod.Namespace, *name)
		if err != nil || p.dra.ResourceClaims().GetPendingAllocation(claim.UID) != nil {
			return nil, false, false
		}
		claims = append(claims, podClaim{ref: ref.Name, claim: claim})
		undecided = undecided || claim.Status.Allocation == nil
	}
	ours := policyOf(pod) != "" || p.core.publisher.Told(pod)
	return claims, undecided || ours && len(claims) > 0, len(claims) == 0
}

// nextPart brings the engine up to date and takes the next part of its order,
// unless others have to be tried before the Pod.
func (p *Plugin) nextPart(state fwk.CycleState, s *search, nodes []fwk.NodeInfo) error {
	c := p.core
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.timed("sync", func() error {
		if err := c.mirror.Sync(nodes, p.dra); err != nil {
			return err
		}
		return c.putPod(s.asked())
	})
	if err != nil {
		return err
	}
	s.seen.gains = c.mirror.Gains()
	s.observe(c.engine.Digest())
	if err := p.planGroup(state, s); err != nil {
		return p.blame(s, err)
	}
	if faulty, err := p.probe(s); err != nil || faulty {
		return err
	}
	return c.timed("candidates", func() error {
		var candidates iter.Seq[decide.Candidate]
		candidates, err := c.engine.Candidates(s.query())
		if err != nil {
			return err
		}
		s.take(candidates)
		s.first = p.mustYield(s)
		return nil
	})
}

// probe says whether this round looks at the nodes where a selector of a plain
// claim fails on some device. The embedded plugin gets to see everything then
// and errs there, or does not, as kube-scheduler does; if it does not, the
// rounds after this one go through the order. The caller holds the lock.
func (p *Plugin) probe(s *search) (bool, error) {
	if s.probed {
		return false, nil
	}
	s.probed = true
	nodes, err := p.core.engine.FaultyNodes(s.query())
	if err != nil || len(nodes) == 0 {
		return false, err
	}
	s.faulty = sets.New(nodes...)
	return true, nil
}

// prepare has the embedded plugin prepare itself on a view of the candidates.
func (p *Plugin) prepare(ctx context.Context, state fwk.CycleState, s *search, part []decide.Candidate, nodes []fwk.NodeInfo) *fwk.Status {
	var chosen []v1alpha1.DecidedDevice
	for _, c := range part {
		chosen = append(chosen, c.Devices...)
	}
	var allocated *structured.AllocatedState
	source := view.Source{
		Pool: p.core.mirror.Pool,
		Allocated: func(id structured.DeviceID) bool {
			if allocated == nil {
				allocated = p.allocated()
			}
			return structured.IsDeviceAllocated(id, allocated)
		},
	}
	v := view.New(source, chosen, narrowed(s.claims, part[0].Devices))
	var status *fwk.Status
	p.view.Show(v, func() { _, status = p.DynamicResources.PreFilter(ctx, state, s.pod, nodes) })
	return status
}

// allocated returns what is allocated, written or in flight. Reading it while
// claims are being written fails now and then; trying again at once helps.
func (p *Plugin) allocated() *structured.AllocatedState {
	for {
		if state, err := p.dra.ResourceClaims().GatherAllocatedState(); err == nil {
			return state
		}
	}
}

// narrowed returns the claims that are not allocated, reduced to the chosen
// alternatives.
func narrowed(claims []podClaim, devices []v1alpha1.DecidedDevice) map[types.NamespacedName]*resourceapi.ResourceClaim {
	alternatives := view.Alternatives(devices)
	result := map[types.NamespacedName]*resourceapi.ResourceClaim{}
	for _, pc := range claims {
		if pc.claim.Status.Allocation != nil {
			continue
		}
		chosen := alternatives[pc.ref]
		if chosen == nil && len(claims) == 1 {
			chosen = alternatives[""]
		}
		if len(chosen) > 0 {
			result[types.NamespacedName{Namespace: pc.claim.Namespace, Name: pc.claim.Name}] = view.Narrow(pc.claim, chosen)
		}
	}
	return result
}

// nothingLeft ends a search whose order has no further node. The record says
// why; the Pod waits for an event, or for the time of a later tier.
func (p *Plugin) nothingLeft(ctx context.Context, state fwk.CycleState, s *search, nodes []fwk.NodeInfo) *fwk.Status {
	d, err := p.decide(s, s.query())
	if err != nil {
		return p.undecided(s, err)
	}
	metrics.Requests.WithLabelValues(string(d.Outcome), d.Policy, "", "").Inc()
	status := p.park(s.pod, outcome.OfDecision(s.pod, d), p.nextTier(s, d), holdOf(d.Class), s.seen)
	p.tryNextTier(s, d)
	p.offerPreemption(ctx, state, s, nodes)
	return status
}

// offerPreemption prepares the embedded plugin for the nodes of the best tier
// that only lack something which preemption can free, so that their filters
// can run again there.
func (p *Plugin) offerPreemption(ctx context.Context, state fwk.CycleState, s *search, nodes []fwk.NodeInfo) {
	if len(s.resolvable) == 0 {
		p.preemptLast(ctx, state, s, nodes)
		return
	}
	var best []decide.Candidate
	for _, c := range s.resolvable {
		if partOf(c) == partOf(s.resolvable[0]) {
			best = append(best, c)
		}
	}
	if status := p.prepare(ctx, state, s, best, nodes); !status.IsSuccess() {
		return
	}
	for i, c := range best {
		s.rank[c.Node] = i
	}
}

// undecided maps an error of the engine: what is wrong with the Pod's policy or
// claims parks it, everything else is tried again. What is wrong with others of
// its group may be mended without any change of the Pod, so that it is not held.
func (p *Plugin) undecided(s *search, err error) *fwk.Status {
	if !errors.Is(err, decide.ErrNotFound) && !errors.Is(err, decide.ErrInvalid) {
		return fwk.AsStatus(fmt.Errorf("deciding, %w", err))
	}
	h := holdOf(v1alpha1.FailurePolicyInvalid)
	if ofGroup := (*groupError)(nil); errors.As(err, &ofGroup) {
		h = nil
	}
	return p.park(s.pod, outcome.OfFailure(s.pod, v1alpha1.FailurePolicyInvalid, err.Error()), noTime, h, s.seen)
}

// noTime: a Pod that is parked with it is woken by changes alone.
var noTime time.Time

// park tells why the Pod waits and returns the status that parks it, with the
// arguments of [waiting.park].
func (p *Plugin) park(pod *corev1.Pod, o outcome.Outcome, until time.Time, h *hold, seen sight) *fwk.Status {
	p.core.publisher.Publish(o.With(p.core.waiting.failureText(pod.UID)), p.handle.EventRecorder())
	p.core.waiting.park(pod, p.handle, until, h, seen)
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, o.Message)
}

// nextTier returns when the next tier opens for a Pod that waits, or zero.
func (p *Plugin) nextTier(s *search, d *decide.Decision) time.Time {
	var next time.Time
	for _, tier := range p.tiers(d) {
		if tier.After == nil {
			continue
		}
		opens := s.pod.CreationTimestamp.Add(tier.After.Duration)
		if opens.After(s.now) && (next.IsZero() || opens.Before(next)) {
			next = opens
		}
	}
	return next
}

// tiers returns the tiers that a decision was made with.
func (p *Plugin) tiers(d *decide.Decision) []v1alpha1.Tier {
	if spec := p.specOf(d); spec != nil {
		return spec.Tiers
	}
	return nil
}
