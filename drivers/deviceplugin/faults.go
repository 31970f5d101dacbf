package deviceplugin

// This file is the health of devices that do not exist: faults by request.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"gpuladder.dev/ladder/policies/fault"
)

// applicationXIDs are those that NVIDIA's device plugin (v0.20) takes for a
// mistake of the application, which leaves the device healthy.
var applicationXIDs = []int{13, 31, 43, 45, 68, 109}

// Faults are the faults of the node's devices in force. Unlike NVIDIA's plugin,
// which never takes a device back, a device is healthy again once its faults
// are cleared; they are gone when the plugin is restarted.
type Faults struct {
	// Names are the names of the node's devices.
	Names func() []string
	// Now is the clock.
	Now func() time.Time

	changed chan struct{}

	mu     sync.Mutex
	last   int
	faults []fault.Fault
}

var (
	_ fault.Interface = &Faults{}
	_ Health          = &Faults{}
)

// NewFaults returns no faults.
func NewFaults(names func() []string, now func() time.Time) *Faults {
	return &Faults{Names: names, Now: now, changed: make(chan struct{}, 1)}
}

// Changed implements [Health].
func (f *Faults) Changed() <-chan struct{} { return f.changed }

// Unhealthy implements [Health].
func (f *Faults) Unhealthy() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	unhealthy := map[string]string{}
	for _, in := range f.faults {
		switch {
		case in.Kind == fault.Lost:
			unhealthy[in.Device] = "the GPU is lost"
		case slices.Contains(applicationXIDs, in.Code):
		case unhealthy[in.Device] == "":
			unhealthy[in.Device] = "XID " + strconv.Itoa(in.Code)
		}
	}
	return unhealthy
}

// List implements [fault.Interface].
func (f *Faults) List(context.Context) ([]fault.Fault, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.faults), nil
}

// Inject implements [fault.Interface]. Faults of the DRA driver's own work are
// refused, and so is a pending row remap, at which device plugins do not look.
func (f *Faults) Inject(_ context.Context, spec fault.Spec) (fault.Fault, error) {
	if spec.Kind != fault.XID && spec.Kind != fault.Lost {
		return fault.Fault{}, fmt.Errorf("the device plugin has no %s, only xid and lost, %w", spec.Kind, fault.ErrUnsupported)
	}
	if err := f.known(spec.Device); err != nil {
		return fault.Fault{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	made := fault.Fault{ID: strconv.Itoa(f.last), Spec: spec, Since: f.Now()}
	f.faults = append(f.faults, made)
	f.tell()
	return made, nil
}

// Clear implements [fault.Interface].
func (f *Faults) Clear(_ context.Context, which fault.Selector) ([]fault.Fault, error) {
	if which.Device != "" {
		if err := f.known(which.Device); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var kept, cleared []fault.Fault
	for _, in := range f.faults {
		if which.Matches(in) {
			cleared = append(cleared, in)
		} else {
			kept = append(kept, in)
		}
	}
	if which.ID != "" && len(cleared) == 0 {
		return nil, fault.UnknownFault(which.ID)
	}
	f.faults = kept
	f.tell()
	return cleared, nil
}

func (f *Faults) known(device string) error {
	if names := f.Names(); !slices.Contains(names, device) {
		return fault.UnknownDevice(device, names)
	}
	return nil
}

func (f *Faults) tell() {
	select {
	case f.changed <- struct{}{}:
	default: // one signal is waiting already and will see this change too
	}
}
