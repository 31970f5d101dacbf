package nvml

// This file answers the driver from what was seen last.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/nvml/sharing"
	"gpuladder.dev/ladder/drivers/xid"
	"gpuladder.dev/ladder/policies/fleet"
)

// Inventory is the NVIDIA GPUs of one node. Make it by [New] and run it once;
// it is safe for concurrent use.
type Inventory struct {
	config  Config
	metrics *metrics
	changed chan struct{}
	// wake has the GPUs asked at once.
	wake chan struct{}
	// looked is closed once the first look at the hardware is over.
	looked     chan struct{}
	lookedOnce sync.Once

	gate            gate
	library, events *worker
	workers         []*worker        // by NVML's index; only Run uses it
	sharer          *sharing.Manager // nil where devices are Exclusive only

	mu      sync.Mutex
	held    Held
	session *session // nil while NVML can't be reached
	away    error    // why it can't
	deaf    error    // why events can't be heard, while they can't
	gpus    map[string]*gpu
	bootID  string
	told    inventory.Report // what the last change was told with
}

var _ inventory.Inventory = &Inventory{}

// New returns an inventory that knows the GPUs which were seen since the node
// has booted. A memory that can't be read is no error: it is logged.
func New(ctx context.Context, config Config) (*Inventory, error) {
	if err := config.defaults(); err != nil {
		return nil, fmt.Errorf("configuring the NVML driver, %w", err)
	}
	metrics, err := newMetrics(config.Registry)
	if err != nil {
		return nil, err
	}
	i := &Inventory{
		config: config, metrics: metrics, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1), looked: make(chan struct{}),
		gpus: map[string]*gpu{}, away: errors.New("it was not looked for yet"),
	}
	if i.sharer, err = i.newSharer(); err != nil {
		return nil, fmt.Errorf("configuring the NVML driver, %w", err)
	}
	i.library = &worker{clock: config.Clock, gate: &i.gate}
	i.events = &worker{clock: config.Clock, gate: &i.gate}
	if err := i.remember(); err != nil {
		klog.FromContext(ctx).Error(err, "Going on without what was known of the GPUs: one that is lost already is not missed")
	}
	return i, nil
}

// SetHeld says how to ask which devices claims have. It is needed to know whose
// the MIG instances are that are found; without it all of them are claims'.
func (i *Inventory) SetHeld(held Held) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held = held
}

// Changed implements [inventory.Source].
func (i *Inventory) Changed() <-chan struct{} { return i.changed }

func (i *Inventory) tell() {
	select {
	case i.changed <- struct{}{}:
	default: // one signal is waiting already and will see this change too
	}
}

func (i *Inventory) lookedAt() { i.lookedOnce.Do(func() { close(i.looked) }) }

