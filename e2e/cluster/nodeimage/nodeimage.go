// Package nodeimage provides the image that the nodes of a kind cluster are
// started from.
//
// Where a registry can be reached that is kind's own image. Elsewhere the
// image is made on this machine: a root file system by debootstrap, the
// programs by package binaries, the files that make a container a node from
// kind's module, and the images of the control plane baked in. The result
// carries a tag that covers everything it was made from, is kept as an archive
// in the cache, and is made again when a version changes.
package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/kind/pkg/apis/config/defaults"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// Source says where the image comes from.
type Source string

const (
	// Auto takes what is there, else pulls, else builds.
	Auto Source = "auto"
	// Pull takes kind's own image.
	Pull Source = "pull"
	// Build makes the image on this machine.
	Build Source = "build"
)

// ParseSource reads a source from a flag.
func ParseSource(word string) (Source, error) {
	for _, s := range []Source{Auto, Pull, Build} {
		if word == string(s) {
			return s, nil
		}
	}
	return "", fmt.Errorf("node image source %q is not known; auto, pull and build are", word)
}

// PulledImage is the image that Pull takes, pinned by its digest: that which
// the version of kind in use was released with.
const PulledImage = defaults.Image

// Engine is a container engine with the command line of docker; package docker
// provides one.
type Engine interface {
	Command(ctx context.Context, args ...string) *exec.Cmd
}

// Options say what image is wanted.
type Options struct {
	Source Source
	Engine Engine
	// Progress is told each step, line by line.
	Progress io.Writer
}

// ErrNotRoot says that an image can't be built, since debootstrap needs root.
var ErrNotRoot = errors.New("building a node image needs root (debootstrap makes device files); " +
	"run as root, or use a container engine that can pull " + PulledImage)

// Ensure makes sure that the engine has a node image, and returns its name.
func Ensure(ctx context.Context, o Options) (string, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	o.Progress = binaries.SerialWriter(o.Progress) // steps run at once
	if o.Source == "" {
		o.Source = Auto
	}
	m := &maker{Options: o}
	image, err := m.ensure(ctx)
	if err != nil {
		return "", fmt.Errorf("providing a node image, %w", err)
	}
	return image, nil
}

// maker makes one image.
type maker struct {
	Options
	recipe recipe
	cache  string
}

func (m *maker) ensure(ctx context.Context) (string, error) {
	if m.Source != Build && m.has(ctx, PulledImage) {
		return PulledImage, nil
	}
	if m.Source == Pull {
		return PulledImage, m.pull(ctx)
	}
	var err error
	if m.recipe, err = currentRecipe(ctx); err != nil {
		return "", err
	}
	if m.cache, err = cacheDir(); err != nil {
		return "", err
	}
	image := m.recipe.image()
	if m.has(ctx, image) {
		return image, nil
	}
	if found, err := m.load(ctx); found || err != nil {
		return image, err
	}
	if m.Source == Auto {
		err := m.pull(ctx)
		if err == nil {
			return PulledImage, nil
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		m.say("no image from a registry (%v); building one here", firstLine(err))
	}
	return image, m.build(ctx)
}

func (m *maker) build(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	unlock, err := binaries.Lock(ctx, filepath.Join(m.cache, ".lock"), func() {
		m.say("waiting for another process that makes a node image")
	})
	if err != nil {
		return fmt.Errorf("locking the cache, %w", err)
	}
	defer unlock()
	// The other process may have made it, perhaps for another daemon.
	if m.has(ctx, m.recipe.image()) {
		return nil
	}
	if found, err := m.load(ctx); found || err != nil {
		return err
	}
	start := time.Now()
	m.say("making the node image %s (first time, about 3 minutes on 2 cores besides the programs)", m.recipe.image())
	if err := m.make(ctx); err != nil {
		return err
	}
	if err := m.save(ctx); err != nil {
		return err
	}
	m.say("made the node image %s in %.0f s", m.recipe.image(), time.Since(start).Seconds())
	return nil
}

// has says whether the engine has the image.
func (m *maker) has(ctx context.Context, image string) bool {
	return m.Engine.Command(ctx, "image", "inspect", image).Run() == nil
}

func (m *maker) say(format string, args ...any) { fmt.Fprintf(m.Progress, format+"\n", args...) }

func cacheDir() (string, error) {
	base, err := binaries.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, "nodeimage")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the cache, %w", err)
	}
	return dir, nil
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
