package kind

import (
	"errors"
	"fmt"
	"io"
	"strings"

	kindexec "sigs.k8s.io/kind/pkg/exec"
	"sigs.k8s.io/kind/pkg/log"
)

// logger tells what kind's library says, line by line and without its signs.
type logger struct{ w io.Writer }

var _ log.Logger = logger{}

func (l logger) Warn(message string)               { l.line("kind warns: " + message) }
func (l logger) Warnf(format string, args ...any)  { l.Warn(fmt.Sprintf(format, args...)) }
func (l logger) Error(message string)              { l.line("kind: " + message) }
func (l logger) Errorf(format string, args ...any) { l.Error(fmt.Sprintf(format, args...)) }

// V returns the logger for what a person may want to read, and one that says
// nothing for the rest.
func (l logger) V(level log.Level) log.InfoLogger {
	if level > 0 {
		return log.NoopInfoLogger{}
	}
	return info{l}
}

type info struct{ logger }

// Info drops the second of two lines that kind says of each step, at its start
// and at its end.
func (i info) Info(message string) {
	if !strings.Contains(message, "✓") {
		i.line("kind: " + message)
	}
}
func (i info) Infof(format string, args ...any) { i.Info(fmt.Sprintf(format, args...)) }
func (i info) Enabled() bool                    { return true }

// line prints the plain text of a line; most are decorated for a terminal.
func (l logger) line(text string) {
	text = strings.Map(func(r rune) rune {
		if r > 0x2000 {
			return -1
		}
		return r
	}, text)
	if text = strings.Join(strings.Fields(text), " "); text != "kind:" {
		fmt.Fprintln(l.w, text)
	}
}

// kindError adds what the failed command of the engine said, which kind's
// errors keep to themselves.
func kindError(what string, err error) error {
	if err == nil {
		return nil
	}
	var run *kindexec.RunError
	if errors.As(err, &run) && len(run.Output) > 0 {
		lines := strings.Split(strings.TrimSpace(string(run.Output)), "\n")
		return fmt.Errorf("%s, %w\n%s", what, err, strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
	return fmt.Errorf("%s, %w", what, err)
}
