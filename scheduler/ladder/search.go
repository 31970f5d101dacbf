package ladder

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"gpuladder.dev/ladder/policies/decide"
)

const (
	// firstWidth is how many nodes the first part of the order has. Each
	// further part is twice as long, so that a fleet of n nodes takes at most
	// log2(n/firstWidth) + tiers rounds.
	firstWidth = 8

	// maxDoubts and firstPause bound how long the embedded plugin is given to
	// catch up when it refuses what the engine chose: it learns of claims a
	// moment later. The pauses add up to 31 ms.
	maxDoubts  = 5
	firstPause = time.Millisecond

	searchKey  fwk.StateKey = Name + "/search"
	attemptKey fwk.StateKey = Name + "/attempt"
)

// search is one attempt to schedule a Pod, kept in its cycle state. It is
// written in PreFilter and between rounds, which are serial; Filter only reads
// it but for nominated.
type search struct {
	pod     *corev1.Pod
	claims  []podClaim
	now     time.Time
	attempt int32
	// seen is how far policies, quotas and namespaces had come at the beginning,
	// and the devices that came free at the beginning of this round.
	seen sight

	// refused are the nodes that other plugins refused so far, with the words.
	refused map[string]string
	// doubtful are the refused nodes that Ladder's own Filter refused. That
	// counts only as long as the engine's state is the same.
	doubtful map[string]string
	// resolvable are the refused candidates that preemption could help.
	resolvable []decide.Candidate
	// diagnosis collects the rounds that ended without a node.
	diagnosis framework.Diagnosis
	digest    string
	width     int
	rounds    int
	doubts    int

	// faulty are the nodes that this round looks at because a selector fails on
	// a device there; probed says that such a round has been, or is not needed.
	faulty sets.Set[string]
	probed bool

	// first is a Pod that has to be tried before this one; see turn.go.
	first *corev1.Pod
	// part is the part of the order that this round looks at.
	part []decide.Candidate
	rank map[string]int
	// nominated is true until the nominated node was refused once: see Filter.
	nominated atomic.Bool

	// extended is what the Pod asks for by extended resources that DRA serves.
	extended *extended
	// plan is what the Pod's group keeps to, where it belongs to one.
	plan     *groupPlan
	reserved *reservation
}

// podClaim is a claim of the Pod under the name that the Pod gives it.
type podClaim struct {
	ref   string
	claim *resourceapi.ResourceClaim
}

// reservation is what Reserve promised, kept for PreBind.
type reservation struct {
	decision *decide.Decision
	devices  []reservedDevice
	node     *corev1.Node
	quota    quotaVersion
}

// devices are what was reserved.
func (s *search) devices() []reservedDevice {
	if s.reserved == nil {
		return nil
	}
	return s.reserved.devices
}

// Clone implements fwk.StateData. All copies are the same search.
func (s *search) Clone() fwk.StateData { return s }

// attempt is the number of this attempt, from the scheduling queue.
type attempt int32

// Clone implements fwk.StateData.
func (a attempt) Clone() fwk.StateData { return a }

// searchOf returns the search of a cycle, or nil where the engine does not
// decide.
func searchOf(state fwk.CycleState) *search {
	data, err := state.Read(searchKey)
	if err != nil {
		return nil
	}
	s, _ := data.(*search)
	return s
}

// begin makes the search of a new attempt or continues the one under way: of
// this attempt, or the one that the last attempt left.
func begin(state fwk.CycleState, pod *corev1.Pod, now time.Time, left *search) *search {
	if s := searchOf(state); s != nil && s.pod.UID == pod.UID {
		s.reserved = nil
		return s
	}
	if left != nil {
		left.pod, left.now, left.plan, left.reserved = pod, now, nil, nil
		left.attempt++
		state.Write(searchKey, left)
		return left
	}
	s := &search{
		pod:      pod,
		now:      now,
		attempt:  1,
		refused:  map[string]string{},
		doubtful: map[string]string{},
		width:    firstWidth,
	}
	if data, err := state.Read(attemptKey); err == nil {
		if n, ok := data.(attempt); ok && n > 0 {
			s.attempt = int32(n)
		}
	}
	state.Write(searchKey, s)
	return s
}

// holds says whether the Pod has devices already.
func (s *search) holds() bool {
	return slices.ContainsFunc(s.claims, func(pc podClaim) bool { return pc.claim.Status.Allocation != nil })
}

// asked is the Pod as the engine is asked about it.
func (s *search) asked() *corev1.Pod {
	if s.extended != nil {
		return s.extended.shadow
	}
	return s.pod
}

// query returns the engine's question with the nodes refused so far.
func (s *search) query() decide.Query {
	q := decide.Query{Pod: keyOf(s.pod), Now: s.now, Attempt: s.attempt}
	if len(s.refused) > 0 {
		q.NodeRejections = s.refused
	}
	if s.plan != nil {
		q.Group = s.plan.tier
	}
	return q
}

