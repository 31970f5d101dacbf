package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/manifest"
)

// Error is a journal that can't be read. Line counts from 1.
type Error struct {
	Line int
	Msg  string
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Report is what a replay found.
type Report struct {
	Header Header
	// Entries and Decisions count what was replayed.
	Entries, Decisions int
	// Differences are the decisions and digests that came out otherwise, in order.
	Differences []Difference
	// Digest is the State's at the end.
	Digest string
	// Notes are for the reader: a line cut off, another engine version.
	Notes []string
}

// Step is one decision of a replay.
type Step struct {
	// Line and Entry say where it stands.
	Line  int
	Entry int64
	// Query was asked.
	Query decide.Query
	// Decision is the answer now, or nil with Err.
	Decision *decide.Decision
	Err      error
}

// Options change what Walk does.
type Options struct {
	// Examples, where not nil, replaces the number of examples; the answers are
	// then not compared.
	Examples *int
	// OnDecision, where not nil, is called after each decision.
	OnDecision func(Step)
	// WholeFleet has every decision look at every node and device, whatever the
	// engine that wrote the journal kept of them.
	WholeFleet bool
	// Follower, where not nil, is told of all else that the State is told.
	Follower Follower
}

// state are the options of the State that decides again.
func (o Options) state(h Header) (decide.Options, error) {
	opts, err := h.Options.decide()
	if o.Examples != nil {
		opts.Examples = *o.Examples
	}
	opts.WholeFleet = o.WholeFleet
	return opts, err
}

// Follower is told what changes the State of a replay, in order and after the
// State has taken it. What it is given must not be changed.
type Follower interface {
	Put(obj runtime.Object)
	Delete(obj runtime.Object)
	Assume(d *decide.Decision)
	Forget(pod types.NamespacedName)
}

// Replay decides a journal again and compares.
func Replay(r io.Reader) (Report, error) { return Walk(r, Options{}) }

// Walk is Replay with options.
func Walk(r io.Reader, opts Options) (Report, error) {
	w := walker{opts: opts}
	in := bufio.NewReaderSize(r, 1<<20)
	for line := 1; ; line++ {
		text, whole, err := readLine(in)
		switch {
		case errors.Is(err, io.EOF) && len(text) == 0:
			return w.end(line)
		case err != nil && !errors.Is(err, io.EOF):
			return w.report, &Error{Line: line, Msg: err.Error(), Err: err}
		}
		if err := w.line(line, text); err != nil {
			if !whole && line > 1 && !json.Valid(text) {
				w.note("line %d was cut off and is left out", line)
				return w.end(line)
			}
			return w.report, err
		}
	}
}

// errLongLine occurs when a line passes MaxLine.
var errLongLine = fmt.Errorf("is longer than %d bytes; this is no journal", MaxLine)

// readLine reads one line without its end. whole is false for a last line
// that has none.
func readLine(in *bufio.Reader) (text []byte, whole bool, err error) {
	for {
		part, err := in.ReadSlice('\n')
		text = append(text, part...)
		switch {
		case len(text) > MaxLine:
			return nil, false, errLongLine
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return text, false, err
		}
		return bytes.TrimSuffix(text, []byte("\n")), true, nil
	}
}

// walker is one replay under way.
type walker struct {
	opts   Options
	state  *decide.State
	report Report
	next   int64
}

func (w *walker) note(format string, args ...any) {
	w.report.Notes = append(w.report.Notes, fmt.Sprintf(format, args...))
}

func (w *walker) end(line int) (Report, error) {
	if w.state == nil {
		return w.report, &Error{Line: line, Msg: "there is no header; this is no journal"}
	}
	w.report.Digest = w.state.Digest()
	return w.report, nil
}

func (w *walker) line(line int, text []byte) error {
	fail := func(format string, args ...any) error {
		err := fmt.Errorf(format, args...)
		return &Error{Line: line, Msg: err.Error(), Err: err}
	}
	if w.state == nil {
		if err := w.header(text); err != nil {
			return fail("reading the header, %w", err)
		}
		return nil
	}
	var e entry
	if err := decodeStrict(text, &e); err != nil {
		return fail("reading an entry, %w", err)
	}
	if w.next++; e.N != w.next {
		return fail("the entry has number %d, not %d; lines are missing, added or in another order", e.N, w.next)
	}
	w.report.Entries++
	if err := w.apply(line, &e); err != nil {
		return fail("replaying entry %d (%s), %w", e.N, e.Op, err)
	}
	return nil
}

func (w *walker) header(text []byte) error {
	if err := decodeStrict(text, &w.report.Header); err != nil {
		return err
	}
	h := w.report.Header
	if h.Journal != Format {
		return fmt.Errorf("journal format %d is not read, only %d", h.Journal, Format)
	}
	opts, err := w.opts.state(h)
	if err != nil {
		return err
	}
	if h.EngineVersion != decide.EngineVersion {
		w.note("written by engine version %s, replayed by %s", h.EngineVersion, decide.EngineVersion)
	}
	w.state = decide.NewState(opts)
	return nil
}

func (w *walker) apply(line int, e *entry) error {
	switch e.Op {
	case opPut:
		obj := manifest.NewOfKind(e.Kind)
		if obj == nil {
			return fmt.Errorf("kind %q is not known", e.Kind)
		}
		if err := decodeStrict(e.Object, obj); err != nil {
			return err
		}
		if err := w.state.Put(obj); err != nil {
			return err
		}
		w.follow(func(f Follower) { f.Put(obj) })
		return nil
	case opDelete:
		obj := manifest.NewOfKind(e.Kind)
		if obj == nil {
			return fmt.Errorf("kind %q is not known", e.Kind)
		}
		m := obj.(metav1.Object)
		m.SetNamespace(e.Namespace)
		m.SetName(e.Name)
		if err := w.state.Delete(obj); err != nil {
			return err
		}
		w.follow(func(f Follower) { f.Delete(obj) })
		return nil
	case opAssume:
		var d decide.Decision
		if err := decodeStrict(e.Decision, &d); err != nil {
			return err
		}
		if err := w.state.Assume(&d, e.InFlight); err != nil {
			return err
		}
		w.follow(func(f Follower) { f.Assume(&d) })
		return nil
	case opForget:
		pod := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
		w.state.Forget(pod)
		w.follow(func(f Follower) { f.Forget(pod) })
		return nil
	case opDecide:
		return w.decide(line, e)
	case opDigest:
		if now := w.state.Digest(); now != e.Digest {
			w.report.Differences = append(w.report.Differences, Difference{
				Line: line, Entry: e.N,
				Fields: []FieldDifference{{Path: "digest", Recorded: quote(e.Digest), Now: quote(now)}},
			})
		}
		return nil
	}
	return fmt.Errorf("op %q is not known", e.Op)
}

func (w *walker) follow(tell func(Follower)) {
	if w.opts.Follower != nil {
		tell(w.opts.Follower)
	}
}

func (w *walker) decide(line int, e *entry) error {
	if e.Query == nil || (e.Decision == nil) == (e.Error == "") {
		return errors.New("it wants a query and either a decision or an error")
	}
	w.report.Decisions++
	d, err := w.state.Decide(e.Query.decide())
	if w.opts.OnDecision != nil {
		w.opts.OnDecision(Step{Line: line, Entry: e.N, Query: e.Query.decide(), Decision: d, Err: err})
	}
	if w.opts.Examples != nil {
		return nil
	}
	fields, cmpErr := compare(e, d, err)
	if cmpErr != nil {
		return cmpErr
	}
	if len(fields) > 0 {
		w.report.Differences = append(w.report.Differences, Difference{
			Line: line, Entry: e.N,
			Pod:    types.NamespacedName{Namespace: e.Query.Namespace, Name: e.Query.Pod},
			Fields: fields,
		})
	}
	return nil
}

// decodeStrict decodes JSON and refuses fields that are unknown or given twice.
func decodeStrict(raw []byte, into any) error {
	wrong, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		return err
	}
	return errors.Join(wrong...)
}
