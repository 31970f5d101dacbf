// Package storm measures what Pods that can never be served cost those that can,
// and the scheduler itself: some Pods are placed again and again, without and
// with a storm of others beside them that wait in vain, and then nothing is done
// for some minutes.
package storm

import (
	"errors"
	"fmt"
	"io"
	"time"

	"gpuladder.dev/ladder/e2e/measure"
	"gpuladder.dev/ladder/e2e/replay"
	"gpuladder.dev/ladder/policies/fleet"
)

// Options say what is measured and what must hold.
type Options struct {
	// Nodes in all, 8 GPUs each: half of them carry H100, one in fifteen L4, the
	// rest A100.
	Nodes int
	// Served Pods of one GPU each can be served, Storm Pods can't.
	Served, Storm int
	// Waiting is how much of the storm waits for devices that others hold for
	// good, in percent. The rest asks for what no node has.
	Waiting int
	// Rounds are made of runs without the storm, the storm's coming, and as many
	// runs with it; between rounds the storm goes.
	Rounds, Runs int
	// Idle is how long nothing is done under the storm.
	Idle time.Duration
	// Limits are what must hold.
	Limits Limits
	// Profiles is a folder for profiles of the scheduler and the API server in each
	// run; empty for none.
	Profiles string
	// Progress gets a line for each step.
	Progress io.Writer
}

// Limits are what must hold.
type Limits struct {
	// Ratio is how much longer the Pods may take with the storm than without,
	// median by median.
	Ratio float64
	// IdleCPU is what the scheduler may use in an idle minute under the storm.
	IdleCPU time.Duration
	// IdleWrites is how many writing requests it may send in an idle minute.
	IdleWrites float64
}

const (
	gpusPerNode = 8
	// shareOfL4 is one node of so many.
	shareOfL4 = 15
)

// Fleet is the fleet that the options describe.
func (o Options) Fleet() *fleet.Fleet {
	h100, l4 := o.Nodes/2, max(o.Nodes/shareOfL4, 1)
	return fleet.New(
		fleet.Group{Name: "h100", Nodes: h100, Board: "H100-SXM5-80GB", GPUs: gpusPerNode},
		fleet.Group{Name: "a100", Nodes: o.Nodes - h100 - l4, Board: "A100-SXM4-80GB", GPUs: gpusPerNode},
		fleet.Group{Name: "l4", Nodes: l4, Board: "L4", GPUs: gpusPerNode},
	)
}

// leastNodes has one of each kind.
const leastNodes = 4

// Validate says what can't be measured.
func (o Options) Validate() error {
	var errs []error
	refuse := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(o.Nodes < leastNodes, "--nodes %d: want %d or more", o.Nodes, leastNodes)
	refuse(o.Served < 1 || o.Served > o.Nodes/2*gpusPerNode, "--pods %d: want 1 to %d, the H100 of %d nodes", o.Served, o.Nodes/2*gpusPerNode, o.Nodes)
	refuse(o.Storm < 1, "--storm %d: want 1 or more", o.Storm)
	refuse(o.Waiting < 0 || o.Waiting > 100, "--waiting %d: want 0 to 100 percent", o.Waiting)
	refuse(o.Rounds < 1 || o.Runs < 1, "--rounds %d, --runs %d: want 1 or more", o.Rounds, o.Runs)
	refuse(o.Idle < time.Second, "--idle %s: want a second or more", o.Idle)
	return errors.Join(errs...)
}

// LeastIdle is how long nothing must be done at least for what the scheduler does
// at rest to be judged. It tries a Pod that waits in vain again after five minutes
// (maxParked in scheduler/ladder): in a shorter time none of that falls.
const LeastIdle = 6 * time.Minute

// ValidateIdle says why the time at rest can't be judged.
func (o Options) ValidateIdle() error {
	if o.Idle < LeastIdle {
		return fmt.Errorf("--idle %s: want %s or more, since Pods that wait in vain are tried again after 5 minutes; with --check=false less will do", o.Idle, LeastIdle)
	}
	return nil
}

