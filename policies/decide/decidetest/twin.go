package decidetest

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Question asks the twin what a Pod gets.
type Question struct {
	Pod types.NamespacedName
	Now time.Time
	// External leaves the checks of nodes to others: a node need only exist
	// and not stand in Refused.
	External bool
	Refused  map[string]string
	// GroupTier is the index of the only tier of the Pod's policy that its group
	// takes, -1 where it takes none; nil: the Pod is on its own.
	GroupTier *int
}

// DeviceID identifies a device.
type DeviceID struct{ Driver, Pool, Device string }

// Answer is what the twin says.
type Answer struct {
	Outcome   v1alpha1.Outcome
	Tier      string
	TierIndex int
	Node      string
	Devices   []v1alpha1.DecidedDevice
	// Tiers is the evidence, for Pods with a single request only: what the
	// contract says about the counts of several requests at once is too little
	// to compare.
	Tiers []TierAnswer
	// SingleRequest is true when Tiers was filled in.
	SingleRequest bool
	// Parked: the Pod's revision is withdrawn, or its policy does not select
	// the namespace; nothing was looked at.
	Parked bool

	picks []pick
}

// TierAnswer is the evidence of one tier, device by device.
type TierAnswer struct {
	Name    string
	Outcome v1alpha1.TierOutcome
	// Devices are in the order of choice.
	Devices []DeviceReason
}

// DeviceReason is what became of one device.
type DeviceReason struct {
	ID     DeviceID
	Reason v1alpha1.Reason
}

// Counts sums the evidence by reason.
func (t TierAnswer) Counts() map[v1alpha1.Reason]int {
	out := map[v1alpha1.Reason]int{}
	for _, d := range t.Devices {
		out[d.Reason]++
	}
	return out
}

// Decide answers a question by looking at everything.
func (c *Cluster) Decide(q Question) (*Answer, error) {
	asks, err := c.asks(q.Pod)
	if err != nil {
		return nil, err
	}
	if c.parked(q.Pod) {
		return &Answer{TierIndex: -1, Outcome: v1alpha1.OutcomePending, Parked: true}, nil
	}
	w := c.look(q)
	answer := &Answer{TierIndex: -1, SingleRequest: len(asks) == 1}

	chosen, place := w.best(asks)
	answer.Outcome = v1alpha1.OutcomePending
	switch {
	case place != nil:
		answer.Outcome = v1alpha1.OutcomeAllocated
		answer.Node, answer.picks = place.node, place.picks
		for _, p := range place.picks {
			answer.Devices = append(answer.Devices, p.decided())
		}
		if len(asks) == 1 {
			answer.TierIndex = chosen[0]
			answer.Tier = asks[0].alternatives[chosen[0]].title
		}
	case !w.brokenPoolMatters(asks):
		if _, possible := w.relax().best(asks); possible == nil {
			answer.Outcome = v1alpha1.OutcomeUnsatisfiable
		}
	}
	if len(asks) == 1 {
		answer.Tiers = w.evidence(asks[0], answer, place)
	}
	return answer, nil
}

// placement is one way to serve a Pod.
type placement struct {
	node     string
	picks    []pick
	wishes   int
	eligible int
}

// best finds the first vector of alternatives that some node can serve, and
// the node that comes first for it.
func (w *world) best(asks []*ask) ([]int, *placement) {
	for _, vector := range vectors(asks) {
		if places := w.places(asks, vector); len(places) > 0 {
			return vector, &places[0]
		}
	}
	return nil, nil
}

// places lists the nodes that can serve the vector in the order of choice.
func (w *world) places(asks []*ask, vector []int) []placement {
	var out []placement
	for _, n := range w.usableNodes() {
		picks, wishes, ok := w.serveWishing(n, asks, vector)
		if !ok {
			continue
		}
		out = append(out, placement{node: n, picks: picks, wishes: wishes, eligible: w.eligibleOn(n, asks, vector)})
	}
	spread := asks[0].ranking == v1alpha1.RankingSpread
	slices.SortFunc(out, func(a, b placement) int {
		byCount := cmp.Compare(a.eligible, b.eligible)
		if spread {
			byCount = -byCount
		}
		return cmp.Or(cmp.Compare(b.wishes, a.wishes), byCount, cmp.Compare(a.node, b.node))
	})
	return out
}

