package ladder

import (
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
)

// inOrder returns n Pods of one second, the first of which stands first.
func inOrder(n int) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range n {
		pod := testPod()
		pod.Name = fmt.Sprintf("p%d", i)
		pod.UID = types.UID(pod.Name)
		pod.CreationTimestamp = metav1.NewTime(time.Unix(500, 0))
		pods = append(pods, pod)
	}
	return pods
}

// follow has the Pod follow a policy, by a claim from a template.
func follow(pod *corev1.Pod, policy, template string) {
	pod.Labels = map[string]string{v1alpha1.LabelPolicy: policy}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To(template)}}
}

func (r *rig) toldNo(pod *corev1.Pod, gains uint64) {
	r.park(pod, r.queue, noTime, nil, sight{gains: gains})
}

// names of Pods, in order.
func names(pods []*corev1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return out
}

func TestThoseAheadGoFirst(t *testing.T) {
	pods := inOrder(4)
	urgent := pods[3].DeepCopy()
	urgent.Name, urgent.UID, urgent.Spec.Priority = "z-urgent", "u", ptr.To[int32](1000)
	r := newRig(t, append(pods, urgent)...)
	assert.Empty(t, r.ahead(pods[3], 1), "nobody waits")
	for _, p := range pods[:3] {
		r.toldNo(p, 1)
	}
	assert.Empty(t, r.ahead(pods[3], 1), "all were told no on this state")
	// A device comes free.
	assert.Equal(t, []string{"p0", "p1", "p2"}, names(r.ahead(pods[3], 2)))
	assert.Equal(t, []string{"p0"}, names(r.ahead(pods[1], 2)))
	assert.Empty(t, r.ahead(pods[0], 2), "the first goes before all")
	r.toldNo(pods[0], 2)
	r.told(pods[1].UID, 2)
	assert.Equal(t, []string{"p2"}, names(r.ahead(pods[3], 2)))
	r.drop(pods[2].UID)
	assert.Empty(t, r.ahead(pods[3], 2), "one was served, the others were told no")
	r.toldNo(urgent, 2)
	assert.Equal(t, []string{"z-urgent"}, names(r.ahead(pods[0], 3)), "by priority first")
	r.told("gone", 3)
}

func TestHeldPodsAreNotWaitedFor(t *testing.T) {
	pods := inOrder(2)
	r := newRig(t, pods...)
	r.hold(pods[0], holdOf(v1alpha1.FailureUnsatisfiable))
	assert.Empty(t, r.ahead(pods[1], 9))
	r.forget(pods[0].UID)
	r.toldNo(pods[0], 1)
	require.NotEmpty(t, r.ahead(pods[1], 9))
	r.forget(pods[0].UID)
	assert.Empty(t, r.ahead(pods[1], 9), "gone")
}

func TestWhoYieldsComesBackInTurn(t *testing.T) {
	pods := inOrder(3)
	r := newRig(t, pods...)
	r.toldNo(pods[0], 1)
	status := r.yield(pods[1], r.queue, r.ahead(pods[1], 2)[0])
	assert.True(t, status.IsRejected())
	assert.Contains(t, status.Message(), "ns/p0")
	assert.Equal(t, []string{"p0", "p1"}, names(r.ahead(pods[2], 2)))
	r.woken("ns/p0", "ns/p1")
	r.toldNo(pods[0], 2)
	assert.Equal(t, []string{"p1"}, names(r.ahead(pods[2], 2)), "it was told nothing yet, so those behind it wait")
	assert.Empty(t, r.ahead(pods[1], 2))
	r.drop(pods[1].UID)
	assert.Empty(t, r.ahead(pods[2], 2))
}

func TestYieldingEnds(t *testing.T) {
	pods := inOrder(2)
	r := newRig(t, pods...)
	// The first is told no each time, and each time more comes free.
	for i := range maxYields {
		r.toldNo(pods[0], uint64(i))
		first := r.ahead(pods[1], uint64(i+1))
		require.Equal(t, []string{"p0"}, names(first), "time %d", i)
		r.yield(pods[1], r.queue, first[0])
		r.woken("ns/p0", "ns/p1")
	}
	r.toldNo(pods[0], 50)
	assert.Empty(t, r.ahead(pods[1], 99))
	r.toldNo(pods[1], 99)
	assert.NotEmpty(t, r.ahead(pods[1], 100), "told no, it waits for others again")
}

func TestWhoDoesNotComeIsNotWaitedFor(t *testing.T) {
	pods := inOrder(2)
	r := newRig(t, pods...)
	r.toldNo(pods[0], 1)
	r.step(time.Hour)
	require.NotEmpty(t, r.ahead(pods[1], 2), "it was not woken yet")
	r.wakeSoon(pods[0].UID)
	r.woken("ns/p0")
	r.clock.Step(turnTimeout / 2)
	require.NotEmpty(t, r.ahead(pods[1], 2))
	r.clock.Step(turnTimeout)
	assert.Empty(t, r.ahead(pods[1], 2))
}

// asked is an engine that has a place for some Pods and notes whom it was asked
// about.
type asked struct {
	Engine
	serves map[string]bool
	about  []string
}

