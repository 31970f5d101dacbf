package simulate

// This file reads traces: CSV, plain or compressed with gzip.

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"gpuladder.dev/ladder/policies/fleet"
)

// Format is a kind of trace.
type Format string

const (
	// Philly is the trace of Microsoft's Philly cluster as a table: timestamp
	// (UTC, "2017-10-09 07:01:55"), duration (seconds), num_gpus, cluster (the
	// virtual cluster, which is the namespace). A column priority may be there.
	Philly Format = "philly"
	// OpenB is the Pod list of Alibaba's trace of 2023: num_gpu, gpu_spec
	// (models, joined by bars), qos (the namespace, in small letters),
	// creation_time and deletion_time in seconds; scheduled_time may be there. A
	// Pod runs from when it was scheduled to its deletion, one that never was
	// from its creation. A part of a GPU counts as a whole one, Pods without
	// GPUs are skipped, and the clock begins at [fleet.OpenBStart].
	OpenB Format = "openb"
)

// Formats are all of them.
func Formats() []Format { return []Format{Philly, OpenB} }

// Job is one row of a trace. Times are whole milliseconds.
type Job struct {
	Namespace string
	Created   time.Time
	Duration  time.Duration
	GPUs      int
	// Models that the job may use; empty: whatever its policy allows.
	Models []string
	// Priority inside the tenant; higher goes first.
	Priority int32
	// Line of the trace.
	Line int
}

// Trace is what was read of one.
type Trace struct {
	Format Format
	// Jobs that ask for GPUs, in the order of the rows.
	Jobs []Job
	// Skipped rows ask for none.
	Skipped int
}

// Bounds of a trace: what is larger is a mistake in the file.
const (
	MaxJobs    = 5_000_000
	MaxGPUs    = 100_000
	maxSeconds = 100 * 365 * 24 * 3600
)

// Part is a part of the input.
type Part string

// The parts.
const (
	PartTrace  Part = "trace"
	PartFleet  Part = "fleet"
	PartPolicy Part = "policy"
	PartQuota  Part = "quota"
)

// Error says what is wrong with the input, and where.
type Error struct {
	Part Part
	// Line of a trace, counted from 1; 0: not one line.
	Line int
	// Column of a trace, or the field or object of another part.
	Field string
	Msg   string
}

// Error gives one line without the name of the file.
func (e *Error) Error() string {
	switch {
	case e.Line > 0 && e.Field != "":
		return fmt.Sprintf("line %d, column %q: %s", e.Line, e.Field, e.Msg)
	case e.Line > 0:
		return fmt.Sprintf("line %d: %s", e.Line, e.Msg)
	case e.Field != "":
		return e.Field + ": " + e.Msg
	}
	return e.Msg
}

// ReadTrace reads a trace. Format "" is recognised by the header. Errors about
// the content are of type *[Error].
func ReadTrace(r io.Reader, format Format) (*Trace, error) {
	plain, err := decompress(r)
	if err != nil {
		return nil, err
	}
	t, err := openTable(plain)
	if err != nil {
		return nil, err
	}
	if format == "" {
		format = t.recognise()
	}
	read, required := t.philly, []string{"timestamp", "duration", "num_gpus", "cluster"}
	switch format {
	case Philly:
	case OpenB:
		read, required = t.openb, []string{"num_gpu", "gpu_spec", "qos", "creation_time", "deletion_time"}
	case "":
		return nil, &Error{Part: PartTrace, Line: 1, Msg: "the header is that of no known trace: philly has the columns duration and num_gpus, openb num_gpu and creation_time"}
	default:
		return nil, fmt.Errorf("%q is no format of traces", format)
	}
	for _, name := range required {
		if _, ok := t.columns[name]; !ok {
			return nil, &Error{Part: PartTrace, Line: 1, Msg: fmt.Sprintf("there is no column %q, which format %s has", name, format)}
		}
	}
	trace := &Trace{Format: format}
	for {
		ok, err := t.next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		job, err := read()
		switch {
		case err != nil:
			return nil, err
		case job.GPUs == 0:
			trace.Skipped++
			continue
		case len(trace.Jobs) == MaxJobs:
			return nil, t.wrong("", "more than %d jobs", MaxJobs)
		}
		trace.Jobs = append(trace.Jobs, job)
	}
	if len(trace.Jobs) == 0 {
		return nil, &Error{Part: PartTrace, Msg: "the file has no job that asks for GPUs"}
	}
	return trace, nil
}

// decompress looks at the first bytes: names can lie.
func decompress(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	magic, err := b.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading trace, %w", err)
	}
	if len(magic) < 2 || magic[0] != 0x1f || magic[1] != 0x8b {
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, &Error{Part: PartTrace, Msg: "is not sound gzip: " + err.Error()}
	}
	return z, nil
}

// table is a CSV file with a header.
type table struct {
	reader  *csv.Reader
	columns map[string]int
	cells   []string
	words   map[string]string // names that come up again and again, kept once
}

func openTable(r io.Reader) (*table, error) {
	t := &table{reader: csv.NewReader(r), columns: map[string]int{}, words: map[string]string{}}
	t.reader.ReuseRecord = true
	ok, err := t.next()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &Error{Part: PartTrace, Msg: "the file is empty"}
	}
	for i, name := range t.cells {
		name = strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))
		if _, twice := t.columns[name]; twice {
			return nil, &Error{Part: PartTrace, Line: 1, Msg: fmt.Sprintf("column %q is there twice", clip(name))}
		}
		t.columns[name] = i
	}
	return t, nil
}

