package ladder

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/outcome"
)

// This file places Pods with extended resources that DRA serves; extended.go
// says how the engine is asked about them. The embedded plugin does the rest as
// ever: its Filter makes the claim that fits the node, and finds on the view only
// the devices that were chosen.
//
// Where a node offers the resource by a device plugin too, that serves the Pod
// there, and nobody knows which devices. Such nodes are tried last, in the order
// of the other plugins' scores.

const (
	// leftBehindAgain is when a Pod is tried again whose claim of an earlier
	// attempt is being removed.
	leftBehindAgain = time.Second
	// maxVariants is how many variants of policies the engine is told of.
	maxVariants = 256
)

// extensions are what the engine was told for the sake of extended resources,
// and what it need not know any more.
type extensions struct {
	// variants are by name what they say.
	variants map[string]*v1alpha1.PolicyRevision

	// mu guards what event handlers touch. claims are by Pod; gone are those whose
	// Pod is no more.
	mu     sync.Mutex
	claims map[types.UID]*resourceapi.ResourceClaim
	gone   []*resourceapi.ResourceClaim
}

func newExtensions() *extensions {
	return &extensions{variants: map[string]*v1alpha1.PolicyRevision{}, claims: map[types.UID]*resourceapi.ResourceClaim{}}
}

// forget says that a Pod is gone. It may be called from event handlers.
func (x *extensions) forget(pod types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if claim := x.claims[pod]; claim != nil {
		delete(x.claims, pod)
		x.gone = append(x.gone, claim)
	}
}

// told returns the claim that the engine was told of for the Pod, or nil.
func (x *extensions) told(pod types.UID) *resourceapi.ResourceClaim {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.claims[pod]
}

func (x *extensions) keep(pod types.UID, claim *resourceapi.ResourceClaim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.claims[pod] = claim
}

// takeGone returns the claims whose Pods are gone since the last call.
func (x *extensions) takeGone() []*resourceapi.ResourceClaim {
	x.mu.Lock()
	defer x.mu.Unlock()
	gone := x.gone
	x.gone = nil
	return gone
}

// put tells the engine of variant and claim, either of which may be nil. Only
// what is new is told, so that the engine keeps what it knows of the fleet and
// the journal does not grow with each attempt. The caller holds the engine's
// lock.
func (x *extensions) put(engine Engine, pod types.UID, variant *v1alpha1.PolicyRevision, claim *resourceapi.ResourceClaim) error {
	for _, old := range x.takeGone() {
		if err := engine.Delete(old); err != nil {
			return fmt.Errorf("forgetting %s, %w", old.Name, err)
		}
	}
	if variant != nil && !sameRevision(x.variants[variant.Name], variant) {
		if len(x.variants) >= maxVariants {
			for _, name := range slices.Sorted(maps.Keys(x.variants)) {
				if err := engine.Delete(x.variants[name]); err != nil {
					return fmt.Errorf("forgetting %s, %w", name, err)
				}
			}
			clear(x.variants)
		}
		if err := engine.Put(variant); err != nil {
			return err
		}
		x.variants[variant.Name] = variant
	}
	if old := x.told(pod); claim != nil && (old == nil || !apiequality.Semantic.DeepEqual(old.Spec, claim.Spec)) {
		if err := engine.Put(claim); err != nil {
			return err
		}
		x.keep(pod, claim)
	}
	return nil
}

// sameRevision says whether two variants of one name say the same.
func sameRevision(a, b *v1alpha1.PolicyRevision) bool {
	return a != nil && a.Spec.State == b.Spec.State && apiequality.Semantic.DeepEqual(a.Spec.PolicySpec, b.Spec.PolicySpec)
}

// askedByResource returns the extended resources that the Pod asks for and DRA
// serves.
func (p *Plugin) askedByResource(pod *corev1.Pod) []resourceAsked {
	if pod.Spec.NodeName != "" || len(resourcesNamed(pod)) == 0 {
		return nil
	}
	return servedByDRA(pod, func(name corev1.ResourceName) *resourceapi.DeviceClass {
		class := p.dra.DeviceClassResolver().GetDeviceClass(name)
		if class == nil {
			return nil
		}
		// The resolver keeps a class as it was when it came to serve the name.
		if class, err := p.dra.DeviceClasses().Get(class.Name); err == nil {
			return class
		}
		return nil
	})
}

