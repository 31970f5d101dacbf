package ladder

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
)

func testPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
}

func candidate(node, tier string) decide.Candidate {
	return decide.Candidate{Node: node, Tier: tier, Devices: []v1alpha1.DecidedDevice{
		{Driver: "d", Pool: node, Device: "gpu-0", Request: "accelerator/" + tier},
	}}
}

// sharing is a candidate whose device other nodes reach, too.
func sharing(node, device string) decide.Candidate {
	return decide.Candidate{Node: node, Tier: "a", Shared: []string{"d/fabric/" + device}, Devices: []v1alpha1.DecidedDevice{
		{Driver: "d", Pool: "fabric", Device: device, Request: "accelerator/a"},
	}}
}

func nodesOf(part []decide.Candidate) []string {
	var names []string
	for _, c := range part {
		names = append(names, c.Node)
	}
	return names
}

func TestTake(t *testing.T) {
	shared := sharing("s", "x")
	for name, test := range map[string]struct {
		candidates []decide.Candidate
		width      int
		want       []string
	}{
		"as wide as allowed":         {[]decide.Candidate{candidate("a", "t"), candidate("b", "t"), candidate("c", "t")}, 2, []string{"a", "b"}},
		"as many as there are":       {[]decide.Candidate{candidate("a", "t")}, 8, []string{"a"}},
		"until the tier changes":     {[]decide.Candidate{candidate("a", "t"), candidate("b", "u")}, 8, []string{"a"}},
		"a shared device apart":      {[]decide.Candidate{shared, candidate("b", "a")}, 8, []string{"s"}},
		"no shared device after any": {[]decide.Candidate{candidate("b", "a"), shared}, 8, []string{"b"}},
		"the same shared devices":    {[]decide.Candidate{shared, sharing("t", "x"), sharing("u", "x")}, 2, []string{"s", "t"}},
		"other shared devices apart": {[]decide.Candidate{shared, sharing("t", "y"), sharing("u", "x")}, 8, []string{"s"}},
		"none":                       {nil, 8, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(framework.NewCycleState(), testPod(), time.Unix(0, 0), nil)
			s.width = test.width
			s.take(slices.Values(test.candidates))
			assert.Equal(t, test.want, nodesOf(s.part))
			assert.Len(t, s.rank, len(test.want))
			for i, n := range test.want {
				assert.Equal(t, i, s.rank[n])
			}
		})
	}
}

func refusal(code fwk.Code, plugin, reason string) *fwk.Status {
	return fwk.NewStatus(code, reason).WithPlugin(plugin)
}

func diagnosis(statuses map[string]*fwk.Status) framework.Diagnosis {
	if statuses == nil {
		statuses = map[string]*fwk.Status{}
	}
	d := framework.Diagnosis{
		NodeToStatus:         framework.NewNodeToStatus(statuses, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "absent")),
		UnschedulablePlugins: sets.New[string](),
	}
	for _, s := range statuses {
		d.AddPluginStatus(s)
	}
	return d
}

// fleetOf yields candidates that were not refused, as the engine does.
func fleetOf(q decide.Query, all []decide.Candidate) []decide.Candidate {
	var left []decide.Candidate
	for _, c := range all {
		if _, refused := q.NodeRejections[c.Node]; !refused {
			left = append(left, c)
		}
	}
	return left
}

