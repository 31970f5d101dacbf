package ladder

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/journal"
)

// This file holds the order of nodes for a Pod with an extended resource against
// a naive twin: it counts devices on every node, tier by tier, and sorts.

// naiveDevice is a device as the twin sees it.
type naiveDevice struct {
	name, model string
	memory      int64 // GiB
	inClass     bool
	free        bool
}

type naiveTier struct {
	name   string
	models []string
	after  time.Duration
	count  int32
}

// naive is a fleet, a policy and a Pod.
type naive struct {
	nodes     map[string][]naiveDevice
	plugin    map[string]string
	tiers     []naiveTier
	minMemory int64
	mix       bool
	spread    bool
	count     int
	waited    time.Duration
	// turn are the models that the Pod's turn is for; none: any.
	turn []string
}

func drawNaive(r *rand.Rand) *naive {
	models := []string{"H100", "A100", "L4", "T4"}
	n := &naive{
		nodes: map[string][]naiveDevice{}, plugin: map[string]string{},
		minMemory: int64(r.Intn(3) * 20), mix: r.Intn(2) == 0, spread: r.Intn(2) == 0,
		count: 1 + r.Intn(3), waited: time.Duration(r.Intn(3)) * 10 * time.Minute,
	}
	for i := range 1 + r.Intn(8) {
		name := fmt.Sprintf("n%d", i)
		n.nodes[name] = nil
		kinds := 1 + r.Intn(2)
		for j := range r.Intn(6) {
			n.nodes[name] = append(n.nodes[name], naiveDevice{
				name: fmt.Sprintf("gpu-%d", j), model: models[(i+r.Intn(kinds))%len(models)], memory: int64(10 + r.Intn(60)),
				inClass: r.Intn(5) > 0, free: r.Intn(4) > 0,
			})
		}
		if r.Intn(6) == 0 {
			n.plugin[name] = "a device plugin serves it there"
		}
	}
	r.Shuffle(len(models), func(i, j int) { models[i], models[j] = models[j], models[i] })
	for len(models) > 0 && len(n.tiers) < 3 {
		size := 1 + r.Intn(len(models))
		t := naiveTier{name: fmt.Sprintf("t%d", len(n.tiers)), models: models[:size], after: time.Duration(r.Intn(3)) * 10 * time.Minute}
		models = models[size:]
		if t.count = int32(r.Intn(3)); t.count == 2 {
			// The same with a smaller count, which an extended resource makes useless.
			n.tiers = append(n.tiers, t)
			t.name, t.count = t.name+"-less", 1
		}
		n.tiers = append(n.tiers, t)
	}
	if r.Intn(3) == 0 {
		n.turn = []string{"L4", "H100"}[r.Intn(2):]
	}
	return n
}

// order is what the documents promise: tier by tier, the nodes that have enough
// devices of the class for it, fewest or most eligible ones first, then by name.
func (n *naive) order() (nodes, tiers []string) {
	done := map[string]bool{}
	for _, t := range n.tiers {
		if n.waited < t.after {
			continue
		}
		rank := map[string]int{}
		var serving []string
		for name, devices := range n.nodes {
			byModel := map[string]int{}
			for _, d := range devices {
				if slices.Contains(t.models, d.model) && d.inClass && d.free && d.memory >= n.minMemory && n.inTurn(d.model) {
					byModel[d.model]++
					rank[name]++
				}
			}
			enough := n.mix && rank[name] >= n.count
			for _, have := range byModel {
				enough = enough || have >= n.count
			}
			if enough && !done[name] && n.plugin[name] == "" {
				serving = append(serving, name)
			}
		}
		slices.SortFunc(serving, func(a, b string) int {
			byRank := cmp.Compare(rank[a], rank[b])
			if n.spread {
				byRank = -byRank
			}
			return cmp.Or(byRank, cmp.Compare(a, b))
		})
		for _, name := range serving {
			done[name] = true
			nodes, tiers = append(nodes, name), append(tiers, t.name)
		}
	}
	return nodes, tiers
}

func (n *naive) inTurn(model string) bool { return len(n.turn) == 0 || slices.Contains(n.turn, model) }

// objects are the fleet as the engine is told of it, and the quota of the Pod's
// tenant, which has no limit.
func (n *naive) objects() []runtime.Object {
	quota := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	quota.Spec.Namespaces = []string{"ns"}
	quota.Spec.Models = []v1alpha1.ModelQuota{{Model: "H100"}, {Model: "A100"}, {Model: "L4"}, {Model: "T4"}}
	out := []runtime.Object{quota}
	for name, devices := range n.nodes {
		out = append(out, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
		slice.Spec.Driver, slice.Spec.NodeName = v1alpha1.DriverName, ptr.To(name)
		slice.Spec.Pool = resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1}
		for _, d := range devices {
			slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
				Name: d.name,
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"model": {StringValue: ptr.To(d.model)}, "leased": {BoolValue: ptr.To(d.inClass)},
				},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
					"memory": {Value: resource.MustParse(fmt.Sprintf("%dGi", d.memory))},
				},
			})
			if !d.free {
				claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: name + "-" + d.name}}
				claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
					Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: v1alpha1.DriverName, Pool: name, Device: d.name}},
				}}
				out = append(out, claim)
			}
		}
		out = append(out, slice)
	}
	return out
}

