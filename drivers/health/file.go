package health

// This file keeps what is known over restarts of the driver.

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"gpuladder.dev/ladder/drivers/durable"
	"gpuladder.dev/ladder/drivers/inventory"
)

// Names of the files in the driver's data folder.
const (
	FileName = "health.json"
	// PreviousFileName is the one before: what is known when the other is damaged.
	PreviousFileName = "health.previous.json"
	// CorruptFileName is what a damaged file is moved to, for whoever wants to
	// know what happened. The next one replaces it.
	CorruptFileName = "health.corrupt.json"
	lockFileName    = "health.lock"
)

// schemaVersion of the file. A file of another version is not read: the
// hardware is asked anyhow.
const schemaVersion = 1

// DamagedError says that the file is not what was once written, or is missing
// where the one before it is there.
type DamagedError struct {
	Path   string
	Reason error
	// Recovered says that the file before was read in its place. The last change
	// is not in it: a trouble that is over may count until it is over once more,
	// and one that had just come counts when the hardware tells of it again.
	Recovered bool
}

func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged, %v", e.Path, e.Reason) }

// Unwrap returns the reason.
func (e *DamagedError) Unwrap() error { return e.Reason }

// file is what is kept.
type file struct {
	Schema   int      `json:"schema"`
	BootID   string   `json:"bootID"`
	Troubles []record `json:"troubles"`
}

type record struct {
	Device  string    `json:"device"`
	Source  string    `json:"source"`
	Failed  bool      `json:"failed,omitempty"`
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Latched bool      `json:"latched,omitempty"`
	Since   time.Time `json:"since"`
	Ended   time.Time `json:"ended,omitzero"`
}

func (m *Monitor) path(name string) string { return filepath.Join(m.folder, name) }

// load reads the newest file that is whole, and has what it had to mend written
// at the next observation.
func (m *Monitor) load() error {
	found, err := m.read(FileName)
	if err == nil {
		m.take(found)
		return nil
	}
	if _, before := os.Stat(m.path(PreviousFileName)); errors.Is(err, fs.ErrNotExist) && errors.Is(before, fs.ErrNotExist) {
		return nil
	}
	unlock, err := m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return m.recover()
}

// recover reads the file again, now under the lock, and if it is damaged or
// missing, the one before.
func (m *Monitor) recover() error {
	found, err := m.read(FileName)
	var damaged *DamagedError
	switch {
	case err == nil: // another driver has mended it
		m.take(found)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		damaged = &DamagedError{Path: m.path(FileName), Reason: fs.ErrNotExist}
	case !errors.As(err, &damaged):
		return err
	default:
		// Else the next writing would make it the one before.
		if err := os.Rename(m.path(FileName), m.path(CorruptFileName)); err != nil {
			return fmt.Errorf("setting damaged health aside, %w", err)
		}
	}
	m.unsaved = true
	if found, err = m.read(PreviousFileName); err == nil {
		// In another boot the lost file may have had anything.
		damaged.Recovered = found.BootID == m.boot
		m.take(found)
	}
	return damaged
}

// lock keeps another driver of the node from writing. The system unlocks what a
// process held when it dies.
func (m *Monitor) lock() (unlock func(), err error) {
	lock := flock.New(m.path(lockFileName))
	if err := lock.Lock(); err != nil {
		return nil, fmt.Errorf("locking health, %w", err)
	}
	return func() { _ = lock.Close() }, nil // closing a file that was opened can't keep the lock
}

// read returns what is in a file. The error is a [DamagedError], or one of
// reading, which is [fs.ErrNotExist] where there is none.
func (m *Monitor) read(name string) (file, error) {
	path := m.path(name)
	var found file
	data, err := os.ReadFile(path)
	if err != nil {
		return found, fmt.Errorf("reading health, %w", err)
	}
	if err := json.Unmarshal(data, &found); err != nil {
		return found, &DamagedError{Path: path, Reason: err}
	}
	if found.Schema != schemaVersion {
		return found, fmt.Errorf("reading health, %s has schema version %d, this driver knows %d", path, found.Schema, schemaVersion)
	}
	return found, nil
}

// take makes known what a file has, if it is of this boot of the node.
func (m *Monitor) take(found file) {
	if found.BootID != m.boot {
		return
	}
	for _, r := range found.Troubles {
		severity := inventory.Suspect
		if r.Failed {
			severity = inventory.Failed
		}
		origin := inventory.Origin{Device: r.Device, Source: r.Source}
		m.troubles[origin] = &entry{
			Trouble: inventory.Trouble{Origin: origin, Severity: severity, Reason: r.Reason, Message: r.Message, Latched: r.Latched},
			since:   r.Since, ended: r.Ended,
		}
	}
}

// write writes if anything has changed since it was last written, and keeps the
// file before.
func (m *Monitor) write() error {
	if !m.unsaved {
		return nil
	}
	written := file{Schema: schemaVersion, BootID: m.boot, Troubles: []record{}}
	for _, e := range m.troubles {
		written.Troubles = append(written.Troubles, record{
			Device: e.Device, Source: e.Source, Failed: e.Severity >= inventory.Failed, Reason: e.Reason, Message: e.Message,
			Latched: e.Latched, Since: e.since, Ended: e.ended,
		})
	}
	slices.SortFunc(written.Troubles, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Source, b.Source))
	})
	data, err := json.Marshal(written)
	if err != nil {
		return fmt.Errorf("encoding health, %w", err)
	}
	unlock, err := m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := durable.ReplaceFile(m.path(FileName), m.path(PreviousFileName), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing health, %w", err)
	}
	m.unsaved = false
	return nil
}
