package images

// Building images with a container engine, and saving them as archives.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/docker"
)

// Engine is what builds: a *docker.Engine.
type Engine interface {
	Kind() docker.Kind
	// Command returns a call of the engine's command line client.
	Command(ctx context.Context, args ...string) *exec.Cmd
}

// Built is an image that an engine has and that lies in an archive.
type Built struct {
	Image
	// Reference is the image's full name, repository and tag.
	Reference string `json:"reference"`
	// Archive is the file for `docker load` and for kind's nodes.
	Archive string `json:"archive"`
}

// Set is the result of one build.
type Set struct {
	// Tag is that of all the images.
	Tag    string  `json:"tag"`
	Images []Built `json:"images"`
}

// Archives are the files of all images.
func (s *Set) Archives() []string {
	archives := make([]string, 0, len(s.Images))
	for _, built := range s.Images {
		archives = append(archives, built.Archive)
	}
	return archives
}

// Reference returns the full name of the image with the short name, or "".
func (s *Set) Reference(name string) string {
	for _, built := range s.Images {
		if built.Name == name {
			return built.Reference
		}
	}
	return ""
}

// Build makes sure that the images of these names, without any all, exist as
// the working tree has them, in the engine and as archives. What is there
// already is left as it is. Progress is told to the writer, line by line.
func Build(ctx context.Context, engine Engine, progress io.Writer, names ...string) (*Set, error) {
	if progress == nil {
		progress = io.Discard
	}
	wanted, err := chosen(names)
	if err != nil {
		return nil, err
	}
	sources, err := gather(ctx, progress, wanted)
	if err != nil {
		return nil, err
	}
	cache, err := binaries.CacheDir()
	if err != nil {
		return nil, err
	}
	b := &builder{engine: engine, progress: progress, dir: filepath.Join(cache, "images")}
	return b.build(ctx, sources)
}

// WriteContext fills a folder, which must be empty or missing, with what the
// image of the short name is built from, so that `docker build` or any other
// builder makes the same image under a name and for a registry of one's own.
func WriteContext(ctx context.Context, progress io.Writer, name, dir string) error {
	image, err := Lookup(name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder, %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking into the folder, %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("gathering what %s is made of, %s is not empty", name, dir)
	}
	sources, err := gather(ctx, progress, []Image{image})
	if err != nil {
		return err
	}
	return sources[0].writeContext(dir)
}

