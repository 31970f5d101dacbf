package upstream

// Finding BusyBox.

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrNoBusyBox occurs where no static BusyBox is installed and the
// distribution's package can't be had either.
var ErrNoBusyBox = errors.New("no static BusyBox was found: install the package busybox-static")

const busyboxPackage = "busybox-static"

// findBusyBox returns a BusyBox that needs no library: the one that is
// installed, or the one in Debian's and Ubuntu's package, which is unpacked
// into the work folder and not installed.
func findBusyBox(ctx context.Context, work string, progress io.Writer) (string, error) {
	if installed, err := exec.LookPath("busybox"); err == nil && static(installed) {
		return installed, nil
	}
	fmt.Fprintf(progress, "fetching the package %s\n", busyboxPackage)
	dir := filepath.Join(work, busyboxPackage)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("making a folder for a package, %w", err)
	}
	if err := quietly(ctx, dir, "apt-get", "-q", "download", busyboxPackage); err != nil {
		// The lists of packages may be missing or old; only root may renew them.
		if again := quietly(ctx, dir, "apt-get", "-q", "update"); again == nil {
			err = quietly(ctx, dir, "apt-get", "-q", "download", busyboxPackage)
		}
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrNoBusyBox, err)
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%w: apt-get brought the files %v", ErrNoBusyBox, found)
	}
	if err := quietly(ctx, dir, "dpkg-deb", "--extract", found[0], "."); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoBusyBox, err)
	}
	for _, place := range []string{"bin", "usr/bin"} {
		if path := filepath.Join(dir, place, "busybox"); static(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s holds no static program", ErrNoBusyBox, filepath.Base(found[0]))
}

// quietly runs a program and keeps what it says for the error.
func quietly(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s, %w: %s", strings.Join(cmd.Args, " "), err, lastLines(said, 3))
	}
	return nil
}

// static says whether the file is a program that needs no interpreter, which is
// what loads libraries.
func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return f.Type == elf.ET_EXEC || f.Type == elf.ET_DYN
}