func (a *asked) Candidates(q decide.Query) (iter.Seq[decide.Candidate], error) {
	a.about = append(a.about, q.Pod.Name)
	if a.serves[q.Pod.Name] {
		return slices.Values([]decide.Candidate{{Node: "n"}}), nil
	}
	return slices.Values([]decide.Candidate(nil)), nil
}

func TestTheEngineIsAskedAboutThoseAhead(t *testing.T) {
	pods := inOrder(6)
	for i, p := range pods {
		if i != 2 {
			follow(p, "one", "one-1")
		}
	}
	follow(pods[2], "other", "other-1")
	pods[3].CreationTimestamp = metav1.NewTime(time.Unix(400, 0)) // has waited longer than the others
	pods[3].Spec.Priority = ptr.To[int32](-1)
	r := newRig(t, pods...)
	engine := &asked{serves: map[string]bool{}}
	p := &Plugin{core: &Core{engine: engine, waiting: r.waiting}}
	yield := func(gains uint64, serves ...string) *corev1.Pod {
		engine.about, engine.serves = nil, map[string]bool{}
		for _, name := range serves {
			engine.serves[name] = true
		}
		s := &search{pod: pods[5], seen: sight{gains: gains}, part: []decide.Candidate{{Node: "n"}}}
		s.pod.Spec.Priority = ptr.To[int32](-2)
		return p.mustYield(s)
	}
	for _, pod := range pods[:5] {
		r.toldNo(pod, 1)
	}
	assert.Nil(t, yield(1))
	assert.Empty(t, engine.about, "nothing has come free")
	assert.Nil(t, yield(2))
	assert.Equal(t, []string{"p0", "p2", "p3"}, engine.about, "once for each kind, and again for one that has waited longer")
	assert.Nil(t, yield(2))
	assert.Empty(t, engine.about, "a no is remembered")
	assert.Same(t, pods[2], yield(3, "p2", "p3"))
	assert.Equal(t, []string{"p0", "p2"}, engine.about)
	assert.Same(t, pods[2], yield(3, "p2"))
	assert.Equal(t, []string{"p2"}, engine.about)
}

// A no to a Pod whose turn is for some models says nothing of one for others.
func TestTurnsForOtherModelsAreAskedAbout(t *testing.T) {
	pods := inOrder(4)
	for i, models := range []string{"L4", "", "L4", ""} {
		follow(pods[i], "one", "one-1")
		if models != "" {
			turnFor(models)(pods[i])
		}
	}
	r := newRig(t, pods...)
	engine := &asked{serves: map[string]bool{"p1": true}}
	p := &Plugin{core: &Core{engine: engine, waiting: r.waiting}}
	for _, pod := range pods[:3] {
		r.toldNo(pod, 1)
	}
	assert.Same(t, pods[1], p.mustYield(&search{pod: pods[3], seen: sight{gains: 2}, part: []decide.Candidate{{Node: "n"}}}))
	assert.Equal(t, []string{"p0", "p1"}, engine.about)
}

// Nor does one to a Pod of another revision of the policy, or to one whose claim
// no policy made.
func TestOtherClaimsAreAskedAbout(t *testing.T) {
	for name, template := range map[string]string{"another revision": "one-2", "a template of its own": "mine"} {
		t.Run(name, func(t *testing.T) {
			pods := inOrder(4)
			for i, template := range []string{"one-1", "one-1", template, "one-1"} {
				follow(pods[i], "one", template)
			}
			r := newRig(t, pods...)
			engine := &asked{serves: map[string]bool{"p2": true}}
			p := &Plugin{core: &Core{engine: engine, waiting: r.waiting}}
			for _, pod := range pods[:3] {
				r.toldNo(pod, 1)
			}
			assert.Same(t, pods[2], p.mustYield(&search{pod: pods[3], seen: sight{gains: 2}, part: []decide.Candidate{{Node: "n"}}}))
			assert.Equal(t, []string{"p0", "p2"}, engine.about)
		})
	}
}

func TestTheEngineIsNotAskedForever(t *testing.T) {
	pods := inOrder(3 * maxAsks)
	r := newRig(t, pods...)
	engine := &asked{}
	p := &Plugin{core: &Core{engine: engine, waiting: r.waiting}}
	for _, pod := range pods[1:] {
		pod.Spec.Priority = ptr.To[int32](1) // each with claims of its own
		r.toldNo(pod, 1)
	}
	s := &search{pod: pods[0], seen: sight{gains: 2}, part: []decide.Candidate{{Node: "n"}}}
	assert.Nil(t, p.mustYield(s))
	assert.Len(t, engine.about, maxAsks)
	held := s.pod.DeepCopy()
	held.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
	assert.Nil(t, p.mustYield(&search{pod: held, seen: sight{gains: 3}, part: s.part}), "a group is placed as a whole")
	claim := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
	assert.Nil(t, p.mustYield(&search{pod: pods[0], claims: []podClaim{{"c", claim}}, seen: sight{gains: 3}, part: s.part}), "it has its devices")
	assert.Len(t, engine.about, maxAsks)
}
