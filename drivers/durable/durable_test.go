package durable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// onlyThese fails if the folder holds anything else, such as a temporary file.
func onlyThese(t *testing.T, folder string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	if got, want := strings.Join(found, " "), strings.Join(names, " "); got != want {
		t.Errorf("the folder holds %q, want %q", got, want)
	}
}

func TestReplaceKeepsOneBefore(t *testing.T) {
	folder := t.TempDir()
	path, previous := filepath.Join(folder, "a.json"), filepath.Join(folder, "a.previous.json")
	for _, data := range []string{"one", "two", "three"} {
		if err := ReplaceFile(path, previous, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := content(t, path) + " " + content(t, previous); got != "three two" {
		t.Errorf("got %q", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	onlyThese(t, folder, "a.json", "a.previous.json")
}

// TestTwoFilesAreTwoInodes: what damages the present file in place leaves the
// one before alone.
func TestTwoFilesAreTwoInodes(t *testing.T) {
	folder := t.TempDir()
	path, previous := filepath.Join(folder, "a"), filepath.Join(folder, "b")
	for _, data := range []string{"one", "two"} {
		if err := ReplaceFile(path, previous, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(path, 1); err != nil {
		t.Fatal(err)
	}
	if got := content(t, path) + " " + content(t, previous); got != "t one" {
		t.Errorf("got %q", got)
	}
}

func TestLeftoversOfACrashDoNotStopIt(t *testing.T) {
	folder := t.TempDir()
	path, previous := filepath.Join(folder, "a"), filepath.Join(folder, "b")
	if err := os.WriteFile(previous+".tmp", []byte("left"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"one", "two"} {
		if err := ReplaceFile(path, previous, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	onlyThese(t, folder, "a", "b")
}

func TestAFailureLeavesTheOldContent(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a")
	if err := WriteFile(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A folder can't be replaced by a file, so the last step fails.
	blocked := filepath.Join(folder, "blocked", "in")
	if err := os.MkdirAll(filepath.Join(blocked, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(blocked, []byte("two"), 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	onlyThese(t, filepath.Dir(blocked), "in")
	if err := WriteFile(filepath.Join(folder, "gone", "a"), []byte("two"), 0o600); err == nil {
		t.Error("a file was written into a folder that is not there")
	}
	if got := content(t, path); got != "one" {
		t.Errorf("got %q", got)
	}
}
