package binaries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var fakeProgram = program{
	name: Kwok, version: KwokVersion, module: "kwok", pkg: "example.test/kwok", ldflags: "-s", expect: time.Minute, probe: []string{"--version"},
}

// fakeGo acts as the go command: it writes content to the file after -o.
type fakeGo struct {
	builds  atomic.Int32
	content string
	err     error
	said    string
	before  func()
}

func (f *fakeGo) run(_ context.Context, dir string, env, args []string, out io.Writer) error {
	if args[0] == "env" {
		fmt.Fprintln(out, "go1.99.0")
		return nil
	}
	f.builds.Add(1)
	if f.before != nil {
		f.before()
	}
	if _, err := os.Stat(filepath.Join(dir, "go.sum")); err != nil {
		return fmt.Errorf("no pinned sums, %w", err)
	}
	if !slices.Contains(env, "GOWORK=off") || !slices.Contains(args, "-mod=readonly") {
		return errors.New("the caller's workspace or an unpinned module would be used")
	}
	at := slices.Index(args, "-o") + 1
	for _, pkg := range args[at+1:] {
		target := args[at]
		if strings.HasSuffix(target, "/") {
			target = filepath.Join(target, path.Base(pkg))
		}
		if err := os.WriteFile(target, []byte(f.content), 0o755); err != nil {
			return err
		}
	}
	fmt.Fprint(out, f.said)
	return f.err
}

func newBuilder(t *testing.T, f *fakeGo) *builder {
	t.Helper()
	return &builder{cache: t.TempDir(), progress: io.Discard, run: f.run}
}