// vectors lists every choice of one alternative for each request, in
// lexicographic order.
func vectors(asks []*ask) [][]int {
	out := [][]int{nil}
	for _, a := range asks {
		var longer [][]int
		for _, prefix := range out {
			for i := range a.alternatives {
				longer = append(longer, append(slices.Clone(prefix), i))
			}
		}
		out = longer
	}
	return out
}

// eligibleOn counts the devices of a node that pass every check of their own
// for one of the vector's alternatives.
func (w *world) eligibleOn(node string, asks []*ask, vector []int) int {
	n := 0
	for _, d := range w.devices {
		if !slices.Contains(d.reach, node) || d.pool.broken {
			continue
		}
		for i, a := range asks {
			if w.judge(d, a.alternatives[vector[i]]) == "" {
				n++
				break
			}
		}
	}
	return n
}

// evidence says for each tier of the only request what became of every device.
func (w *world) evidence(a *ask, answer *Answer, place *placement) []TierAnswer {
	var out []TierAnswer
	for i, alt := range a.alternatives {
		t := TierAnswer{Name: alt.title, Outcome: v1alpha1.TierRejected}
		notReached := place != nil && i > answer.TierIndex
		if notReached {
			t.Outcome = v1alpha1.TierNotReached
		} else if place != nil && i == answer.TierIndex {
			t.Outcome = v1alpha1.TierSelected
		}
		verdicts := map[string]v1alpha1.Reason{}
		if !notReached {
			for _, n := range w.usableNodes() {
				verdicts[n] = w.verdict(n, a, i)
			}
		}
		for _, d := range w.devices {
			x := DeviceReason{ID: d.id, Reason: v1alpha1.ReasonTierNotReached}
			switch {
			case notReached:
			case t.Outcome == v1alpha1.TierSelected && place.has(d.id):
				x.Reason = v1alpha1.ReasonSelected
			default:
				if x.Reason = w.judgeEverywhere(d, alt); x.Reason == "" {
					x.Reason = setReason(d, verdicts)
				}
			}
			t.Devices = append(t.Devices, x)
		}
		out = append(out, t)
	}
	return out
}

// verdict says why a node can't serve one alternative as a set, or LowerRank
// when it can: what is missing even without constraints and quota is devices,
// what is missing without quota is topology.
func (w *world) verdict(node string, a *ask, alternative int) v1alpha1.Reason {
	can := func(how strictness) bool {
		_, ok := w.serve(node, []*ask{a}, []int{alternative}, how)
		return ok
	}
	switch {
	case can(strict):
		return v1alpha1.ReasonLowerRank
	case !can(strictness{noConstraints: true, noQuota: true}):
		return v1alpha1.ReasonNotEnoughDevices
	case !can(strictness{noQuota: true}):
		return v1alpha1.ReasonTopologyUnsatisfied
	default:
		return v1alpha1.ReasonQuotaExceeded
	}
}

// setReason is the best verdict of the nodes that reach a device.
func setReason(d *device, verdicts map[string]v1alpha1.Reason) v1alpha1.Reason {
	for _, best := range []v1alpha1.Reason{
		v1alpha1.ReasonLowerRank, v1alpha1.ReasonTopologyUnsatisfied, v1alpha1.ReasonQuotaExceeded,
	} {
		if slices.ContainsFunc(d.reach, func(n string) bool { return verdicts[n] == best }) {
			return best
		}
	}
	return v1alpha1.ReasonNotEnoughDevices
}

func (p *placement) has(id DeviceID) bool {
	return slices.ContainsFunc(p.picks, func(x pick) bool { return x.device.id == id })
}
