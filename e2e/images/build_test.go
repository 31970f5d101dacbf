package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/docker"
)

// envEngine makes the test binary act as the client of an engine whose images
// are the files of the folder that it names.
const envEngine = "LADDER_TEST_ENGINE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(envEngine); dir != "" {
		if err := act(dir, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// act does what docker would, with a file for each image.
func act(dir string, args []string) error {
	log, err := os.OpenFile(filepath.Join(dir, "calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	fmt.Fprintln(log, strings.Join(args, " "), os.Getenv("DOCKER_BUILDKIT"))
	log.Close()
	if _, err := os.Stat(filepath.Join(dir, "fail-"+args[0])); err == nil {
		return errors.New("no space left on device")
	}
	image := func(reference string) string {
		return filepath.Join(dir, "images", strings.NewReplacer("/", "_", ":", "@").Replace(reference))
	}
	last := args[len(args)-1]
	switch args[0] {
	case "image":
		_, err := os.Stat(image(last))
		return err
	case "build":
		dockerfile, err := os.ReadFile(filepath.Join(last, "Dockerfile"))
		if err != nil {
			return err
		}
		return os.WriteFile(image(args[2]), append([]byte(args[2]+"\n"), dockerfile...), 0o600)
	case "save":
		content, err := os.ReadFile(image(last))
		if err != nil {
			return err
		}
		// As docker does it: a new file in place of the old.
		return errors.Join(os.RemoveAll(args[2]), os.WriteFile(args[2], content, 0o600))
	case "load":
		content, err := os.ReadFile(last)
		if err != nil {
			return err
		}
		reference, _, _ := strings.Cut(string(content), "\n")
		return os.WriteFile(image(reference), content, 0o600)
	case "images":
		found, err := filepath.Glob(image(last) + "@*")
		for _, path := range found {
			_, tag, _ := strings.Cut(filepath.Base(path), "@")
			fmt.Println(tag)
		}
		return err
	case "rmi":
		return os.Remove(image(last))
	case "buildx":
		_, err := os.Stat(filepath.Join(dir, "buildx"))
		return err
	}
	return fmt.Errorf("unknown command %q", args[0])
}

type fakeEngine struct {
	t    *testing.T
	dir  string
	kind docker.Kind
}

func newEngine(t *testing.T, kind docker.Kind) *fakeEngine {
	t.Helper()
	e := &fakeEngine{t: t, dir: t.TempDir(), kind: kind}
	if err := os.Mkdir(filepath.Join(e.dir, "images"), 0o700); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *fakeEngine) Kind() docker.Kind { return e.kind }

func (e *fakeEngine) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), envEngine+"="+e.dir)
	return cmd
}

// calls returns the calls since the last time, without those that only ask.
func (e *fakeEngine) calls() []string {
	e.t.Helper()
	path := filepath.Join(e.dir, "calls")
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.t.Fatal(err)
	}
	_ = os.Remove(path) // it may not be there
	var calls []string
	for line := range strings.Lines(string(content)) {
		switch word, _, _ := strings.Cut(line, " "); word {
		case "image", "images", "buildx":
		default:
			calls = append(calls, strings.TrimSpace(line))
		}
	}
	return calls
}

