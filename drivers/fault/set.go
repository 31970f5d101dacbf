// Package fault is the driver's side of fault control: it keeps the faults that
// are in force on a node and has the driver behave by them.
//
// A program of a node makes a [Set] only when it is started with --allow-faults.
// The engine, the publishing and the hardware know nothing of faults: they have
// hooks that are empty otherwise.
package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/drivers/durable"
	"gpuladder.dev/ladder/policies/fault"
)

// FileName of the faults in force, in the driver's data folder.
const FileName = "faults.json"

// lockSuffix is what the name of the lock has after that of the file.
const lockSuffix = ".lock"

// Set is the faults of one node. They are in a file, which is read each time:
// faults last over restarts of the driver, as broken hardware does, and two
// drivers of a rolling update have the same, so changes are made under a lock
// on another file. It is safe for concurrent use.
type Set struct {
	config  Config
	changed []chan struct{}

	mu    sync.Mutex
	state state
}

var _ fault.Interface = &Set{}

// Config is what a Set works with.
type Config struct {
	// Path of the file that keeps the faults; it need not exist.
	Path string
	// Devices returns the names of the node's devices.
	Devices func() []string
	// Tear cuts the checkpoint in the middle.
	Tear func(ctx context.Context) error
	// Kill ends the process at once, as SIGKILL does. It does not return.
	Kill  func()
	Clock clock.WithTicker
}

// state is what is kept.
type state struct {
	Last   int           `json:"last"`
	Faults []fault.Fault `json:"faults"`
}

// NewSet returns the faults that are in the file. The error is one of reading it.
func NewSet(config Config) (*Set, error) {
	s := &Set{config: config}
	return s, s.read()
}

// read reads the file anew; mu is held, or not needed yet.
func (s *Set) read() error {
	data, err := os.ReadFile(s.config.Path)
	if errors.Is(err, fs.ErrNotExist) {
		s.state.Faults = nil
		return nil
	}
	var found state
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	if err != nil {
		return fmt.Errorf("reading faults from %s, %w", s.config.Path, err)
	}
	s.state = found
	return nil
}

// change reads the faults under the lock of all processes, lets f change them,
// and keeps them if f says so.
func (s *Set) change(f func() (changed bool, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lock := flock.New(s.config.Path + lockSuffix)
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("locking faults, %w", err)
	}
	defer func() { _ = lock.Close() }() // closing a file that was opened can't keep the lock
	if err := s.read(); err != nil {
		return err
	}
	changed, err := f()
	if err != nil || !changed {
		return err
	}
	return s.keep()
}

// Changed returns a channel that receives after the faults have changed. Each
// caller has one of its own.
func (s *Set) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	made := make(chan struct{}, 1)
	s.changed = append(s.changed, made)
	return made
}

// keep writes the faults and tells of the change; both locks are held.
func (s *Set) keep() error {
	data, err := json.Marshal(s.state)
	if err != nil {
		return fmt.Errorf("encoding faults, %w", err)
	}
	if err := durable.WriteFile(s.config.Path, data, 0o600); err != nil {
		return fmt.Errorf("keeping faults, %w", err)
	}
	for _, waiting := range s.changed {
		select {
		case waiting <- struct{}{}:
		default: // it has one waiting
		}
	}
	return nil
}

// List implements [fault.Interface].
func (s *Set) List(context.Context) ([]fault.Fault, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.read()
	return slices.Clone(s.state.Faults), err
}

// Inject implements [fault.Interface].
func (s *Set) Inject(ctx context.Context, spec fault.Spec) (fault.Fault, error) {
	if spec.Device != "" {
		if known := s.config.Devices(); !slices.Contains(known, spec.Device) {
			return fault.Fault{}, fault.UnknownDevice(spec.Device, known)
		}
	}
	// Not under the lock: the engine holds the checkpoint's and calls At.
	if spec.Kind == fault.TornCheckpoint {
		if err := s.config.Tear(ctx); err != nil {
			return fault.Fault{}, fmt.Errorf("tearing checkpoint, %w", err)
		}
	}
	var made fault.Fault
	err := s.change(func() (bool, error) {
		s.state.Last++
		made = fault.Fault{ID: strconv.Itoa(s.state.Last), Spec: spec, Since: s.config.Clock.Now().UTC()}
		if spec.Kind != fault.TornCheckpoint { // that one is over
			s.state.Faults = append(s.state.Faults, made)
		}
		return true, nil
	})
	if err != nil {
		return fault.Fault{}, err
	}
	klog.FromContext(ctx).Info("Fault injected", "fault", made)
	return made, nil
}

// Clear implements [fault.Interface].
func (s *Set) Clear(ctx context.Context, which fault.Selector) ([]fault.Fault, error) {
	if which.Device != "" {
		if known := s.config.Devices(); !slices.Contains(known, which.Device) {
			return nil, fault.UnknownDevice(which.Device, known)
		}
	}
	var cleared []fault.Fault
	err := s.change(func() (bool, error) {
		var left []fault.Fault
		for _, f := range s.state.Faults {
			if which.Matches(f) {
				cleared = append(cleared, f)
			} else {
				left = append(left, f)
			}
		}
		if len(cleared) == 0 && which.ID != "" {
			return false, fault.UnknownFault(which.ID)
		}
		s.state.Faults = left
		return len(cleared) > 0, nil
	})
	if err != nil {
		return nil, err
	}
	if len(cleared) > 0 {
		klog.FromContext(ctx).Info("Faults cleared", "faults", cleared)
	}
	return cleared, nil
}

// of are the faults of some kinds, oldest first.
func (s *Set) of(kinds ...fault.Kind) []fault.Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.read(); err != nil {
		klog.Background().Error(err, "Going on with the faults known before")
	}
	return slices.DeleteFunc(slices.Clone(s.state.Faults), func(f fault.Fault) bool { return !slices.Contains(kinds, f.Kind) })
}

// fired counts an effect of a fault, and ends it where that was the last one.
func (s *Set) fired(id string, over func(fault.Fault) bool) error {
	return s.change(func() (bool, error) {
		at := slices.IndexFunc(s.state.Faults, func(f fault.Fault) bool { return f.ID == id })
		if at < 0 {
			return false, nil // cleared meanwhile
		}
		s.state.Faults[at].Fired++
		if over(s.state.Faults[at]) {
			s.state.Faults = slices.Delete(s.state.Faults, at, at+1)
		}
		return true, nil
	})
}

// wait lets time pass; it ends early with ctx.
func (s *Set) wait(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.config.Clock.After(duration):
		return nil
	}
}
