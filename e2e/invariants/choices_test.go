package invariants

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// slack in the stories, whose steps are seconds.
const slack = Slack(2 * time.Second)

// fleetStory is a cluster of three nodes: two H100, two A100, one T4, and a
// policy of the tiers h100, a100, any that wants 20Gi and compute capability
// 8.0. So the T4 may never be chosen.
func fleetStory() *story {
	s := &story{}
	for _, n := range []struct {
		name, model, memory, capability string
		gpus                            int
	}{{"h", "H100", "80Gi", "9.0.0", 2}, {"a", "A100", "40Gi", "8.0.0", 2}, {"t", "T4", "15Gi", "7.5.0", 1}} {
		s.node(watch.Added, n.name, true)
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: n.name, UID: types.UID("slice-" + n.name)}}
		slice.Spec = resourcev1.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: &n.name,
			Pool: resourcev1.ResourcePool{Name: n.name, Generation: 1, ResourceSliceCount: 1},
		}
		for i := range n.gpus {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
				Name: fmt.Sprintf("gpu-%d", i),
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
					"model": {StringValue: &n.model}, "architecture": {StringValue: new("Any")},
					"cudaComputeCapability": {VersionValue: &n.capability}, "driverVersion": {VersionValue: new("580.105.8")},
					"resource.kubernetes.io/numaNode": {IntValue: new(int64(i))},
				},
				Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse(n.memory)}},
			})
		}
		s.add(Entry{Type: watch.Added, Slice: slice})
	}
	return s.policy("p", func(*v1alpha1.AcceleratorPolicySpec) {})
}

func (s *story) policy(name string, change func(*v1alpha1.AcceleratorPolicySpec)) *story {
	r := &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: name + "-1"}}
	r.Spec.Policy, r.Spec.Revision = name, 1
	r.Spec.PolicySpec = v1alpha1.AcceleratorPolicySpec{
		Count:       new(int32(1)),
		Constraints: v1alpha1.Constraints{MinMemory: new(resource.MustParse("20Gi")), MinComputeCapability: "8.0", MinDriverVersion: "550.54"},
		Tiers:       []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}, {Name: "a100", Models: []string{"A100"}}, {Name: "any"}},
	}
	change(&r.Spec.PolicySpec)
	return s.add(Entry{Type: watch.Added, Revision: r})
}

func (s *story) node(t watch.EventType, name string, ready bool, taints ...corev1.Taint) *story {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	n.Spec.Taints = taints
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
	if ready {
		n.Status.Conditions[0].Status = corev1.ConditionTrue
	}
	return s.add(Entry{Type: t, Node: n})
}

func (s *story) rule(t watch.EventType, pool string, effect resourcev1.DeviceTaintEffect) *story {
	r := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rule-" + pool}}
	r.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{Driver: new(v1alpha1.DriverName), Pool: &pool}
	r.Spec.Taint = resourcev1.DeviceTaint{Key: "example.com/maintenance", Effect: effect}
	return s.add(Entry{Type: t, Rule: r})
}

// asks adds a Pod of the policy "p" that has no node yet.
func (s *story) asks(name string) *story { return s.asksFor(name, "p") }

func (s *story) asksFor(name, policy string) *story {
	return s.add(Entry{Type: watch.Added, Pod: policyPod(name, policy)})
}

func policyPod(name, policy string) *corev1.Pod {
	pod := podNamed(name, false)
	pod.Labels = map[string]string{v1alpha1.LabelPolicy: policy}
	pod.CreationTimestamp = metav1.NewTime(epoch)
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "accelerator", ResourceClaimTemplateName: new(policy + "-1")}}
	return pod
}

// claimAt is the Pod's claim with devices "pool/device".
func claimAt(pod, tier string, devices ...string) *resourcev1.ResourceClaim {
	claim := claimOf(pod)
	if len(devices) > 0 {
		claim.Status.Allocation = &resourcev1.AllocationResult{}
	}
	for _, d := range devices {
		pool, name, _ := strings.Cut(d, "/")
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Request: "accelerator/" + tier, Driver: v1alpha1.DriverName, Pool: pool, Device: name,
		})
	}
	return claim
}

