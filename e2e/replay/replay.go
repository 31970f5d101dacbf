// Package replay decides again what ladder-scheduler wrote down in its journals,
// in two ways that have little in common with how it decided at first: by the
// engine that looks at every node and device each time, and by the naive twin of
// package decidetest, which shares no code with the engine.
package replay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpuladder.dev/ladder/policies/journal"
)

// Result is what became of the decisions.
type Result struct {
	// Journals is how many files were read, from their first line to the last.
	Journals int `json:"journals"`
	// Unread is how many could not be.
	Unread int `json:"unread"`
	// Decisions were compared byte by byte; Differ is how many of them, and of
	// the digests between them, came out otherwise.
	Decisions int `json:"decisions"`
	Differ    int `json:"differ"`
	// Twin is what the twin said.
	Twin Twin `json:"twin"`
	// Findings say what differs and what could not be read, the first of each
	// journal; Notes what is left out without a fault, like a line that was cut
	// off when its scheduler was killed.
	Findings []string `json:"findings,omitempty"`
	Notes    []string `json:"notes,omitempty"`
}

// Twin is what became of the decisions that the twin was asked about.
type Twin struct {
	Asked  int `json:"asked"`
	Differ int `json:"differ"`
	// Skipped were left out to save time, see [every]; Unsupported are those of
	// Pods of which the twin knows too little, see [twin.question].
	Skipped     int `json:"skipped"`
	Unsupported int `json:"unsupported"`
}

// mostFindings is how many findings of a journal are kept.
const mostFindings = 5

// Files replays the journal of that name and those that were kept beside it, the
// oldest first. A journal that can't be read is counted and told, and no error.
func Files(ctx context.Context, path string) (*Result, error) {
	kept, err := filepath.Glob(path + ".[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("looking for journals, %w", err)
	}
	slices.Sort(kept) // the names end with the time
	r := &Result{}
	for _, name := range append(kept, path) {
		if err := r.file(ctx, name); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// file replays one journal.
func (r *Result) file(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading a journal, %w", err)
	}
	defer f.Close()
	in := bufio.NewReader(interruptible{ctx, f})
	whole, err := begun(in)
	if err != nil {
		return fmt.Errorf("reading journal %s, %w", path, err)
	}
	if !whole {
		// `ladder replay` refuses such a file; it is all that is left of a scheduler
		// that was killed within its first second.
		r.Notes = append(r.Notes, filepath.Base(path)+": its scheduler was killed before it wrote anything")
		return nil
	}
	c := &comparison{result: r, name: filepath.Base(path), twin: newTwin()}
	report, err := journal.Walk(in, journal.Options{WholeFleet: true, Follower: c.twin, OnDecision: c.askTwin})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.count(report, err)
	return nil
}

// begun says whether the first line is whole.
func begun(in *bufio.Reader) (bool, error) {
	// A header is far shorter than the reader's buffer.
	start, err := in.Peek(in.Size())
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return slices.Contains(start, '\n'), err
}

// comparison is the replay of one journal.
type comparison struct {
	result   *Result
	name     string
	findings int
	twin     *twin
	seen     int
}

// count adds what a replay on the engine found.
func (c *comparison) count(report journal.Report, err error) {
	r := c.result
	r.Decisions += report.Decisions
	r.Differ += len(report.Differences)
	for _, d := range report.Differences {
		var fields []string
		for _, f := range d.Fields {
			fields = append(fields, f.String())
		}
		what := "the state"
		if d.Pod.Name != "" {
			what = "Pod " + d.Pod.String()
		}
		c.find(d.Line, "%s: %s", what, strings.Join(fields, "; "))
	}
	for _, note := range report.Notes {
		r.Notes = append(r.Notes, c.name+": "+note)
	}
	if err != nil {
		r.Unread++
		r.Findings = append(r.Findings, c.name+": "+err.Error())
		return
	}
	r.Journals++
}

// find keeps a finding, where there are not too many.
func (c *comparison) find(line int, format string, args ...any) {
	if c.findings++; c.findings <= mostFindings {
		c.result.Findings = append(c.result.Findings, fmt.Sprintf("%s, line %d, ", c.name, line)+fmt.Sprintf(format, args...))
	}
}

// askTwin puts a question of the journal to the twin, which has seen all that
// comes before it.
func (c *comparison) askTwin(s journal.Step) {
	t := &c.result.Twin
	c.seen++
	if (c.seen-1)%every(len(c.twin.nodes)) != 0 {
		t.Skipped++
		return
	}
	differences, ok := c.twin.ask(s)
	if !ok {
		t.Unsupported++
		return
	}
	t.Asked++
	if len(differences) > 0 {
		t.Differ++
		c.find(s.Line, "Pod %s, the twin: %s", s.Query.Pod, strings.Join(differences, "; "))
	}
}

// Add adds the result of other journals.
func (r *Result) Add(o *Result) {
	r.Journals += o.Journals
	r.Unread += o.Unread
	r.Decisions += o.Decisions
	r.Differ += o.Differ
	r.Twin.Asked += o.Twin.Asked
	r.Twin.Differ += o.Twin.Differ
	r.Twin.Skipped += o.Twin.Skipped
	r.Twin.Unsupported += o.Twin.Unsupported
	r.Findings = append(r.Findings, o.Findings...)
	r.Notes = append(r.Notes, o.Notes...)
}

// errNone occurs where no decision was compared.
var errNone = errors.New("no decision was replayed, so none was compared")

// Check says what does not hold: every decision must come out as it was, and
// there must have been some, also for the twin.
func (r *Result) Check() error {
	switch {
	case r == nil:
		return errNone
	case r.Differ > 0 || r.Unread > 0 || r.Twin.Differ > 0:
		return fmt.Errorf("%s\n  %s", r, strings.Join(r.Findings, "\n  "))
	case r.Decisions == 0:
		return errNone
	case r.Twin.Asked == 0:
		return fmt.Errorf("%d decisions were replayed, but the twin could be asked about none", r.Decisions)
	}
	return nil
}

// String is the result in one line.
func (r *Result) String() string {
	text := fmt.Sprintf("%d decisions replayed, %d differ; %d put to the twin, %d differ", r.Decisions, r.Differ, r.Twin.Asked, r.Twin.Differ)
	if r.Unread > 0 {
		text += fmt.Sprintf("; %d journals can't be read", r.Unread)
	}
	return text
}

// Report writes the result as a section of a report in Markdown.
func (r *Result) Report(w io.Writer) error {
	const title = "## Decided again\n\n"
	if r == nil {
		_, err := io.WriteString(w, title+"No decision was replayed.\n")
		return err
	}
	fmt.Fprintf(w, "%s**%s.** The scheduler's journals (%d files) were replayed on the engine that looks at every node and device each time, and compared byte by byte. ", title, r, r.Journals)
	fmt.Fprintf(w, "The naive twin shares no code with the engine; outcome, tier, node, devices and the counts of each reason were compared. ")
	fmt.Fprintf(w, "Not put to it: %d decisions to save time on a large fleet, %d about Pods that it can't judge.\n", r.Twin.Skipped, r.Twin.Unsupported)
	for _, list := range [][]string{r.Findings, r.Notes} {
		if len(list) > 0 {
			fmt.Fprintln(w)
		}
		for _, line := range list {
			if _, err := fmt.Fprintf(w, "- %s\n", line); err != nil {
				return err
			}
		}
	}
	return nil
}

// interruptible ends a reader with its context.
type interruptible struct {
	ctx context.Context
	io.Reader
}

// Read implements io.Reader.
func (i interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.Reader.Read(p)
}