// The search goes through the whole order, in ever longer parts, and ends with
// everything that was found out on the way.
func TestWidenedSearch(t *testing.T) {
	var all []decide.Candidate
	for _, tier := range []string{"t", "u"} {
		for i := range 30 {
			all = append(all, candidate(tier+string(rune('a'+i)), tier))
		}
	}
	for name, fits := range map[string]string{"found": "uz", "not found": ""} {
		t.Run(name, func(t *testing.T) {
			rounds := 0
			var seen []string
			run := widened(func(_ context.Context, _ framework.Framework, state fwk.CycleState, p *framework.QueuedPodInfo) (scheduler.ScheduleResult, error) {
				rounds++
				s := begin(state, p.Pod, time.Unix(0, 0), nil)
				assert.Equal(t, int32(7), s.attempt)
				s.take(slices.Values(fleetOf(s.query(), all)))
				if len(s.part) == 0 {
					d := diagnosis(nil)
					d.NodeToStatus.SetAbsentNodesStatus(refusal(fwk.UnschedulableAndUnresolvable, Name, "nothing left"))
					d.PreFilterMsg = "nothing left"
					return scheduler.ScheduleResult{}, &framework.FitError{Diagnosis: d}
				}
				seen = append(seen, nodesOf(s.part)...)
				statuses := map[string]*fwk.Status{}
				for _, c := range s.part {
					if c.Node == fits {
						return scheduler.ScheduleResult{SuggestedHost: c.Node}, nil
					}
					statuses[c.Node] = refusal(fwk.Unschedulable, "NodeResourcesFit", "Insufficient cpu")
				}
				return scheduler.ScheduleResult{}, &framework.FitError{Diagnosis: diagnosis(statuses)}
			})
			state := framework.NewCycleState()
			info := &framework.QueuedPodInfo{PodInfo: &framework.PodInfo{Pod: testPod()}}
			info.Attempts = 7
			result, err := run(t.Context(), nil, state, info)
			assert.True(t, slices.IsSorted(seen), "in the order of the engine")
			s := searchOf(state)
			require.NotNil(t, s)
			if fits != "" {
				require.NoError(t, err)
				assert.Equal(t, fits, result.SuggestedHost)
				assert.Equal(t, "NodeResourcesFit: Insufficient cpu", s.query().NodeRejections["ta"])
				assert.LessOrEqual(t, rounds, 5)
				return
			}
			var misfit *framework.FitError
			require.ErrorAs(t, err, &misfit)
			assert.Len(t, seen, 60)
			assert.LessOrEqual(t, rounds, 6)
			assert.True(t, misfit.Diagnosis.UnschedulablePlugins.Has("NodeResourcesFit"), "its events must wake the Pod")
			assert.Equal(t, fwk.Unschedulable, misfit.Diagnosis.NodeToStatus.Get("ta").Code(), "preemption may help there")
			assert.Len(t, s.resolvable, 60)
		})
	}
}

// Nodes that reach the same devices are looked at together, as those with devices
// of their own.
func TestSearchOfSharedDevices(t *testing.T) {
	var all []decide.Candidate
	for i := range 1000 {
		all = append(all, sharing(fmt.Sprintf("n%03d", i), "x"))
	}
	s := begin(framework.NewCycleState(), testPod(), time.Unix(0, 0), nil)
	for {
		s.take(slices.Values(fleetOf(s.query(), all)))
		require.NotEmpty(t, s.part)
		if _, found := s.rank["n999"]; found {
			break
		}
		statuses := map[string]*fwk.Status{}
		for _, c := range s.part {
			statuses[c.Node] = refusal(fwk.Unschedulable, "NodeResourcesFit", "Insufficient cpu")
		}
		again, _ := s.refuse(diagnosis(statuses))
		require.True(t, again)
	}
	assert.LessOrEqual(t, s.rounds, 12)
}

func TestRefuseEndsTheSearch(t *testing.T) {
	s := begin(framework.NewCycleState(), testPod(), time.Unix(0, 0), nil)
	again, _ := s.refuse(diagnosis(nil))
	assert.False(t, again, "nothing was looked at")
	s.take(slices.Values([]decide.Candidate{candidate("a", "t")}))
	d := diagnosis(nil)
	d.NodeToStatus.SetAbsentNodesStatus(refusal(fwk.UnschedulableAndUnresolvable, "VolumeBinding", "no volume"))
	d.PreFilterMsg = "no volume"
	again, _ = s.refuse(d)
	assert.False(t, again, "another plugin refused the Pod as such")
}