// gets allocates devices to the Pod's claim: decided a second before that, as
// its record says with the higher tiers rejected.
func (s *story) gets(pod, tier string, devices ...string) *story {
	return s.getsBy(record(pod, tier, devices...), claimAt(pod, tier, devices...))
}

func (s *story) getsBy(r *v1alpha1.AllocationDecision, claim *resourcev1.ResourceClaim) *story {
	at := epoch.Add(time.Duration(len(s.History)-1) * time.Second)
	if r.Spec.DecidedAt == nil {
		r.Spec.DecidedAt = &metav1.MicroTime{Time: at}
	}
	return s.claim(watch.Modified, claim).add(Entry{Type: watch.Added, Record: r})
}

func (s *story) frees(pod string) *story { return s.claim(watch.Modified, claimAt(pod, "")) }

func record(pod, tier string, devices ...string) *v1alpha1.AllocationDecision {
	r := &v1alpha1.AllocationDecision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pod + "-record"}}
	r.Spec = v1alpha1.AllocationDecisionSpec{
		Pod: pod, PodUID: types.UID(pod), Outcome: v1alpha1.OutcomeAllocated, Policy: "p", PolicyRevision: 1, Tier: tier,
	}
	for _, d := range devices {
		pool, name, _ := strings.Cut(d, "/")
		r.Spec.Node = pool
		r.Spec.Devices = append(r.Spec.Devices, v1alpha1.DecidedDevice{Driver: v1alpha1.DriverName, Pool: pool, Device: name})
	}
	for _, name := range []string{"h100", "a100", "any"} {
		if name == tier {
			r.Spec.Tiers = append(r.Spec.Tiers, v1alpha1.TierEvidence{Name: name, Outcome: v1alpha1.TierSelected})
			break
		}
		r.Spec.Tiers = append(r.Spec.Tiers, v1alpha1.TierEvidence{
			Name: name, Outcome: v1alpha1.TierRejected, Rejections: []v1alpha1.Rejection{{Code: v1alpha1.ReasonInUse, Count: 2}},
		})
	}
	return r
}

// fullH100 has both H100 taken.
func fullH100() *story {
	return fleetStory().asks("x").gets("x", "h100", "h/gpu-0").asks("y").gets("y", "h100", "h/gpu-1").later(5)
}

