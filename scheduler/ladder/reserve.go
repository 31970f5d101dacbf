package ladder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/metrics"
	"gpuladder.dev/ladder/scheduler/view"
)

// ErrMismatch occurs when two deciders disagree about a Pod: a bug, or devices
// that changed hands in the middle of an attempt. Nothing is allocated then.
var ErrMismatch = errors.New("deciders disagree")

// Reserve implements fwk.ReservePlugin. It has the engine build the record with
// the nodes that other plugins refused, and takes nothing on trust: the engine
// must come out at the chosen node, the embedded plugin at the chosen devices.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	s := searchOf(state)
	if s == nil {
		return p.DynamicResources.Reserve(ctx, state, pod, nodeName)
	}
	if s.extended.tries() {
		return p.reserveLast(ctx, state, pod, nodeName)
	}
	if s.reserved != nil {
		return p.reserveAgain(ctx, state, s, nodeName)
	}
	q, err := p.queryFor(ctx, state, s, nodeName)
	if err != nil {
		return p.mismatch(ctx, s, "node", err)
	}
	d, err := p.record(s, q, nodeName)
	if err != nil {
		return p.mismatch(ctx, s, "node", err)
	}
	if status := p.allocate(ctx, state, s, d); !status.IsSuccess() {
		return status
	}
	reserved, err := p.reservation(s, d)
	if err != nil {
		return p.failed(s, d, err)
	}
	s.reserved = reserved
	return p.charge(s, d)
}

// reserveAgain is Reserve for a Pod of a group for the second time: to find out
// whether the group fits all was reserved, and given back. What was decided then
// holds, whatever has changed since. A Pod that now went elsewhere would be left
// out, and the others bound without it; and PreBind looks at all that each decision
// rested on.
func (p *Plugin) reserveAgain(ctx context.Context, state fwk.CycleState, s *search, nodeName string) *fwk.Status {
	d := s.reserved.decision
	if d.Node != nodeName {
		return p.mismatch(ctx, s, "node", fmt.Errorf("%w: the Pod was decided on for node %s, and is now to go to %s", ErrMismatch, d.Node, nodeName))
	}
	if status := p.allocate(ctx, state, s, d); !status.IsSuccess() {
		return status
	}
	p.core.mu.Lock()
	p.core.mirror.TakeBack()
	p.core.mu.Unlock()
	return p.charge(s, d)
}

// allocate has the embedded plugin allocate, and checks that it is what was decided.
func (p *Plugin) allocate(ctx context.Context, state fwk.CycleState, s *search, d *decide.Decision) *fwk.Status {
	if status := p.DynamicResources.Reserve(ctx, state, s.pod, d.Node); !status.IsSuccess() {
		return p.failed(s, d, &BindError{v1alpha1.FailureBindConflict, status.AsError()})
	}
	if err := p.compare(s, d); err != nil {
		return p.mismatch(ctx, s, "devices", err)
	}
	return nil
}

// queryFor is the question to which the chosen node is the answer.
func (p *Plugin) queryFor(ctx context.Context, state fwk.CycleState, s *search, nodeName string) (decide.Query, error) {
	rank, ok := s.rank[nodeName]
	if !ok {
		return decide.Query{}, fmt.Errorf("%w: node %s was not in the order", ErrMismatch, nodeName)
	}
	q := s.query()
	q.NodeRejections = maps.Clone(s.refused)
	for _, c := range s.part[:rank] {
		why, err := p.whyNot(ctx, state, s.pod, c.Node)
		if err != nil {
			return decide.Query{}, err
		}
		q.NodeRejections[c.Node] = why
	}
	if len(q.NodeRejections) == 0 {
		q.NodeRejections = nil
	}
	return q, nil
}

// record builds the decision for the chosen node.
func (p *Plugin) record(s *search, q decide.Query, nodeName string) (*decide.Decision, error) {
	d, err := p.decide(s, q)
	if err != nil {
		return nil, fmt.Errorf("building the record, %w", err)
	}
	if d.Outcome != v1alpha1.OutcomeAllocated || d.Node != nodeName {
		return nil, fmt.Errorf("%w: the scheduler chose node %s, the engine %q (%s)", ErrMismatch, nodeName, d.Node, d.Outcome)
	}
	return d, nil
}

// whyNot says which plugin refused a node that comes earlier in the order. The
// scheduler does not tell when it found another node, so the filters run again;
// the snapshot is still the same. What passes them an extender refused: those are
// asked about the nodes that are left, and not a second time.
func (p *Plugin) whyNot(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) (string, error) {
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(nodeName)
	if err != nil {
		return "", fmt.Errorf("looking at node %s again, %w", nodeName, err)
	}
	status := p.handle.RunFilterPluginsWithNominatedPods(ctx, state.Clone(), pod, info)
	switch {
	case status.IsSuccess() && p.asksExtenders(pod):
		return "an extender refused the node", nil
	case status.IsSuccess():
		return "", fmt.Errorf("%w: node %s comes earlier in the order and passes all filters", ErrMismatch, nodeName)
	case !status.IsRejected():
		return "", fmt.Errorf("looking at node %s again, %w", nodeName, status.AsError())
	}
	return words(status), nil
}

// asksExtenders says whether an extender may refuse the Pod a node.
func (p *Plugin) asksExtenders(pod *corev1.Pod) bool {
	return slices.ContainsFunc(p.handle.Extenders(), func(e fwk.Extender) bool { return e.IsFilter() && e.IsInterested(pod) })
}