// Two plugins that each name nodes, but none in common, refuse the part only.
func TestRefuseByOtherNames(t *testing.T) {
	s := begin(framework.NewCycleState(), testPod(), time.Unix(0, 0), nil)
	s.take(slices.Values([]decide.Candidate{candidate("a", "t")}))
	d := diagnosis(nil)
	d.NodeToStatus.SetAbsentNodesStatus(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't satisfy plugin(s) [Ladder NodeAffinity] simultaneously"))
	d.PreFilterMsg = "node(s) didn't satisfy plugin(s) [Ladder NodeAffinity] simultaneously"
	again, pause := s.refuse(d)
	assert.True(t, again)
	assert.Zero(t, pause)
	assert.Contains(t, s.refused["a"], "simultaneously")
}

// The embedded plugin gets a few moments to catch up; then its word counts, as
// long as nothing changes.
func TestDoubts(t *testing.T) {
	s := begin(framework.NewCycleState(), testPod(), time.Unix(0, 0), nil)
	both := []decide.Candidate{candidate("a", "t"), candidate("b", "t")}
	refused := diagnosis(map[string]*fwk.Status{
		"a": refusal(fwk.UnschedulableAndUnresolvable, Name, "cannot allocate all claims"),
		"b": refusal(fwk.Unschedulable, "NodeResourcesFit", "Insufficient cpu"),
	})
	var total time.Duration
	for range maxDoubts {
		s.observe("digest")
		s.take(slices.Values(fleetOf(s.query(), both)))
		again, pause := s.refuse(refused)
		assert.True(t, again)
		assert.Positive(t, pause)
		total += pause
		assert.NotContains(t, s.refused, "a")
		assert.Contains(t, s.refused, "b")
	}
	assert.Equal(t, 31*time.Millisecond, total)
	s.take(slices.Values(fleetOf(s.query(), both)))
	again, pause := s.refuse(refused)
	assert.True(t, again)
	assert.Zero(t, pause)
	assert.Contains(t, s.refused, "a")
	s.observe("digest")
	assert.Contains(t, s.refused, "a")
	s.observe("another")
	assert.NotContains(t, s.refused, "a", "the state changed, so it is looked at again")
	assert.Contains(t, s.refused, "b")
}

func TestFilterAndScore(t *testing.T) {
	p := &Plugin{}
	state := framework.NewCycleState()
	pod := testPod()
	pod.Status.NominatedNodeName = "b"
	assert.True(t, p.PreScore(t.Context(), state, pod, nil).IsSkip(), "other Pods are not our business")
	s := begin(state, pod, time.Unix(0, 0), nil)
	s.take(slices.Values([]decide.Candidate{candidate("a", "t"), candidate("b", "t"), candidate("c", "t")}))
	assert.True(t, p.PreScore(t.Context(), state, pod, nil).IsSuccess())

	info := func(name string) fwk.NodeInfo {
		n := framework.NewNodeInfo()
		n.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		return n
	}
	status := p.Filter(t.Context(), state, pod, info("z"))
	assert.Equal(t, fwk.UnschedulableAndUnresolvable, status.Code())
	status = p.Filter(t.Context(), state, pod, info("b"))
	assert.Contains(t, status.Message(), "stale")
	assert.False(t, s.nominated.Load(), "refused once only")

	scores := fwk.NodeScoreList{}
	for _, name := range []string{"c", "b"} {
		score, status := p.Score(t.Context(), state, pod, info(name))
		require.True(t, status.IsSuccess())
		scores = append(scores, fwk.NodeScore{Name: name, Score: score})
	}
	require.True(t, p.NormalizeScore(t.Context(), state, pod, scores).IsSuccess())
	assert.Equal(t, fwk.NodeScoreList{{Name: "c", Score: 0}, {Name: "b", Score: 100}}, scores)
}

func TestCyclesShareOneSearch(t *testing.T) {
	state := framework.NewCycleState()
	s := begin(state, testPod(), time.Unix(0, 0), nil)
	assert.Same(t, s, begin(state, testPod(), time.Unix(9, 0), nil))
	assert.Same(t, s, searchOf(state.Clone()))
}

// A round over faulty nodes refuses none of them: the next one goes through the
// order from its beginning.
func TestRefuseAfterAProbe(t *testing.T) {
	s := begin(framework.NewCycleState(), testPod(), time.Unix(0, 0), nil)
	s.faulty = sets.New("a")
	d := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}
	d.NodeToStatus.Set("a", fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "nothing wrong").WithPlugin(Name))
	again, pause := s.refuse(d)
	assert.True(t, again)
	assert.Zero(t, pause)
	assert.Empty(t, s.faulty)
	assert.Empty(t, s.refused)
	assert.Equal(t, firstWidth, s.width)
	again, _ = s.refuse(d)
	assert.False(t, again, "nothing is left")
}

// A search that is abandoned is not gone on with.
func TestAbandonedSearchEnds(t *testing.T) {
	(*search)(nil).abandon()
	s := begin(framework.NewCycleState(), testPod(), time.Unix(0, 0), nil)
	s.part, s.faulty = []decide.Candidate{{Node: "n"}}, sets.New("m")
	s.extended = &extended{trying: sets.New("o")}
	again, _ := s.refuse(diagnosis(nil))
	assert.True(t, again)
	s.part, s.faulty, s.extended.trying = []decide.Candidate{{Node: "n"}}, sets.New("m"), sets.New("o")
	s.abandon()
	again, _ = s.refuse(diagnosis(nil))
	assert.False(t, again)
}