func TestHardConstraints(t *testing.T) {
	two := func(s *v1alpha1.AcceleratorPolicySpec) { s.Count = new(int32(2)) }
	for name, tc := range map[string]struct {
		story    *story
		want     Verdict
		mentions []string
	}{
		"all met":            {fullH100().asks("z").gets("z", "a100", "a/gpu-0"), Pass, []string{"3 checked"}},
		"nothing allocated":  {fleetStory().asks("x"), Inconclusive, nil},
		"too little memory":  {fleetStory().asks("x").gets("x", "any", "t/gpu-0"), Fail, []string{"t/gpu-0", "memory 15Gi, want 20Gi", "ns/x-claim"}},
		"not of the tier":    {fleetStory().asks("x").gets("x", "h100", "a/gpu-0"), Fail, []string{`model "A100" is not one of the tier's`}},
		"no such tier":       {fleetStory().asks("x").gets("x", "b200", "h/gpu-0"), Fail, []string{"no such tier"}},
		"too many devices":   {fleetStory().asks("x").gets("x", "h100", "h/gpu-0", "h/gpu-1"), Fail, []string{"2 devices, the tier takes 1"}},
		"never published":    {fleetStory().asks("x").gets("x", "h100", "h/gpu-7"), Fail, []string{"never published"}},
		"of a later slice":   {fleetStory().asks("x").add(Entry{Gap: "too old"}).gets("x", "h100", "h/gpu-0"), Inconclusive, []string{"too old"}},
		"capability too low": {fleetStory().policy("q", func(s *v1alpha1.AcceleratorPolicySpec) { s.Constraints.MinComputeCapability = "8.6" }).asksFor("x", "q").gets("x", "a100", "a/gpu-0"), Fail, []string{"cudaComputeCapability"}},
		"driver too old":     {fleetStory().policy("q", func(s *v1alpha1.AcceleratorPolicySpec) { s.Constraints.MinDriverVersion = "580.105.9" }).asksFor("x", "q").gets("x", "a100", "a/gpu-0"), Fail, []string{"driverVersion"}},
		"driver new enough":  {fleetStory().policy("q", func(s *v1alpha1.AcceleratorPolicySpec) { s.Constraints.MinDriverVersion = "580.99" }).asksFor("x", "q").gets("x", "a100", "a/gpu-0"), Pass, nil},
		"architecture":       {fleetStory().policy("q", func(s *v1alpha1.AcceleratorPolicySpec) { s.Constraints.Architectures = []string{"Hopper"} }).asksFor("x", "q").gets("x", "h100", "h/gpu-0"), Fail, []string{"architecture"}},
		"models mixed":       {fleetStory().policy("q", two).asksFor("x", "q").gets("x", "any", "h/gpu-0", "a/gpu-0"), Fail, []string{`gpu.gpuladder.dev/model "A100"`}},
		"a pair":             {fleetStory().policy("q", two).asksFor("x", "q").gets("x", "h100", "h/gpu-0", "h/gpu-1"), Pass, nil},
		"attributes differ": {fleetStory().policy("q", func(s *v1alpha1.AcceleratorPolicySpec) {
			two(s)
			s.Constraints.MatchAttributes = []string{"resource.kubernetes.io/numaNode"}
		}).asksFor("x", "q").gets("x", "h100", "h/gpu-0", "h/gpu-1"), Fail, []string{"numaNode"}},
		"policy not known": {fleetStory().asks("x").gets("x", "h100", "h/gpu-0").asksFor("z", "gone").gets("z", "any", "t/gpu-0"), Pass, []string{"1 checked, 1 not judged"}},
	} {
		t.Run(name, func(t *testing.T) { judged(t, HardConstraints(tc.story.History), tc.want, tc.mentions...) })
	}
}

func TestHealthyDevices(t *testing.T) {
	tolerant := claimAt("x", "h100", "h/gpu-0")
	tolerant.Status.Allocation.Devices.Results[0].Tolerations = []resourcev1.DeviceToleration{
		{Key: "example.com/maintenance", Operator: resourcev1.DeviceTolerationOpExists},
	}
	tainted := func(since int) *story { // the slice says so itself
		s := fleetStory()
		slice := s.History[1].Slice.DeepCopy()
		slice.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: v1alpha1.TaintUnhealthy, Effect: resourcev1.DeviceTaintEffectNoSchedule}}
		s.add(Entry{Type: watch.Modified, Slice: slice})
		return s.later(since).asks("x")
	}
	for name, tc := range map[string]struct {
		story    *story
		want     Verdict
		mentions []string
	}{
		"healthy":          {fullH100(), Pass, nil},
		"rule long before": {fleetStory().rule(watch.Added, "h", resourcev1.DeviceTaintEffectNoSchedule).later(5).asks("x").gets("x", "h100", "h/gpu-0"), Fail, []string{"h/gpu-0", "rule rule-h", "ns/x-claim"}},
		"rule right before": {fleetStory().asks("x").rule(watch.Added, "h", resourcev1.DeviceTaintEffectNoSchedule).
			gets("x", "h100", "h/gpu-0"), Pass, nil},
		"rule that is gone": {fleetStory().rule(watch.Added, "h", resourcev1.DeviceTaintEffectNoExecute).later(5).
			rule(watch.Deleted, "h", resourcev1.DeviceTaintEffectNoExecute).asks("x").gets("x", "h100", "h/gpu-0"), Pass, nil},
		"rule of others": {fleetStory().rule(watch.Added, "a", resourcev1.DeviceTaintEffectNoSchedule).later(5).asks("x").gets("x", "h100", "h/gpu-0"), Pass, nil},
		"rule without effect": {fleetStory().rule(watch.Added, "h", resourcev1.DeviceTaintEffectNone).later(5).asks("x").
			gets("x", "h100", "h/gpu-0"), Pass, nil},
		"tolerated": {fleetStory().rule(watch.Added, "h", resourcev1.DeviceTaintEffectNoSchedule).later(5).asks("x").
			getsBy(record("x", "h100", "h/gpu-0"), tolerant), Pass, nil},
		"taint of the slice":         {tainted(5).gets("x", "h100", "h/gpu-0"), Fail, []string{v1alpha1.TaintUnhealthy, "its slice"}},
		"other device of the slice":  {tainted(5).gets("x", "h100", "h/gpu-1"), Pass, nil},
		"taint just now":             {tainted(0).gets("x", "h100", "h/gpu-0"), Pass, nil},
		"nobody says when it was so": {fleetStory().asks("x").claim(watch.Modified, claimAt("x", "h100", "h/gpu-0")), Inconclusive, []string{"1 not judged"}},
	} {
		t.Run(name, func(t *testing.T) { judged(t, HealthyDevices(tc.story.History, slack), tc.want, tc.mentions...) })
	}
}

