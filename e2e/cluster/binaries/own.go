package binaries

// The project's own programs, built from the working tree.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// EnvRoot names the root of the repository, for programs that run elsewhere.
const EnvRoot = "LADDER_ROOT"

// ErrNoRoot says that the repository, from which the project's own programs
// are built, was found neither by LADDER_ROOT nor above the working folder.
var ErrNoRoot = errors.New("the repository's root was not found: run inside it, or set " + EnvRoot)

// Root finds the root of the repository: LADDER_ROOT, or the nearest folder
// upwards from the working folder that holds go.work.
func Root() (string, error) {
	if dir := os.Getenv(EnvRoot); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err != nil {
			return "", fmt.Errorf("%s=%s holds no go.work, %w", EnvRoot, dir, ErrNoRoot)
		}
		return filepath.Abs(dir)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working folder, %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", ErrNoRoot
		}
		dir = parent
	}
}

// buildOwn builds one of the project's programs. The go command decides what
// is to be compiled; the result keeps its place, so that an unchanged program
// is not even linked again. The flags are those of the Kubernetes programs:
// the scheduler shares most of its packages with them.
func (b *builder) buildOwn(ctx context.Context, p program) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(root))
	dir := filepath.Join(b.cache, "own", hex.EncodeToString(sum[:])[:keyLength])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the cache, %w", err)
	}
	unlock, err := Lock(ctx, filepath.Join(dir, "."+p.name+".lock"), func() {
		fmt.Fprintf(b.progress, "waiting for another process that builds %s\n", p.name)
	})
	if err != nil {
		return "", fmt.Errorf("locking the cache, %w", err)
	}
	defer unlock()

	module, pkg, _ := strings.Cut(p.pkg, "/")
	src := filepath.Join(root, module)
	if _, err := os.Stat(filepath.Join(src, pkg)); err != nil {
		return "", fmt.Errorf("looking for the source of %s, %w", p.name, err)
	}
	target := filepath.Join(dir, p.name)
	enabled := "CGO_ENABLED=0"
	if p.cgo {
		enabled = "CGO_ENABLED=1"
		if err := b.install(ctx, p.packages...); err != nil {
			return "", fmt.Errorf("preparing to build %s, %w", p.name, err)
		}
	}
	// Nothing is said where nothing is to be compiled.
	told := time.AfterFunc(2*time.Second, func() { fmt.Fprintf(b.progress, "building %s\n", p.name) })
	defer told.Stop()
	args := []string{"build", "-v", "-buildvcs=false", "-trimpath", noDWARF, "-ldflags=-s -w", "-o", target, "./" + pkg}
	start := time.Now()
	if err := b.goBuild(ctx, []program{p}, src, args, append(os.Environ(), enabled)); err != nil {
		return "", err
	}
	if !told.Stop() {
		fmt.Fprintf(b.progress, "built %s in %.0f s\n", p.name, time.Since(start).Seconds())
	}
	return target, nil
}
