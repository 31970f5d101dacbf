package lab

// The file in which a lab that a person started is remembered, for `ladder-lab
// status` and `down` in another terminal.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/jsonfile"
	"gpuladder.dev/ladder/e2e/cluster/process"
)

// ErrExists says that a lab of that name is remembered already.
var ErrExists = errors.New("a lab of that name exists")

// Phases of a lab.
const (
	PhaseStarting = "Starting"
	PhaseRunning  = "Running"
	PhaseFailed   = "Failed"
)

// Part is one component as it is now.
type Part struct {
	Name string `json:"name"`
	// PID is 0 while the part is down.
	PID int `json:"pid"`
	// Starts counts how often it was started.
	Starts int    `json:"starts"`
	Log    string `json:"log"`
}

// State is what is remembered of a lab.
type State struct {
	Name  string `json:"name"`
	Phase string `json:"phase"`
	// Reason says why the phase is Failed.
	Reason string `json:"reason,omitempty"`
	// Holder is the process that keeps the lab; its end is the lab's.
	Holder     process.Identity `json:"holder"`
	Dir        string           `json:"dir,omitempty"`
	Kubeconfig string           `json:"kubeconfig,omitempty"`
	Logs       string           `json:"logs,omitempty"`
	Journal    string           `json:"journal,omitempty"`
	// Copy is where the user wanted the kubeconfig, too.
	Copy      string    `json:"kubeconfigCopy,omitempty"`
	Scheduler Scheduler `json:"scheduler"`
	Nodes     int       `json:"nodes"`
	Devices   int       `json:"devices"`
	Started   time.Time `json:"started"`
	Parts     []Part    `json:"parts,omitempty"`
}

// Alive says whether the process that keeps the lab still runs.
func (s *State) Alive() bool { return s.Holder.Alive() }

// State tells the lab's own state.
func (l *Lab) State() State {
	l.mu.Lock()
	parts := slices.Clone(l.parts)
	l.mu.Unlock()
	s := State{
		Name: l.opts.Name, Phase: PhaseRunning, Holder: process.Self(), Dir: l.layout.dir,
		Kubeconfig: l.Kubeconfig(), Logs: l.LogsDir(), Scheduler: l.opts.Scheduler,
		Nodes: l.nodeCount(), Devices: l.deviceCount(), Started: l.started.UTC().Round(time.Millisecond),
	}
	if l.opts.Scheduler.ladder() {
		s.Journal = l.Journal()
	}
	for _, p := range parts {
		s.Parts = append(s.Parts, p.status())
	}
	return s
}

// Memory is the folder with the states of one user's labs.
type Memory struct{ dir string }

// OpenMemory returns the user's.
func OpenMemory() (*Memory, error) {
	cache, err := binaries.CacheDir()
	if err != nil {
		return nil, err
	}
	return &Memory{dir: filepath.Join(cache, "labs")}, nil
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

func (m *Memory) file(name string) (string, error) {
	if !namePattern.MatchString(name) {
		return "", fmt.Errorf("lab name %q: up to 40 lower-case letters, digits and hyphens are wanted", name)
	}
	return filepath.Join(m.dir, name+".json"), nil
}

// LogFile is where a lab without a terminal writes what it has to say.
func (m *Memory) LogFile(name string) string { return filepath.Join(m.dir, name+".log") }

// Create remembers a new lab; ErrExists if there is one of that name.
func (m *Memory) Create(s State) error {
	path, err := m.file(s.Name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return fmt.Errorf("remembering the lab, %w", err)
	}
	content, err := encode(s)
	if err != nil {
		return err
	}
	// A link appears whole or not at all, and only if the name is free.
	tmp, err := os.CreateTemp(m.dir, ".new-")
	if err != nil {
		return fmt.Errorf("remembering the lab, %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(content)
	if err := errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("remembering the lab, %w", err)
	}
	if err := os.Link(tmp.Name(), path); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("remembering lab %q, %w", s.Name, ErrExists)
	} else if err != nil {
		return fmt.Errorf("remembering the lab, %w", err)
	}
	return nil
}

// Update replaces what is remembered.
func (m *Memory) Update(s State) error {
	path, err := m.file(s.Name)
	if err != nil {
		return err
	}
	if err := jsonfile.Write(path, s); err != nil {
		return fmt.Errorf("remembering the lab, %w", err)
	}
	return nil
}

// Get returns what is remembered of a lab; fs.ErrNotExist if nothing is.
func (m *Memory) Get(name string) (*State, error) {
	path, err := m.file(name)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the state of lab %q, %w", name, err)
	}
	var s State
	decoder := json.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&s); err != nil {
		return nil, fmt.Errorf("reading the state of lab %q from %s, %w", name, path, err)
	}
	return &s, nil
}

// List returns every lab that is remembered, by name.
func (m *Memory) List() ([]State, error) {
	paths, err := filepath.Glob(filepath.Join(m.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var states []State
	for _, path := range paths {
		s, err := m.Get(strings.TrimSuffix(filepath.Base(path), ".json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went down meanwhile
		}
		if err != nil {
			return nil, err
		}
		states = append(states, *s)
	}
	return states, nil
}

// Forget removes a lab from memory, its folder if the process that kept it
// could not, and the copy of its kubeconfig.
func (m *Memory) Forget(s State) error {
	path, err := m.file(s.Name)
	if err != nil {
		return err
	}
	var errs []error
	if s.Dir != "" && strings.HasPrefix(filepath.Base(s.Dir), dirPrefix) {
		errs = append(errs, os.RemoveAll(s.Dir))
	}
	for _, file := range []string{s.Copy, m.LogFile(s.Name), path} {
		if file == "" {
			continue
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forgetting lab %q, %w", s.Name, err)
	}
	return nil
}

func encode(s State) ([]byte, error) {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the state of lab %q, %w", s.Name, err)
	}
	return append(content, '\n'), nil
}