func TestFirstChoices(t *testing.T) {
	evidence := func(change func(*v1alpha1.AllocationDecision)) *v1alpha1.AllocationDecision {
		r := record("z", "a100", "a/gpu-0")
		change(r)
		return r
	}
	z := func() *resourcev1.ResourceClaim { return claimAt("z", "a100", "a/gpu-0") }
	later := func() *v1alpha1.AllocationDecision { // as seen by somebody who decided before x's allocation was written
		r := record("x", "h100", "h/gpu-0")
		r.Spec.DecidedAt = &metav1.MicroTime{Time: epoch}
		return r
	}
	pairs := func(s *v1alpha1.AcceleratorPolicySpec) { s.Count = new(int32(2)) }
	for name, tc := range map[string]struct {
		story    *story
		want     Verdict
		mentions []string
	}{
		"the first tier":           {fullH100(), Pass, []string{"2 checked"}},
		"the second when it must":  {fullH100().asks("z").gets("z", "a100", "a/gpu-0"), Pass, []string{"3 checked"}},
		"the second too early":     {fleetStory().asks("x").gets("x", "h100", "h/gpu-0").later(5).asks("z").gets("z", "a100", "a/gpu-0"), Fail, []string{"tier h100 could have had", "h/gpu-1", "node h", "ns/z-claim"}},
		"freed long before":        {fullH100().frees("x").later(5).asks("z").gets("z", "a100", "a/gpu-0"), Fail, []string{"h/gpu-0"}},
		"freed right before":       {fullH100().asks("z").frees("x").gets("z", "a100", "a/gpu-0"), Pass, nil},
		"the node is gone":         {fleetStory().later(5).node(watch.Deleted, "h", true).later(5).asks("z").gets("z", "a100", "a/gpu-0"), Pass, nil},
		"the node is not ready":    {fleetStory().node(watch.Modified, "h", false).later(5).asks("z").gets("z", "a100", "a/gpu-0"), Pass, nil},
		"the node is tainted":      {fleetStory().node(watch.Modified, "h", true, corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoSchedule}).later(5).asks("z").gets("z", "a100", "a/gpu-0"), Pass, nil},
		"the node came back":       {fleetStory().node(watch.Modified, "h", false).later(5).node(watch.Modified, "h", true).later(5).asks("z").gets("z", "a100", "a/gpu-0"), Fail, []string{"h/gpu-0"}},
		"back right before":        {fleetStory().node(watch.Modified, "h", false).later(5).asks("z").node(watch.Modified, "h", true).gets("z", "a100", "a/gpu-0"), Pass, nil},
		"heartbeats mean nothing":  {fleetStory().later(5).asks("z").node(watch.Modified, "h", true).gets("z", "a100", "a/gpu-0"), Fail, []string{"h/gpu-0"}},
		"tainted by a rule":        {fleetStory().rule(watch.Added, "h", resourcev1.DeviceTaintEffectNoSchedule).later(5).asks("z").gets("z", "a100", "a/gpu-0"), Pass, nil},
		"the rule is gone":         {fleetStory().rule(watch.Added, "h", resourcev1.DeviceTaintEffectNoSchedule).rule(watch.Deleted, "h", "").later(5).asks("z").gets("z", "a100", "a/gpu-0"), Fail, nil},
		"the slice is gone":        {fleetStory().add(Entry{Type: watch.Deleted, Slice: fleetStory().History[1].Slice}).later(5).asks("z").gets("z", "a100", "a/gpu-0"), Pass, nil},
		"the pool is not whole":    {fleetStory().add(Entry{Type: watch.Modified, Slice: half(fleetStory().History[1].Slice)}).later(5).asks("z").gets("z", "a100", "a/gpu-0"), Pass, nil},
		"the last tier too early":  {fullH100().asks("z").gets("z", "any", "h/gpu-7"), Fail, []string{"tier a100 could have had", "a/gpu-0, gpu.gpuladder.dev/a/gpu-1"}},
		"another is under way":     {fleetStory().asks("y").gets("y", "h100", "h/gpu-1").later(5).asks("x").asks("z").gets("z", "a100", "a/gpu-0").getsBy(later(), claimAt("x", "h100", "h/gpu-0")), Pass, nil},
		"the other decided later":  {fleetStory().asks("y").gets("y", "h100", "h/gpu-1").later(5).asks("x").asks("z").gets("z", "a100", "a/gpu-0").later(3).gets("x", "h100", "h/gpu-0"), Fail, []string{"ns/z-claim"}},
		"held for nothing":         {fullH100().frees("x").later(5).asks("z").getsBy(evidence(reserved(1)), z()), Pass, nil},
		"more than was held":       {fullH100().frees("x").frees("y").later(5).asks("z").getsBy(evidence(reserved(1)), z()), Fail, []string{"node h"}},
		"evidence of a choice":     {fullH100().asks("z").getsBy(evidence(func(r *v1alpha1.AllocationDecision) { r.Spec.Tiers[0].Rejections[0].Code = v1alpha1.ReasonLowerRank }), z()), Fail, []string{"counts 2 devices of the higher tier h100 as LowerRank"}},
		"evidence of no rejection": {fullH100().asks("z").getsBy(evidence(func(r *v1alpha1.AllocationDecision) { r.Spec.Tiers[0].Outcome = v1alpha1.TierNotReached }), z()), Fail, []string{"h100 as NotReached"}},
		"no evidence":              {fullH100().asks("z").getsBy(evidence(func(r *v1alpha1.AllocationDecision) { r.Spec.Tiers = nil }), z()), Fail, []string{"says nothing of the higher tier h100"}},
		"no record":                {fullH100().asks("z").claim(watch.Modified, z()), Pass, []string{"2 checked, 1 not judged"}},
		"record of a later attempt": {fullH100().asks("z").claim(watch.Modified, z()).
			add(Entry{Type: watch.Added, Record: decidedLater(record("z", "a100", "a/gpu-0"))}), Pass, []string{"1 not judged"}},
		"a pair needs two":     {fleetStory().policy("q", pairs).asks("x").gets("x", "h100", "h/gpu-0").later(5).asksFor("z", "q").gets("z", "a100", "a/gpu-0", "a/gpu-1"), Pass, nil},
		"a pair had two":       {fleetStory().policy("q", pairs).later(5).asksFor("z", "q").gets("z", "a100", "a/gpu-0", "a/gpu-1"), Fail, []string{"h/gpu-0, gpu.gpuladder.dev/h/gpu-1"}},
		"it may not be yet":    {fleetStory().policy("q", after(time.Hour)).later(5).asksFor("z", "q").gets("z", "a100", "a/gpu-0"), Pass, nil},
		"it might have been":   {fleetStory().policy("q", after(2*time.Second)).later(9).asksFor("z", "q").gets("z", "a100", "a/gpu-0"), Fail, nil},
		"too small is no loss": {fleetStory().policy("q", func(s *v1alpha1.AcceleratorPolicySpec) { s.Tiers[0].Models = []string{"T4"} }).later(5).asksFor("z", "q").gets("z", "a100", "a/gpu-0"), Pass, nil},
	} {
		t.Run(name, func(t *testing.T) { judged(t, FirstChoices(tc.story.History, slack), tc.want, tc.mentions...) })
	}
}

