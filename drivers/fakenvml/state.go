package fakenvml

// This file is the state of a machine's boards, which Go and C both change.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// The files of the state; both sides change it under a lock on lockName.
const (
	stateName = "state"
	lockName  = "lock"
	stateHead = "fakenvml-state 1"
)

// maxEvents is how many events the library reads; the oldest go.
const maxEvents = 128

// state is file state, whose lines are words. Those that this package does not
// know are kept as they are.
type state struct {
	lines [][]string
}

func parseState(data []byte) (*state, error) {
	head, rest, _ := strings.Cut(string(data), "\n")
	if head != stateHead {
		return nil, fmt.Errorf("the file begins with %q", head)
	}
	s := &state{}
	for line := range strings.Lines(rest) {
		if words := strings.Fields(line); len(words) > 0 {
			s.lines = append(s.lines, words)
		}
	}
	return s, nil
}

func (s *state) bytes() []byte {
	var out strings.Builder
	out.WriteString(stateHead + "\n")
	for _, words := range s.lines {
		out.WriteString(strings.Join(words, " ") + "\n")
	}
	return []byte(out.String())
}

// get is the number that ends the line which begins with the words of key; 0
// if there is none.
func (s *state) get(key ...string) uint64 {
	for _, words := range s.lines {
		if len(words) == len(key)+1 && slices.Equal(words[:len(key)], key) {
			value, _ := strconv.ParseUint(words[len(key)], 10, 64)
			return value
		}
	}
	return 0
}

func (s *state) set(value uint64, key ...string) {
	s.remove(func(words []string) bool { return len(words) == len(key)+1 && slices.Equal(words[:len(key)], key) })
	if value != 0 {
		s.add(append(slices.Clone(key), strconv.FormatUint(value, 10))...)
	}
}

func (s *state) add(words ...string) { s.lines = append(s.lines, words) }

func (s *state) remove(which func(words []string) bool) {
	s.lines = slices.DeleteFunc(s.lines, which)
}

func (s *state) gpu(gpu int, name string) uint64 {
	return s.get("gpu", strconv.Itoa(gpu), name)
}

func (s *state) setGPU(gpu int, name string, value uint64) {
	s.set(value, "gpu", strconv.Itoa(gpu), name)
}

func (s *state) addGPU(gpu int, name string, more uint64) {
	s.setGPU(gpu, name, s.gpu(gpu, name)+more)
}

// event tells of something; it is numbered so that each process tells it once.
func (s *state) event(e Event) {
	sequence := s.get("sequence") + 1
	s.set(sequence, "sequence")
	s.add("event", strconv.FormatUint(sequence, 10), strconv.Itoa(e.GPU), strconv.FormatUint(e.Type, 10),
		strconv.FormatUint(e.Data, 10), optional(e.GPUInstance), optional(e.ComputeInstance))
	count := 0
	for _, words := range s.lines {
		if words[0] == "event" {
			count++
		}
	}
	s.remove(func(words []string) bool {
		if words[0] != "event" || count <= maxEvents {
			return false
		}
		count--
		return true
	})
}

func optional(id *int) string {
	if id == nil {
		return "-"
	}
	return strconv.Itoa(*id)
}

// change makes a change of the state that no other process sees a half of.
func (c Control) change(make func(s *state) error) (err error) {
	lock, err := os.OpenFile(filepath.Join(c.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o666) //nolint:gosec // for all processes
	if err != nil {
		return fmt.Errorf("changing state of boards, %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX) //nolint:gosec // a descriptor fits
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("changing state of boards, %w", err)
		}
	}
	s, err := c.read()
	if err != nil {
		return fmt.Errorf("changing state of boards, %w", err)
	}
	if err := make(s); err != nil {
		return err
	}
	path := filepath.Join(c.Dir, stateName)
	if err := os.WriteFile(path+".new", s.bytes(), 0o644); err != nil { //nolint:gosec // as above
		return fmt.Errorf("changing state of boards, %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("changing state of boards, %w", err)
	}
	return nil
}

// read reads the state; where there is none, nothing has happened.
func (c Control) read() (*state, error) {
	data, err := os.ReadFile(filepath.Join(c.Dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return &state{}, nil
	}
	if err != nil {
		return nil, err
	}
	return parseState(data)
}