func (n *naive) revision() *v1alpha1.PolicyRevision {
	r := aRevision()
	spec := &r.Spec.PolicySpec
	for _, t := range n.tiers {
		made := tier(t.name, t.count, t.models...)
		if t.after > 0 {
			made.After = &metav1.Duration{Duration: t.after}
		}
		spec.Tiers = append(spec.Tiers, made)
	}
	if n.minMemory > 0 {
		spec.Constraints.MinMemory = ptr.To(resource.MustParse(fmt.Sprintf("%dGi", n.minMemory)))
	}
	if n.mix {
		spec.MixModels = v1alpha1.MixModelsWithinTier
	}
	if n.spread {
		spec.Ranking = v1alpha1.RankingSpread
	}
	return r
}

// device is the twin's of a name.
func (n *naive) device(node, name string) *naiveDevice {
	for i := range n.nodes[node] {
		if n.nodes[node][i].name == name {
			return &n.nodes[node][i]
		}
	}
	return nil
}

// The order of nodes is that of the twin, and the devices are enough, free, of
// the class and of the tier.
func TestOrderOfNodesForAResource(t *testing.T) {
	class := classNamed("leased", fmt.Sprintf("device.driver == %q", v1alpha1.DriverName), fmt.Sprintf("device.attributes[%q].leased", v1alpha1.DriverName))
	served := 0
	for seed := range int64(1500) {
		n := drawNaive(rand.New(rand.NewSource(seed)))
		st := decide.NewState(decide.Options{NodeChecks: decide.ExternalNodeChecks})
		for _, obj := range n.objects() {
			require.NoError(t, st.Put(obj), "seed %d", seed)
		}
		now := time.Unix(1_000_000, 0)
		pod := resourcePod(int64(n.count), turnFor(strings.Join(n.turn, ","), withAnnotation("h100-first")))
		pod.CreationTimestamp = metav1.NewTime(now.Add(-n.waited))
		revision := n.revision()
		require.Empty(t, revision.Spec.PolicySpec.Validate(nil), "seed %d: the policy is one that users can have", seed)
		variant, err := variantOf(revision, resourceAsked{gpuName, class, devicesFor(pod, gpuName)})
		require.NoError(t, err)
		require.NoError(t, newExtensions().put(st, pod.UID, variant, nil), "seed %d", seed)
		require.NoError(t, st.Put(shadowOf(pod, variant, nil)))
		candidates, err := st.Candidates(decide.Query{Pod: keyOf(pod), Now: now, NodeRejections: n.plugin})
		require.NoError(t, err)
		var nodes, tiers []string
		for c := range candidates {
			nodes, tiers = append(nodes, c.Node), append(tiers, c.Tier)
			require.Len(t, c.Devices, n.count, "seed %d", seed)
			i := slices.IndexFunc(n.tiers, func(t naiveTier) bool { return t.name == c.Tier })
			for _, chosen := range c.Devices {
				d := n.device(c.Node, chosen.Device)
				require.True(t, d != nil && d.free && d.inClass && slices.Contains(n.tiers[i].models, d.model) && n.inTurn(d.model), "seed %d: %v", seed, chosen)
			}
		}
		wantNodes, wantTiers := n.order()
		require.Equal(t, wantNodes, nodes, "seed %d", seed)
		require.Equal(t, wantTiers, tiers, "seed %d", seed)
		served += len(nodes)
	}
	require.Greater(t, served, 1000, "the fleets are not too poor to tell anything")
}

// What was decided about a shadow can be decided again from the journal.
func TestReplayForAResource(t *testing.T) {
	n := drawNaive(rand.New(rand.NewSource(7)))
	var written bytes.Buffer
	recorder := journal.NewRecorder(decide.Options{NodeChecks: decide.ExternalNodeChecks}, "j", &written)
	for _, obj := range n.objects() {
		require.NoError(t, recorder.Put(obj))
	}
	nic := classNamed("nic", "false")
	require.NoError(t, recorder.Put(nic))
	pod := resourcePod(int64(n.count), withAnnotation("nvidia.com/gpu=h100-first"))
	variant, err := variantOf(n.revision(), resourceAsked{gpuName, classNamed("all"), devicesFor(pod, gpuName)})
	require.NoError(t, err)
	for _, claim := range []*resourceapi.ResourceClaim{nil, claimOf(pod, []resourceAsked{{"example.com/nic", nic, 1}})} {
		require.NoError(t, newExtensions().put(recorder, pod.UID, variant, claim))
		require.NoError(t, recorder.Put(shadowOf(pod, variant, claim)))
		d, err := recorder.Decide(decide.Query{Pod: keyOf(pod), Now: time.Unix(1000, 0)})
		require.NoError(t, err)
		e := &extended{revision: n.revision(), variant: variant}
		require.NoError(t, recorder.Assume(e.named(d), true))
		recorder.Forget(keyOf(pod))
	}
	require.NoError(t, recorder.Flush())
	report, err := journal.Replay(&written)
	require.NoError(t, err)
	require.Empty(t, report.Differences)
	require.Equal(t, 2, report.Decisions)
}