func reserved(n int32) func(*v1alpha1.AllocationDecision) {
	return func(r *v1alpha1.AllocationDecision) {
		r.Spec.Tiers[0].Rejections = []v1alpha1.Rejection{{Code: v1alpha1.ReasonReserved, Count: n}}
	}
}

func after(d time.Duration) func(*v1alpha1.AcceleratorPolicySpec) {
	return func(s *v1alpha1.AcceleratorPolicySpec) { s.Tiers[0].After = &metav1.Duration{Duration: d} }
}

// half says that the pool has one more slice.
func half(slice *resourcev1.ResourceSlice) *resourcev1.ResourceSlice {
	slice = slice.DeepCopy()
	slice.Spec.Pool.ResourceSliceCount = 2
	return slice
}

func decidedLater(r *v1alpha1.AllocationDecision) *v1alpha1.AllocationDecision {
	r.Spec.DecidedAt = &metav1.MicroTime{Time: epoch.Add(time.Hour)}
	return r
}

// binds gives a Pod that got devices its node and what its Binding says.
func (s *story) binds(name, node string) *story {
	pod := policyPod(name, "p")
	pod.Spec.NodeName = node
	pod.Annotations = map[string]string{v1alpha1.AnnotationRecord: name + "-record", v1alpha1.AnnotationRevision: "1"}
	return s.add(Entry{Type: watch.Modified, Pod: pod})
}

