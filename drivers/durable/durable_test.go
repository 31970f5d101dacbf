package durable

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// TestKeepingAfterACrash: a writer was killed when it had kept the content and
// not yet replaced it, so that both names are of one file.
func TestKeepingAfterACrash(t *testing.T) {
	folder := t.TempDir()
	path, previous := filepath.Join(folder, "a"), filepath.Join(folder, "b")
	if err := WriteFile(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, previous); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceFile(path, previous, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := content(t, path) + " " + content(t, previous); got != "two one" {
		t.Errorf("got %q", got)
	}
	onlyThese(t, folder, "a", "b")
}

// TestManyWriters: none is in another's way, and none leaves anything.
func TestManyWriters(t *testing.T) {
	folder := t.TempDir()
	path, previous := filepath.Join(folder, "a"), filepath.Join(folder, "b")
	var writers sync.WaitGroup
	for _, data := range []string{"one", "two", "three", "four"} {
		writers.Go(func() {
			for range 20 {
				if err := ReplaceFile(path, previous, []byte(data), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	for _, file := range []string{path, previous} {
		if got := content(t, file); !slices.Contains([]string{"one", "two", "three", "four"}, got) {
			t.Errorf("%s holds %q", file, got)
		}
	}
	onlyThese(t, folder, "a", "b")
}

func TestSweeping(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{
		".ours.json.123.tmp", ".ours.json.123.previous.tmp", "ours.json", "ours.tmp", ".ours.json", ".theirs.json.5.tmp",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(folder, ".ours.folder.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	removed, err := Sweep(folder, "ours")
	if got := strings.Join(removed, " "); err != nil || got != ".ours.json.123.previous.tmp .ours.json.123.tmp" {
		t.Errorf("removed are %s, %v", got, err)
	}
	onlyThese(t, folder, ".ours.folder.tmp", ".ours.json", ".theirs.json.5.tmp", "ours.json", "ours.tmp")
	if removed, err = Sweep(folder, ""); err != nil || len(removed) != 1 {
		t.Errorf("removed are %v, %v", removed, err)
	}
	if removed, err = Sweep(filepath.Join(folder, "gone"), ""); err != nil || len(removed) != 0 {
		t.Errorf("in a folder that is not there removed are %v, %v", removed, err)
	}
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
