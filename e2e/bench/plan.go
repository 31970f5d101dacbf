package bench

// What runs, and in which order.

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Scheduler is a scheduler that is measured.
type Scheduler string

// The schedulers.
const (
	// StockDefault is kube-scheduler as it comes.
	StockDefault Scheduler = "stock-default"
	// StockConfigured is kube-scheduler told to keep the order of tiers as well
	// as it can: every node is looked at, DynamicResources has the weight 100.
	StockConfigured Scheduler = "stock-configured"
	// Ladder is what ladder-scheduler runs.
	Ladder Scheduler = "ladder"
	// LadderBare is Ladder's plugins alone: SchedulePod is not wrapped, so one
	// attempt ends where no node of the first part of the order passes.
	LadderBare Scheduler = "ladder-bare"
)

// Schedulers are all that can be measured.
var Schedulers = []Scheduler{StockDefault, StockConfigured, Ladder, LadderBare}

// IsLadder says whether Ladder's plugin decides.
func (s Scheduler) IsLadder() bool { return s == Ladder || s == LadderBare }

// ParseSchedulers reads a list of schedulers with commas.
func ParseSchedulers(list string) ([]Scheduler, error) {
	var chosen []Scheduler
	for name := range strings.SplitSeq(list, ",") {
		s := Scheduler(strings.TrimSpace(name))
		switch {
		case !slices.Contains(Schedulers, s):
			return nil, fmt.Errorf("choosing schedulers, there is no %q: %v", name, Schedulers)
		case slices.Contains(chosen, s):
			return nil, fmt.Errorf("choosing schedulers, %q is there twice", s)
		}
		chosen = append(chosen, s)
	}
	return chosen, nil
}

// Run is one measurement: a workload, once, with one scheduler.
type Run struct {
	Workload  Workload  `json:"workload"`
	Scheduler Scheduler `json:"scheduler"`
	// Repeat counts from 1.
	Repeat int `json:"repeat"`
	// Nodes is the number of nodes; what else a workload counts is scaled with it.
	Nodes int `json:"nodes"`
	// Steady is how long workloads that keep a level are measured; 0 for as
	// long as upstream says.
	Steady time.Duration `json:"steady,omitempty"`
}

// Name is a name for the run's files.
func (r Run) Name() string {
	return fmt.Sprintf("%s_%s_%d_%d", strings.ReplaceAll(r.Workload.Name, "/", "-"), r.Scheduler, r.Nodes, r.Repeat)
}

// Plan returns the runs. The schedulers take turns, and who is first changes
// from turn to turn, so that what changes on the machine meets all alike.
func Plan(workloads []Workload, schedulers []Scheduler, repeats, nodes int, steady time.Duration) []Run {
	var runs []Run
	for _, w := range workloads {
		for repeat := range repeats {
			for i := range schedulers {
				s := schedulers[(i+repeat)%len(schedulers)]
				runs = append(runs, Run{Workload: w, Scheduler: s, Repeat: repeat + 1, Nodes: nodes, Steady: steady})
			}
		}
	}
	return runs
}
