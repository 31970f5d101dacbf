package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
	"gpuladder.dev/ladder/policies/journal"
)

// twin keeps what a journal tells as plain objects, for the naive twin.
type twin struct {
	nodes map[string]*corev1.Node
	pods  map[types.NamespacedName]*corev1.Pod
	// claims are those with devices.
	claims map[types.NamespacedName]*resourcev1.ResourceClaim
	// others are all further objects.
	others map[string]runtime.Object
	// assumed are devices that are charged to a Pod before its claim has them.
	assumed map[types.NamespacedName][]v1alpha1.DecidedDevice
}

var _ journal.Follower = &twin{}

func newTwin() *twin {
	return &twin{
		nodes: map[string]*corev1.Node{}, pods: map[types.NamespacedName]*corev1.Pod{},
		claims: map[types.NamespacedName]*resourcev1.ResourceClaim{}, others: map[string]runtime.Object{},
		assumed: map[types.NamespacedName][]v1alpha1.DecidedDevice{},
	}
}

func nameOf(obj metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

func otherName(obj runtime.Object) string {
	return fmt.Sprintf("%T %s", obj, nameOf(obj.(metav1.Object)))
}

// Put implements [journal.Follower].
func (t *twin) Put(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.Node:
		t.nodes[o.Name] = o
	case *corev1.Pod:
		if old := t.pods[nameOf(o)]; old != nil && old.UID != o.UID {
			delete(t.assumed, nameOf(o)) // another Pod of this name
		}
		t.pods[nameOf(o)] = o
	case *resourcev1.ResourceClaim:
		delete(t.claims, nameOf(o))
		if o.Status.Allocation != nil {
			t.claims[nameOf(o)] = o
			t.written(o)
		}
	default:
		t.others[otherName(obj)] = obj
	}
}

// written takes back what was assumed of devices that a claim now has.
func (t *twin) written(claim *resourcev1.ResourceClaim) {
	for pod, devices := range t.assumed {
		if pod.Namespace == claim.Namespace {
			t.assumed[pod] = slices.DeleteFunc(devices, func(d v1alpha1.DecidedDevice) bool { return has(claim, d) })
		}
	}
}

func has(claim *resourcev1.ResourceClaim, d v1alpha1.DecidedDevice) bool {
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return r.Driver == d.Driver && r.Pool == d.Pool && r.Device == d.Device
	})
}

// Delete implements [journal.Follower].
func (t *twin) Delete(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.Node:
		delete(t.nodes, o.Name)
	case *corev1.Pod:
		delete(t.pods, nameOf(o))
		delete(t.assumed, nameOf(o))
	case *resourcev1.ResourceClaim:
		delete(t.claims, nameOf(o))
	default:
		delete(t.others, otherName(obj))
	}
}

// Assume implements [journal.Follower].
func (t *twin) Assume(d *decide.Decision) {
	pod := types.NamespacedName{Namespace: d.Namespace, Name: d.Pod}
	if d.Outcome != v1alpha1.OutcomeAllocated {
		return
	}
	t.assumed[pod] = slices.Clone(d.Devices)
	for _, claim := range t.claims {
		if claim.Namespace == pod.Namespace {
			t.written(claim)
		}
	}
}

// Forget implements [journal.Follower].
func (t *twin) Forget(pod types.NamespacedName) { delete(t.assumed, pod) }

// every is of how many decisions the twin is asked one. Its time grows with the
// square of the nodes: on 60 nodes it takes 5 ms, on 500 two tenths of a second,
// on 1,000 one second.
func every(nodes int) int { return 1 + (nodes/200)*(nodes/200) }

// ask says where the twin's answer differs from that of the engine; ok is false
// for a question that it can't be asked.
func (t *twin) ask(s journal.Step) (differences []string, ok bool) {
	if s.Err != nil {
		return nil, false
	}
	cluster, question, ok := t.question(s.Query)
	if !ok {
		return nil, false
	}
	answer, err := cluster.Decide(question)
	if err != nil {
		return []string{err.Error()}, true
	}
	return compare(s.Decision, answer), true
}

