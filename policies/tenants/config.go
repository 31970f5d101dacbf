package tenants

// Settings of the whole cluster: what a device of a model is worth beside
// others, and the times of the engine.

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/fair"
)

// Config is the file of settings. What is left out has the default.
type Config struct {
	// Costs say what a device of a model is worth, relative to others: at least
	// 1. Models that are named neither here nor in DefaultCosts are worth 1.
	Costs map[string]int64 `json:"costs,omitempty"`
	// Aging is the waiting that outweighs a share of the whole fleet.
	Aging *metav1.Duration `json:"aging,omitempty"`
	// ReserveAfter is how long work waits before devices are set aside for it;
	// negative: never.
	ReserveAfter *metav1.Duration `json:"reserveAfter,omitempty"`
	// KeepAfter is how long work waits that fits into its tenant's guarantee as a
	// whole before later work of the tenant leaves it its part; negative: never.
	KeepAfter *metav1.Duration `json:"keepAfter,omitempty"`
	// PriorityAging is how long work waits before it counts as of the highest
	// priority of its tenant; negative: never.
	PriorityAging *metav1.Duration `json:"priorityAging,omitempty"`
	// Notice is the time between the notice of a reclaim and the eviction.
	Notice *metav1.Duration `json:"notice,omitempty"`
	// MaxGrace is the longest time that a Pod whose devices are taken back gets to
	// end, whatever its terminationGracePeriodSeconds; ten minutes where nothing is
	// said. Whole seconds, at least one.
	MaxGrace *metav1.Duration `json:"maxGrace,omitempty"`
	// Cooldown is how long work does not borrow after its devices were taken
	// back, twice as long each further time.
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`
	// HoldFor is how long a Pod that was let in for some models only waits for those
	// before it may use any, should they be gone; negative: for ever.
	HoldFor *metav1.Duration `json:"holdFor,omitempty"`
	// LendAfter is how long guaranteed devices must be unused before they are
	// lent; at once where nothing is said.
	LendAfter *metav1.Duration `json:"lendAfter,omitempty"`
	// LendFirmly lends guaranteed devices also to Pods that can't be evicted.
	LendFirmly bool `json:"lendFirmly,omitempty"`
}

// DefaultCosts is what devices are worth where the file does not say: a rough
// order of how much more they do, not prices.
func DefaultCosts() map[string]int64 {
	return map[string]int64{
		"T4": 4, "L4": 6, "A10": 8, "V100": 10, "A30": 12, "L40": 14, "L40S": 16,
		"A100": 24, "H100": 48, "H200": 60, "B200": 96, "B300": 120,
	}
}

// ReadConfig reads a file of settings. Without a path all is as by default.
func ReadConfig(path string) (Config, error) {
	if path == "" {
		return Config{}, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("reading the settings, %w", err)
	}
	return ParseConfig(raw)
}

// ParseConfig reads settings; fields that it does not know are an error, and so
// is what the engine refuses.
func ParseConfig(raw []byte) (Config, error) {
	var c Config
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return Config{}, fmt.Errorf("reading the settings, %w", err)
	}
	if _, err := fair.New(c.fair()); err != nil {
		return Config{}, fmt.Errorf("reading the settings, %w", err)
	}
	if grace := c.Grace(); grace < time.Second || grace%time.Second != 0 {
		return Config{}, fmt.Errorf("reading the settings, maxGrace: %v is not a number of whole seconds, at least 1s", grace)
	}
	return c, nil
}

// defaultGrace is enough for a checkpoint, and short beside the work that waits.
const defaultGrace = 10 * time.Minute

// Grace is MaxGrace or its default.
func (c *Config) Grace() time.Duration {
	if c.MaxGrace == nil {
		return defaultGrace
	}
	return c.MaxGrace.Duration
}

// fair is the configuration of the engine.
func (c *Config) fair() fair.Config {
	costs := DefaultCosts()
	maps.Copy(costs, c.Costs)
	f := fair.Config{
		Aging: span(c.Aging, 1), ReserveAfter: span(c.ReserveAfter, 1), KeepAfter: span(c.KeepAfter, 1), PriorityAging: span(c.PriorityAging, 1),
		Notice: span(c.Notice, -1), Cooldown: span(c.Cooldown, -1), HoldFor: span(c.HoldFor, 1), LendAfter: span(c.LendAfter, 0), LendFirmly: c.LendFirmly,
	}
	for _, name := range slices.Sorted(maps.Keys(costs)) {
		f.Models = append(f.Models, fair.Model{Name: name, Cost: costs[name]})
	}
	return f
}

// span is a time as the engine has it, for which zero means the default: a zero
// that was written is what stands for none.
func span(d *metav1.Duration, none time.Duration) time.Duration {
	switch {
	case d == nil:
		return 0
	case d.Duration == 0:
		return none
	}
	return d.Duration
}
