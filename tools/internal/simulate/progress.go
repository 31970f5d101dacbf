package simulate

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"gpuladder.dev/ladder/tools/internal/command"
)

// progress is one line on a terminal that says how far the simulation is. It is
// silent where stderr is none.
type progress struct {
	out  io.Writer // nil: silent
	what string
	last int
}

func newProgress(s command.Streams) *progress {
	if f, ok := s.Err.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progress{out: f}
	}
	return &progress{}
}

func (p *progress) begin(what string) {
	p.what, p.last = what, -1
	p.show(0)
}

// watch is what the simulator calls; nil where nobody looks.
func (p *progress) watch() func(ended, jobs int) {
	if p.out == nil {
		return nil
	}
	return func(ended, jobs int) { p.show(ended * 100 / max(jobs, 1)) }
}

func (p *progress) show(percent int) {
	if p.out == nil || percent == p.last {
		return
	}
	p.last = percent
	fmt.Fprintf(p.out, "\r\x1b[K%s: %d%% of the jobs", p.what, percent)
}

// clear takes the line away.
func (p *progress) clear() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
