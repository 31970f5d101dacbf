// Package stress creates and deletes Pods in rounds while something is killed
// at random moments. What it does is drawn from a seed; when it does it hangs
// on what it observes, so that a run goes as fast as the cluster does.
//
// It judges nothing but its own progress: what happened is judged by package
// invariants.
package stress

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Fate says when a Pod is deleted.
type Fate string

// The fates.
const (
	// AtOnce: right after it was created, often before it was decided on.
	AtOnce Fate = "AtOnce"
	// WhenBound: as soon as it has a node, mostly while its devices are being
	// prepared.
	WhenBound Fate = "WhenBound"
	// WhenRunning: after its containers have run, when its turn comes.
	WhenRunning Fate = "WhenRunning"
)

// Kill is one kill of a round.
type Kill struct {
	// After is how many steps of Pods must have been seen before.
	After int
	// Delay is how long after that.
	Delay time.Duration
	// Choice, from 0 up to but not including 1, selects the victim.
	Choice float64
}

// Round is what one round does.
type Round struct {
	// Pods are the fates of its Pods, in the order in which they are created.
	Pods []Fate
	// Lag is how many Pods run until the first of them is deleted.
	Lag   int
	Kills []Kill
}

// longestDelay bounds the time between a step and the kill that it triggers; it
// is about what preparing a device takes.
const longestDelay = 400 * time.Millisecond

// Plan draws rounds from a seed. Devices bounds how many Pods may run at once.
func Plan(seed uint64, rounds, pods, devices, kills int) []Round {
	draw := source(seed)
	plan := make([]Round, rounds)
	for i := range plan {
		r := &plan[i]
		r.Pods = make([]Fate, pods)
		for p := range r.Pods {
			switch n := draw.IntN(100); {
			case n < 10:
				r.Pods[p] = AtOnce
			case n < 30:
				r.Pods[p] = WhenBound
			default:
				r.Pods[p] = WhenRunning
			}
		}
		r.Lag = 1 + draw.IntN(max(devices-1, 1))
		for range kills {
			r.Kills = append(r.Kills, Kill{
				// Most Pods take a step when bound, running and gone; the last
				// steps are left out, so that each kill has its moment.
				After:  1 + draw.IntN(2*pods),
				Delay:  time.Duration(draw.Int64N(int64(longestDelay))),
				Choice: draw.Float64(),
			})
		}
		slices.SortFunc(r.Kills, func(a, b Kill) int { return a.After - b.After })
	}
	return plan
}

func source(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

// PodName is the name of a Pod; rounds and Pods count from 0.
func PodName(round, pod int) string { return fmt.Sprintf("r%02d-p%02d", round, pod) }
