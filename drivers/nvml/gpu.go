package nvml

// This file is what is known of one GPU, and what that means for its devices.

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/xid"
)

// gpu is a GPU that was seen since the node has booted. The inventory's mu
// guards it, but for what says otherwise.
type gpu struct {
	identity
	published published
	// links are the NVLinks that were up when it was first seen.
	links []int

	// handle, facts and calls are of this session; handle and facts are nil while
	// the GPU is not there.
	handle nvml.Device
	facts  *facts
	calls  caller
	// changing is held, without mu, by who makes or destroys partitions.
	changing sync.Mutex

	// signals are those of the last reading, or why there is none.
	signals map[xid.Signal]string
	// deaf is why its events can't be heard, while they can't.
	deaf error
	// troubled is how many readings have failed in a row.
	troubled int
	events   []event
	// unknown are instances without a claim that were seen once; taken those that
	// were seen again, and those of claims that are not published: their place is
	// taken.
	unknown, taken []partition
	instances      []instance
	// cleaned is set once unknown instances were looked for to be destroyed.
	cleaned bool

	recovery recovery
	// tellsAction says whether its recovery action can be read.
	tellsAction bool
	// uncorrectable is the last count of such errors, -1 if not told.
	uncorrectable int64
}

// event is a trouble that was told once.
type event struct {
	source, reason, message string
	severity                inventory.Severity
	// devices are those that it hits; nil means all of the GPU.
	devices []string
}

// report adds the troubles of the GPU's devices: the worst from each source.
func (g *gpu) report(policy *Health, common map[xid.Signal]string, report *inventory.Report) {
	var troubles []event
	for _, signals := range []map[xid.Signal]string{common, g.signals} {
		for signal, more := range signals {
			row := policy.row(signal)
			message := row.Words
			if more != "" {
				message += ": " + more
			}
			troubles = append(troubles, event{source: row.Source, reason: row.Reason, message: message, severity: row.Severity})
		}
	}
	slices.SortFunc(troubles, func(a, b event) int { return strings.Compare(a.reason, b.reason) })
	readings := len(troubles)
	troubles = append(troubles, g.events...)
	for i := range g.published.Devices {
		device := g.published.Devices[i].Name
		worst := map[string]inventory.Trouble{}
		for n, t := range troubles {
			if t.severity == inventory.Healthy || t.devices != nil && !slices.Contains(t.devices, device) {
				continue
			}
			if present, known := worst[t.source]; known && present.Severity >= t.severity {
				continue
			}
			worst[t.source] = inventory.Trouble{
				Origin:   inventory.Origin{Device: device, Source: t.source},
				Severity: t.severity, Reason: t.reason, Message: t.message, Latched: n >= readings,
			}
		}
		for _, source := range sources {
			if trouble, is := worst[source]; is {
				report.Troubles = append(report.Troubles, trouble)
			} else if g.recovery.over && slices.Contains(latchedSources, source) {
				report.Recovered = append(report.Recovered, inventory.Origin{Device: device, Source: source})
			}
		}
	}
}

// sources are those of all troubles, and latchedSources those of events.
var sources, latchedSources = func() (all, latched []string) {
	all, latched = []string{xid.Source}, []string{xid.Source}
	for _, row := range xid.Signals() {
		if !slices.Contains(all, row.Source) {
			all = append(all, row.Source)
		}
		if row.Latched && !slices.Contains(latched, row.Source) {
			latched = append(latched, row.Source)
		}
	}
	return all, latched
}()

// why says in a few words why the GPU is not there.
func (g *gpu) why() string {
	var said []string
	for signal, more := range g.signals {
		row, _ := xid.RowOf(signal)
		said = append(said, strings.TrimSuffix(row.Words+": "+more, ": "))
	}
	slices.Sort(said)
	return strings.Join(said, "; ")
}

// hit takes in an event, and what is worse of two.
func (g *gpu) hit(e event, now time.Time) {
	g.recovery.eventAt(now)
	for i := range g.events {
		known := &g.events[i]
		if known.source == e.source && known.reason == e.reason && slices.Equal(known.devices, e.devices) && (known.devices == nil) == (e.devices == nil) {
			return
		}
	}
	g.events = append(g.events, e)
}

// devicesOf are the devices that an error of a GPU instance hits: the partition
// that it is, and those that would be on the same memory, the whole among them.
// Nobody uses these now, and nobody should while the error is not over. An
// instance that is not known is as good as all.
func (g *gpu) devicesOf(gpuInstance uint32) []string {
	if g.facts == nil {
		return nil
	}
	at := slices.IndexFunc(g.instances, func(i instance) bool { return i.id == gpuInstance })
	if at < 0 {
		return nil
	}
	hit := g.instances[at]
	devices := []string{g.Address.name()}
	for _, p := range partitions(g.facts.Profiles) {
		if overlaps(p.placement, hit.placement) {
			devices = append(devices, p.name(g.Address.name()))
		}
	}
	return devices
}

// recovery decides when events are over. No reading shows an XID, so it is
// taken from what NVIDIA's driver asks for: after it has asked for something
// and does no more; after the GPU had gone and is back; and where it never
// asked for anything, after some time.
type recovery struct {
	last time.Time // of an event, or when the GPU was first seen
	// since is when the driver was first seen not to ask for anything.
	since time.Time
	// asks is whether the driver did so when it was last read. asked and left say
	// whether it has done so since the last event, or did already, and whether the
	// GPU was gone or reset since.
	asks, asked, left bool
	// over is true while all events that were ever told are.
	over bool
}

func (r *recovery) eventAt(now time.Time) {
	*r = recovery{last: now, asks: r.asks, asked: r.asks}
}

// failed takes in that the GPU could not be read.
func (r *recovery) failed(signal xid.Signal) {
	r.since = time.Time{}
	if signal == xid.GPULost || signal == xid.ResetRequired {
		r.left = true
	}
}

// read takes in a reading that was begun at a time. It says whether all events
// until then are over.
func (r *recovery) read(begun, now time.Time, seen *reading, reset bool, settle time.Duration) bool {
	if begun.Before(r.last) {
		return false // it may be older than the event
	}
	if reset {
		r.left = true
	}
	if r.asks = seen.asks; r.asks {
		r.asked, r.since = true, time.Time{}
		return false
	}
	if r.since.IsZero() {
		r.since = now
	}
	settled := seen.tellsAction && now.Sub(r.since) >= settle && now.Sub(r.last) >= settle
	if !r.left && !(seen.tellsAction && r.asked) && !settled {
		return false
	}
	r.asked, r.left, r.over = false, false, true
	return true
}
