package bootid

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "boot_id")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "reading boot ID, ") {
		t.Errorf("got %v without a file", err)
	}
	for content, want := range map[string]string{"one\n": "one", " two ": "two", "": "", "\n": ""} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Read(path)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", content, got, err, want)
		}
	}
}
