package fair

// What is fixed for the life of a State: the set-up, what a device of a model
// is worth, and the times.

import (
	"fmt"
	"time"
)

// Mode is the set-up. The first one is the product; the others are there to be
// compared with it.
type Mode int

const (
	// Ladder: guaranteed first, then the weighted dominant share; waiting time
	// raises a turn; what has waited long reserves; borrowed devices come back.
	Ladder Mode = iota
	// LadderWithoutAging: as Ladder, but waiting time raises no turn and
	// reserves nothing outside the guarantee.
	LadderWithoutAging
	// PriorityOnly: higher priority first, then the older; what does not fit is
	// passed over. No guarantees, no shares, no reclaim; limits hold.
	PriorityOnly
	// FIFO: the older first; what does not fit for want of devices holds back
	// all that is younger. No guarantees, no shares, no reclaim; limits hold.
	FIFO
)

// String is the name of the set-up as the simulator prints it.
func (m Mode) String() string {
	switch m {
	case Ladder:
		return "ladder"
	case LadderWithoutAging:
		return "no-aging"
	case PriorityOnly:
		return "priority"
	case FIFO:
		return "fifo"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// shares reports whether the set-up knows guarantees and shares.
func (m Mode) shares() bool { return m == Ladder || m == LadderWithoutAging }

// Defaults of the times.
const (
	DefaultAging         = 4 * time.Hour
	DefaultReserveAfter  = 10 * time.Minute
	DefaultKeepAfter     = 72 * time.Hour
	DefaultPriorityAging = 24 * time.Hour
	DefaultNotice        = time.Minute
	DefaultCooldown      = 10 * time.Minute
	DefaultHoldFor       = time.Hour
)

// maxCost keeps what devices are worth far from overflow.
const maxCost = 1_000_000_000

// Model says what a device of a model is worth.
type Model struct {
	// Name of the model, such as H100.
	Name string
	// Cost of one device, relative to others. At least 1.
	Cost int64
	// Group of models that are one resource: inside it devices count by their
	// cost, and the largest share of a group is a tenant's dominant share.
	Group string
}

// Config is fixed for the life of a State.
type Config struct {
	// Mode is the set-up.
	Mode Mode
	// Models lists what is known of models. Others cost 1 and are of the group "".
	Models []Model
	// Aging is the waiting that outweighs the whole fleet: who holds a share s
	// of it, divided by the weight, is served as if the work had come s x Aging
	// later. Zero: DefaultAging.
	Aging time.Duration
	// ReserveAfter is how long work waits before devices are set aside for it
	// that its guarantee does not cover. Zero: DefaultReserveAfter; negative: never.
	ReserveAfter time.Duration
	// KeepAfter is how long work waits that fits into its tenant's guarantee as a
	// whole before later work of the tenant leaves it its part of that. Zero:
	// DefaultKeepAfter; negative: never.
	KeepAfter time.Duration
	// PriorityAging is how long work of a lower priority waits before it counts
	// as the highest of its tenant. Zero: DefaultPriorityAging; negative: never.
	PriorityAging time.Duration
	// Notice is the time between the notice of a reclaim and the eviction.
	// Zero: DefaultNotice; negative: none.
	Notice time.Duration
	// Cooldown is how long work does not borrow after its devices were taken
	// back; twice as long each further time, see [Config.CooldownAfter]. Zero:
	// DefaultCooldown; negative: none.
	Cooldown time.Duration
	// HoldFor is how long an opened entry may use only the models of its opening,
	// should devices of those not be free any more. Zero: DefaultHoldFor; negative:
	// for ever.
	HoldFor time.Duration
	// LendAfter is how long a tenant must have left guaranteed devices unused
	// before they are lent to others. Zero: they are lent at once.
	LendAfter time.Duration
	// LendFirmly lets work that is not preemptible borrow devices that others'
	// guarantees cover. Otherwise it borrows only what nobody is guaranteed.
	LendFirmly bool
}

func defaultTime(d *time.Duration, to time.Duration) {
	if *d == 0 {
		*d = to
	}
}

// complete fills in defaults and refuses what contradicts itself.
func (c *Config) complete() error {
	defaultTime(&c.Aging, DefaultAging)
	defaultTime(&c.ReserveAfter, DefaultReserveAfter)
	defaultTime(&c.KeepAfter, DefaultKeepAfter)
	defaultTime(&c.PriorityAging, DefaultPriorityAging)
	defaultTime(&c.Notice, DefaultNotice)
	defaultTime(&c.Cooldown, DefaultCooldown)
	defaultTime(&c.HoldFor, DefaultHoldFor)
	if c.Mode < Ladder || c.Mode > FIFO {
		return fmt.Errorf("%v is no set-up, %w", c.Mode, ErrInvalid)
	}
	if c.Aging < 0 {
		return fmt.Errorf("aging %v is negative, %w", c.Aging, ErrInvalid)
	}
	if c.LendAfter < 0 {
		return fmt.Errorf("time %v before lending is negative, %w", c.LendAfter, ErrInvalid)
	}
	seen := map[string]bool{}
	for _, m := range c.Models {
		switch {
		case m.Name == "" || seen[m.Name]:
			return fmt.Errorf("model %q is empty or given twice, %w", m.Name, ErrInvalid)
		case m.Cost < 1 || m.Cost > maxCost:
			return fmt.Errorf("cost %d of model %s is not in 1 to %d, %w", m.Cost, m.Name, maxCost, ErrInvalid)
		}
		seen[m.Name] = true
	}
	return nil
}
