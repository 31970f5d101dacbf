package binaries

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestUnknownAndMissingNames(t *testing.T) {
	if _, err := Ensure(t.Context(), nil, "frobnicate"); err == nil || !strings.Contains(err.Error(), "frobnicate") {
		t.Errorf("Ensure(no-such-program) = %v", err)
	}
	if _, err := Ensure(t.Context(), nil); err == nil {
		t.Error("Ensure of nothing succeeds")
	}
}

func TestOrderAndRepetition(t *testing.T) {
	got, err := inBuildOrder([]string{Kwok, Etcd, Kwok})
	if err != nil || len(got) != 2 || got[0].name != Etcd || got[1].name != Kwok {
		t.Errorf("inBuildOrder = %v, %v", got, err)
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv(EnvCache, "relative")
	dir, err := CacheDir()
	if err != nil || !filepath.IsAbs(dir) || filepath.Base(dir) != "relative" {
		t.Errorf("CacheDir() = %s, %v", dir, err)
	}
	t.Setenv(EnvCache, "")
	t.Setenv("XDG_CACHE_HOME", "/somewhere")
	if dir, err := CacheDir(); err != nil || dir != "/somewhere/ladder" {
		t.Errorf("CacheDir() = %s, %v", dir, err)
	}
}

func TestLinksHoldEveryProgram(t *testing.T) {
	cache := t.TempDir()
	target := filepath.Join(cache, "etcd-of-somebody")
	if err := os.WriteFile(target, []byte("etcd"), 0o755); err != nil {
		t.Fatal(err)
	}
	set := &Set{paths: map[string]string{Etcd: target}}
	dir, err := link(cache, set)
	if err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, Etcd)); err != nil || string(content) != "etcd" {
		t.Errorf("%s/%s holds %q, %v", dir, Etcd, content, err)
	}
	if again, err := link(cache, set); err != nil || again != dir {
		t.Errorf("link again = %s, %v, want %s", again, err, dir)
	}
	set.paths[Kwok] = target
	if other, err := link(cache, set); err != nil || other == dir {
		t.Errorf("another set has the same folder %s, %v", other, err)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "links", ".new-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func script(t *testing.T, dir, name, says string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+says+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestProgramsFromAssets(t *testing.T) {
	apiserver, err := lookup(APIServer)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		says string
		used bool
		told string
	}{
		"same version":       {"echo Kubernetes " + KubernetesVersion, true, "using kube-apiserver"},
		"same minor":         {"echo Kubernetes v1.37.0-rc.1", true, "v1.37.0-rc.1"},
		"older":              {"echo Kubernetes v1.36.9", false, "v1.36.9"},
		"a longer number":    {"echo Kubernetes v1.370.2", false, "not using"},
		"no version":         {"echo hello", false, "not using"},
		"fails":              {"exit 1", false, "does not tell its version"},
		"version on stderr":  {"echo Kubernetes " + KubernetesVersion + " >&2", true, "using kube-apiserver"},
		"says nothing":       {"exit 0", false, "not using"},
		"takes the argument": {`[ "$1" = --version ] && echo Kubernetes ` + KubernetesVersion, true, "using"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script(t, dir, APIServer, tc.says)
			var told bytes.Buffer
			path := fromAssets(t.Context(), dir, apiserver, &told)
			if (path != "") != tc.used || !strings.Contains(told.String(), tc.told) {
				t.Errorf("path %q, told %q", path, told.String())
			}
		})
	}
	if path := fromAssets(t.Context(), t.TempDir(), apiserver, io.Discard); path != "" {
		t.Errorf("an empty folder offers %s", path)
	}
	if path := fromAssets(t.Context(), "", apiserver, io.Discard); path != "" {
		t.Errorf("without the variable there is %s", path)
	}
}

func TestEnsureUsesAssets(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, Etcd, "echo etcd Version: 3.7.0")
	t.Setenv(EnvAssets, dir)
	t.Setenv(EnvCache, t.TempDir())
	set, err := Ensure(t.Context(), nil, Etcd)
	if err != nil {
		t.Fatal(err)
	}
	if set.Path(Etcd) != filepath.Join(dir, Etcd) || set.Path(Kwok) != "" || !slices.Equal(set.Names(), []string{Etcd}) {
		t.Errorf("set = %+v", set)
	}
}