func (t *table) recognise() Format {
	has := func(name string) bool { _, ok := t.columns[name]; return ok }
	switch {
	case has("duration") && has("num_gpus"):
		return Philly
	case has("num_gpu") && has("creation_time"):
		return OpenB
	}
	return ""
}

// next reads a line; false at the end.
func (t *table) next() (bool, error) {
	cells, err := t.reader.Read()
	var bad *csv.ParseError
	switch {
	case errors.Is(err, io.EOF):
		return false, nil
	case errors.As(err, &bad):
		return false, &Error{Part: PartTrace, Line: bad.Line, Msg: bad.Err.Error()}
	case err != nil:
		return false, &Error{Part: PartTrace, Msg: "can't be read: " + err.Error()}
	}
	t.cells = cells
	return true, nil
}

func (t *table) text(column string) string {
	i, ok := t.columns[column]
	if !ok {
		return ""
	}
	return strings.TrimSpace(t.cells[i])
}

func (t *table) line() int {
	line, _ := t.reader.FieldPos(0)
	return line
}

func (t *table) wrong(column, format string, args ...any) error {
	return &Error{Part: PartTrace, Line: t.line(), Field: column, Msg: fmt.Sprintf(format, args...)}
}

// word keeps one copy of a text, lest every job hold on to its line.
func (t *table) word(s string) string {
	kept, ok := t.words[s]
	if !ok {
		kept = strings.Clone(s)
		t.words[kept] = kept
	}
	return kept
}

func (t *table) namespace(column string) (string, error) {
	name := strings.ToLower(t.text(column))
	if why := validation.IsDNS1123Label(name); len(why) > 0 {
		return "", t.wrong(column, "%q is no name of a namespace: %s", clip(name), why[0])
	}
	return t.word(name), nil
}

func (t *table) whole(column string, most int64) (int64, error) {
	n, err := strconv.ParseInt(t.text(column), 10, 64)
	if err != nil {
		return 0, t.wrong(column, "must be a whole number, is %q", clip(t.text(column)))
	}
	if n < 0 || n > most {
		return 0, t.wrong(column, "must be 0 to %d, is %d", most, n)
	}
	return n, nil
}

// philly reads the present line in the format of that name.
func (t *table) philly() (Job, error) {
	j := Job{Line: t.line()}
	created, err := time.ParseInLocation(time.DateTime, t.text("timestamp"), time.UTC)
	if err != nil || created.Year() < 1971 || created.Year() > 2200 {
		return j, t.wrong("timestamp", `must be a time such as "2017-10-09 07:01:55", is %q`, clip(t.text("timestamp")))
	}
	j.Created = created.Truncate(time.Millisecond)
	seconds, err := strconv.ParseFloat(t.text("duration"), 64)
	switch {
	case err != nil || math.IsNaN(seconds):
		return j, t.wrong("duration", "must be a number of seconds, is %q", clip(t.text("duration")))
	case seconds < 0 || seconds > maxSeconds:
		return j, t.wrong("duration", "must be 0 to %d seconds, is %v", int64(maxSeconds), seconds)
	}
	j.Duration = time.Duration(math.Round(seconds*1000)) * time.Millisecond
	gpus, err := t.whole("num_gpus", MaxGPUs)
	if err != nil {
		return j, err
	}
	j.GPUs = int(gpus)
	if text := t.text("priority"); text != "" {
		p, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return j, t.wrong("priority", "must be a whole number of 32 bits, is %q", clip(text))
		}
		j.Priority = int32(p)
	}
	j.Namespace, err = t.namespace("cluster")
	return j, err
}

// openb reads the present line in the format of that name.
func (t *table) openb() (Job, error) {
	j := Job{Line: t.line()}
	gpus, err := t.whole("num_gpu", MaxGPUs)
	if err != nil || gpus == 0 {
		return j, err
	}
	j.GPUs = int(gpus)
	created, err := t.whole("creation_time", maxSeconds)
	if err != nil {
		return j, err
	}
	ended, err := t.whole("deletion_time", maxSeconds)
	if err != nil {
		return j, err
	}
	began := created
	if t.text("scheduled_time") != "" {
		if began, err = t.whole("scheduled_time", maxSeconds); err != nil {
			return j, err
		}
	}
	if ended < began {
		return j, t.wrong("deletion_time", "must not be before the beginning at %d, is %d", began, ended)
	}
	j.Created = fleet.OpenBStart.Add(time.Duration(created) * time.Second)
	j.Duration = time.Duration(ended-began) * time.Second
	for model := range strings.SplitSeq(t.text("gpu_spec"), "|") {
		if model = strings.TrimSpace(model); model != "" && !slices.Contains(j.Models, model) {
			j.Models = append(j.Models, t.word(model))
		}
	}
	j.Namespace, err = t.namespace("qos")
	return j, err
}

// clip keeps a quoted cell short.
func clip(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// compareJobs is the order in which jobs are numbered. Jobs that are equal in
// all of this are interchangeable.
func compareJobs(a, b Job) int {
	return cmp.Or(
		a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(b.Priority, a.Priority),
		cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.Duration, b.Duration), slices.Compare(a.Models, b.Models),
	)
}
