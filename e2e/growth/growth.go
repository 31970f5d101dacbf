// Package growth measures how the time and the cost of placing a Pod grow with
// the fleet, on a real API server, while the first tier has room.
package growth

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"gpuladder.dev/ladder/e2e/measure"
	"gpuladder.dev/ladder/e2e/replay"
	"gpuladder.dev/ladder/policies/fleet"
)

// Options say what is measured.
type Options struct {
	// Nodes are the sizes of fleets, 8 GPUs each, ascending. Half of the nodes
	// carry H100, a quarter A100, the rest L4.
	Nodes []int
	// Pods of one GPU each that are created at once, and Single ones that are
	// created one after another, each when the one before has its node.
	Pods, Single int
	// Runs of both on each fleet.
	Runs int
	// Progress gets a line for each step.
	Progress io.Writer
}

const gpusPerNode = 8

// Fleet is a fleet of this size.
func Fleet(nodes int) *fleet.Fleet {
	h100, a100 := nodes/2, nodes/4
	return fleet.New(
		fleet.Group{Name: "h100", Nodes: h100, Board: "H100-SXM5-80GB", GPUs: gpusPerNode},
		fleet.Group{Name: "a100", Nodes: a100, Board: "A100-SXM4-80GB", GPUs: gpusPerNode},
		fleet.Group{Name: "l4", Nodes: nodes - h100 - a100, Board: "L4", GPUs: gpusPerNode},
	)
}

// leastNodes has two of the kind that is filled, so that there is a choice.
const leastNodes = 4

// Validate says what can't be measured.
func (o Options) Validate() error {
	var errs []error
	if len(o.Nodes) == 0 || o.Nodes[0] < leastNodes || !slices.IsSorted(o.Nodes) || len(slices.Compact(slices.Clone(o.Nodes))) != len(o.Nodes) {
		errs = append(errs, fmt.Errorf("--nodes %v: want sizes of %d or more, each larger than the one before", o.Nodes, leastNodes))
	} else if room := o.Nodes[0]/2*gpusPerNode - 1; o.Pods < 1 || o.Pods > room {
		errs = append(errs, fmt.Errorf("--pods %d: want 1 to %d, so that %d nodes have room in the first tier", o.Pods, room, o.Nodes[0]))
	}
	if o.Single < 1 || o.Runs < 1 {
		errs = append(errs, fmt.Errorf("--single %d, --runs %d: want 1 or more", o.Single, o.Runs))
	}
	return errors.Join(errs...)
}

// Run is one measured run. Times are milliseconds.
type Run struct {
	Nodes int `json:"nodes"`
	Run   int `json:"run"`

	// One after another: from a Pod's creation until it had its node, and the
	// scheduler's attempt, API calls included, on the mean.
	Wait    float64 `json:"wait"`
	Attempt float64 `json:"attempt"`

	// At once: the time from the first creation to the last node, by Pod, the
	// time from a Pod to the choice of its node, and the part of it that
	// Ladder's engine took.
	Wall     float64 `json:"wall"`
	Decision float64 `json:"decision"`
	Engine   float64 `json:"engine"`
	// What a Pod cost, its record included. Processor times are what was used
	// beyond the same time of doing nothing.
	SchedulerCPU float64            `json:"schedulerCPU"`
	APIServerCPU float64            `json:"apiServerCPU"`
	EtcdCPU      float64            `json:"etcdCPU"`
	OthersCPU    float64            `json:"othersCPU"` // kube-controller-manager, ladder-controller and kwok
	Calls        measure.Calls      `json:"calls"`     // of the scheduler
	Served       map[string]float64 `json:"served"`    // of all clients, by verb and resource
	FirstTier    int                `json:"firstTier"` // Pods that got their first choice
}

// Idle is what a fleet of this size costs while nobody does anything, for a
// second. Processor times are milliseconds.
type Idle struct {
	Nodes        int     `json:"nodes"`
	SchedulerCPU float64 `json:"schedulerCPU"`
	APIServerCPU float64 `json:"apiServerCPU"`
	Served       float64 `json:"served"`
}

// Result is what was measured.
type Result struct {
	Runs  []Run  `json:"runs"`
	Idles []Idle `json:"idle"`
	// Replay is what became of the decisions when they were decided again.
	Replay replay.Result `json:"replay"`
}

// median is that of one figure over the runs of a size.
func (r *Result) median(nodes int, of func(Run) float64) float64 {
	var all []float64
	for _, run := range r.Runs {
		if run.Nodes == nodes {
			all = append(all, of(run))
		}
	}
	return measure.Median(all)
}

// sizes are those that were measured, ascending.
func (r *Result) sizes() []int {
	var all []int
	for _, run := range r.Runs {
		all = append(all, run.Nodes)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// growth is how many times more a figure is than on the smallest fleet.
func (r *Result) growth(nodes int, of func(Run) float64) float64 {
	return r.median(nodes, of) / r.median(r.sizes()[0], of)
}

// allowed is how many times more it may be: the logarithm's growth.
func allowed(smallest, nodes int) float64 {
	return math.Log(float64(nodes)) / math.Log(float64(smallest))
}

// judged are the figures that may grow no faster than the logarithm of nodes.
var judged = []struct {
	name string
	of   func(Run) float64
}{
	{"an attempt, one Pod after another", func(r Run) float64 { return r.Attempt }},
	{"a decision, all Pods at once", func(r Run) float64 { return r.Decision }},
}

// Check says what does not hold.
func Check(o Options, r *Result) error {
	var errs []error
	for _, run := range r.Runs {
		if run.FirstTier != o.Pods {
			errs = append(errs, fmt.Errorf("%d nodes, run %d: %d of %d Pods got their first choice, though there was room", run.Nodes, run.Run, run.FirstTier, o.Pods))
		}
	}
	sizes := r.sizes()
	for _, nodes := range sizes[min(1, len(sizes)):] {
		for _, figure := range judged {
			grown, may := r.growth(nodes, figure.of), allowed(sizes[0], nodes)
			if !(grown <= may) { // NaN too
				errs = append(errs, fmt.Errorf("from %d to %d nodes the time of %s grew to %s times, want at most %s, the growth of log(nodes)",
					sizes[0], nodes, figure.name, measure.Number(grown, 2), measure.Number(may, 2)))
			}
		}
	}
	if len(sizes) != len(o.Nodes) {
		errs = append(errs, fmt.Errorf("%d of %d sizes were measured", len(sizes), len(o.Nodes)))
	}
	return errors.Join(append(errs, r.Replay.Check())...)
}
