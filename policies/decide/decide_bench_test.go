package decide_test

// What a decision costs on large fleets. Target: 5 ms warm at 8,000 devices
// with one core, growing no worse than linearly with the fleet.

import (
	"context"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

var loads = []decidetest.Load{decidetest.Empty, decidetest.HalfFull, decidetest.H100Full, decidetest.Full}

// BenchmarkDecideWarm: another decision on a State that has decided before.
// Between two decisions a device changes hands, as it does in a cluster.
func BenchmarkDecideWarm(b *testing.B) {
	for _, load := range loads {
		b.Run(fmt.Sprintf("nodes=1000/load=%s", load), func(b *testing.B) { warm(b, 1000, load) })
	}
}

// BenchmarkDecideGrowth: the same over fleets of growing size.
func BenchmarkDecideGrowth(b *testing.B) {
	for _, nodes := range []int{125, 250, 500, 1000, 2000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) { warm(b, nodes, decidetest.HalfFull) })
	}
}

func warm(b *testing.B, nodes int, load decidetest.Load) {
	c := decidetest.Fleet(nodes, load)
	s := newState(b, decide.Options{}, c.Objects())
	q, _ := question(c, decidetest.FleetPod)
	last := c.Slices[len(c.Slices)-1].Spec.Pool.Name
	change := changeHands(last)
	requireOutcome(b, mustDecide(b, s, q), load)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		put(b, s, change[i%2])
		i++
		mustDecide(b, s, q)
	}
	b.ReportMetric(float64(8*nodes), "devices")
}

// BenchmarkPlaceGrowth: what the scheduler asks for one Pod after another, over
// fleets of growing size whose first tier has room: the first candidate, the
// record, and the charge; then the Pod before it ends.
func BenchmarkPlaceGrowth(b *testing.B) {
	for _, nodes := range []int{100, 500, 1000, 5000, 10000} {
		for _, whole := range []bool{false, true} {
			b.Run(fmt.Sprintf("nodes=%d/whole=%t", nodes, whole), func(b *testing.B) { place(b, nodes, whole) })
		}
	}
}

func place(b *testing.B, nodes int, whole bool) {
	c := decidetest.Fleet(nodes, decidetest.HalfFull)
	s := newState(b, decide.Options{NodeChecks: decide.ExternalNodeChecks, WholeFleet: whole}, c.Objects())
	var queries [2]decide.Query
	for i := range queries {
		pod := c.Pod(decidetest.FleetPod).DeepCopy()
		pod.Name, pod.UID = fmt.Sprintf("p-%d", i), types.UID(fmt.Sprintf("p-%d", i))
		put(b, s, pod)
		queries[i], _ = question(c, decidetest.FleetPod)
		queries[i].Pod.Name = pod.Name
	}
	one := func(i int) {
		q := queries[i%2]
		all, err := s.Candidates(q)
		if err != nil {
			b.Fatal(err)
		}
		first := ""
		for candidate := range all {
			first = candidate.Node
			break
		}
		d := mustDecide(b, s, q)
		if d.Node != first || d.Tier != "h100" {
			b.Fatalf("node %s by tier %s, the first candidate is %s", d.Node, d.Tier, first)
		}
		if err := s.Assume(d, false); err != nil {
			b.Fatal(err)
		}
		s.Forget(queries[(i+1)%2].Pod)
	}
	one(0)
	b.ReportAllocs()
	i := 1
	for b.Loop() {
		one(i)
		i++
	}
	b.ReportMetric(float64(8*nodes), "devices")
}

// changeHands is a claim with and without an allocation.
func changeHands(pool string) [2]*resourceapi.ResourceClaim {
	free := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "changes-hands", UID: "changes-hands"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "main", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			},
		}}}},
	}
	taken := free.DeepCopy()
	taken.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "main", Driver: v1alpha1.DriverName, Pool: pool, Device: "gpu-7"}},
	}}
	return [2]*resourceapi.ResourceClaim{taken, free}
}