// held is how many L4 others hold, so that the storm waits for them.
func (o Options) held() int { return max(o.Nodes/shareOfL4, 1) * gpusPerNode }

// waiting is how many Pods of the storm wait for L4.
func (o Options) waiting() int { return o.Storm * o.Waiting / 100 }

// Run is one time that the Pods were placed.
type Run struct {
	Round int  `json:"round"`
	Run   int  `json:"run"`
	Storm bool `json:"storm"`
	// Seconds from the first Pod's creation until the last had its node.
	Seconds float64 `json:"seconds"`
	// CPU of scheduler and API server, in seconds.
	SchedulerCPU float64 `json:"schedulerCPU"`
	APIServerCPU float64 `json:"apiServerCPU"`
	// OthersCPU is that of the other parts, by name.
	OthersCPU map[string]float64 `json:"othersCPU"`
	// Attempts of the scheduler that placed a Pod, and others.
	Placed float64 `json:"placed"`
	Vain   float64 `json:"vain"`
}

// Idle is a time in which nobody did anything.
type Idle struct {
	Seconds float64 `json:"seconds"`
	// AttemptsInAll are all that fell into the time.
	AttemptsInAll float64 `json:"attemptsInAll"`
	// All that follows is for a minute.
	SchedulerCPU   float64 `json:"schedulerCPU"` // seconds
	APIServerCPU   float64 `json:"apiServerCPU"`
	Attempts       float64 `json:"attempts"`
	Reads          float64 `json:"reads"` // of the scheduler
	Writes         float64 `json:"writes"`
	ServedAll      float64 `json:"servedWrites"` // writes of all clients
	ServedLargest  string  `json:"servedLargest,omitempty"`
	SchedulerBytes int64   `json:"schedulerRSS"`
}

// Result is what was measured.
type Result struct {
	Runs []Run `json:"runs"`
	// ComingSeconds is how long it took each round until all of the storm had
	// been told that it waits.
	ComingSeconds []float64 `json:"comingSeconds"`
	Before        Idle      `json:"before"`
	Under         Idle      `json:"under"`
	// Replay is what became of the decisions when they were decided again.
	Replay *replay.Result `json:"replay"`
}

// seconds are those of the runs with or without the storm.
func (r *Result) seconds(storm bool) []float64 {
	var all []float64
	for _, run := range r.Runs {
		if run.Storm == storm {
			all = append(all, run.Seconds)
		}
	}
	return all
}

// Ratio is how much longer the Pods take with the storm, median by median.
func (r *Result) Ratio() float64 {
	return measure.Median(r.seconds(true)) / measure.Median(r.seconds(false))
}

// Check says what does not hold.
func (l Limits) Check(r *Result) error {
	var errs []error
	if ratio := r.Ratio(); !(ratio <= l.Ratio) { // NaN too
		errs = append(errs, fmt.Errorf("with the storm the Pods took %s times as long as without, want at most %s",
			measure.Number(ratio, 2), measure.Number(l.Ratio, 2)))
	}
	if cpu := r.Under.SchedulerCPU; !(cpu <= l.IdleCPU.Seconds()) {
		errs = append(errs, fmt.Errorf("in an idle minute under the storm the scheduler used %s s of processor time, want at most %s s",
			measure.Number(cpu, 2), measure.Number(l.IdleCPU.Seconds(), 2)))
	}
	if writes := r.Under.Writes; !(writes <= l.IdleWrites) {
		errs = append(errs, fmt.Errorf("in an idle minute under the storm the scheduler wrote %s times to the API server, want at most %s",
			measure.Number(writes, 1), measure.Number(l.IdleWrites, 1)))
	}
	return errors.Join(append(errs, r.Replay.Check())...)
}