func TestRecorded(t *testing.T) {
	const within = 5 * time.Second
	got := func() *story { return fleetStory().asks("x").claim(watch.Modified, claimAt("x", "h100", "h/gpu-0")) }
	other := func(change func(*v1alpha1.AllocationDecision)) Entry {
		r := record("x", "h100", "h/gpu-0")
		change(r)
		return Entry{Type: watch.Added, Record: r}
	}
	right := other(func(*v1alpha1.AllocationDecision) {})
	rebuilt := other(func(r *v1alpha1.AllocationDecision) {
		r.Name, r.Annotations = "rebuilt", map[string]string{v1alpha1.AnnotationRebuilt: "x-record"}
	})
	unnamed := policyPod("x", "p")
	unnamed.Spec.NodeName = "h"
	for name, tc := range map[string]struct {
		story    *story
		want     Verdict
		mentions []string
	}{
		"recorded":            {got().binds("x", "h").add(right), Pass, []string{"1 checked"}},
		"recorded before":     {got().add(right).binds("x", "h"), Pass, nil},
		"rebuilt":             {got().binds("x", "h").later(3).add(rebuilt), Pass, nil},
		"recorded after it":   {got().binds("x", "h").gone("x").add(right), Pass, nil},
		"lost":                {got().binds("x", "h").later(9), Fail, []string{"no record x-record", "ns/x"}},
		"lost with its Pod":   {got().binds("x", "h").later(9).gone("x").later(9), Fail, []string{"no record"}},
		"its Pod went early":  {got().binds("x", "h").later(1).gone("x").later(9), Inconclusive, []string{"1 not judged"}},
		"too early to say":    {got().binds("x", "h").later(2), Inconclusive, []string{"time for it is not over"}},
		"nothing bound":       {got().later(9), Inconclusive, nil},
		"no name":             {got().add(Entry{Type: watch.Modified, Pod: unnamed}), Fail, []string{"names no record"}},
		"of another node":     {got().binds("x", "h").add(other(func(r *v1alpha1.AllocationDecision) { r.Spec.Node = "a" })), Fail, []string{`names node "a", not "h"`}},
		"of other devices":    {got().binds("x", "h").add(other(func(r *v1alpha1.AllocationDecision) { r.Spec.Devices[0].Device = "gpu-1" })), Fail, []string{"gpu-1"}},
		"of another revision": {got().binds("x", "h").add(other(func(r *v1alpha1.AllocationDecision) { r.Spec.PolicyRevision = 2 })), Fail, []string{"revision 2"}},
		"of another Pod":      {got().binds("x", "h").add(other(func(r *v1alpha1.AllocationDecision) { r.Spec.PodUID = "y" })), Fail, []string{"of Pod y"}},
		"of no allocation":    {got().binds("x", "h").add(other(func(r *v1alpha1.AllocationDecision) { r.Spec.Outcome = v1alpha1.OutcomePending })), Fail, []string{"Pending"}},
	} {
		t.Run(name, func(t *testing.T) { judged(t, Recorded(tc.story.History, within), tc.want, tc.mentions...) })
	}
}

