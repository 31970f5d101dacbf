package tenants

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/invariants/quota"
)

// Outcome is what a run came to.
type Outcome struct {
	Machine string `json:"machine"`
	// Load is the load average of the machine when the run began, and so says
	// what else it had to do.
	Load    float64 `json:"load"`
	Tenants int     `json:"tenants"`
	// Nodes and Devices of each model, in the order of Models.
	Models  []string `json:"models"`
	Nodes   []int    `json:"nodes"`
	Devices []int    `json:"devices"`
	Seed    uint64   `json:"seed"`
	// Duration in which the Pods came by plan, and Settle, in seconds.
	Duration float64 `json:"duration"`
	Settle   float64 `json:"settle"`
	// Seconds that the whole took.
	Seconds  float64  `json:"seconds"`
	Burst    Burst    `json:"burst"`
	Reaction Reaction `json:"reaction"`
	Churn    Churn    `json:"churn"`
	Rest     Rest     `json:"rest"`
	// Limits and Exclusive are what was judged from the watch.
	Limits    quota.Result      `json:"limits"`
	Exclusive invariants.Report `json:"exclusive"`
}

func newOutcome(o *Options) *Outcome {
	return &Outcome{
		Machine: machine(), Load: load(), Tenants: o.Tenants, Models: models, Nodes: o.nodes(), Devices: o.devices(),
		Seed: o.Seed, Duration: o.Duration.Seconds(), Settle: o.Settle.Seconds(),
	}
}

// Err says what of the promises was not kept, or not shown.
func (o *Outcome) Err() error {
	var errs []error
	if err := o.Limits.Err(); err != nil {
		errs = append(errs, fmt.Errorf("judging limits, %w", err))
	}
	if o.Exclusive.Verdict != invariants.Pass {
		errs = append(errs, errors.New(o.Exclusive.String()))
	}
	if n := len(o.Rest.Idle); n > 0 {
		errs = append(errs, fmt.Errorf("%d Pods are left waiting that could be served, the first: %s", n, o.Rest.Idle[0]))
	}
	if o.Churn.Lost > 0 {
		errs = append(errs, fmt.Errorf("%d Pods went away without devices, although nobody deleted them", o.Churn.Lost))
	}
	if sum := o.Churn.Served + o.Churn.Dropped + o.Churn.Lost; sum != o.Churn.Pods {
		errs = append(errs, fmt.Errorf("%d Pods were created, what became of %d is known", o.Churn.Pods, sum))
	}
	return errors.Join(errs...)
}

// machine describes this machine: processors and memory.
func machine() string {
	text := fmt.Sprintf("%d CPUs", runtime.NumCPU())
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		text += " (" + model + ")"
	}
	kib, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"))
	if err == nil {
		text += fmt.Sprintf(", %d GiB", (kib+1<<19)>>20)
	}
	return text
}

// load is the load average of the last minute, 0 where it is not known.
func load() float64 {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(content), " ")
	value, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return value
}

// field reads a line "name : value" of a file.
func field(path, name string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(content)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
