package decision

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/journal"
	"gpuladder.dev/ladder/tools/internal/command"
)

// Replayed is the result of one bundle, as `ladder replay -o json` prints it.
type Replayed struct {
	Bundle        string       `json:"bundle"`
	Entries       int          `json:"entries"`
	Decisions     int          `json:"decisions"`
	Differences   []Difference `json:"differences"`
	Digest        string       `json:"digest"`
	EngineVersion string       `json:"engineVersion"`
	Notes         []string     `json:"notes,omitempty"`
}

// Difference is one decision, or without a Pod one digest, that came out otherwise.
type Difference struct {
	Line      int      `json:"line"`
	Namespace string   `json:"namespace,omitempty"`
	Pod       string   `json:"pod,omitempty"`
	Fields    []string `json:"fields"`
}

// NewReplayCommand returns `ladder replay`.
func NewReplayCommand(s command.Streams) *cobra.Command {
	format := command.Text
	cmd := &cobra.Command{
		Use:   "replay BUNDLE...",
		Short: "Decide recorded bundles again and compare",
		Long: `Replay rebuilds what each bundle or scheduler journal recorded, decides every
question in it again, and compares the answers byte by byte.

Exit code 0: every answer is the same; 1: one differs; 2: a bundle can't be read.`,
		Example: `  {{ladder}} replay run.jsonl
  {{ladder}} replay -o json /var/lib/ladder/journal/*.jsonl`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error { return replay(cmd.Context(), s, format, paths) },
	}
	format.Flag(cmd)
	return cmd
}

func replay(ctx context.Context, s command.Streams, format command.Format, paths []string) error {
	results := make([]Replayed, 0, len(paths))
	differ := false
	for _, path := range paths {
		r, err := replayFile(ctx, path)
		if err != nil {
			return command.BadInput(err)
		}
		differ = differ || len(r.Differences) > 0
		results = append(results, r)
	}
	err := format.Write(s.Out, struct {
		Bundles []Replayed `json:"bundles"`
	}{results}, func(w io.Writer) error {
		p := printer{Streams: s}
		for _, r := range results {
			p.replayed(r)
		}
		return p.flush(w)
	})
	if err != nil {
		return command.Failed(fmt.Errorf("printing the result, %w", err))
	}
	if differ {
		return &command.Exit{Code: command.CodeFailed}
	}
	return nil
}

func replayFile(ctx context.Context, path string) (Replayed, error) {
	f, err := os.Open(path)
	if err != nil {
		return Replayed{}, err
	}
	defer f.Close()
	report, err := journal.Replay(command.Interruptible(ctx, f))
	if err != nil {
		return Replayed{}, fmt.Errorf("%s: %w", path, err)
	}
	r := Replayed{
		Bundle: path, Entries: report.Entries, Decisions: report.Decisions, Differences: []Difference{},
		Digest: report.Digest, EngineVersion: report.Header.EngineVersion, Notes: report.Notes,
	}
	for _, d := range report.Differences {
		out := Difference{Line: d.Line, Namespace: d.Pod.Namespace, Pod: d.Pod.Name}
		for _, x := range d.Fields {
			out.Fields = append(out.Fields, x.String())
		}
		r.Differences = append(r.Differences, out)
	}
	return r, nil
}

// mostFields bounds the fields that the text names for one decision.
const mostFields = 8

func (p *printer) replayed(r Replayed) {
	verdict := p.Paint(command.Good, "the same")
	if n := len(r.Differences); n > 0 {
		verdict = p.Paint(command.Bad, fmt.Sprintf("%d DIFFER", n))
	}
	p.line("%s: %d entries, %d decisions: %s", r.Bundle, r.Entries, r.Decisions, verdict)
	p.line("  digest %s", r.Digest)
	for _, n := range r.Notes {
		p.line("  note: %s", n)
	}
	for _, d := range r.Differences {
		what := "the state"
		if d.Pod != "" {
			what = "Pod " + d.Namespace + "/" + d.Pod
		}
		p.line("  line %d, %s", d.Line, what)
		for i, f := range d.Fields {
			if i == mostFields {
				p.line("    and %d more fields", len(d.Fields)-i)
				break
			}
			p.line("    %s", f)
		}
	}
}