func (e *fakeEngine) images() []string {
	e.t.Helper()
	entries, err := os.ReadDir(filepath.Join(e.dir, "images"))
	if err != nil {
		e.t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func (e *fakeEngine) mark(name string) {
	e.t.Helper()
	if err := os.WriteFile(filepath.Join(e.dir, name), nil, 0o600); err != nil {
		e.t.Fatal(err)
	}
}

// kinds says of each call which it is.
func kinds(calls []string) string {
	var words []string
	for _, call := range calls {
		word, _, _ := strings.Cut(call, " ")
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestBuildOnceThenReuse(t *testing.T) {
	engine := newEngine(t, docker.Private)
	var progress bytes.Buffer
	b := &builder{engine: engine, progress: &progress, dir: t.TempDir()}
	sources := sourcesOf(t, files(), first, second)
	set, err := b.build(t.Context(), sources)
	if err != nil {
		t.Fatal(err)
	}
	if calls := engine.calls(); kinds(calls) != "build save build save" || !strings.HasSuffix(calls[0], " 0") || !strings.Contains(calls[0], "--label org.opencontainers.image.version="+set.Tag) {
		t.Errorf("calls %q", calls)
	}
	if set.Reference("second") != "ladder/second:"+set.Tag || set.Reference("third") != "" || len(set.Archives()) != 2 {
		t.Errorf("set = %+v", set)
	}
	if content, err := os.ReadFile(set.Archives()[0]); err != nil || !strings.HasPrefix(string(content), "ladder/first:"+set.Tag+"\n") {
		t.Errorf("the archive is %q, %v", content, err)
	}
	if info, err := os.Stat(set.Archives()[0]); err != nil || info.Mode() != 0o644 {
		t.Errorf("the archive's mode is %v, %v", info.Mode(), err)
	}
	if got := progress.String(); strings.Count(got, "built ladder/") != 2 {
		t.Errorf("progress %q", got)
	}

	progress.Reset()
	again, err := b.build(t.Context(), sources)
	if err != nil || again.Tag != set.Tag {
		t.Fatalf("%+v, %v", again, err)
	}
	if calls := engine.calls(); len(calls) != 0 || progress.Len() != 0 {
		t.Errorf("a second time: calls %q, progress %q", calls, progress.String())
	}

	// The engine has forgotten one, the archive of another is gone.
	if err := os.Remove(filepath.Join(engine.dir, "images", "ladder_first@"+set.Tag)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(set.Archives()[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := b.build(t.Context(), sources); err != nil {
		t.Fatal(err)
	}
	if calls := engine.calls(); kinds(calls) != "load save" || len(engine.images()) != 2 {
		t.Errorf("calls %q, images %v", calls, engine.images())
	}
}

func TestBuildWithTheNewBuilderWhereItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		kind   docker.Kind
		buildx bool
		load   bool
	}{
		"the user's, with buildx":    {docker.Docker, true, true},
		"the user's, without buildx": {docker.Docker, false, false},
		"private":                    {docker.Private, true, false},
		"podman":                     {docker.Podman, true, false},
	} {
		engine := newEngine(t, tc.kind)
		if tc.buildx {
			engine.mark("buildx")
		}
		b := &builder{engine: engine, progress: &bytes.Buffer{}, dir: t.TempDir()}
		if _, err := b.build(t.Context(), sourcesOf(t, files(), first)); err != nil {
			t.Fatal(err)
		}
		build := engine.calls()[0]
		if strings.Contains(build, "--load") != tc.load || strings.HasSuffix(build, " 1") != tc.load {
			t.Errorf("%s: %q", name, build)
		}
	}
}

// Podman's short names are those of localhost; nodes look under docker.io.
func TestBuildWithPodman(t *testing.T) {
	engine := newEngine(t, docker.Podman)
	b := &builder{engine: engine, progress: &bytes.Buffer{}, dir: t.TempDir()}
	set, err := b.build(t.Context(), sourcesOf(t, files(), first))
	if err != nil {
		t.Fatal(err)
	}
	if got := set.Reference("first"); got != "ladder/first:"+set.Tag {
		t.Errorf("reference %q", got)
	}
	if got := engine.images(); !slices.Equal(got, []string{"docker.io_ladder_first@" + set.Tag}) {
		t.Errorf("images %v", got)
	}
	if save := engine.calls()[1]; !strings.Contains(save, "--format docker-archive docker.io/ladder/first:") {
		t.Errorf("saved by %q", save)
	}
}

func TestFailuresLeaveNoArchive(t *testing.T) {
	for _, step := range []string{"build", "save"} {
		engine := newEngine(t, docker.Private)
		engine.mark("fail-" + step)
		b := &builder{engine: engine, progress: &bytes.Buffer{}, dir: t.TempDir()}
		t.Setenv("TMPDIR", t.TempDir())
		_, err := b.build(t.Context(), sourcesOf(t, files(), first))
		if err == nil || !strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), "ladder/first:dev-") {
			t.Errorf("%s: %v", step, err)
		}
		if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) != 0 {
			t.Errorf("%s: left %v, %v", step, left, err)
		}
		var files []string
		err = filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				files = append(files, path)
			}
			return err
		})
		if err != nil || len(files) != 0 {
			t.Errorf("%s: left %v, %v", step, files, err)
		}
	}
}

func TestBuildBrokenOff(t *testing.T) {
	engine := newEngine(t, docker.Private)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := &builder{engine: engine, progress: &bytes.Buffer{}, dir: t.TempDir()}
	if _, err := b.build(ctx, sourcesOf(t, files(), first)); !errors.Is(err, context.Canceled) {
		t.Errorf("build = %v", err)
	}
}

// Of many builds the last few stay, in the cache and in the engine; images that
// others made are not touched.
func TestPrune(t *testing.T) {
	engine := newEngine(t, docker.Private)
	engine.mark("images/ladder_first@v1.0.0")
	engine.mark("images/nginx@dev-0123456789ab")
	b := &builder{engine: engine, progress: &bytes.Buffer{}, dir: t.TempDir()}
	other := filepath.Join(b.dir, "not-a-build")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	build := func(content string, age time.Duration) string {
		t.Helper()
		f := files()
		f["bin/a"] = content
		set, err := b.build(t.Context(), sourcesOf(t, f, first))
		if err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(set.Archives()[0], then, then); err != nil {
			t.Fatal(err)
		}
		return set.Tag
	}
	var tags []string
	for i := range 5 {
		tags = append(tags, build(fmt.Sprint("version ", i), time.Duration(10-i)*time.Hour))
	}
	want := []string{tags[4], tags[3], tags[2]}
	check := func() {
		t.Helper()
		left, err := saved(b.dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range left {
			got = append(got, a.Tag)
			if len(a.Files) != 1 || a.Bytes == 0 {
				t.Errorf("%+v", a)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("saved are %v, want %v", got, want)
		}
		images := []string{"ladder_first@v1.0.0", "nginx@dev-0123456789ab"}
		for _, tag := range want {
			images = append(images, "ladder_first@"+tag)
		}
		slices.Sort(images)
		if got := engine.images(); !slices.Equal(got, images) {
			t.Errorf("images %v, want %v", got, images)
		}
	}
	check()
	// Going back to the oldest keeps it: it is the current one.
	build("version 2", 8*time.Hour)
	check()
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

func TestSavedWithoutACache(t *testing.T) {
	if found, err := saved(filepath.Join(t.TempDir(), "missing")); err != nil || found != nil {
		t.Errorf("saved = %v, %v", found, err)
	}
}
