// Package binaries provides the programs of a Kubernetes cluster, and the
// project's own, as files ready to run.
//
// What others wrote (etcd, kube-apiserver, …) is built from Go modules at
// pinned versions with pinned sums, once for each machine, into a cache:
//
//	$LADDER_CACHE/bin/<key>/<program>      (default: the user's cache folder, ladder/)
//
// The key covers the module's go.mod and go.sum, the flags, the platform and
// the Go version, so a change of any of them builds anew beside the old one.
// Programs of the project are built by the go command every time, whose own
// cache decides what is to be done. Where KUBEBUILDER_ASSETS names a folder
// with programs of the same minor version, those are used.
package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"gpuladder.dev/ladder/e2e/cluster/apt"
)

// EnvCache names the folder that is used in place of the user's cache folder.
const EnvCache = "LADDER_CACHE"

// EnvAssets is the variable with which controller-runtime's envtest is told
// where its programs are.
const EnvAssets = "KUBEBUILDER_ASSETS"

// Set is the answer of Ensure: where each program that was asked for lies.
type Set struct {
	// Dir holds a link for each program under its plain name, so that it can
	// be given to envtest as BinaryAssetsDirectory or put on a PATH.
	Dir   string
	paths map[string]string
}

// Path returns the program's file, or "" for one that was not asked for.
func (s *Set) Path(name string) string { return s.paths[name] }

// Names returns the names of the set's programs, sorted.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.paths))
	for name := range s.paths {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// CacheDir is the folder that holds everything that this package keeps.
func CacheDir() (string, error) {
	if dir := os.Getenv(EnvCache); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("resolving %s, %w", EnvCache, err)
		}
		return abs, nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a folder for built programs (set %s to choose one), %w", EnvCache, err)
	}
	return filepath.Join(base, "ladder"), nil
}

// Ensure makes sure that the named programs exist, builds those that are
// missing and returns where they lie. Progress is told to the writer, line by
// line. Several processes may call it at once: each program is built by one of
// them, and the others wait.
func Ensure(ctx context.Context, progress io.Writer, names ...string) (*Set, error) {
	if progress == nil {
		progress = io.Discard
	}
	wanted, err := inBuildOrder(names)
	if err != nil {
		return nil, err
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	serial := SerialWriter(progress)
	b := &builder{cache: cache, progress: serial, run: runGo, install: apt.New(serial).Ensure}
	set := &Set{paths: map[string]string{}}
	for _, group := range groups(wanted) {
		if err := b.ensure(ctx, group, set.paths); err != nil {
			return nil, fmt.Errorf("providing %s, %w", named(group), err)
		}
	}
	if set.Dir, err = link(cache, set); err != nil {
		return nil, fmt.Errorf("linking programs, %w", err)
	}
	return set, nil
}

// ensure provides the programs of a group and notes where they are.
func (b *builder) ensure(ctx context.Context, group []program, paths map[string]string) error {
	if group[0].own() {
		found, err := b.buildOwn(ctx, group)
		for i, file := range found {
			paths[group[i].name] = file
		}
		return err
	}
	var missing []program
	for _, p := range group {
		if file := fromAssets(ctx, os.Getenv(EnvAssets), p, b.progress); file != "" {
			paths[p.name] = file
			continue
		}
		missing = append(missing, p)
	}
	if len(missing) == 0 {
		return nil
	}
	found, err := b.cached(ctx, missing...)
	for i, file := range found {
		paths[missing[i].name] = file
	}
	return err
}

// groups puts together what one run of the go command can build: the compiler
// then goes on with the packages of the next program while the last packages of
// one wait for each other and it is linked.
func groups(wanted []program) [][]program {
	var out [][]program
	for _, p := range wanted {
		if i := slices.IndexFunc(out, func(g []program) bool { return g[0].goesWith(p) }); i >= 0 {
			out[i] = append(out[i], p)
		} else {
			out = append(out, []program{p})
		}
	}
	return out
}

// goesWith says whether one run of the go command can build both.
func (p program) goesWith(o program) bool {
	return p.module == o.module && p.cgo == o.cgo && p.plain() && o.plain() &&
		slices.Equal(buildFlags(p), buildFlags(o))
}

// plain: the go command names the program as it is called here.
func (p program) plain() bool { return !p.test && path.Base(p.pkg) == p.name }

// named lists the programs of a group, or how many there are.
func named(group []program) string {
	switch n := len(group) - 1; n {
	case 0:
		return group[0].name
	case 1:
		return group[0].name + " and " + group[1].name
	default:
		return fmt.Sprintf("%s and %d more", group[0].name, n)
	}
}

// inBuildOrder looks the names up, drops repetitions and sorts by the order of
// programs.
func inBuildOrder(names []string) ([]program, error) {
	if len(names) == 0 {
		return nil, errors.New("no program was named")
	}
	for _, name := range names {
		if _, err := lookup(name); err != nil {
			return nil, err
		}
	}
	var wanted []program
	for _, p := range programs {
		if slices.Contains(names, p.name) {
			wanted = append(wanted, p)
		}
	}
	return wanted, nil
}

// link makes the folder of links for a set. Its name covers the targets, so a
// folder that exists is right as it is.
func link(cache string, s *Set) (string, error) {
	h := sha256.New()
	for _, name := range s.Names() {
		fmt.Fprintf(h, "%s=%s\n", name, s.paths[name])
	}
	dir := filepath.Join(cache, "links", hex.EncodeToString(h.Sum(nil))[:keyLength])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	for name, path := range s.paths {
		if err := os.Symlink(path, filepath.Join(tmp, name)); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr == nil {
			return dir, nil // another process was faster
		}
		return "", err
	}
	return dir, nil
}

// SerialWriter returns a writer to w that several goroutines may use, so that
// steps that run at once can tell their progress.
func SerialWriter(w io.Writer) io.Writer { return &serialWriter{w: w} }

type serialWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *serialWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

func lines(b []byte) []string { return strings.Split(strings.TrimRight(string(b), "\n"), "\n") }