// observe notes the state that this round decides on. Where it changed, what
// Ladder's own Filter refused is looked at again.
func (s *search) observe(digest string) {
	if s.digest != "" && s.digest != digest {
		for node := range s.doubtful {
			delete(s.refused, node)
		}
		clear(s.doubtful)
	}
	s.digest = digest
}

// take makes the next candidates the part to look at. It stops where they can no
// longer be looked at together; see [partOf].
func (s *search) take(candidates func(yield func(decide.Candidate) bool)) {
	s.part = s.part[:0]
	s.rank = map[string]int{}
	first := ""
	for c := range candidates {
		if len(s.part) == 0 {
			first = partOf(c)
		} else if partOf(c) != first {
			break
		}
		s.rank[c.Node] = len(s.part)
		s.part = append(s.part, c)
		if len(s.part) == s.width {
			break
		}
	}
	s.rounds++
	s.nominated.Store(s.pod.Status.NominatedNodeName != "")
}

// partOf tells candidates apart that can't be looked at together: those that use
// other alternatives of the requests, because claims are narrowed to them, and
// those that use other devices which several nodes reach, because on each node the
// view shows those of all.
func partOf(c decide.Candidate) string {
	used := sets.New[string]()
	for _, d := range c.Devices {
		used.Insert(d.Claim + "\x00" + d.Request)
	}
	return strings.Join(slices.Concat(sets.List(used), c.Shared), "\x01")
}

// names returns the nodes of the part.
func (s *search) names() sets.Set[string] {
	return sets.KeySet(s.rank)
}

// abandon ends the search: what is left of the attempt is not Ladder's.
func (s *search) abandon() {
	if s == nil {
		return
	}
	s.part, s.faulty = nil, nil
	if s.extended != nil {
		s.extended.trying = nil
	}
}

// refuse takes over why no node of the part passed. It says whether another
// round makes sense, and after which pause.
func (s *search) refuse(d framework.Diagnosis) (again bool, pause time.Duration) {
	if len(s.part) == 0 && len(s.faulty) == 0 && !s.extended.tries() {
		return false, 0
	}
	if d.PreFilterMsg != "" && d.NodeToStatus.AbsentNodesStatus().Plugin() != "" {
		// Another plugin refused the Pod as such.
		return false, 0
	}
	if len(s.faulty) > 0 {
		// The embedded plugin found nothing wrong: on to the order.
		s.faulty = nil
		return true, 0
	}
	if s.extended.tries() {
		s.refuseLast(d.NodeToStatus.Get)
		s.collect(d)
		s.extended.trying = nil
		return true, 0
	}
	doubted := false
	for _, c := range s.part {
		status := d.NodeToStatus.Get(c.Node)
		if status.Plugin() == Name {
			doubted = true
			if s.doubts < maxDoubts {
				continue
			}
			s.doubtful[c.Node] = words(status)
		} else if status.Code() == fwk.Unschedulable {
			s.resolvable = append(s.resolvable, c)
		}
		s.refused[c.Node] = words(status)
	}
	s.collect(d)
	if doubted && s.doubts < maxDoubts {
		pause = firstPause << s.doubts
		s.doubts++
		return true, pause
	}
	s.width *= 2
	return true, 0
}

// collect keeps what a round found out, for the error of the whole attempt.
func (s *search) collect(d framework.Diagnosis) {
	if s.diagnosis.NodeToStatus == nil {
		s.diagnosis.NodeToStatus = framework.NewDefaultNodeToStatus()
		s.diagnosis.UnschedulablePlugins = sets.New[string]()
		s.diagnosis.PendingPlugins = sets.New[string]()
	}
	for _, c := range s.part {
		if _, refused := s.refused[c.Node]; refused {
			s.diagnosis.NodeToStatus.Set(c.Node, d.NodeToStatus.Get(c.Node))
		}
	}
	if s.extended.tries() {
		for node := range s.extended.trying {
			s.diagnosis.NodeToStatus.Set(node, d.NodeToStatus.Get(node))
		}
	}
	s.diagnosis.UnschedulablePlugins.Insert(d.UnschedulablePlugins.UnsortedList()...)
	s.diagnosis.PendingPlugins.Insert(d.PendingPlugins.UnsortedList()...)
}

// conclude adds the earlier rounds to the error of the last one: which plugins
// refused decides what wakes the Pod, which nodes were refused decides where
// preemption may help.
func (s *search) conclude(d *framework.Diagnosis) {
	if s.diagnosis.NodeToStatus == nil {
		return
	}
	s.diagnosis.NodeToStatus.ForEachExplicitNode(func(node string, status *fwk.Status) {
		d.NodeToStatus.Set(node, status)
	})
	d.UnschedulablePlugins = d.UnschedulablePlugins.Union(s.diagnosis.UnschedulablePlugins)
	d.PendingPlugins = d.PendingPlugins.Union(s.diagnosis.PendingPlugins)
}

// words returns "NodeResourcesFit: Insufficient cpu".
func words(status *fwk.Status) string {
	reasons := strings.Join(status.Reasons(), ", ")
	if status.Plugin() == "" {
		return reasons
	}
	return fmt.Sprintf("%s: %s", status.Plugin(), reasons)
}
