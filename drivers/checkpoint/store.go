package checkpoint

// This file reads and writes the files.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"gpuladder.dev/ladder/drivers/durable"
)

// SchemaVersion is the newest version of the file that this package reads, and
// the one that it writes. It grows only when an older driver must not touch
// the file; new fields alone don't need it.
const SchemaVersion = 1

// Names of the files in the driver's data folder.
const (
	FileName         = "checkpoint.json"
	PreviousFileName = "checkpoint.previous.json"
	// CorruptFileName is what a damaged file is moved to, for whoever wants to
	// know what happened. The next one replaces it.
	CorruptFileName = "checkpoint.corrupt.json"
	// LockFileName is locked while a driver reads and changes the others.
	LockFileName = "checkpoint.lock"
)

// SchemaError says that a newer driver has written the file.
type SchemaError struct {
	Path         string
	Found, Known int
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("%s has schema version %d and this driver knows up to %d: run the newer driver again, or drain the node and remove the file", e.Path, e.Found, e.Known)
}

// CorruptError says that a file is not what was once written.
type CorruptError struct {
	Path   string
	Reason error
}

func (e *CorruptError) Error() string { return fmt.Sprintf("%s is damaged, %v", e.Path, e.Reason) }

func (e *CorruptError) Unwrap() error { return e.Reason }

// Origin is where a state was read from.
type Origin string

// Origins.
const (
	// Fresh: there is no file, as on a node where the driver never ran.
	Fresh Origin = "fresh"
	// Current: the file as it was last written.
	Current Origin = "current"
	// Previous: the file before it; the last change is missing.
	Previous Origin = "previous"
	// Lost: there are files, and none can be used.
	Lost Origin = "lost"
)

// Loaded is what [Store.Load] found.
type Loaded struct {
	// State is never nil. It is empty where the origin is Fresh or Lost.
	State  *State
	Origin Origin
	// Problem says why the origin is Previous or Lost; otherwise it is nil.
	Problem error
}

// Store is the checkpoint in one folder. Two processes may use one folder,
// each holding [Store.Lock] from Load to Save.
type Store struct {
	folder string

	// The file is read each time, and decoded only if it is not what it was when
	// this process last read or wrote it.
	mu    sync.Mutex
	bytes []byte
	state *State
}

// NewStore returns the store in a folder that exists.
func NewStore(folder string) *Store { return &Store{folder: folder} }

// Path is that of the current file.
func (s *Store) Path() string { return filepath.Join(s.folder, FileName) }

func (s *Store) path(name string) string { return filepath.Join(s.folder, name) }

// lockRetry is how often a lock that another process holds is tried.
const lockRetry = 5 * time.Millisecond

// Lock waits until no other process and no other caller in this one holds the
// lock, or ctx is done. The system unlocks what a process held when it dies.
func (s *Store) Lock(ctx context.Context) (unlock func(), err error) {
	lock := flock.New(s.path(LockFileName))
	if _, err := lock.TryLockContext(ctx, lockRetry); err != nil {
		return nil, fmt.Errorf("locking checkpoint, %w", err)
	}
	return func() {
		_ = lock.Close() // closing a file that was opened can't keep the lock
	}, nil
}

// Load reads the newest state that is whole. The error is a [SchemaError], or
// one of reading; damage is none.
func (s *Store) Load() (Loaded, error) {
	current, problem, err := s.read(FileName)
	if err != nil {
		return Loaded{}, err
	}
	if current != nil {
		return Loaded{State: current, Origin: Current}, nil
	}
	previous, other, err := s.read(PreviousFileName)
	if err != nil {
		return Loaded{}, err
	}
	switch {
	case previous != nil && problem == nil:
		problem = &CorruptError{Path: s.Path(), Reason: fs.ErrNotExist}
		return Loaded{State: previous, Origin: Previous, Problem: problem}, nil
	case previous != nil:
		return Loaded{State: previous, Origin: Previous, Problem: problem}, nil
	case problem == nil && other == nil:
		return Loaded{State: New(""), Origin: Fresh}, nil
	default:
		return Loaded{State: New(""), Origin: Lost, Problem: both(problem, other)}, nil
	}
}

// both joins two problems, of which one may be nil, in one line.
func both(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// read returns the state in a file; or what is wrong with it; or neither,
// where there is no such file.
func (s *Store) read(name string) (state *State, problem, err error) {
	path := s.path(name)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading checkpoint, %w", err)
	}
	if state := s.known(data); state != nil {
		return state, nil, nil
	}
	state, err = decode(data, path)
	var schema *SchemaError
	if errors.As(err, &schema) {
		return nil, nil, schema
	}
	if err != nil {
		return nil, &CorruptError{Path: path, Reason: err}, nil
	}
	s.know(data, state)
	return state, nil, nil
}

// known is what the bytes were decoded to the last time, or nil.
func (s *Store) known(data []byte) *State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == nil || !bytes.Equal(s.bytes, data) {
		return nil
	}
	return s.state.DeepCopy()
}

// know remembers what bytes mean.
func (s *Store) know(data []byte, state *State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes, s.state = data, state.DeepCopy()
}

// Save writes the state and keeps the one before. When it returns nil the
// state survives a crash of the machine.
func (s *Store) Save(state *State) error {
	data, err := encode(state)
	if err != nil {
		return fmt.Errorf("encoding checkpoint, %w", err)
	}
	if err := durable.ReplaceFile(s.Path(), s.path(PreviousFileName), data, 0o600); err != nil {
		return fmt.Errorf("writing checkpoint, %w", err)
	}
	s.know(data, state)
	return nil
}

// SetAside moves a damaged current file out of the way, so that the next Save
// does not make it the previous one. It is no error if there is none.
func (s *Store) SetAside() error {
	err := os.Rename(s.Path(), s.path(CorruptFileName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("setting damaged checkpoint aside, %w", err)
	}
	return nil
}

// envelope is the whole file.
type envelope struct {
	Schema   int             `json:"schema"`
	Checksum string          `json:"checksum"`
	Payload  json.RawMessage `json:"payload"`
}

func encode(state *State) ([]byte, error) {
	payload, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(envelope{Schema: SchemaVersion, Checksum: checksum(payload), Payload: payload})
	return append(data, '\n'), err
}

// Damage.
var (
	errChecksum = errors.New("its checksum does not match")
	errNoSchema = errors.New("it has no schema version")
)

// decode looks at the version before anything else: what a newer version has
// made of the rest is not for this one to judge.
func decode(data []byte, path string) (*State, error) {
	var read envelope
	if err := json.Unmarshal(data, &read); err != nil {
		return nil, err
	}
	if read.Schema > SchemaVersion {
		return nil, &SchemaError{Path: path, Found: read.Schema, Known: SchemaVersion}
	}
	if read.Schema < 1 {
		return nil, errNoSchema
	}
	if read.Checksum != checksum(read.Payload) {
		return nil, errChecksum
	}
	state := New("")
	if err := json.Unmarshal(read.Payload, state); err != nil {
		return nil, err
	}
	return state, nil
}

func checksum(payload []byte) string {
	sum := sha256.Sum256(bytes.TrimSpace(payload))
	return "sha256:" + hex.EncodeToString(sum[:])
}