func TestRebuilt(t *testing.T) {
	got := func() *story {
		return fleetStory().asks("x").claim(watch.Modified, claimAt("x", "h100", "h/gpu-0")).binds("x", "h")
	}
	rebuilt := func(change func(*v1alpha1.AllocationDecision)) Entry {
		r := record("x", "h100", "h/gpu-0")
		r.Name, r.Annotations = "rebuilt", map[string]string{v1alpha1.AnnotationRebuilt: "x-record"}
		change(r)
		return Entry{Type: watch.Added, Record: r}
	}
	for name, tc := range map[string]struct {
		story    *story
		want     Verdict
		mentions []string
	}{
		"as it was":       {got().add(rebuilt(func(*v1alpha1.AllocationDecision) {})), Pass, []string{"1 checked"}},
		"of another node": {got().add(rebuilt(func(r *v1alpha1.AllocationDecision) { r.Spec.Node = "a" })), Fail, []string{`record rebuilt, which was rebuilt, names node "a", not "h"`}},
		"none was lost":   {got().add(Entry{Type: watch.Added, Record: record("x", "h100", "h/gpu-0")}), Inconclusive, []string{"no record was lost, so none was rebuilt"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := Rebuilt(tc.story.History)
			judged(t, r, tc.want, tc.mentions...)
			if !r.Rare {
				t.Error("it does not say that this is rare")
			}
		})
	}
}

// says gives a Pod a condition.
func (s *story) says(name, message string) *story {
	pod := policyPod(name, "p")
	pod.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.ConditionAccelerator, Status: corev1.ConditionFalse, Message: message}}
	return s.add(Entry{Type: watch.Modified, Pod: pod})
}

// tells adds an Event of a Pod that has been told so many times.
func (s *story) tells(name, event, reason, note string, times int32) *story {
	e := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: event, UID: types.UID(event)}, Reason: reason, Note: note}
	e.Regarding = corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: name, UID: types.UID(name)}
	if times > 1 {
		e.Series = &eventsv1.EventSeries{Count: times}
	}
	return s.add(Entry{Type: watch.Added, Event: e})
}

func (s *story) starts() *story { return s.add(Entry{Started: true}) }