// device is a device with the request that it meets.
type device struct {
	driver, pool, name, request string
}

// compare checks that the embedded plugin allocated exactly what was decided,
// and that what was allocated before is what the decision says.
func (p *Plugin) compare(s *search, d *decide.Decision) error {
	own, others := s.extended.split(s.claims, d.Devices)
	if s.extended != nil {
		if err := p.compareExtended(s.pod, s.extended, others); err != nil {
			return err
		}
	}
	several := false
	for _, decided := range own {
		several = several || decided.Claim != ""
	}
	want := map[string][]device{}
	for _, decided := range own {
		want[decided.Claim] = append(want[decided.Claim], device{decided.Driver, decided.Pool, decided.Device, decided.Request})
	}
	got := map[string][]device{}
	for _, pc := range s.claims {
		allocation := pc.claim.Status.Allocation
		if allocation == nil {
			allocation = p.dra.ResourceClaims().GetPendingAllocation(pc.claim.UID)
		}
		if allocation == nil {
			return fmt.Errorf("%w: claim %s was not allocated", ErrMismatch, pc.claim.Name)
		}
		ref := ""
		if several {
			ref = pc.ref
		}
		for _, r := range allocation.Devices.Results {
			got[ref] = append(got[ref], device{r.Driver, r.Pool, r.Device, r.Request})
		}
	}
	for _, devices := range want {
		sortDevices(devices)
	}
	for _, devices := range got {
		sortDevices(devices)
	}
	if !maps.EqualFunc(want, got, slices.Equal) {
		return fmt.Errorf("%w: decided %v, allocated %v", ErrMismatch, want, got)
	}
	return nil
}

func sortDevices(devices []device) {
	slices.SortFunc(devices, func(a, b device) int {
		return slices.Compare([]string{a.request, a.driver, a.pool, a.name}, []string{b.request, b.driver, b.pool, b.name})
	})
}

// charge charges the decision for the Pod.
func (p *Plugin) charge(s *search, d *decide.Decision) *fwk.Status {
	p.core.mu.Lock()
	err := p.core.engine.Assume(d, true)
	p.core.mu.Unlock()
	if err != nil {
		return p.failed(s, d, fmt.Errorf("charging the decision, %w", err))
	}
	p.core.waiting.drop(s.pod.UID)
	return nil
}

// reservation notes the versions that PreBind checks.
func (p *Plugin) reservation(s *search, d *decide.Decision) (*reservation, error) {
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(d.Node)
	if err != nil {
		return nil, fmt.Errorf("reserving on node %s, %w", d.Node, err)
	}
	r := &reservation{decision: d, quota: versionOf(p.core.objects.Quota(s.pod.Namespace)), node: info.Node()}
	allocated := p.allocatedTo(s)
	for _, decided := range d.Devices {
		key := view.PoolKey{Driver: decided.Driver, Pool: decided.Pool}
		found, err := findDevice(p.core.mirror.Pool(key), key, decided.Device)
		if err != nil {
			return nil, &BindError{v1alpha1.FailureStaleSlice, err}
		}
		result := allocated[found.key()]
		found.tolerations, found.shared = result.Tolerations, forSeveral(result)
		r.devices = append(r.devices, found)
	}
	return r, nil
}

// allocatedTo returns the results of the Pod's claims by device.
func (p *Plugin) allocatedTo(s *search) map[string]resourceapi.DeviceRequestAllocationResult {
	byDevice := map[string]resourceapi.DeviceRequestAllocationResult{}
	if s.extended != nil {
		if claim := p.specialClaim(s.pod); claim != nil {
			for _, r := range results(claim) {
				byDevice[r.Driver+"/"+r.Pool+"/"+r.Device] = r
			}
		}
	}
	for _, pc := range s.claims {
		allocation := pc.claim.Status.Allocation
		if allocation == nil {
			allocation = p.dra.ResourceClaims().GetPendingAllocation(pc.claim.UID)
		}
		if allocation == nil {
			continue
		}
		for _, r := range allocation.Devices.Results {
			byDevice[r.Driver+"/"+r.Pool+"/"+r.Device] = r
		}
	}
	return byDevice
}

// mismatch counts and logs a disagreement and refuses the attempt, which counts as
// any other that failed: were it a bug, the Pod would be tried without end.
func (p *Plugin) mismatch(ctx context.Context, s *search, kind string, err error) *fwk.Status {
	if !errors.Is(err, ErrMismatch) {
		return fwk.AsStatus(err)
	}
	metrics.Mismatches.WithLabelValues(kind).Inc()
	klog.FromContext(ctx).Error(err, "Decision refused; please report this as a bug", "pod", klog.KObj(s.pod))
	d, other := p.decide(s, s.query())
	if other != nil {
		return fwk.AsStatus(errors.Join(err, other))
	}
	return p.failed(s, d, &BindError{v1alpha1.FailureBindConflict, err})
}

// Unreserve implements fwk.ReservePlugin.
func (p *Plugin) Unreserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) {
	p.DynamicResources.Unreserve(ctx, state, pod, nodeName)
	if s := searchOf(state); s != nil && s.reserved != nil {
		p.core.mirror.Forget(keyOf(pod), pod.UID)
	}
}