// gather builds the programs of the images.
func gather(ctx context.Context, progress io.Writer, wanted []Image) ([]source, error) {
	root, err := binaries.Root()
	if err != nil {
		return nil, err
	}
	var programs []string
	for _, image := range wanted {
		programs = append(programs, image.Programs...)
	}
	set, err := binaries.Ensure(ctx, progress, programs...)
	if err != nil {
		return nil, fmt.Errorf("building the programs of the images, %w", err)
	}
	sources := make([]source, 0, len(wanted))
	for _, image := range wanted {
		s, err := sourceOf(ctx, image, root, set.Path)
		if err != nil {
			return nil, err
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// builder builds and saves images.
type builder struct {
	engine   Engine
	progress io.Writer
	dir      string // holds a folder of archives for each tag
}

func (b *builder) build(ctx context.Context, sources []source) (*Set, error) {
	tag, err := tagOf(sources)
	if err != nil {
		return nil, err
	}
	set := &Set{Tag: tag}
	for _, s := range sources {
		built := Built{
			Image: s.Image, Reference: s.Repository + ":" + tag, Archive: filepath.Join(b.dir, tag, s.Name+".tar"),
		}
		if err := b.ensure(ctx, s, built, tag); err != nil {
			return nil, err
		}
		set.Images = append(set.Images, built)
	}
	return set, b.prune(ctx, set)
}

// ensure makes sure that the engine has the image and that it is saved.
func (b *builder) ensure(ctx context.Context, s source, built Built, tag string) error {
	_, statErr := os.Stat(built.Archive)
	start := time.Now()
	switch _, err := b.call(ctx, "image", "inspect", "--format", "{{.Id}}", b.local(built.Reference)); {
	case err == nil && statErr == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("building %s, %w", built.Reference, ctx.Err())
	case err == nil:
	case statErr == nil:
		if _, err := b.call(ctx, "load", "--input", built.Archive); err != nil {
			return fmt.Errorf("loading %s, %w", built.Reference, err)
		}
		fmt.Fprintf(b.progress, "loaded %s\n", built.Reference)
		return nil
	default:
		if err := b.run(ctx, s, built, tag); err != nil {
			return fmt.Errorf("building %s, %w", built.Reference, err)
		}
		fmt.Fprintf(b.progress, "built %s in %.0f s\n", built.Reference, time.Since(start).Seconds())
	}
	if err := b.save(ctx, built); err != nil {
		return fmt.Errorf("saving %s, %w", built.Reference, err)
	}
	return nil
}

// local is the name by which this engine is asked for an image. Podman takes a
// short name for one of localhost, which nodes would not find.
func (b *builder) local(reference string) string {
	if b.engine.Kind() == docker.Podman {
		return "docker.io/" + reference
	}
	return reference
}

// run has the engine build the image from a folder of its own.
func (b *builder) run(ctx context.Context, s source, built Built, tag string) (err error) {
	dir, err := os.MkdirTemp("", "ladder-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := s.writeContext(dir); err != nil {
		return err
	}
	args := []string{"build", "--tag", b.local(built.Reference), "--label", "org.opencontainers.image.version=" + tag}
	env, buildx := "DOCKER_BUILDKIT=0", false
	if b.engine.Kind() == docker.Docker {
		// The builder that old clients have is all that these images need, but it
		// will go one day; where the new one is there, it is taken.
		_, err := b.call(ctx, "buildx", "version")
		buildx = err == nil
	}
	if buildx {
		env, args = "DOCKER_BUILDKIT=1", append(args, "--load", "--provenance=false")
	}
	cmd := b.engine.Command(ctx, append(args, dir)...)
	cmd.Env = append(environ(cmd), env)
	_, err = output(cmd)
	return err
}

// save writes the archive under another name first, so that one that broke off
// is never used.
func (b *builder) save(ctx context.Context, built Built) (err error) {
	if err := os.MkdirAll(filepath.Dir(built.Archive), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(built.Archive), "."+built.Name+".")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails once it has its name
	if err := tmp.Close(); err != nil {
		return err
	}
	args := []string{"save", "--output", tmp.Name()}
	if b.engine.Kind() == docker.Podman {
		args = append(args, "--format", "docker-archive")
		// Podman does not write over a file.
		if err := os.Remove(tmp.Name()); err != nil {
			return err
		}
	}
	if _, err := b.call(ctx, append(args, b.local(built.Reference))...); err != nil {
		return err
	}
	// Some clients write for nobody but their user.
	if err := os.Chmod(tmp.Name(), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), built.Archive)
}

func (b *builder) call(ctx context.Context, args ...string) (string, error) {
	return output(b.engine.Command(ctx, args...))
}

func environ(cmd *exec.Cmd) []string {
	if cmd.Env == nil {
		return os.Environ()
	}
	return cmd.Env
}

// output runs a command; its error says what the command said.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := strings.Split(strings.TrimSpace(stdout.String()+"\n"+stderr.String()), "\n")
		return "", fmt.Errorf("running %s %s, %w: %s", filepath.Base(cmd.Path), cmd.Args[1], err, strings.Join(said[max(0, len(said)-10):], "\n"))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// kept is how many builds stay, the current one among them.
const kept = 3

// prune removes the archives of old builds, and their images from the engine.
func (b *builder) prune(ctx context.Context, current *Set) error {
	archives, err := saved(b.dir)
	if err != nil {
		return err
	}
	stay := []string{current.Tag}
	for _, a := range archives {
		if a.Tag == current.Tag {
			continue
		}
		if len(stay) < kept {
			stay = append(stay, a.Tag)
			continue
		}
		if err := os.RemoveAll(filepath.Join(b.dir, a.Tag)); err != nil {
			return fmt.Errorf("removing the archives of an old build, %w", err)
		}
	}
	for _, built := range current.Images {
		tags, err := b.call(ctx, "images", "--format", "{{.Tag}}", b.local(built.Repository))
		if err != nil {
			return fmt.Errorf("listing images, %w", err)
		}
		for tag := range strings.Lines(tags) {
			tag = strings.TrimSpace(tag)
			if !isOurTag(tag) || slices.Contains(stay, tag) {
				continue
			}
			// One that a container uses stays until that is gone.
			_, _ = b.call(ctx, "rmi", b.local(built.Repository+":"+tag))
		}
	}
	return nil
}
