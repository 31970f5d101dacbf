package lab

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"gpuladder.dev/ladder/policies/fleet"
)

// Scheduler chooses what schedules the Pods of a lab.
type Scheduler string

// The choices. The stock ones are there to compare with: they also serve Pods
// that name ladder-scheduler, so that the same manifests run.
const (
	// SchedulerLadder is ladder-scheduler with its built-in configuration.
	SchedulerLadder Scheduler = "ladder"
	// SchedulerLadderDefault is ladder-scheduler in the place of kube-scheduler:
	// it serves all Pods.
	SchedulerLadderDefault Scheduler = "ladder-default"
	// SchedulerStock is kube-scheduler as it comes.
	SchedulerStock Scheduler = "stock"
	// SchedulerStockConfigured is kube-scheduler that looks at every node and
	// gives DynamicResources the highest weight: the closest to a strict order
	// that configuration alone can come.
	SchedulerStockConfigured Scheduler = "stock-configured"
	// SchedulerNone leaves Pods pending.
	SchedulerNone Scheduler = "none"
)

// Schedulers lists the choices.
func Schedulers() []Scheduler {
	return []Scheduler{SchedulerLadder, SchedulerLadderDefault, SchedulerStock, SchedulerStockConfigured, SchedulerNone}
}

// ladder says whether it is ladder-scheduler.
func (s Scheduler) ladder() bool { return s == SchedulerLadder || s == SchedulerLadderDefault }

// ParseScheduler reads the word that a user gives.
func ParseScheduler(word string) (Scheduler, error) {
	if slices.Contains(Schedulers(), Scheduler(word)) {
		return Scheduler(word), nil
	}
	words := make([]string, 0, len(Schedulers()))
	for _, s := range Schedulers() {
		words = append(words, string(s))
	}
	return "", fmt.Errorf("scheduler %q is not known; choose one of %s", word, strings.Join(words, ", "))
}

// Options say what kind of lab is wanted. The zero value is a small lab with
// everything of Ladder in it.
type Options struct {
	// Name tells labs of one user apart. Default: "default".
	Name string
	// Fleet are the nodes and their GPUs. Nil: no nodes.
	Fleet *fleet.Fleet
	// Scheduler schedules the Pods. Default: SchedulerLadder.
	Scheduler Scheduler
	// WithoutController leaves ladder-controller out.
	WithoutController bool
	// WithoutQuotaGate leaves the gate out at which Pods of tenants wait for
	// their turn. Without ladder-controller there is none either, since nobody
	// would open it. The scheduler holds the limits all the same.
	WithoutQuotaGate bool
	// QuotaSettings is the file of settings that ladder-controller is given for
	// quotas. Empty: its defaults.
	QuotaSettings string
	// KeepJournals has ladder-scheduler keep every journal that it begins as long
	// as the lab is up, and not only the last ones.
	KeepJournals bool
	// Shuffle is what the order is drawn from in which nodes are registered and
	// slices published. Zero: both in the order of the fleet. On up to MaxDrivers
	// nodes each slice comes when its driver is ready, in either case.
	Shuffle uint64
	// Parent is the folder in which the lab makes its own. Default: the
	// system's folder for temporary files.
	Parent string
	// Progress is told what happens, line by line. Nil: nobody.
	Progress io.Writer
}

// gated says whether Pods of tenants wait at their gate.
func (o *Options) gated() bool { return !o.WithoutController && !o.WithoutQuotaGate }

func (o *Options) setDefaults() error {
	if o.Name == "" {
		o.Name = "default"
	}
	if o.Scheduler == "" {
		o.Scheduler = SchedulerLadder
	}
	if _, err := ParseScheduler(string(o.Scheduler)); err != nil {
		return err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return nil
}
