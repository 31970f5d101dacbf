package binaries

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

var versionPattern = regexp.MustCompile(`v?(\d+\.\d+)\.\d+[^\s]*`)

// fromAssets returns the program from a folder in the manner of envtest, or ""
// where it is not there or has another minor version than the one pinned: the
// lab relies on features of that version. What is not used is said.
func fromAssets(ctx context.Context, dir string, p program, progress io.Writer) string {
	if dir == "" || p.probe == nil {
		return ""
	}
	path, err := filepath.Abs(filepath.Join(dir, p.name))
	if err != nil {
		return ""
	}
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	said, err := exec.CommandContext(ctx, path, p.probe...).CombinedOutput()
	if err != nil {
		fmt.Fprintf(progress, "not using %s: it does not tell its version: %v\n", path, err)
		return ""
	}
	found := versionPattern.FindStringSubmatch(string(said))
	want := versionPattern.FindStringSubmatch(p.version)
	if found == nil || found[1] != want[1] {
		fmt.Fprintf(progress, "not using %s: version %s is wanted, it says %q\n", path, p.version, strings.TrimSpace(lines(said)[0]))
		return ""
	}
	fmt.Fprintf(progress, "using %s %s from %s\n", p.name, found[0], EnvAssets)
	return path
}