// wait waits for the first look, for some time.
func (i *Inventory) wait(ctx context.Context) error {
	select {
	case <-i.looked:
		return nil
	default:
	}
	timer := i.config.Clock.NewTimer(i.config.StartLimit)
	defer timer.Stop()
	select {
	case <-i.looked:
	case <-timer.C():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// sorted are the GPUs by name; mu is held.
func (i *Inventory) sorted() []*gpu {
	var all []*gpu
	for _, name := range slices.Sorted(maps.Keys(i.gpus)) {
		all = append(all, i.gpus[name])
	}
	return all
}

// Pool implements [inventory.Source]: the GPUs that were seen since the node
// has booted, also while they, or NVML, can't be reached.
func (i *Inventory) Pool(ctx context.Context) (inventory.Pool, error) {
	if err := i.wait(ctx); err != nil {
		return inventory.Pool{}, fmt.Errorf("waiting for the first look at the GPUs, %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var pool inventory.Pool
	for _, g := range i.sorted() {
		pool.Devices = append(pool.Devices, g.published.Devices...)
		if g.published.Counters != nil && len(g.published.Devices) > 0 {
			pool.SharedCounters = append(pool.SharedCounters, *g.published.Counters)
		}
	}
	slices.SortFunc(pool.Devices, func(a, b resourcev1.Device) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(pool.SharedCounters, func(a, b resourcev1.CounterSet) int { return strings.Compare(a.Name, b.Name) })
	return pool.DeepCopy(), nil
}

// NoneAllowed says whether there is a list of the only GPUs that are published,
// and the last look at the hardware has found none that is in it and not denied.
func (i *Inventory) NoneAllowed() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.noneAllowed()
}

// noneAllowed is NoneAllowed; mu is held.
func (i *Inventory) noneAllowed() bool {
	return i.away == nil && len(i.gpus) == 0 && len(i.config.Policy.GPUs.Allow) > 0
}

// Health implements [inventory.Inventory]. While NVIDIA's driver can't be
// reached this is a trouble of every GPU that is known; where none is, it is an
// [UnavailableError].
func (i *Inventory) Health(ctx context.Context) (inventory.Report, error) {
	if err := i.wait(ctx); err != nil {
		return inventory.Report{}, fmt.Errorf("waiting for the first look at the GPUs, %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.away != nil && len(i.gpus) == 0 {
		return inventory.Report{}, unavailable(i.away)
	}
	return i.report(), nil
}

func unavailable(err error) error {
	var already *UnavailableError
	if errors.As(err, &already) {
		return err
	}
	return &UnavailableError{err}
}

// report is the health of all GPUs; mu is held.
func (i *Inventory) report() inventory.Report {
	var report inventory.Report
	for _, g := range i.sorted() {
		common := map[xid.Signal]string{}
		if i.away != nil {
			common[xid.NVMLUnavailable] = i.away.Error()
		} else if deaf := cmp.Or(i.deaf, g.deaf); deaf != nil && g.handle != nil {
			common[xid.EventsTimeout] = deaf.Error()
		}
		g.report(&i.config.Policy.Health, common, &report)
	}
	return report
}

// changedReport tells of a change if the report is another one than the last;
// mu is held.
func (i *Inventory) changedReport() {
	now := i.report()
	if !slices.Equal(now.Troubles, i.told.Troubles) || !slices.Equal(now.Recovered, i.told.Recovered) {
		i.told = now
		i.tell()
	}
}

// GPUError occurs when a device can't be made ready because of its GPU.
type GPUError struct {
	Device string
	Err    error
}

// Error says which device and why.
func (e *GPUError) Error() string { return fmt.Sprintf("device %s, %v", e.Device, e.Err) }

// Unwrap returns the reason.
func (e *GPUError) Unwrap() error { return e.Err }

// Reasons of a GPUError.
var (
	// ErrNoDevice: the node has no such device.
	ErrNoDevice = errors.New("there is no such device")
	// ErrGPUAbsent: its GPU is lost, or does not answer.
	ErrGPUAbsent = errors.New("its GPU can't be reached")
)

// target is a device that is to be changed.
type target struct {
	*gpu
	board
	uuid string
	// wanted is the partition that the device is, if any.
	wanted *partition
}

// target finds a device.
func (i *Inventory) target(device string) (*target, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	g := i.gpus[fleet.GPUOf(device)]
	if g == nil {
		return nil, &GPUError{device, ErrNoDevice}
	}
	if i.away != nil {
		return nil, unavailable(i.away)
	}
	if i.session == nil {
		return nil, unavailable(errClosed) // for a moment
	}
	if g.handle == nil || g.facts == nil {
		return nil, &GPUError{device, fmt.Errorf("%w: %s", ErrGPUAbsent, g.why())}
	}
	t := &target{
		gpu: g, uuid: g.UUID,
		board: board{session: i.session, caller: g.calls.within(i.config.EditLimit), handle: g.handle, profiles: g.facts.Profiles},
	}
	if device == g.Address.name() {
		if whole, split := biggest(g.facts.Profiles); split {
			t.wanted = &whole
		}
		return t, nil
	}
	all := partitions(g.facts.Profiles)
	at := slices.IndexFunc(all, func(p partition) bool { return p.name(g.Address.name()) == device })
	if at < 0 {
		return nil, &GPUError{device, ErrNoDevice}
	}
	t.wanted = &all[at]
	return t, nil
}

// Edits implements [inventory.Inventory]. The whole of a board in MIG mode is
// its biggest partition.
func (i *Inventory) Edits(ctx context.Context, device string) (specs.ContainerEdits, error) {
	t, err := i.target(device)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if t.wanted != nil {
		t.changing.Lock()
		defer t.changing.Unlock()
		if t.uuid, err = t.ensure(ctx, *t.wanted); err != nil {
			return specs.ContainerEdits{}, &GPUError{device, fmt.Errorf("making partition, %w", err)}
		}
		i.wakeUp() // events name the instance by an ID that is to be read
	}
	edits, err := do(ctx, t.caller, "nvcdi", func() (specs.ContainerEdits, error) { return i.config.Editor.Edits(t.uuid) })
	if err != nil {
		return specs.ContainerEdits{}, &GPUError{device, fmt.Errorf("reading what a container needs, %w", err)}
	}
	return edits, nil
}

// Release implements [inventory.Inventory]: the partition is destroyed. Those of
// a GPU that is lost are lost with it.
func (i *Inventory) Release(ctx context.Context, device string) error {
	t, err := i.target(device)
	switch {
	case errors.Is(err, ErrNoDevice), errors.Is(err, ErrGPUAbsent) && i.lost(device):
		klog.FromContext(ctx).Info("There is nothing to release", "device", device, "reason", err.Error())
		return nil
	case err != nil:
		return i.releaseAway(device, err)
	case t.wanted == nil:
		return nil
	}
	t.changing.Lock()
	defer t.changing.Unlock()
	present, err := t.find(ctx, *t.wanted)
	if err == nil && present != nil {
		err = t.destroy(ctx, present)
	}
	if isOne(err, lost) {
		return nil
	}
	if err != nil {
		return &GPUError{device, fmt.Errorf("destroying partition, %w", err)}
	}
	return nil
}

// releaseAway: a whole GPU has nothing to be undone, so its claim can end while
// NVIDIA's driver is away. A partition may be there still.
func (i *Inventory) releaseAway(device string, err error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if g := i.gpus[fleet.GPUOf(device)]; g != nil && g.published.Counters == nil {
		return nil
	}
	return err
}

// lost says whether the GPU of a device has gone, with all that was made on it.
func (i *Inventory) lost(device string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	g := i.gpus[fleet.GPUOf(device)]
	if g == nil {
		return true
	}
	_, is := g.signals[xid.GPULost]
	return is
}
