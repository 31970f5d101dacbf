package binaries

// The cache of programs that are built from public modules: keys, stamps and
// the order of steps that keeps a half-written file from ever being used.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

const keyLength = 16

// key names the folder of everything that one throw-away module builds.
func key(p program, goVersion string) (string, error) {
	mod, sum, err := moduleOf(p)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "v1\n%s\n%s/%s\n%q\n", goVersion, runtime.GOOS, runtime.GOARCH, buildFlags(p))
	main, err := mainOf(p)
	if err != nil {
		return "", err
	}
	parts := [][]byte{mod, sum}
	if main != nil {
		parts = append(parts, main)
	}
	for _, part := range parts {
		fmt.Fprintf(h, "%d\n", len(part))
		h.Write(part)
	}
	return p.module + "-" + p.version + "-" + hex.EncodeToString(h.Sum(nil))[:keyLength], nil
}

func moduleOf(p program) (mod, sum []byte, err error) {
	if mod, err = moduleFiles.ReadFile("modules/" + p.module + ".mod"); err != nil {
		return nil, nil, fmt.Errorf("reading the pinned module, %w", err)
	}
	if sum, err = moduleFiles.ReadFile("modules/" + p.module + ".sum"); err != nil {
		return nil, nil, fmt.Errorf("reading the pinned sums, %w", err)
	}
	return mod, sum, nil
}

// mainOf is the program's own main package; nil where pkg names one of a module.
func mainOf(p program) ([]byte, error) {
	main, err := moduleFiles.ReadFile("modules/" + p.module + ".main")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the main package, %w", err)
	}
	return main, nil
}

// cached returns programs of one group from the cache and builds those that are
// missing or do not match their stamps.
func (b *builder) cached(ctx context.Context, group ...program) ([]string, error) {
	version, err := b.goVersion(ctx)
	if err != nil {
		return nil, err
	}
	targets := make([]string, len(group))
	for i, p := range group {
		k, err := key(p, version)
		if err != nil {
			return nil, err
		}
		targets[i] = filepath.Join(b.cache, "bin", k, p.name)
	}
	var missing []target
	for i, p := range group {
		if !intact(targets[i]) {
			missing = append(missing, target{p, targets[i]})
		}
	}
	unlock, err := b.lock(ctx, missing)
	if err != nil {
		return nil, err
	}
	defer unlock()
	missing = slices.DeleteFunc(missing, func(t target) bool { return intact(t.path) })
	if len(missing) == 0 {
		return targets, nil
	}
	return targets, b.build(ctx, missing)
}

// target is a program and where it belongs in the cache.
type target struct {
	program
	path string
}

// lock locks the places of programs, in the order of their names, so that nobody
// waits in a ring.
func (b *builder) lock(ctx context.Context, targets []target) (unlock func(), err error) {
	var held []func()
	unlock = func() {
		for _, give := range held {
			give()
		}
	}
	inOrder := slices.SortedFunc(slices.Values(targets), func(a, b target) int { return strings.Compare(a.path, b.path) })
	for _, t := range inOrder {
		give, err := b.lockOne(ctx, t)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, give)
	}
	return unlock, nil
}

func (b *builder) lockOne(ctx context.Context, t target) (unlock func(), err error) {
	dir := filepath.Dir(t.path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the cache, %w", err)
	}
	unlock, err = Lock(ctx, filepath.Join(dir, "."+t.name+".lock"), func() {
		fmt.Fprintf(b.progress, "waiting for another process that builds %s\n", strings.TrimSpace(t.name+" "+t.version))
	})
	if err != nil {
		return nil, fmt.Errorf("locking the cache, %w", err)
	}
	return unlock, nil
}