// BenchmarkDecideCold: the first decision on a State that has just been built.
func BenchmarkDecideCold(b *testing.B) {
	for _, load := range loads {
		b.Run(fmt.Sprintf("nodes=1000/load=%s", load), func(b *testing.B) {
			c := decidetest.Fleet(1000, load)
			objects := c.Objects()
			q, _ := question(c, decidetest.FleetPod)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				s := newState(b, decide.Options{}, objects)
				b.StartTimer()
				requireOutcome(b, mustDecide(b, s, q), load)
			}
			b.ReportMetric(8000, "devices")
		})
	}
}

// BenchmarkDecideBuild: the State itself, from objects.
func BenchmarkDecideBuild(b *testing.B) {
	objects := decidetest.Fleet(1000, decidetest.HalfFull).Objects()
	b.ReportAllocs()
	for b.Loop() {
		newState(b, decide.Options{}, objects)
	}
	b.ReportMetric(8000, "devices")
}

// requireOutcome keeps the benchmarks honest: they must decide what they claim.
func requireOutcome(t failer, d *decide.Decision, load decidetest.Load) {
	t.Helper()
	outcome, tier := v1alpha1.OutcomeAllocated, "h100"
	switch load {
	case decidetest.H100Full:
		tier = "a100"
	case decidetest.Full:
		outcome, tier = v1alpha1.OutcomePending, ""
	}
	if d.Outcome != outcome || d.Tier != tier {
		t.Fatalf("%s in tier %q, want %s in tier %q", d.Outcome, d.Tier, outcome, tier)
	}
}

// TestWarmDecisionAllocatesLittle: what a warm decision allocates does not grow
// with the fleet faster than the fleet; time is for the benchmarks to tell.
func TestWarmDecisionAllocatesLittle(t *testing.T) {
	for _, load := range loads {
		allocations := map[int]float64{}
		for _, nodes := range []int{50, 200} {
			c := decidetest.Fleet(nodes, load)
			s := newState(t, decide.Options{}, c.Objects())
			q, _ := question(c, decidetest.FleetPod)
			requireOutcome(t, mustDecide(t, s, q), load)
			allocations[nodes] = testing.AllocsPerRun(5, func() { mustDecide(t, s, q) })
		}
		t.Logf("load %s: %v allocations per decision", load, allocations)
		if allocations[200] > 4*allocations[50] {
			t.Errorf("load %s: four times the nodes, %.0f allocations instead of %.0f", load, allocations[200], allocations[50])
		}
	}
}

// BenchmarkPeerAllocator: Kubernetes' allocator asked for the same claim on
// every node, which is what a scheduler must do that wants the best tier.
func BenchmarkPeerAllocator(b *testing.B) {
	for _, load := range loads {
		b.Run(fmt.Sprintf("nodes=1000/load=%s", load), func(b *testing.B) {
			c := decidetest.Fleet(1000, load)
			o := newOracle(c, nil)
			revision, err := compile.Revision(c.Policies[0], 1)
			if err != nil {
				b.Fatal(err)
			}
			template, err := compile.Template(revision, decidetest.FleetPod.Namespace)
			if err != nil {
				b.Fatal(err)
			}
			claims := []*resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "c"}, Spec: template.Spec.Spec}}
			b.ReportAllocs()
			for b.Loop() {
				peerDecide(b, c, o, claims, load)
			}
			b.ReportMetric(8000, "devices")
		})
	}
}

func peerDecide(b *testing.B, c *decidetest.Cluster, o *oracle, claims []*resourceapi.ResourceClaim, load decidetest.Load) {
	b.Helper()
	a, err := o.allocator(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	found := 0
	for _, n := range c.Nodes {
		results, err := a.Allocate(context.Background(), n, claims)
		if err != nil {
			b.Fatal(err)
		}
		found += len(results)
	}
	if (found == 0) != (load == decidetest.Full) {
		b.Fatalf("the allocator finds devices on %d nodes of a fleet that is %s", found, load)
	}
}