// files lists what lies below the cache, without locks.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !strings.HasSuffix(path, ".lock") {
			found = append(found, filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

func TestBuiltOnceAndThenFound(t *testing.T) {
	f := &fakeGo{content: "program"}
	b := newBuilder(t, f)
	first, err := b.cached(t.Context(), fakeProgram)
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.cached(t.Context(), fakeProgram)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(first, second) || f.builds.Load() != 1 {
		t.Errorf("paths %s and %s after %d builds, want one build", first, second, f.builds.Load())
	}
	if got, want := files(t, b.cache), []string{".kwok.sha256", "kwok"}; !slices.Equal(got, want) {
		t.Errorf("the cache holds %v, want %v", got, want)
	}
}

// What shares a module and flags is built by one run of the go command, and of
// that only what is missing.
func TestAGroupIsBuiltInOneRun(t *testing.T) {
	other := fakeProgram
	other.name, other.pkg = "other", "example.test/other"
	f := &fakeGo{content: "program"}
	b := newBuilder(t, f)
	if _, err := b.cached(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	third := fakeProgram
	third.name, third.pkg = "third", "example.test/third"
	paths, err := b.cached(t.Context(), fakeProgram, other, third)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{fakeProgram.name, "other", "third"} {
		if filepath.Base(paths[i]) != name || !intact(paths[i]) {
			t.Errorf("program %s is %s", name, paths[i])
		}
	}
	if f.builds.Load() != 2 {
		t.Errorf("%d runs, want one for the first and one for the two that were missing", f.builds.Load())
	}
	if got, want := files(t, b.cache), []string{".kwok.sha256", ".other.sha256", ".third.sha256", "kwok", "other", "third"}; !slices.Equal(got, want) {
		t.Errorf("the cache holds %v, want %v", got, want)
	}
}

func TestGroups(t *testing.T) {
	wanted, err := inBuildOrder(append(Node(), LadderScheduler, LadderController, E2ETest, Ginkgo))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range groups(wanted) {
		var names []string
		for _, p := range g {
			names = append(names, p.name)
		}
		got = append(got, strings.Join(names, " "))
	}
	want := []string{
		"etcd",
		"kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet kubeadm kube-proxy",
		"containerd containerd-shim-runc-v2 ctr crictl host-local loopback ptp portmap",
		"runc", "coredns", "pause ladder-scheduler ladder-controller", "e2e.test", "ginkgo",
	}
	if !slices.Equal(got, want) {
		t.Errorf("groups are %q, want %q", got, want)
	}
}

// What the project's programs and those of Kubernetes have in common is
// compiled once only if both select the same version of it; a replacement
// doesn't help, for the compiler is told the version that is replaced.
func TestSharedPackagesHaveOneVersion(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := inBuildOrder(append(Node(), LadderScheduler, LadderController, Ladder))
	if err != nil {
		t.Fatal(err)
	}
	var own, theirs []string
	var kubernetes program
	for _, p := range wanted {
		switch {
		case p.own():
			own = append(own, "./"+p.pkg)
		case p.module == "kubernetes":
			theirs, kubernetes = append(theirs, p.pkg), p
		}
	}
	work := t.TempDir()
	if err := writeModule(work, kubernetes); err != nil {
		t.Fatal(err)
	}
	list := func(dir string, env []string, packages ...string) map[string]string {
		var out bytes.Buffer
		args := append([]string{"list", "-deps", "-f", "{{with .Module}}{{$.ImportPath}} {{.Path}}@{{.Version}}{{end}}"}, packages...)
		if err := runGo(t.Context(), dir, env, args, &out); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		found := map[string]string{}
		for _, line := range lines(out.Bytes()) {
			if pkg, version, ok := strings.Cut(line, " "); ok {
				found[pkg] = version
			}
		}
		return found
	}
	ours := list(root, append(os.Environ(), "CGO_ENABLED=0"), append(own, "./e2e/cmd/ladder-lab")...)
	shared := 0
	for pkg, version := range list(work, moduleEnv(false), theirs...) {
		mine, both := ours[pkg]
		if !both {
			continue
		}
		shared++
		if mine != version {
			t.Errorf("%s is of %s for the project and of %s for Kubernetes", pkg, mine, version)
		}
	}
	if shared < 1000 {
		t.Errorf("the programs share %d packages, more than 1000 were expected", shared)
	}
}

func TestADamagedProgramIsBuiltAgain(t *testing.T) {
	damages := map[string]func(path string) error{
		"cut short":     func(path string) error { return os.Truncate(path, 3) },
		"same length":   func(path string) error { return os.WriteFile(path, []byte("prOgram"), 0o755) },
		"not to be run": func(path string) error { return os.Chmod(path, 0o644) },
		"no stamp":      func(path string) error { return os.Remove(stampOf(path)) },
		"torn stamp":    func(path string) error { return os.Truncate(stampOf(path), 10) },
		"gone":          os.Remove,
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			f := &fakeGo{content: "program"}
			b := newBuilder(t, f)
			paths, err := b.cached(t.Context(), fakeProgram)
			if err != nil {
				t.Fatal(err)
			}
			path := paths[0]
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			if _, err := b.cached(t.Context(), fakeProgram); err != nil {
				t.Fatal(err)
			}
			content, err := os.ReadFile(path)
			if err != nil || string(content) != "program" || f.builds.Load() != 2 {
				t.Errorf("after %d builds the program is %q, %v", f.builds.Load(), content, err)
			}
			if !intact(path) {
				t.Error("the program that was built again is not intact")
			}
		})
	}
}

func TestAFailedBuildLeavesNothingAndShowsWhy(t *testing.T) {
	f := &fakeGo{content: "half", err: errors.New("exit status 1"), said: "some/pkg\n./main.go:1: undefined: x\n"}
	b := newBuilder(t, f)
	_, err := b.cached(t.Context(), fakeProgram)
	if err == nil || !strings.Contains(err.Error(), "undefined: x") || !strings.Contains(err.Error(), "exit status 1") {
		t.Fatalf("error = %v, want what the compiler said", err)
	}
	if got := files(t, b.cache); len(got) != 0 {
		t.Errorf("the cache holds %v, want nothing", got)
	}
	f.err = nil
	if _, err := b.cached(t.Context(), fakeProgram); err != nil {
		t.Errorf("the next try fails, %v", err)
	}
}

func TestWhatABrokenOffBuildLeftIsRemoved(t *testing.T) {
	b := newBuilder(t, &fakeGo{content: "program"})
	k, err := key(fakeProgram, "go1.99.0")
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(b.cache, "bin", k, ".kwok.new-123")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "kwok"), []byte("half"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := b.cached(t.Context(), fakeProgram); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was left is still there: %v", err)
	}
}