func TestAttemptsWithinBudget(t *testing.T) {
	begun := func() *story { return fleetStory().starts().asks("x") }
	for name, tc := range map[string]struct {
		story    *story
		want     Verdict
		mentions []string
	}{
		"attempts within":  {begun().says("x", "StaleSlice: gone [failed 2 of 5 attempts, first 2026-01-02T03:04:05Z, key 1f0c5a7e9b42]"), Pass, []string{"1 checked"}},
		"the last attempt": {begun().says("x", "gone [failed 5 of 5 attempts, first 2026-01-02T03:04:05Z, gave up: no attempt is left, key 1f0c5a7e9b42]"), Pass, nil},
		"too many":         {begun().says("x", "gone [failed 6 of 5 attempts, first 2026-01-02T03:04:05Z, key 1f0c5a7e9b42]"), Fail, []string{"ns/x says 6 failed attempts of 5"}},
		"of another limit": {begun().policy("p", func(s *v1alpha1.AcceleratorPolicySpec) { s.Retry.MaxAttempts = new(int32(3)) }).
			says("x", "gone [failed 1 of 5 attempts, first 2026-01-02T03:04:05Z, key 1f0c5a7e9b42]"), Fail, []string{"its policy allows 3"}},
		"none failed, whatever was told": {begun().tells("x", "e1", "AcceleratorPending", "no tier", 1), Inconclusive, []string{"no attempt failed between decision and bind"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := AttemptsWithinBudget(tc.story.History)
			judged(t, r, tc.want, tc.mentions...)
			if !r.Rare {
				t.Error("it does not say that this is rare")
			}
		})
	}
}

func TestEventsWithinBudget(t *testing.T) {
	const one, two = "no tier: h100 (2 InUse, 8 ModelMismatch)", "no tier: h100 (1 InUse, 1 Reserved, 8 ModelMismatch)"
	begun := func() *story { return fleetStory().starts().asks("x") }
	for name, tc := range map[string]struct {
		story    *story
		want     Verdict
		mentions []string
	}{
		"each outcome once":          {begun().tells("x", "e1", "AcceleratorPending", one, 1).tells("x", "e2", "AcceleratorAllocated", "H100", 1), Pass, []string{"2 checked"}},
		"one outcome twice":          {begun().tells("x", "e1", "AcceleratorPending", one, 1).tells("x", "e2", "AcceleratorPending", two, 1), Fail, []string{"told by 2 Events, there were 1 schedulers"}},
		"one Event many times":       {begun().tells("x", "e1", "AcceleratorPending", one, 1).tells("x", "e1", "AcceleratorPending", one, 7), Fail, []string{"told by 7 Events"}},
		"once by each scheduler":     {begun().tells("x", "e1", "AcceleratorPending", one, 1).starts().tells("x", "e2", "AcceleratorPending", two, 1), Pass, nil},
		"by schedulers of old":       {fleetStory().starts().starts().starts().asks("x").tells("x", "e1", "AcceleratorPending", one, 1).tells("x", "e2", "AcceleratorPending", one, 1), Fail, []string{"there were 1 schedulers"}},
		"other Pods of the name":     {begun().tells("x", "e1", "AcceleratorPending", one, 1).gone("x").asks("y").tells("y", "e2", "AcceleratorPending", one, 1), Pass, nil},
		"attempts are no Events":     {begun().says("x", "gone [failed 2 of 5 attempts, first 2026-01-02T03:04:05Z, key 1f0c5a7e9b42]"), Inconclusive, nil},
		"what others tell is theirs": {begun().tells("x", "e1", "FailedScheduling", one, 90), Inconclusive, nil},
	} {
		t.Run(name, func(t *testing.T) { judged(t, EventsWithinBudget(tc.story.History), tc.want, tc.mentions...) })
	}
}

// The new kinds of observations are kept like the others.
func TestHistoryKeepsEverything(t *testing.T) {
	s := fullH100().rule(watch.Added, "h", resourcev1.DeviceTaintEffectNoSchedule).starts().tells("x", "e", "AcceleratorAllocated", "H100", 1)
	var text strings.Builder
	if err := s.Write(&text); err != nil {
		t.Fatal(err)
	}
	again, err := Read(strings.NewReader(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	for name, check := range map[string]func(History) Report{
		"I2": HardConstraints, "I4": func(h History) Report { return FirstChoices(h, slack) }, "I8": func(h History) Report { return HealthyDevices(h, slack) }, "I11": EventsWithinBudget,
	} {
		one, other := check(s.History), check(again)
		if one.String() != other.String() || one.Checked == 0 {
			t.Errorf("%s of what was kept: %s, want %s", name, other.String(), one.String())
		}
	}
}
