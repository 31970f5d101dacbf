package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/journal"
	"gpuladder.dev/ladder/scheduler/ladder"
)

// maxJournal is the size in bytes from which a new journal file is begun. The
// one before is kept beside it.
const maxJournal = 256 << 20

// DefaultJournalKeep is how many earlier journal files are kept: with the one
// that is written, and the one that is begun, they stay below 4 GiB.
const DefaultJournalKeep = 12

// engineOptions: the scheduler's other plugins check nodes.
var engineOptions = decide.Options{NodeChecks: decide.ExternalNodeChecks}

// newEngine returns the engine's state, with a journal in the file of this
// name unless it is empty. Of earlier files the newest are kept, as many as
// keep says; all of them if it is negative.
func newEngine(path string, keep int, now time.Time, logger klog.Logger) (ladder.Engine, error) {
	if path == "" {
		return decide.NewState(engineOptions), nil
	}
	e := &journaled{path: path, limit: maxJournal, kept: keep, logger: logger}
	file, err := e.open(now)
	if err != nil {
		return nil, err
	}
	e.file = file
	e.Recorder = journal.NewRecorder(engineOptions, file.name, file)
	return e, nil
}

// journaled is an engine that writes down what it is told and answers. A
// journal that can't be written must not keep Pods from being placed: it is
// logged, once for each file.
type journaled struct {
	*journal.Recorder
	path   string
	limit  int64
	kept   int
	file   *journalFile
	logger klog.Logger
	failed bool
	// retry is when rotating may be tried again after it failed.
	retry time.Time
}

// retryRotation is the wait after a rotation that failed.
const retryRotation = time.Minute

// journalFile counts what is written to it.
type journalFile struct {
	io.WriteCloser
	name string
	size int64
}

// Write implements io.Writer.
func (f *journalFile) Write(p []byte) (int, error) {
	n, err := f.WriteCloser.Write(p)
	f.size += int64(n)
	return n, err
}

// open begins the journal; one that is there already is kept under its time.
func (e *journaled) open(now time.Time) (*journalFile, error) {
	if err := e.keep(now); err != nil {
		return nil, err
	}
	return e.create(e.path, os.O_EXCL, now)
}

// keptLayout is the time in the name of a file that is kept.
const keptLayout = "20060102T150405.000"

// keep gives the present file, if there is one, a name of its own, and removes
// the oldest of those that are too many.
func (e *journaled) keep(now time.Time) error {
	err := os.Rename(e.path, e.path+"."+now.UTC().Format(keptLayout))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keeping the last journal, %w", err)
	}
	e.prune()
	return nil
}

// prune removes the oldest kept files. Failing to is logged and no reason not
// to go on: the next rotation tries again.
func (e *journaled) prune() {
	if e.kept < 0 {
		return
	}
	dir, base := filepath.Split(e.path)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		e.logger.Error(err, "Earlier journals not looked at", "file", e.path)
		return
	}
	var kept []string // oldest first: entries are sorted by name, which is by time
	for _, entry := range entries {
		stamp, found := strings.CutPrefix(entry.Name(), base+".")
		if _, err := time.Parse(keptLayout, stamp); found && err == nil {
			kept = append(kept, filepath.Join(dir, entry.Name()))
		}
	}
	for _, path := range kept[:max(0, len(kept)-e.kept)] {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			e.logger.Error(err, "Earlier journal not removed", "file", path)
		}
	}
}

func (e *journaled) create(path string, flag int, now time.Time) (*journalFile, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|flag, 0o640)
	if err != nil {
		return nil, fmt.Errorf("beginning the journal, %w", err)
	}
	return &journalFile{WriteCloser: file, name: filepath.Base(e.path) + "@" + now.UTC().Format(time.RFC3339Nano)}, nil
}

// Maintain implements ladder.Maintained.
func (e *journaled) Maintain(now time.Time) {
	if err := e.Flush(); err != nil {
		if !e.failed {
			e.logger.Error(err, "The journal has a gap", "file", e.path)
		}
		e.failed = true
	}
	if e.file.size < e.limit && !e.failed || now.Before(e.retry) {
		return
	}
	if err := e.rotate(now); err != nil {
		e.logger.Error(err, "Journal not rotated", "file", e.path)
		e.retry = now.Add(retryRotation)
		return
	}
	e.failed = false
}

// rotate goes on in a new file that begins with a snapshot. The present file
// keeps its name until the new one is whole.
func (e *journaled) rotate(now time.Time) error {
	last := e.file
	path := e.path + ".next"
	next, err := e.create(path, os.O_TRUNC, now)
	if err != nil {
		return err
	}
	if err := e.Rotate(next.name, next); err != nil {
		return errors.Join(err, next.Close(), os.Remove(path))
	}
	e.file = next
	err = e.keep(now)
	if err == nil {
		err = os.Rename(path, e.path)
	}
	return errors.Join(err, last.Close())
}
