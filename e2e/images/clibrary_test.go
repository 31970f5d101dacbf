package images

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// compile makes a program of C.
func compile(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.c"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", append(args, "-o", program, source)...).CombinedOutput(); err != nil {
		t.Fatalf("got error %v\n%s", err, out)
	}
	return program
}

// TestTheCLibraryIsEnough runs a program with nothing but what is found.
func TestTheCLibraryIsEnough(t *testing.T) {
	program := compile(t)
	files, err := cLibrary(t.Context(), program, askLinker)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(cLibraries)+1 {
		t.Errorf("got %d files, want the loader and %d libraries: %v", len(files), len(cLibraries), files)
	}
	base := t.TempDir()
	var loader string
	var folders []string
	for name, at := range files {
		if !strings.HasPrefix(name, baseFolder+"/") || !strings.HasSuffix(name, at) {
			t.Errorf("got %s for %s, want it below %s where it lies here", name, at, baseFolder)
		}
		to := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := copyFile(at, to, 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(filepath.Base(name), "ld-linux") {
			loader = to
		}
		folders = append(folders, filepath.Dir(to))
	}
	x := exec.CommandContext(t.Context(), loader, "--inhibit-cache", "--library-path", strings.Join(folders, ":"), program)
	if out, err := x.CombinedOutput(); err != nil {
		t.Errorf("got error %v, want the program to run\n%s", err, out)
	}
}

func TestAStaticProgramHasNoLoader(t *testing.T) {
	if _, err := cLibrary(t.Context(), compile(t, "-static"), askLinker); !errors.Is(err, errStatic) {
		t.Errorf("got error %v, want %v", err, errStatic)
	}
}

func TestAMissingLibraryIsNamed(t *testing.T) {
	if _, err := askLinker(t.Context(), "libnone.so.9"); err == nil || !strings.Contains(err.Error(), "libnone.so.9") {
		t.Errorf("got error %v, want the library's name", err)
	}
	lost := errors.New("lost")
	_, err := cLibrary(t.Context(), compile(t), func(context.Context, string) (string, error) { return "", lost })
	if !errors.Is(err, lost) {
		t.Errorf("got error %v, want %v", err, lost)
	}
}
