// Package engine prepares and unprepares claims: the state machine between
// what kubelet asks for, what the disk remembers, and what the container
// runtime reads. It knows neither NVML nor fakes nor gRPC.
//
// # Steps
//
// Prepare records the claim as started, has the hardware made ready and shared
// as the claim's parameters ask for, writes the claim's CDI file, and records
// it as completed. Unprepare removes the file, has the hardware set back and
// released and removes the record. Each step can be repeated,
// so whatever the point at which a driver dies, asking again brings the same
// result as if it had not.
//
// From the first record to the removal of the last one the claim holds its
// devices: no other claim is prepared for them, whatever the API server says.
//
// # Two drivers at once
//
// During a rolling update two processes serve one node. The state is on disk
// only, read anew for each step, under a lock on a file. The lock is not held
// while the hardware is made ready; whether the claim is still wanted after
// that is looked at before it is recorded as completed.
package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/cdi"
	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/inventory"
)

// Hardware is what the engine needs to know and to have done.
type Hardware interface {
	// Pool returns what the node has.
	Pool(ctx context.Context) (inventory.Pool, error)
	// Trouble returns how bad the state of a device is, and why in a few words.
	Trouble(device string) (inventory.Severity, string)
	// Edits and Release are those of [inventory.Inventory].
	Edits(ctx context.Context, device string) (specs.ContainerEdits, error)
	Release(ctx context.Context, device string) error
}

// Claims reads claims from the API server.
type Claims interface {
	// Get returns a claim, or nil where there is none of this name.
	Get(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error)
	// List returns all claims of the cluster.
	List(ctx context.Context) ([]*resourcev1.ResourceClaim, error)
}

// Observer is told what happens, for metrics and Events. It must not block.
type Observer interface {
	// Prepared and Unprepared tell of each claim that was asked for.
	Prepared(claim types.NamespacedName, took time.Duration, err error)
	Unprepared(claim types.NamespacedName, took time.Duration, err error)
	// Holding tells how many claims are in the checkpoint.
	Holding(claims int)
	// Recovered tells that the checkpoint was lost or damaged and made again.
	Recovered(from checkpoint.Origin, problem error, claims int)
	// Rebooted tells that claims were forgotten because the node has booted.
	Rebooted(claims int)
	// Collected tells of a claim that nobody unprepared and that is gone.
	Collected(claim types.NamespacedName, uid types.UID, why string)
}

// Hooks are called at named points; see [Point]. The real driver has none.
type Hooks interface {
	// At is called with the claim that has come to a point. An error where a
	// prepare can still fail makes it fail; otherwise it is not looked at.
	At(ctx context.Context, point Point, claim types.UID) error
}

// Point is a place between two steps.
type Point string

// The points, in the order in which a claim comes to them.
const (
	BeforeCheckpointStarted   Point = "before-checkpoint-started"
	AfterCheckpointStarted    Point = "after-checkpoint-started"
	AfterCDI                  Point = "after-cdi"
	BeforeCheckpointCompleted Point = "before-checkpoint-completed"
	AfterCheckpointCompleted  Point = "after-checkpoint-completed"
	BeforeUnprepareCDI        Point = "before-unprepare-cdi"
	AfterUnprepareCDI         Point = "after-unprepare-cdi"
	AfterUnprepareCheckpoint  Point = "after-unprepare-checkpoint"
)

// Points are all points, in order.
func Points() []Point {
	return []Point{
		BeforeCheckpointStarted, AfterCheckpointStarted, AfterCDI, BeforeCheckpointCompleted, AfterCheckpointCompleted,
		BeforeUnprepareCDI, AfterUnprepareCDI, AfterUnprepareCheckpoint,
	}
}

// Config is what an engine works with. All but Sharer, Hooks and Settled is
// required.
type Config struct {
	// Driver is the driver's name, Pool that of the node's pool.
	Driver, Pool string
	Store        *checkpoint.Store
	CDI          *cdi.Folder
	Hardware     Hardware
	// Sharer sets devices up that a claim wants shared; nil where the hardware
	// can't.
	Sharer   inventory.Sharer
	Claims   Claims
	Observer Observer
	Clock    clock.PassiveClock
	// BootIDFile is read each time: /proc/sys/kernel/random/boot_id.
	BootIDFile string
	// StaleAfter is how long a claim must have been found gone before what was
	// prepared for it is taken back without kubelet's asking.
	StaleAfter time.Duration
	// Hooks may be nil.
	Hooks Hooks
	// Settled may be nil. It is called under the lock, before a claim is recorded
	// as started, with the pool in which its devices were looked up, and fails
	// where the node has another pool by now. Hardware whose devices are replaced
	// while claims are prepared needs it, with [Engine.Exclusively].
	Settled func(ctx context.Context, pool inventory.Pool) error
}

// Engine prepares and unprepares the claims of one node. It is safe for
// concurrent use, also by several processes on one folder.
type Engine struct {
	Config

	mu    sync.Mutex
	stale map[types.UID]time.Time
}

// New returns an engine. [Engine.Start] is to be called before anything else.
func New(config Config) *Engine {
	return &Engine{Config: config, stale: map[types.UID]time.Time{}}
}

// at calls the hook.
func (e *Engine) at(ctx context.Context, point Point, claim types.UID) error {
	if e.Hooks == nil {
		return nil
	}
	return e.Hooks.At(ctx, point, claim)
}

// errUnchanged makes [Engine.change] write nothing.
var errUnchanged = errors.New("nothing changed")

// change reads the state under the lock, lets f change it, and writes it. What
// f returns is returned; after an error nothing is written.
func (e *Engine) change(ctx context.Context, f func(state *checkpoint.State) error) error {
	unlock, err := e.Store.Lock(ctx)
	if err != nil {
		return &Error{Class: ClassCheckpoint, Err: err}
	}
	defer unlock()
	state, err := e.load(ctx)
	if err != nil {
		return err
	}
	if err := f(state); err != nil && !errors.Is(err, errUnchanged) {
		return err
	} else if err == nil {
		if err := e.Store.Save(state); err != nil {
			return &Error{Class: ClassCheckpoint, Err: err}
		}
	}
	e.Observer.Holding(len(state.Claims))
	return nil
}

// Held returns the claims in the checkpoint by UID, as they are at some moment:
// who acts on it wants [Engine.Exclusively].
func (e *Engine) Held(ctx context.Context) (map[types.UID]*checkpoint.Claim, error) {
	var held map[types.UID]*checkpoint.Claim
	err := e.Exclusively(ctx, func(now map[types.UID]*checkpoint.Claim) error {
		held = now
		return nil
	})
	return held, err
}

// Exclusively calls f with the claims in the checkpoint by UID. Until f returns
// no other is recorded and none is removed, by this driver or by another of the
// node, so f must be quick, and call nothing of the engine. It returns f's error.
func (e *Engine) Exclusively(ctx context.Context, f func(held map[types.UID]*checkpoint.Claim) error) error {
	return e.change(ctx, func(state *checkpoint.State) error {
		if err := f(state.DeepCopy().Claims); err != nil {
			return err
		}
		return errUnchanged
	})
}