func TestRoot(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "go.work"), []byte("go 1.26\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvRoot, "")
	t.Chdir(deep)
	if got, err := Root(); err != nil || got != root {
		t.Errorf("Root() below = %s, %v", got, err)
	}
	elsewhere := t.TempDir()
	t.Chdir(elsewhere)
	if _, err := Root(); !errors.Is(err, ErrNoRoot) {
		t.Errorf("Root() elsewhere = %v, want ErrNoRoot", err)
	}
	t.Setenv(EnvRoot, root)
	if got, err := Root(); err != nil || got != root {
		t.Errorf("Root() by the variable = %s, %v", got, err)
	}
	t.Setenv(EnvRoot, elsewhere)
	if _, err := Root(); !errors.Is(err, ErrNoRoot) {
		t.Errorf("Root() with a wrong variable = %v, want ErrNoRoot", err)
	}
}

// A program of the project is built by the real go command from its source.
func TestOwnProgramFollowsItsSource(t *testing.T) {
	root := t.TempDir()
	t.Setenv(EnvRoot, root)
	t.Setenv("GOWORK", "")
	source := filepath.Join(root, "tools", "cmd", "ladder", "main.go")
	write := func(path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(root, "go.work"), "go 1.26\n\nuse ./tools\n")
	write(filepath.Join(root, "tools", "go.mod"), "module example.test/tools\n\ngo 1.26\n")
	b := &builder{cache: t.TempDir(), progress: io.Discard, run: runGo}
	p, err := lookup(Ladder)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.buildOwn(t.Context(), []program{p}); err == nil || !strings.Contains(err.Error(), "looking for the source") {
		t.Fatalf("without source: %v", err)
	}
	for _, word := range []string{"one", "two"} {
		write(source, "package main\n\nfunc main() { println(\""+word+"\") }\n")
		paths, err := b.buildOwn(t.Context(), []program{p})
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), paths[0]).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != word {
			t.Errorf("the program says %q, %v, want %q", out, err, word)
		}
	}
	other := program{name: "other", pkg: p.pkg}
	paths, err := b.buildOwn(t.Context(), []program{other})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), paths[0]).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "two" {
		t.Errorf("a program that is not called as its package says %q, %v", out, err)
	}
	write(source, "package main\n\nfunc main() { undefinedName() }\n")
	if _, err := b.buildOwn(t.Context(), []program{p}); err == nil || !strings.Contains(err.Error(), "undefinedName") {
		t.Errorf("a mistake in the source: %v", err)
	}
}

func TestLockWaitsAndIsGivenBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, func() { t.Error("nobody else holds it") })
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan struct{})
	got := make(chan error, 1)
	go func() {
		second, err := Lock(t.Context(), path, func() { close(waited) })
		if err == nil {
			second()
		}
		got <- err
	}()
	<-waited
	select {
	case err := <-got:
		t.Fatalf("two hold the lock, %v", err)
	case <-time.After(150 * time.Millisecond):
	}
	unlock()
	if err := <-got; err != nil {
		t.Errorf("after it was given back: %v", err)
	}
}

func TestWaitingForALockCanBeBrokenOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	_, err = Lock(ctx, path, cancel)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("lock = %v, want context.Canceled", err)
	}
}

// Breaking off ends the compilers too, not only the go command.
func TestBreakingOffABuildEndsItsProcesses(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, "go", `sleep 300 & echo $! > "`+dir+`/pid"; wait`)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runGo(ctx, dir, os.Environ(), []string{"build"}, io.Discard) }()
	var pid string
	for pid == "" {
		content, err := os.ReadFile(filepath.Join(dir, "pid"))
		if err == nil {
			pid = strings.TrimSpace(string(content))
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("runGo = %v, want context.Canceled", err)
	}
	for range 500 {
		status, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(status), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s, a child of the go command, still runs", pid)
}
