package images

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/docker/dockertest"
)

// A real engine builds an image of a static program that runs, and what is
// saved can be loaded again.
func TestRealEngine(t *testing.T) {
	if testing.Short() {
		t.Skip("may start a Docker daemon")
	}
	engine := anyEngine(t)

	root := tree(t, map[string]string{
		"hello/Dockerfile": "FROM scratch\nLABEL org.opencontainers.image.title=\"hello\"\nCOPY hello /hello\nUSER 65532:65532\nENTRYPOINT [\"/hello\"]\n",
		"src/go.mod":       "module hello\n\ngo 1.26\n",
		"src/main.go":      "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(\"hello from\", os.Getuid()) }\n",
	})
	program := filepath.Join(root, "hello", "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, ".")
	build.Dir = filepath.Join(root, "src")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	image := Image{Name: "hello", Repository: "ladder-test/hello", Dockerfile: "hello/Dockerfile", Programs: []string{"hello"}}
	s, err := sourceOf(t.Context(), image, root, func(string) string { return program })
	if err != nil {
		t.Fatal(err)
	}
	var progress strings.Builder
	b := &builder{engine: engine, progress: &progress, dir: t.TempDir()}
	set, err := b.build(t.Context(), []source{s})
	if err != nil {
		t.Fatal(err)
	}
	reference := set.Reference("hello")
	t.Cleanup(func() {
		if _, err := b.call(context.Background(), "rmi", "--force", b.local(reference)); err != nil {
			t.Error(err)
		}
	})
	run := func() {
		t.Helper()
		if out, err := engine.Output(t.Context(), "run", "--rm", "--network", "none", b.local(reference)); err != nil || out != "hello from 65532" {
			t.Errorf("the container prints %q, %v", out, err)
		}
	}
	run()
	labels, err := engine.Output(t.Context(), "image", "inspect", "--format", "{{json .Config.Labels}}", b.local(reference))
	if err != nil || !strings.Contains(labels, `"org.opencontainers.image.title":"hello"`) || !strings.Contains(labels, `"org.opencontainers.image.version":"`+set.Tag+`"`) {
		t.Errorf("labels %s, %v", labels, err)
	}
	tags := tagsInArchive(t, set.Archives()[0])
	if !slices.ContainsFunc(tags, func(tag string) bool { return strings.TrimPrefix(tag, "docker.io/") == reference }) {
		t.Errorf("the archive holds %v, want %s", tags, reference)
	}

	if _, err := engine.Output(t.Context(), "rmi", b.local(reference)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.build(t.Context(), []source{s}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(progress.String(), "loaded "+reference+"\n") {
		t.Errorf("progress %q", progress.String())
	}
	run()
}

// anyEngine returns the engine of this machine, a private daemon that runs
// included, or one that is started for the test.
func anyEngine(t *testing.T) *docker.Engine {
	t.Helper()
	dockertest.Alone(t)
	running, err := docker.Running(t.Context(), docker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if running != nil {
		return running
	}
	plan, err := docker.Detect(t.Context(), docker.Options{Dir: t.TempDir()})
	if missing := new(docker.MissingError); errors.As(err, &missing) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	engine, err := plan.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := engine.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return engine
}

// tagsInArchive reads the names of the images in an archive.
func tagsInArchive(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("%s holds no manifest.json", path)
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Name != "manifest.json" {
			continue
		}
		var manifest []struct{ RepoTags []string }
		if err := json.NewDecoder(r).Decode(&manifest); err != nil {
			t.Fatal(err)
		}
		var tags []string
		for _, m := range manifest {
			tags = append(tags, m.RepoTags...)
		}
		return tags
	}
}
