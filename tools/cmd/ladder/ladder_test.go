package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gpuladder.dev/ladder/tools/internal/command"
	"gpuladder.dev/ladder/tools/internal/root"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// caseDir holds the given decide cases; they are kept once, with the engine.
const caseDir = "../../../policies/decide/testdata/cases"

// result is what a run of the command left.
type result struct {
	code           int
	stdout, stderr string
}

// ladder runs the whole command, as main does but in this process.
func ladder(t *testing.T, args ...string) result {
	t.Helper()
	return ladderAs(t, "ladder", "", args...)
}

func ladderAs(t *testing.T, arg0, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := root.Main(context.Background(), append([]string{arg0}, args...), command.Streams{
		In: strings.NewReader(stdin), Out: &out, Err: &errs,
	})
	return result{code, out.String(), errs.String()}
}

// want fails unless the command ended with the code.
func (r result) want(t *testing.T, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit %d, want %d\nstdout: %.2000s\nstderr: %s", r.code, code, r.stdout, r.stderr)
	}
	return r
}

// write puts a file into a folder and gives its path.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

var hash = regexp.MustCompile(`sha256:[0-9a-f]+`)

// golden compares a text with testdata/golden/NAME, or rewrites that. Hashes
// are masked: what they are made of may grow.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = hash.ReplaceAllString(got, "sha256:0")
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Dir(path), filepath.Base(path), got)
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (rewrite it with -update)\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}