// question is what the twin is asked. It knows Pods that follow a policy and have
// no device yet: not those that ask for more than their policy's devices, whose
// claim has devices already (they were tried before), or that have a node. Where
// several Pods may have a share of a device it isn't asked either: what is charged
// and not yet written says nothing of the size of a share.
func (t *twin) question(q decide.Query) (*decidetest.Cluster, decidetest.Question, bool) {
	none := decidetest.Question{}
	pod := t.pods[q.Pod]
	if pod == nil || pod.Labels[v1alpha1.LabelPolicy] == "" || pod.Spec.NodeName != "" || len(t.assumed[q.Pod]) > 0 || t.served(pod) {
		return nil, none, false
	}
	question := decidetest.Question{Pod: q.Pod, Now: q.Now, External: true, Refused: q.NodeRejections}
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.Name != v1alpha1.ClaimRefName {
			return nil, none, false
		}
	}
	if q.Group != nil {
		question.GroupTier = &q.Group.Tier
	}
	// The twin makes the claim of the policy itself.
	bare := *pod
	bare.Spec.ResourceClaims = nil
	c := &decidetest.Cluster{Now: q.Now, Pods: []*corev1.Pod{&bare}}
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		c.Nodes = append(c.Nodes, t.nodes[name])
	}
	for _, name := range slices.Sorted(maps.Keys(t.others)) {
		c.Add(t.others[name])
	}
	byName := func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) }
	for _, name := range slices.SortedFunc(maps.Keys(t.claims), byName) {
		c.Claims = append(c.Claims, t.claims[name])
	}
	for _, name := range slices.SortedFunc(maps.Keys(t.assumed), byName) {
		c.Claims = append(c.Claims, assumedClaim(name, t.assumed[name]))
	}
	return c, question, !slices.ContainsFunc(c.Slices, shared)
}

// shared says whether several claims may have a share of a device.
func shared(s *resourcev1.ResourceSlice) bool {
	return slices.ContainsFunc(s.Spec.Devices, func(d resourcev1.Device) bool {
		return d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	})
}

// served says whether the Pod's claim has devices.
func (t *twin) served(pod *corev1.Pod) bool {
	for _, claim := range t.claims {
		if claim.Namespace == pod.Namespace && slices.ContainsFunc(claim.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == pod.UID }) {
			return true
		}
	}
	return slices.ContainsFunc(pod.Status.ResourceClaimStatuses, func(s corev1.PodResourceClaimStatus) bool {
		return s.ResourceClaimName != nil && t.claims[types.NamespacedName{Namespace: pod.Namespace, Name: *s.ResourceClaimName}] != nil
	})
}

// assumedClaim stands for the claim that will have the devices.
func assumedClaim(pod types.NamespacedName, devices []v1alpha1.DecidedDevice) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "assumed-" + pod.Name}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Request: d.Request, Driver: d.Driver, Pool: d.Pool, Device: d.Device,
		})
	}
	return c
}

// compare holds a decision against the twin's answer.
func compare(got *decide.Decision, want *decidetest.Answer) []string {
	var out []string
	differ := func(what string, engine, twin any) {
		if e, t := fmt.Sprint(engine), fmt.Sprint(twin); e != t {
			out = append(out, fmt.Sprintf("%s: the engine says %s, the twin %s", what, e, t))
		}
	}
	differ("outcome", got.Outcome, want.Outcome)
	differ("node", got.Node, want.Node)
	differ("devices", places(got.Devices), places(want.Devices))
	differ("parked", got.Class == v1alpha1.FailurePolicyInvalid, want.Parked)
	if !want.SingleRequest {
		return out
	}
	differ("tier", got.Tier, want.Tier)
	differ("number of tiers", len(got.Tiers), len(want.Tiers))
	for i := range min(len(got.Tiers), len(want.Tiers)) {
		g, w := got.Tiers[i], want.Tiers[i]
		differ(fmt.Sprintf("tier %d", i), fmt.Sprint(g.Name, " ", g.Outcome), fmt.Sprint(w.Name, " ", w.Outcome))
		counts := map[v1alpha1.Reason]int{}
		for _, r := range g.Rejections {
			code := r.Code
			if code == v1alpha1.ReasonReserved {
				code = v1alpha1.ReasonInUse // the twin knows no difference
			}
			counts[code] += int(r.Count)
		}
		differ("reasons of tier "+w.Name, counts, w.Counts())
	}
	return out
}

// places are the devices that were chosen for each request.
func places(devices []v1alpha1.DecidedDevice) []string {
	var out []string
	for _, d := range devices {
		out = append(out, fmt.Sprintf("%s/%s/%s for %s", d.Driver, d.Pool, d.Device, d.Request))
	}
	return out
}