func TestManyAtOnceBuildOnce(t *testing.T) {
	f := &fakeGo{content: "program"}
	cache := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			b := &builder{cache: cache, progress: io.Discard, run: f.run}
			paths, err := b.cached(t.Context(), fakeProgram)
			if err != nil || !intact(paths[0]) {
				t.Errorf("%s, %v", paths, err)
			}
		})
	}
	wg.Wait()
	if f.builds.Load() != 1 {
		t.Errorf("%d builds, want 1", f.builds.Load())
	}
}

func TestKeyCoversWhatTheProgramDependsOn(t *testing.T) {
	base, err := key(fakeProgram, "go1.26.8")
	if err != nil {
		t.Fatal(err)
	}
	flags, module := fakeProgram, fakeProgram
	flags.ldflags = "-w"
	module.module = "etcd"
	for name, other := range map[string]func() (string, error){
		"the Go version": func() (string, error) { return key(fakeProgram, "go1.26.9") },
		"the flags":      func() (string, error) { return key(flags, "go1.26.8") },
		"the module":     func() (string, error) { return key(module, "go1.26.8") },
	} {
		if got, err := other(); err != nil || got == base {
			t.Errorf("%s makes no other key: %s, %v", name, got, err)
		}
	}
	again, err := key(fakeProgram, "go1.26.8")
	if err != nil || again != base {
		t.Errorf("the same program has the keys %s and %s, %v", base, again, err)
	}
}

// What ladder-lab and the programs that it builds share is compiled once only
// where the flags are the same.
func TestTheTargetsCompileInTheSameWay(t *testing.T) {
	targets, err := os.ReadFile(filepath.Join("..", "..", "..", "tools", "targets", "exec.go"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(targets), strconv.Quote(noDWARF)) {
		t.Errorf("tools/targets/exec.go does not compile with %s", noDWARF)
	}
}

// A program with a main package of its own is built from it, and only such.
func TestOwnMain(t *testing.T) {
	for _, p := range programs {
		main, err := mainOf(p)
		if err != nil {
			t.Fatal(err)
		}
		if (main != nil) != (p.pkg == ".") {
			t.Errorf("%s: package %q, and %d bytes of a main package", p.name, p.pkg, len(main))
		}
		if main != nil && !bytes.Contains(main, []byte("package main")) {
			t.Errorf("%s: the main package is %s", p.name, main)
		}
	}
}

// The versions that this package tells are those that the modules pin.
func TestVersionsAreThePinnedOnes(t *testing.T) {
	for module, wants := range map[string][]string{
		"kubernetes": {"k8s.io/kubernetes " + KubernetesVersion},
		"etcd":       {"go.etcd.io/etcd/server/v3 " + EtcdVersion},
		"kwok":       {"sigs.k8s.io/kwok " + KwokVersion},
		"coredns":    {"github.com/coredns/coredns " + CoreDNSVersion},
		"node": {
			"github.com/containerd/containerd/v2 " + ContainerdVersion, "github.com/opencontainers/runc " + RuncVersion,
			"sigs.k8s.io/cri-tools " + CrictlVersion, "github.com/containernetworking/plugins " + CNIVersion,
			KindModule + " " + KindVersion,
		},
	} {
		content, err := moduleFiles.ReadFile("modules/" + module + ".mod")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !bytes.Contains(content, []byte(want+"\n")) {
				t.Errorf("modules/%s.mod does not ask for %q", module, want)
			}
		}
	}
	for _, p := range programs {
		if !p.own() && (p.version == "" || p.expect == 0) {
			t.Errorf("%s: version and expected time are needed", p.name)
		}
		if p.cgo != (len(p.packages) > 0) {
			t.Errorf("%s: C libraries and packages that hold them go together", p.name)
		}
	}
	for _, p := range controlPlane {
		if p.probe == nil {
			t.Errorf("%s: a probe is needed to take it from %s", p.name, EnvAssets)
		}
	}
}

func TestLongBuildsAreTold(t *testing.T) {
	var said bytes.Buffer
	b := newBuilder(t, &fakeGo{content: "program"})
	b.progress = &said
	if _, err := b.cached(t.Context(), fakeProgram); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"building kwok " + KwokVersion + " (first time, about a minute on 2 cores)", "built kwok"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("progress %q lacks %q", said.String(), want)
		}
	}
}