// build makes programs of one group under other names, writes the stamps and
// gives the programs their names last. The caller holds their locks.
func (b *builder) build(ctx context.Context, targets []target) error {
	group, first := make([]program, len(targets)), targets[0]
	var expect time.Duration
	for i, t := range targets {
		group[i] = t.program
		expect += t.expect
		if err := removeLeft(t); err != nil {
			return err
		}
	}
	work, err := os.MkdirTemp(filepath.Dir(first.path), "."+first.name+".new-")
	if err != nil {
		return fmt.Errorf("making a folder to build in, %w", err)
	}
	defer os.RemoveAll(work)
	if err := writeModule(work, first.program); err != nil {
		return err
	}
	if len(first.packages) > 0 {
		if err := b.install(ctx, first.packages...); err != nil {
			return err
		}
	}
	out := filepath.Join(work, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return fmt.Errorf("making a folder to build in, %w", err)
	}
	fmt.Fprintf(b.progress, "building %s %s (first time, about %s on 2 cores)\n", named(group), first.version, about(expect))
	start := time.Now()
	into := out + "/"
	if len(group) == 1 {
		into = filepath.Join(out, first.name)
	}
	args := slices.Concat(goVerb(first.program), []string{"-v"}, buildFlags(first.program), []string{"-o", into})
	for _, p := range group {
		args = append(args, p.pkg)
	}
	if err := b.goBuild(ctx, group, work, args, moduleEnv(first.cgo)); err != nil {
		return err
	}
	for _, t := range targets {
		if err := takeOver(filepath.Join(out, t.name), t.path); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.progress, "built %s %s in %.0f s\n", named(group), first.version, time.Since(start).Seconds())
	return nil
}

// removeLeft removes what a build of the program left that was broken off.
func removeLeft(t target) error {
	old, err := filepath.Glob(filepath.Join(filepath.Dir(t.path), "."+t.name+".new-*"))
	if err != nil {
		return err
	}
	for _, left := range old {
		if err := os.RemoveAll(left); err != nil {
			return fmt.Errorf("removing what a broken-off build left, %w", err)
		}
	}
	return nil
}

// writeModule makes the folder the throw-away module of the program.
func writeModule(dir string, p program) error {
	mod, sum, err := moduleOf(p)
	if err != nil {
		return err
	}
	files := map[string][]byte{"go.mod": mod, "go.sum": sum}
	main, err := mainOf(p)
	if err != nil {
		return err
	}
	if main != nil {
		files["main.go"] = main
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("writing the pinned module, %w", err)
		}
	}
	return nil
}

// takeOver stamps a program that was built and moves it into place.
func takeOver(built, target string) error {
	sum, err := digest(built)
	if err != nil {
		return fmt.Errorf("reading what was built, %w", err)
	}
	if err := replaceFile(stampOf(target), []byte(sum+"\n")); err != nil {
		return fmt.Errorf("writing the stamp, %w", err)
	}
	if err := os.Rename(built, target); err != nil {
		return fmt.Errorf("moving the program into place, %w", err)
	}
	return nil
}

// about prints a length of time as people say it.
func about(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.0f seconds", d.Seconds())
	case d < 2*time.Minute:
		return "a minute"
	}
	return fmt.Sprintf("%.0f minutes", d.Minutes())
}

func goVerb(p program) []string {
	if p.test {
		return []string{"test", "-c", "-vet=off"}
	}
	return []string{"build"}
}

// noDWARF keeps the compiler from writing debug information, which the linker
// would drop: compiling takes a tenth less. Stack traces don't need it.
const noDWARF = "-gcflags=all=-dwarf=false"

func buildFlags(p program) []string {
	return []string{"-mod=readonly", "-buildvcs=false", "-trimpath", noDWARF, "-tags=" + p.tags, "-ldflags=" + p.ldflags}
}

// stampOf is the file that holds the checksum of a finished program.
func stampOf(target string) string {
	return filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+".sha256")
}

// intact says whether the program is there, can be run and is, byte for byte,
// what was built: a disk that filled up or a copy that broke off leaves files
// that exist.
func intact(target string) bool {
	info, err := os.Stat(target)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o100 == 0 {
		return false
	}
	want, err := os.ReadFile(stampOf(target))
	if err != nil {
		return false
	}
	got, err := digest(target)
	return err == nil && got == strings.TrimSpace(string(want))
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func replaceFile(path string, content []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
