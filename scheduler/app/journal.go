package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/journal"
	"gpuladder.dev/ladder/scheduler/ladder"
)

// maxJournal is the size in bytes from which a new journal file is begun. The
// one before is kept beside it.
const maxJournal = 256 << 20

// engineOptions: the scheduler's other plugins check nodes.
var engineOptions = decide.Options{NodeChecks: decide.ExternalNodeChecks}

// newEngine returns the engine's state, with a journal in the file of this
// name unless it is empty.
func newEngine(path string, now time.Time, logger klog.Logger) (ladder.Engine, error) {
	if path == "" {
		return decide.NewState(engineOptions), nil
	}
	e := &journaled{path: path, limit: maxJournal, logger: logger}
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
	file   *journalFile
	logger klog.Logger
	failed bool
}

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

// open begins a file; one that is there already is kept under its time.
func (e *journaled) open(now time.Time) (*journalFile, error) {
	name := filepath.Base(e.path)
	if _, err := os.Stat(e.path); err == nil {
		kept := e.path + "." + now.UTC().Format("20060102T150405.000")
		if err := os.Rename(e.path, kept); err != nil {
			return nil, fmt.Errorf("keeping the last journal, %w", err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("looking for the last journal, %w", err)
	}
	file, err := os.OpenFile(e.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("beginning the journal, %w", err)
	}
	return &journalFile{WriteCloser: file, name: name + "@" + now.UTC().Format(time.RFC3339Nano)}, nil
}

// Maintain implements ladder.Maintained.
func (e *journaled) Maintain(now time.Time) {
	if err := e.Flush(); err != nil {
		if !e.failed {
			e.logger.Error(err, "The journal has a gap", "file", e.path)
		}
		e.failed = true
	}
	if e.file.size < e.limit && !e.failed {
		return
	}
	if err := e.rotate(now); err != nil {
		e.logger.Error(err, "Journal not rotated", "file", e.path)
		return
	}
	e.failed = false
}

// rotate goes on in a new file that begins with a snapshot.
func (e *journaled) rotate(now time.Time) error {
	last := e.file
	next, err := e.open(now)
	if err != nil {
		return err
	}
	if err := e.Rotate(next.name, next); err != nil {
		return errors.Join(err, next.Close())
	}
	e.file = next
	return last.Close()
}