// extend prepares the search of a Pod that asks for resources which DRA serves,
// once for all of its rounds.
func (p *Plugin) extend(s *search, resources []resourceAsked, nodes []fwk.NodeInfo) error {
	if s.extended != nil {
		s.extended.trying = nil
	}
	if s.extended != nil || len(resources) == 0 {
		return nil
	}
	e := &extended{}
	r, policy, err := spokenFor(s.pod, resources)
	if err != nil {
		return err
	}
	rest, spoken := resources, resources
	if r != nil {
		spoken = []resourceAsked{*r}
		if e.revision, err = p.revisionFor(s.pod, policy); err != nil {
			return err
		}
		if e.variant, err = variantOf(e.revision, *r); err != nil {
			return err
		}
		e.class = r.class.Name
		rest = slices.DeleteFunc(slices.Clone(resources), func(other resourceAsked) bool { return other.name == r.name })
	}
	e.claim = claimOf(s.pod, rest)
	e.shadow = shadowOf(s.pod, e.variant, e.claim)
	e.byPlugin, e.resolvable = pluginNodes(nodes, resources), sets.New[string]()
	if len(s.claims) == 0 {
		e.last = onlyPluginNodes(nodes, spoken)
	}
	p.core.mu.Lock()
	defer p.core.mu.Unlock()
	if err := p.core.extensions.put(p.core.engine, s.pod.UID, e.variant, e.claim); err != nil {
		return err
	}
	maps.Copy(s.refused, e.byPlugin)
	s.extended = e
	return nil
}

// revisionFor is the revision of a policy that a Pod without the policy's claim
// follows: the one that its label pins, else the one that admission would make
// the claim from. A policy without revisions is revision 1 of itself.
func (p *Plugin) revisionFor(pod *corev1.Pod, name string) (*v1alpha1.PolicyRevision, error) {
	policy := p.core.objects.Policy(name)
	if policy == nil {
		return nil, fmt.Errorf("Pod %s: AcceleratorPolicy %q, %w", keyOf(pod), name, decide.ErrNotFound)
	}
	number, err := pinned(pod)
	if err != nil {
		return nil, err
	}
	if number == 0 {
		number = ptr.Deref(policy.Spec.ActiveRevision, 0)
	}
	if number == 0 {
		number = max(policy.Status.ActiveRevision, 1)
	}
	revision := p.core.objects.Revision(name, number)
	switch {
	case revision != nil:
		return revision, nil
	case number > 1 || policy.Status.ActiveRevision > 0:
		return nil, fmt.Errorf("Pod %s: revision %d of policy %q, %w", keyOf(pod), number, name, decide.ErrNotFound)
	}
	revision = &v1alpha1.PolicyRevision{}
	revision.Name = v1alpha1.RevisionName(name, 1)
	revision.Spec.Policy, revision.Spec.Revision, revision.Spec.PolicySpec = name, 1, *policy.Spec.DeepCopy()
	return revision, nil
}

// leftBehind says whether a claim for the Pod's extended resources is left of an
// earlier attempt. The embedded plugin removes it, and the Pod is tried again.
func (p *Plugin) leftBehind(pod *corev1.Pod) (bool, error) {
	claims, err := p.dra.ResourceClaims().List()
	if err != nil {
		return false, fmt.Errorf("listing claims, %w", err)
	}
	return slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool { return isSpecial(c, pod.UID) }), nil
}

// triesLast begins the round that looks at the nodes which the device plugin
// serves, where there are such and the Pod may follow its policy at all.
func (p *Plugin) triesLast(s *search) bool {
	if !s.extended.hasLast() {
		return false
	}
	d, err := p.decide(s, s.query())
	if err != nil || d.Class == v1alpha1.FailurePolicyInvalid {
		return false
	}
	s.extended.tried, s.extended.trying = true, s.extended.last
	return true
}

// decide asks the engine for the record of a question about the Pod.
func (p *Plugin) decide(s *search, q decide.Query) (*decide.Decision, error) {
	d, err := p.core.decide(q)
	if err != nil {
		return nil, err
	}
	return s.extended.named(d), nil
}

