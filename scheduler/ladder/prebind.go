package ladder

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/view"
)

// quotaVersion identifies the quota that a decision was held against; empty for
// none.
type quotaVersion struct {
	uid        types.UID
	generation int64
}

func versionOf(q *v1alpha1.TenantQuota) quotaVersion {
	if q == nil {
		return quotaVersion{}
	}
	return quotaVersion{uid: q.UID, generation: q.Generation}
}

// PreBindPreFlight implements fwk.PreBindPlugin. What other plugins prepare can
// take minutes (a volume is made); the check in PreBind is to be as late as can
// be, so it comes after them and not beside them.
func (p *Plugin) PreBindPreFlight(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	result, status := p.DynamicResources.PreBindPreFlight(ctx, state, pod, nodeName)
	if s := searchOf(state); result != nil && s != nil && s.reserved != nil {
		result.AllowParallel = false
	}
	return result, status
}

// PreBind implements fwk.PreBindPlugin. It looks at everything the decision
// rested on once more, before the embedded plugin writes the allocation: once
// written it would stay.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	s := searchOf(state)
	if s == nil || s.reserved == nil {
		return p.DynamicResources.PreBind(ctx, state, pod, nodeName)
	}
	if err := p.recheck(s); err != nil {
		return p.failed(s, s.reserved.decision, err)
	}
	if status := p.DynamicResources.PreBind(ctx, state, pod, nodeName); !status.IsSuccess() {
		return p.failed(s, s.reserved.decision, classify(status.AsError()))
	}
	return nil
}

// recheck returns a BindError if the decision no longer holds: its node, policy
// revision, quota and devices are as they were, and no other claim has one of
// the devices.
func (p *Plugin) recheck(s *search) error {
	r := s.reserved
	node, err := p.handle.SharedInformerFactory().Core().V1().Nodes().Lister().Get(r.node.Name)
	if err != nil {
		node = nil
	}
	if err := recheckNode(r.node, node, s.pod); err != nil {
		return err
	}
	if err := p.recheckRevision(r); err != nil {
		return err
	}
	if versionOf(p.core.objects.Quota(s.pod.Namespace)) != r.quota {
		return &BindError{v1alpha1.FailureBindConflict, errors.New("the tenant's quota changed after the decision")}
	}
	wanted := sets.New[view.PoolKey]()
	for _, d := range r.devices {
		wanted.Insert(d.pool)
	}
	pools, err := p.pools(wanted)
	if err != nil {
		return err
	}
	own := sets.New[types.UID]()
	for _, pc := range s.claims {
		own.Insert(pc.claim.UID)
	}
	for _, d := range r.devices {
		if err := recheckDevice(d, pools[d.pool]); err != nil {
			return err
		}
		if err := p.core.holders.recheck(d, own); err != nil {
			return err
		}
	}
	return nil
}

// recheckRevision checks that the policy revision is neither gone nor
// withdrawn. A policy without revisions is revision 1 of itself.
func (p *Plugin) recheckRevision(r *reservation) error {
	d := r.decision
	if d.Policy == "" {
		return nil
	}
	revision := p.core.objects.Revision(d.Policy, d.PolicyRevision)
	switch {
	case revision == nil && p.core.objects.Policy(d.Policy) == nil:
		return &BindError{v1alpha1.FailurePolicyInvalid, fmt.Errorf("policy %s is gone", d.Policy)}
	case revision != nil && revision.Spec.State == v1alpha1.RevisionWithdrawn:
		return &BindError{v1alpha1.FailurePolicyInvalid, fmt.Errorf("revision %d of policy %s was withdrawn", d.PolicyRevision, d.Policy)}
	case revision == nil && d.PolicyRevision > 1:
		return &BindError{v1alpha1.FailurePolicyInvalid, fmt.Errorf("revision %d of policy %s is gone", d.PolicyRevision, d.Policy)}
	}
	return nil
}
