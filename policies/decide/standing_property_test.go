package decide_test

// What is read off the standings against a look at the whole fleet.

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// pair is two States with the same content: one keeps how the fleet stands, the
// other looks at all of it each time.
type pair struct {
	kept, whole *decide.State
}

func newPair(t failer, objects []apiruntime.Object) pair {
	opts := decide.Options{NodeChecks: decide.ExternalNodeChecks}
	whole := opts
	whole.WholeFleet = true
	return pair{newState(t, opts, objects), newState(t, whole, objects)}
}

// both does something to both.
func (p pair) both(do func(s *decide.State)) {
	do(p.kept)
	do(p.whole)
}

// sameAnswers asks for all waiting Pods, with some nodes refused, and returns
// the decisions.
func (p pair) sameAnswers(t failer, c *decidetest.Cluster, refused map[string]string) []*decide.Decision {
	t.Helper()
	var out []*decide.Decision
	for _, name := range c.Pending() {
		q, _ := question(c, name)
		q.NodeRejections = refused
		kept, keptErr := p.kept.Decide(q)
		whole, wholeErr := p.whole.Decide(q)
		if fmt.Sprint(keptErr) != fmt.Sprint(wholeErr) {
			t.Fatalf("pod %s: %v, the whole fleet says %v", name, keptErr, wholeErr)
		}
		if keptErr != nil {
			continue
		}
		if k, w := toJSON(kept), toJSON(whole); k != w {
			t.Fatalf("pod %s, refused %v:\n%s\nthe whole fleet says\n%s\ninput:\n%s", name, refused, k, w, documents(c))
		}
		if k, w := toJSON(candidates(t, p.kept, q)), toJSON(candidates(t, p.whole, q)); k != w {
			t.Fatalf("pod %s, refused %v, candidates:\n%s\nthe whole fleet says\n%s\ninput:\n%s", name, refused, k, w, documents(c))
		}
		out = append(out, kept)
	}
	return out
}

func candidates(t failer, s *decide.State, q decide.Query) []decide.Candidate {
	t.Helper()
	all, err := s.Candidates(q)
	if err != nil {
		t.Fatalf("candidates: %v", err)
	}
	return slices.Collect(all)
}

// TestKeptEqualsWholeFleet: over random histories, both give the same bytes.
func TestKeptEqualsWholeFleet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := manyPods(decidetest.Clusters().Draw(t, "cluster"), 1)
		stranger := decidetest.Clusters().Draw(t, "stranger")
		p := newPair(t, c.Objects())
		var decided []*decide.Decision
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			decided = append(decided, p.sameAnswers(t, c, refusals(t, c))...)
			step(t, p, c, stranger, decided)
		}
		p.sameAnswers(t, c, nil)
	})
}

func refusals(t *rapid.T, c *decidetest.Cluster) map[string]string {
	refused := map[string]string{}
	if rapid.Bool().Draw(t, "none refused") {
		return nil
	}
	for _, n := range c.Nodes {
		if rapid.Bool().Draw(t, "refused "+n.Name) {
			refused[n.Name] = "NodeAffinity: said no"
		}
	}
	return refused
}

// step changes something in both.
func step(t *rapid.T, p pair, c, stranger *decidetest.Cluster, decided []*decide.Decision) {
	own, others := rapid.SampledFrom(c.Objects()), rapid.SampledFrom(stranger.Objects())
	switch rapid.SampledFrom([]string{"assume", "assume", "forget", "put", "delete", "change", "stranger", "rule"}).Draw(t, "step") {
	case "assume":
		if len(decided) > 0 {
			d, flying := rapid.SampledFrom(decided).Draw(t, "decision"), rapid.Bool().Draw(t, "in flight")
			// What was decided before may not fit any more; both say so alike.
			p.both(func(s *decide.State) { _ = s.Assume(d, flying) })
		}
	case "forget":
		name := rapid.SampledFrom(c.Pending()).Draw(t, "pod")
		p.both(func(s *decide.State) { s.Forget(name) })
	case "put":
		o := own.Draw(t, "object")
		p.both(func(s *decide.State) { put(t, s, o) })
	case "delete":
		o := own.Draw(t, "object")
		p.both(func(s *decide.State) { _ = s.Delete(o) })
	case "change":
		o := changed(own.Draw(t, "object"))
		p.both(func(s *decide.State) { _ = s.Put(o) })
	case "stranger":
		o := others.Draw(t, "object")
		p.both(func(s *decide.State) { _ = s.Put(o) })
	case "rule":
		rule := &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: "drawn"},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Device: ptr.To(rapid.SampledFrom([]string{"gpu-0", "gpu-1"}).Draw(t, "device"))},
				Taint:          resourceapi.DeviceTaint{Key: "drawn", Effect: resourceapi.DeviceTaintEffectNoSchedule},
			},
		}
		p.both(func(s *decide.State) { put(t, s, rule) })
	}
}

// TestKeptOverALargeFleet: a fleet that fills up and empties again, device by
// device, with the answers of a look at the whole of it.
func TestKeptOverALargeFleet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Fleet(40, rapid.SampledFrom(loads).Draw(t, "load"))
		p := newPair(t, c.Objects())
		var held []*resourceapi.ResourceClaim
		for range 20 {
			d := p.sameAnswers(t, c, nil)[0]
			if d.Outcome == v1alpha1.OutcomeAllocated && rapid.Bool().Draw(t, "taken") {
				claim := changeHands(d.Devices[0].Pool)[0].DeepCopy()
				claim.Name, claim.UID = fmt.Sprintf("held-%d", len(held)), ""
				claim.Status.Allocation.Devices.Results[0].Device = d.Devices[0].Device
				held = append(held, claim)
				p.both(func(s *decide.State) { put(t, s, claim) })
			}
			all := slices.Concat(held, c.Claims)
			if len(all) > 0 && rapid.Bool().Draw(t, "freed") {
				claim := rapid.SampledFrom(all).Draw(t, "claim")
				p.both(func(s *decide.State) { _ = s.Delete(claim) })
			}
		}
	})
}

// TestWhatIsKeptIsUsed: the tests above would prove nothing if every decision
// looked at the whole fleet anyway.
func TestWhatIsKeptIsUsed(t *testing.T) {
	taken := func(nodes int, whole bool) int64 {
		c := decidetest.Fleet(nodes, decidetest.HalfFull)
		s := newState(t, decide.Options{NodeChecks: decide.ExternalNodeChecks, WholeFleet: whole}, c.Objects())
		q, _ := question(c, decidetest.FleetPod)
		mustDecide(t, s, q)
		const times = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			mustDecide(t, s, q)
		}
		runtime.ReadMemStats(&after)
		return int64(after.TotalAlloc-before.TotalAlloc) / times
	}
	// The list of refused nodes alone grows: a byte for each.
	if grown := taken(800, false) - taken(50, false); grown > 4000 {
		t.Errorf("a decision takes %d bytes more on 16 times the nodes", grown)
	}
	if grown := taken(800, true) - taken(50, true); grown < 10000 {
		t.Errorf("a look at the whole fleet takes only %d bytes more on 16 times the nodes: the measure is no good", grown)
	}
}
