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
	"slices"
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

// buildOwn builds some of the project's programs, all with C libraries or all
// without, in one run of the go command. That decides what is to be compiled;
// the results keep their places, so that an unchanged program is not even
// linked again. The flags are those of the Kubernetes programs: the scheduler
// shares most of its packages with them.
func (b *builder) buildOwn(ctx context.Context, group []program) ([]string, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(root))
	dir := filepath.Join(b.cache, "own", hex.EncodeToString(sum[:])[:keyLength])
	paths, packages, targets := make([]string, len(group)), make([]string, len(group)), make([]target, len(group))
	for i, p := range group {
		if _, err := os.Stat(filepath.Join(root, p.pkg)); err != nil {
			return nil, fmt.Errorf("looking for the source of %s, %w", p.name, err)
		}
		paths[i], packages[i] = filepath.Join(dir, p.name), "./"+p.pkg
		targets[i] = target{p, paths[i]}
	}
	unlock, err := b.lock(ctx, targets)
	if err != nil {
		return nil, err
	}
	defer unlock()

	env := append(os.Environ(), "CGO_ENABLED=0")
	if first := group[0]; first.cgo {
		env = append(os.Environ(), "CGO_ENABLED=1")
		if err := b.install(ctx, first.packages...); err != nil {
			return nil, fmt.Errorf("preparing to build %s, %w", named(group), err)
		}
	}
	// Nothing is said where nothing is to be compiled.
	told := time.AfterFunc(2*time.Second, func() { fmt.Fprintf(b.progress, "building %s\n", named(group)) })
	defer told.Stop()
	into := dir + "/"
	if len(group) == 1 {
		into = paths[0] // the package may have another name
	}
	args := slices.Concat([]string{"build", "-v", "-buildvcs=false", "-trimpath", noDWARF, "-ldflags=-s -w", "-o", into}, packages)
	start := time.Now()
	if err := b.goBuild(ctx, group, root, args, env); err != nil {
		return nil, err
	}
	if !told.Stop() {
		fmt.Fprintf(b.progress, "built %s in %.0f s\n", named(group), time.Since(start).Seconds())
	}
	return paths, nil
}
