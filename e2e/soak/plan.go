// Package soak keeps a cluster busy for a long time: Pods arrive and go, device
// taint rules come and go, nodes are lost and come back, the scheduler is
// killed. All of it is drawn from a seed beforehand. What happened is recorded by
// watching and judged afterwards by package invariants, and the memory of
// Ladder's processes must not grow.
package soak

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
)

// Kind says what an action does.
type Kind string

// The kinds.
const (
	// Arrive creates a Pod, Depart deletes it.
	Arrive Kind = "Arrive"
	Depart Kind = "Depart"
	// Taint creates a DeviceTaintRule, Untaint deletes it.
	Taint   Kind = "Taint"
	Untaint Kind = "Untaint"
	// Lose takes a node away, Restore brings it back.
	Lose    Kind = "Lose"
	Restore Kind = "Restore"
	// Kill kills the scheduler, which is started again.
	Kill Kind = "Kill"
)

// Loss is how a node is lost.
type Loss string

// The losses. A node that kwok manages is Ready as long as it exists, so these
// two are what there is.
const (
	// Removed: the Node is deleted, and its slices go with it.
	Removed Loss = "Removed"
	// Drained: the node is cordoned and gets a NoExecute taint, so that its Pods
	// are evicted.
	Drained Loss = "Drained"
)

// Action is one thing that is done.
type Action struct {
	// At is when, after the start.
	At   time.Duration
	Kind Kind
	// Name is that of the Pod, the rule or the node.
	Name string
	// Policy of a Pod.
	Policy string
	// Pool, Device and Effect of a rule; without Device it is about the pool.
	Pool, Device string
	Effect       resourcev1.DeviceTaintEffect
	// Loss of a node.
	Loss Loss
	// Down is how long the scheduler stays down.
	Down time.Duration
}

// Pace says how often things happen. All times are means, drawn so that what
// comes next does not depend on what came before; a zero leaves a kind out.
type Pace struct {
	// Arrival is the time between two Pods, Life how long one stays.
	Arrival, Life time.Duration
	// Taint is the time between two rules, Tainted how long one stays.
	Taint, Tainted time.Duration
	// Loss is the time between two nodes that are lost, Lost how long one is.
	Loss, Lost time.Duration
	// Kill is the time between two kills of the scheduler, in the first third
	// only: a process that is killed again and again shows no growth, so the
	// other two thirds belong to one that lives.
	Kill time.Duration
}

const (
	// longestDown is how long a killed scheduler stays down at most.
	longestDown = 4 * time.Second
	// atOnce is the share of Pods that are deleted right after they were made,
	// many before they were decided on.
	atOnce = 0.05
	// wholePool is the share of rules that are about all devices of a node.
	wholePool = 0.3
	// mostLost is the share of nodes that may be lost at once.
	mostLost = 0.25
)

// Place is a node and the number of its devices.
type Place struct {
	Node    string
	Devices int
}

// Plan draws what is done in this time.
func Plan(seed uint64, duration time.Duration, pace Pace, policies []string, places []Place) []Action {
	d := &drawing{draw: rand.New(rand.NewPCG(seed, seed)), duration: duration}
	d.every(pace.Arrival, duration, func(at time.Duration, n int) {
		name := fmt.Sprintf("p-%05d", n)
		life := d.about(pace.Life)
		if d.draw.Float64() < atOnce {
			life = 0
		}
		d.add(Action{At: at, Kind: Arrive, Name: name, Policy: policies[d.draw.IntN(len(policies))]})
		d.add(Action{At: at + life, Kind: Depart, Name: name})
	})
	d.every(pace.Taint, duration, func(at time.Duration, n int) {
		where := places[d.draw.IntN(len(places))]
		a := Action{At: at, Kind: Taint, Name: fmt.Sprintf("soak-%04d", n), Pool: where.Node, Effect: resourcev1.DeviceTaintEffectNoSchedule}
		if d.draw.IntN(2) == 0 {
			a.Effect = resourcev1.DeviceTaintEffectNoExecute
		}
		if d.draw.Float64() >= wholePool {
			a.Device = fmt.Sprintf("gpu-%d", d.draw.IntN(where.Devices))
		}
		d.add(a)
		d.add(Action{At: at + d.about(pace.Tainted), Kind: Untaint, Name: a.Name})
	})
	back := map[string]time.Duration{} // of nodes that are lost
	d.every(pace.Loss, duration, func(at time.Duration, _ int) {
		node := places[d.draw.IntN(len(places))].Node
		how := []Loss{Removed, Drained}[d.draw.IntN(2)]
		until := at + d.about(pace.Lost)
		lost := 0
		for _, t := range back {
			if t >= at {
				lost++
			}
		}
		if t, known := back[node]; known && t >= at || float64(lost+1) > mostLost*float64(len(places)) {
			return
		}
		back[node] = until
		d.add(Action{At: at, Kind: Lose, Name: node, Loss: how})
		d.add(Action{At: until, Kind: Restore, Name: node, Loss: how})
	})
	d.every(pace.Kill, duration/3, func(at time.Duration, _ int) {
		d.add(Action{At: at, Kind: Kill, Down: time.Duration(d.draw.Int64N(int64(longestDown)))})
	})
	slices.SortStableFunc(d.plan, func(a, b Action) int { return cmp.Compare(a.At, b.At) })
	return d.plan
}

// drawing is a plan under way.
type drawing struct {
	draw     *rand.Rand
	duration time.Duration
	plan     []Action
}

// add adds what falls into the time; what would be later is left to the end.
func (d *drawing) add(a Action) {
	if a.At < d.duration {
		d.plan = append(d.plan, a)
	}
}

// every calls do at times with this mean between them.
func (d *drawing) every(mean, until time.Duration, do func(at time.Duration, n int)) {
	if mean <= 0 {
		return
	}
	at := d.about(mean)
	for n := 0; at < until; n++ {
		do(at, n)
		at += d.about(mean)
	}
}

// about draws a time with this mean; at least a millisecond, so that all ends.
func (d *drawing) about(mean time.Duration) time.Duration {
	return max(time.Duration(d.draw.ExpFloat64()*float64(mean)), time.Millisecond)
}
