package sharing

// This file remembers what was begun.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/bootid"
	"gpuladder.dev/ladder/drivers/durable"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Names of the files in the data folder.
const (
	FileName = "sharing.json"
	// CorruptFileName is what a damaged file is moved to.
	CorruptFileName = "sharing.corrupt.json"
	LockFileName    = "sharing.lock"
)

// state is all that was begun and not undone.
type state struct {
	BootID string `json:"bootID"`
	// Devices by name.
	Devices map[string]*device `json:"devices"`
	// Daemons are those that were started, by claim.
	Daemons map[types.UID]*daemon `json:"daemons,omitempty"`
}

// device is what was begun on one.
type device struct {
	// Before is the compute mode that it had.
	Before Mode `json:"computeModeBefore"`
	// Claims for which it is set up, and how.
	Claims map[types.UID]v1alpha1.Sharing `json:"claims"`
}

// daemon is what an MPS daemon was started with.
type daemon struct {
	// Folder is its own, in the data folder.
	Folder string `json:"folder"`
	// UUIDs are its GPUs, which it calls by their place in this list, from 0.
	UUIDs []string `json:"uuids"`
	// Percentage is that of the threads, 0 for all. MiB are the limits of memory
	// by place, 0 for none.
	Percentage int32   `json:"percentage,omitempty"`
	MiB        []int64 `json:"mib,omitempty"`
	// Ready daemons have run, with their limits set.
	Ready bool `json:"ready,omitempty"`
	// Ending daemons are not started again.
	Ending bool `json:"ending,omitempty"`
}

func (d *daemon) equal(other *daemon) bool {
	return d != nil && other != nil && d.Folder == other.Folder && d.Percentage == other.Percentage &&
		slices.Equal(d.UUIDs, other.UUIDs) && slices.Equal(d.MiB, other.MiB)
}

// devicesOf are those that are set up for a claim, by name.
func (s *state) devicesOf(claim types.UID) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.Devices)) {
		if _, is := s.Devices[name].Claims[claim]; is {
			all = append(all, name)
		}
	}
	return all
}

// lockRetry is how often a lock that another process holds is tried.
const lockRetry = 20 * time.Millisecond

// locked runs f with the state, alone. f saves what it changes by [Manager.save].
func (m *Manager) locked(ctx context.Context, f func(s *state) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	lock := flock.New(filepath.Join(m.config.Data, LockFileName))
	if _, err := lock.TryLockContext(ctx, lockRetry); err != nil {
		return fmt.Errorf("locking how GPUs are shared, %w", err)
	}
	defer func() { _ = lock.Close() }() // closing can't keep the lock
	s, err := m.load(ctx)
	if err != nil {
		return err
	}
	return f(s)
}

// load reads the state. That of another boot is none: no GPU is set up, and no
// daemon runs. A damaged one is set aside; what it knew is found again as
// claims are prepared anew, and what is not is undone by Unshare.
func (m *Manager) load(ctx context.Context) (*state, error) {
	id, err := bootid.Read(m.config.BootIDFile)
	if err != nil {
		return nil, err
	}
	empty := &state{BootID: id, Devices: map[string]*device{}, Daemons: map[types.UID]*daemon{}}
	path := filepath.Join(m.config.Data, FileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading how GPUs are shared, %w", err)
	}
	read := &state{}
	if err := json.Unmarshal(data, read); err != nil {
		klog.FromContext(ctx).Error(err, "Setting aside what was known of how GPUs are shared", "file", path)
		if err := os.Rename(path, filepath.Join(m.config.Data, CorruptFileName)); err != nil {
			return nil, fmt.Errorf("setting damaged file aside, %w", err)
		}
		return empty, nil
	}
	if read.BootID != id {
		return empty, nil
	}
	if read.Devices == nil {
		read.Devices = map[string]*device{}
	}
	if read.Daemons == nil {
		read.Daemons = map[types.UID]*daemon{}
	}
	return read, nil
}

func (m *Manager) save(s *state) error {
	data, err := json.Marshal(s)
	if err == nil {
		err = durable.WriteFile(filepath.Join(m.config.Data, FileName), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing how GPUs are shared, %w", err)
	}
	return nil
}