// preFilterLast has the embedded plugin look at the nodes that the device plugin
// serves, by itself.
func (p *Plugin) preFilterLast(ctx context.Context, state fwk.CycleState, s *search, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if _, status := p.DynamicResources.PreFilter(ctx, state, s.pod, nodes); !status.IsSuccess() {
		return nil, status
	}
	return &fwk.PreFilterResult{NodeNames: s.extended.trying}, nil
}

// preemptLast is [Plugin.offerPreemption] where only nodes that the device
// plugin serves lack nothing but what preemption can free.
func (p *Plugin) preemptLast(ctx context.Context, state fwk.CycleState, s *search, nodes []fwk.NodeInfo) {
	if s.extended == nil || len(s.extended.resolvable) == 0 {
		return
	}
	if _, status := p.DynamicResources.PreFilter(ctx, state, s.pod, nodes); status.IsSuccess() {
		s.extended.trying = s.extended.resolvable
	}
}

// reserveLast is Reserve on a node that the device plugin serves.
func (p *Plugin) reserveLast(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	if status := p.DynamicResources.Reserve(ctx, state, pod, nodeName); !status.IsSuccess() {
		return status
	}
	p.core.waiting.drop(pod.UID)
	return nil
}

// boundLast tells of a Pod that the device plugin serves.
func (p *Plugin) boundLast(s *search, nodeName string) {
	p.core.waiting.forget(s.pod.UID)
	p.core.publisher.Publish(outcome.OfDevicePlugin(s.pod, policyOf(s.pod), nodeName, s.extended.byPlugin[nodeName]), p.handle.EventRecorder())
}

// refuseLast takes over why no node passed that the device plugin serves.
func (s *search) refuseLast(statusOf func(node string) *fwk.Status) {
	for node := range s.extended.trying {
		status := statusOf(node)
		if status.Code() == fwk.Unschedulable {
			s.extended.resolvable.Insert(node)
		}
		s.refused[node] = s.extended.byPlugin[node] + "; " + words(status)
	}
}

// specialClaim is the claim for the Pod's extended resources as it was reserved,
// or nil.
func (p *Plugin) specialClaim(pod *corev1.Pod) *resourceapi.ResourceClaim {
	for _, claim := range p.core.inFlight.Claims() {
		if isSpecial(claim, pod.UID) {
			return claim
		}
	}
	return nil
}

// classed is a device and the class that it was asked for by.
type classed struct {
	device
	class string
}

// compareExtended checks that the embedded plugin allocated for the Pod's
// extended resources exactly the devices that were decided, for each class.
// Which of its requests of one class has which is its own affair.
func (p *Plugin) compareExtended(pod *corev1.Pod, e *extended, decided []v1alpha1.DecidedDevice) error {
	var want, got []classed
	for _, d := range decided {
		want = append(want, classed{device{driver: d.Driver, pool: d.Pool, name: d.Device}, e.classOf(d)})
	}
	if claim := p.specialClaim(pod); claim != nil {
		for _, r := range results(claim) {
			got = append(got, classed{device{driver: r.Driver, pool: r.Pool, name: r.Device}, classOfRequest(claim, r.Request)})
		}
	}
	order := func(a, b classed) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.driver, b.driver), cmp.Compare(a.pool, b.pool), cmp.Compare(a.name, b.name))
	}
	slices.SortFunc(want, order)
	slices.SortFunc(got, order)
	if !slices.Equal(want, got) {
		return fmt.Errorf("%w: decided %v for extended resources, allocated %v", ErrMismatch, want, got)
	}
	return nil
}

// classOf is the class by which a device was asked for. A decision names no claim
// where there is one alone.
func (e *extended) classOf(d v1alpha1.DecidedDevice) string {
	if d.Claim == v1alpha1.ExtendedRef || e.class == "" {
		return classOfRequest(e.claim, d.Request)
	}
	return e.class
}

// classOfRequest is the class that a request of the claim names, or "".
func classOfRequest(claim *resourceapi.ResourceClaim, request string) string {
	if claim == nil {
		return ""
	}
	for _, r := range claim.Spec.Devices.Requests {
		if r.Name == request && r.Exactly != nil {
			return r.Exactly.DeviceClassName
		}
	}
	return ""
}
