package command

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Streams are where a command reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Colour says whether Out may be coloured.
	Colour bool
}

// OSStreams are the process's own. Colour is for terminals only, and for none
// where NO_COLOR is set (no-color.org) or TERM is dumb.
func OSStreams() Streams {
	return Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Colour: colour(os.Stdout, os.Getenv)}
}

func colour(out *os.File, getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && term.IsTerminal(int(out.Fd()))
}

// Style is how a piece of text looks on a terminal.
type Style string

// Styles by what they say.
const (
	Good   Style = "\x1b[32m"
	Bad    Style = "\x1b[31m"
	Notice Style = "\x1b[33m"
	Strong Style = "\x1b[1m"
	Faint  Style = "\x1b[2m"
)

// Paint puts text in a style where colour is wanted.
func (s Streams) Paint(style Style, text string) string {
	if !s.Colour {
		return text
	}
	return string(style) + text + "\x1b[0m"
}
