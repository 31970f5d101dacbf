package images

// The C library in the images of programs that load libraries at run time:
// the one that they are linked against, taken from this machine, since no base
// image can be pulled.

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// baseFolder is where the C library lies in an image's build folder.
const baseFolder = "base"

// cLibraries are the parts of the C library. What NVIDIA's libraries are linked
// against is among them.
var cLibraries = []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}

// locator says where the linker finds a library.
type locator func(ctx context.Context, library string) (string, error)

// cLibrary finds the loader that a program names and the C library, and maps
// their names in the build's folder to their places. In the image they lie
// where they lie here: the loader knows no other folders.
func cLibrary(ctx context.Context, program string, locate locator) (map[string]string, error) {
	loader, err := interpreter(program)
	if err != nil {
		return nil, fmt.Errorf("looking for the loader of %s, %w", program, err)
	}
	files := map[string]string{path.Join(baseFolder, loader): loader}
	for _, library := range cLibraries {
		at, err := locate(ctx, library)
		if err != nil {
			return nil, fmt.Errorf("looking for the C library of %s, %w", program, err)
		}
		files[path.Join(baseFolder, at)] = at
	}
	return files, nil
}

// errStatic says that a program needs no loader, so that it could not load a
// library either.
var errStatic = errors.New("the program is static")

// interpreter returns the path of the loader that an ELF program names.
func interpreter(program string) (string, error) {
	file, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(segment.Open())
		if err != nil {
			return "", err
		}
		return strings.TrimRight(string(name), "\x00"), nil
	}
	return "", errStatic
}

// askLinker asks the C compiler, which answers with the bare name where it
// finds nothing.
func askLinker(ctx context.Context, library string) (string, error) {
	out, err := output(exec.CommandContext(ctx, "gcc", "-print-file-name="+library))
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(out) {
		return "", fmt.Errorf("gcc does not find %s", library)
	}
	return filepath.Clean(out), nil
}
