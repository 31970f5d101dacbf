package jsonfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "some.json")
	var got map[string]int
	if err := Read(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want that there is none", err)
	}
	for _, want := range []int{1, 2} {
		if err := Write(path, map[string]int{"a": want}); err != nil {
			t.Fatal(err)
		}
		if err := Read(path, &got); err != nil || got["a"] != want {
			t.Errorf("got %v, %v, want %d", got, err, want)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want a file that is its owner's alone", info, err)
	}
}

func TestBadContentNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var into any
	if err := Read(path, &into); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want an error that names %s", err, path)
	}
	if err := Write(path, func() {}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want an error that names %s", err, path)
	}
	if content, _ := os.ReadFile(path); string(content) != "{" {
		t.Errorf("a failed write left %q", content)
	}
}
