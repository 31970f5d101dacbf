package fakenvml

// This file builds the library.

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed lib
var sources embed.FS

// flags: nothing but what is exported by name is visible, the library calls its
// own functions whatever else is loaded, and it stays loaded once it is, since
// programs may have functions of it bound.
var flags = []string{
	"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fPIC", "-shared", "-pthread",
	"-Wl,-soname," + LibraryName, "-Wl,-Bsymbolic-functions", "-Wl,-z,nodelete", "-Wl,-z,defs",
}

// Build compiles the library to a path, with gcc or what CC names; a library
// that is there already is replaced at once.
func Build(ctx context.Context, out string) error {
	return build(ctx, out, flags...)
}

func build(ctx context.Context, out string, flags ...string) (err error) {
	folder, err := os.MkdirTemp("", "fakenvml-")
	if err != nil {
		return fmt.Errorf("building %s, %w", LibraryName, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.CopyFS(folder, sources); err != nil {
		return fmt.Errorf("building %s, %w", LibraryName, err)
	}
	files, err := fs.Glob(sources, "lib/*.c")
	if err != nil {
		return fmt.Errorf("building %s, %w", LibraryName, err)
	}
	made, err := filepath.Abs(out + ".new")
	if err != nil {
		return fmt.Errorf("building %s, %w", LibraryName, err)
	}
	arguments := append(append([]string{}, flags...), "-o", made)
	arguments = append(append(arguments, files...), "-ldl")
	gcc := exec.CommandContext(ctx, cmp.Or(os.Getenv("CC"), "gcc"), arguments...) //nolint:gosec // the compiler that the user names
	gcc.Dir = folder
	if said, err := gcc.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s, %w\n%s", LibraryName, err, said)
	}
	if err := os.Rename(made, out); err != nil {
		return fmt.Errorf("building %s, %w", LibraryName, err)
	}
	return nil
}
