package fault

// This file holds the faults themselves.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// DefaultSocket is where the fake driver listens by default: fault.sock in its
// data folder below kubelet's plugins.
const DefaultSocket = "/var/lib/kubelet/plugins/gpu.gpuladder.dev/fault.sock"

// SocketVariable is the environment variable that names another socket.
const SocketVariable = "LADDER_FAULT_SOCKET"

// Kind is what goes wrong.
type Kind string

// Kinds of faults. A fault is in force until it is cleared, also over a restart
// of the driver, as broken hardware is; where it ends by itself its line says so.
const (
	// XID is an error event of Device with Code, as NVML reports it.
	XID Kind = "xid"
	// Lost makes NVML answer GPU_IS_LOST for Device: it fell off the bus.
	Lost Kind = "lost"
	// Remap makes a row remap of Device pending: it needs a reset.
	Remap Kind = "remap"
	// SlowPrepare makes every prepare take Duration longer.
	SlowPrepare Kind = "slow-prepare"
	// FailPrepare makes prepares of claims fail with Message. It ends by itself
	// after Times of them; 0 is until cleared.
	FailPrepare Kind = "fail-prepare"
	// TornCheckpoint cuts the driver's checkpoint file in the middle, once, as a
	// crash of the machine during a write would on a bad disk. It is over as
	// soon as it is done.
	TornCheckpoint Kind = "torn-checkpoint"
	// StaleSlice makes the driver publish no change: its ResourceSlices stay as
	// they are, whatever becomes of the devices.
	StaleSlice Kind = "stale-slice"
	// WithholdSlice makes the driver publish no ResourceSlices and take back
	// those that it has published.
	WithholdSlice Kind = "withhold-slice"
	// CrashAt ends the driver's process, as SIGKILL would, when it comes to
	// Point. With Once it ends by itself with that crash; otherwise the driver
	// crashes there each time, also after a restart.
	CrashAt Kind = "crash-at"
)

// Kinds are all kinds, in the order in which they are documented.
func Kinds() []Kind {
	return []Kind{XID, Lost, Remap, SlowPrepare, FailPrepare, TornCheckpoint, StaleSlice, WithholdSlice, CrashAt}
}

// CrashPoint is a place in the driver between two steps that a crash may part.
type CrashPoint string

// Crash points, as a claim comes to them. Prepare records the claim as started,
// writes its CDI file and records it as completed; unprepare removes the file
// and then the record.
const (
	BeforeCheckpointStarted   CrashPoint = "before-checkpoint-started"
	AfterCheckpointStarted    CrashPoint = "after-checkpoint-started"
	AfterCDI                  CrashPoint = "after-cdi"
	BeforeCheckpointCompleted CrashPoint = "before-checkpoint-completed"
	AfterCheckpointCompleted  CrashPoint = "after-checkpoint-completed"
	BeforeUnprepareCDI        CrashPoint = "before-unprepare-cdi"
	AfterUnprepareCDI         CrashPoint = "after-unprepare-cdi"
	AfterUnprepareCheckpoint  CrashPoint = "after-unprepare-checkpoint"
)

// CrashPoints are all crash points, in the order in which a claim comes to them.
func CrashPoints() []CrashPoint {
	return []CrashPoint{
		BeforeCheckpointStarted, AfterCheckpointStarted, AfterCDI, BeforeCheckpointCompleted, AfterCheckpointCompleted,
		BeforeUnprepareCDI, AfterUnprepareCDI, AfterUnprepareCheckpoint,
	}
}

// Spec is what is asked for. Which fields a kind needs and may have is what
// [Spec.Validate] says; the others are left out.
type Spec struct {
	Kind Kind `json:"kind"`
	// Device is the name of the device in the node's pool: gpu-0. For a
	// partition the fault is that of the whole board.
	Device string `json:"device,omitempty"`
	// Code is the number of the Xid, 1 to [MaxXID].
	Code int `json:"code,omitempty"`
	// Duration is how much longer a prepare takes, up to [MaxDuration].
	Duration Duration `json:"duration,omitempty"`
	// Times is how many prepares fail. 0: all, until cleared.
	Times int `json:"times,omitempty"`
	// Message is what the failing prepare says. Default: "fault injected".
	Message string `json:"message,omitempty"`
	// Point is where the driver crashes.
	Point CrashPoint `json:"point,omitempty"`
	// Once: crash the first time only.
	Once bool `json:"once,omitempty"`
}

// Fault is one that is in force.
type Fault struct {
	// ID tells it from the others of the same driver; never used twice.
	ID string `json:"id"`
	Spec
	// Since is when it was injected.
	Since time.Time `json:"since"`
	// Fired is how often it had an effect that can be counted: prepares that it
	// slowed down or failed. Hardware faults do not count.
	Fired int `json:"fired,omitempty"`
}

// Selector says which faults are meant. The zero value means all.
type Selector struct {
	// ID is that of one fault. It goes with no Device.
	ID string
	// Device means the faults of one device.
	Device string
}

// Matches says whether a fault is meant.
func (s Selector) Matches(f Fault) bool {
	return (s.ID == "" || s.ID == f.ID) && (s.Device == "" || s.Device == f.Device)
}

// Interface is control over the faults of one node. It is safe for concurrent use.
type Interface interface {
	// List returns the faults in force, oldest first.
	List(ctx context.Context) ([]Fault, error)
	// Inject puts a valid fault in force, in addition to those there are; a
	// kind that is over at once has had its effect when Inject returns. The
	// error is [ErrNotFound] where there is no such device, best made by
	// [UnknownDevice], and [ErrUnsupported] where this program has no such fault.
	Inject(ctx context.Context, spec Spec) (Fault, error)
	// Clear ends the faults that are meant and returns them. Clearing nothing
	// is no error, except that an ID or Device that is not there is [ErrNotFound].
	Clear(ctx context.Context, which Selector) ([]Fault, error)
}

// ErrNotFound is what an [Interface] returns, wrapped in words, for a device or
// fault that is not there.
var ErrNotFound = errors.New("not found")

// ErrUnsupported is what an [Interface] returns, wrapped in words, for a kind of
// fault that it can't bring about.
var ErrUnsupported = errors.New("unsupported")

// Duration is a time.Duration written like 1.5s.
type Duration time.Duration

// MarshalJSON writes it like 1.5s.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads what time.ParseDuration does.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return errors.New("must be a string like 1.5s")
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("must be a time like 1.5s, is %q", text)
	}
	*d = Duration(parsed)
	return nil
}
