package command

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"gpuladder.dev/ladder/policies/journal"
	"gpuladder.dev/ladder/policies/manifest"
)

// A pipe is never coloured, whatever the environment says.
func TestColourIsForTerminals(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	env := map[string]string{"TERM": "xterm-256color"}
	if colour(w, func(k string) string { return env[k] }) {
		t.Error("a pipe is coloured")
	}
}

// On a terminal, NO_COLOR and TERM=dumb still win.
func TestColourIsRefused(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal to try it on: %v", err)
	}
	defer terminal.Close()
	for _, tc := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{"TERM": "xterm"}, true},
		{map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, false},
		{map[string]string{"TERM": "dumb"}, false},
	} {
		if got := colour(terminal, func(k string) string { return tc.env[k] }); got != tc.want {
			t.Errorf("%v: coloured %t, want %t", tc.env, got, tc.want)
		}
	}
}

func TestPaint(t *testing.T) {
	if got := (Streams{}).Paint(Good, "fine"); got != "fine" {
		t.Errorf("without colour: %q", got)
	}
	if got := (Streams{Colour: true}).Paint(Good, "fine"); got != "\x1b[32mfine\x1b[0m" {
		t.Errorf("with colour: %q", got)
	}
}

// Who is to blame decides the exit code.
func TestFailed(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"manifest": {fmt.Errorf("reading, %w", &manifest.Error{Msg: "x"}), CodeBadInput},
		"journal":  {fmt.Errorf("reading, %w", &journal.Error{Msg: "x"}), CodeBadInput},
		"disk":     {errors.New("disk full"), CodeFailed},
	} {
		var exit *Exit
		if err := Failed(tc.err); !errors.As(err, &exit) || exit.Code != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: %#v, want code %d", name, err, tc.want)
		}
	}
	if err := Printed(nil); err != nil {
		t.Errorf("printing went well: %v", err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("closed pipe") }

func TestFormats(t *testing.T) {
	value := map[string]any{"b": "<x>", "a": 1}
	for format, want := range map[Format]string{
		JSON: "{\n  \"a\": 1,\n  \"b\": \"<x>\"\n}\n", YAML: "a: 1\nb: <x>\n",
	} {
		var b bytes.Buffer
		if err := format.Write(&b, value, nil); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v; want %q", format, b.String(), err, want)
		}
		if err := format.Write(broken{}, value, nil); err == nil || !strings.Contains(err.Error(), "closed pipe") {
			t.Errorf("%s to a closed pipe: %v", format, err)
		}
	}
}
