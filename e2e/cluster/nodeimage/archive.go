package nodeimage

// Images as files: one that was built is kept in the cache, for an engine that
// starts without images, and one is pulled where a registry can be reached.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kept is how many built images the cache keeps.
const kept = 2

func (m *maker) archive() string {
	_, tag, _ := strings.Cut(m.recipe.image(), ":")
	return filepath.Join(m.cache, "node-"+tag+".tar")
}

// save keeps the image as an archive and removes old ones.
func (m *maker) save(ctx context.Context) error {
	target := m.archive()
	m.say("keeping the image in %s", target)
	new := target + ".new"
	defer os.Remove(new)
	if _, err := m.engine(ctx, nil, "save", "--output="+new, m.recipe.image()); err != nil {
		return fmt.Errorf("keeping the node image, %w", err)
	}
	if err := os.Rename(new, target); err != nil {
		return fmt.Errorf("keeping the node image, %w", err)
	}
	archives, err := filepath.Glob(filepath.Join(m.cache, "node-*.tar"))
	if err != nil {
		return err
	}
	for _, old := range outdated(archives, modified) {
		m.say("removing the old image %s", filepath.Base(old))
		if err := os.Remove(old); err != nil {
			return fmt.Errorf("removing an old node image, %w", err)
		}
	}
	return nil
}

func modified(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// outdated returns those archives that are not among the newest.
func outdated(archives []string, modified func(string) time.Time) []string {
	slices.SortStableFunc(archives, func(a, b string) int { return modified(b).Compare(modified(a)) })
	return archives[min(kept, len(archives)):]
}

// load gives the image to an engine that lacks it. It reports false where the
// cache has none.
func (m *maker) load(ctx context.Context) (bool, error) {
	path := m.archive()
	if _, err := os.Stat(path); err != nil {
		return false, nil //nolint:nilerr // then it is built
	}
	m.say("loading the node image from %s", path)
	start := time.Now()
	if _, err := m.engine(ctx, nil, "load", "--input="+path); err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		// A file that was cut short: the image is made again.
		m.say("the kept image can't be used: %v", firstLine(err))
		return false, os.Remove(path)
	}
	if !m.has(ctx, m.recipe.image()) {
		return false, fmt.Errorf("loading %s, the engine has no image %s afterwards", path, m.recipe.image())
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // only the order of removal depends on it
	m.say("loaded the node image in %.0f s", time.Since(start).Seconds())
	return true, nil
}

const (
	// silence is how long a registry may say nothing before the pull is given
	// up: where none can be reached, engines wait much longer.
	silence = 20 * time.Second
	// pullWithin bounds a pull that makes progress.
	pullWithin = 15 * time.Minute
)

// pull gets kind's own image from a registry.
func (m *maker) pull(ctx context.Context) error {
	m.say("pulling %s", PulledImage)
	ctx, cancel := context.WithTimeoutCause(ctx, pullWithin, errors.New("the pull takes too long"))
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	timer := time.AfterFunc(silence, func() { giveUp(fmt.Errorf("no word from the registry for %s", silence)) })
	defer timer.Stop()
	said := &tail{}
	answered := writerFunc(func(p []byte) (int, error) {
		// Engines say something once the registry has answered; podman also says
		// that it will ask.
		if !bytes.HasPrefix(p, []byte("Trying to pull")) {
			timer.Stop()
		}
		return said.Write(p)
	})
	cmd := m.Engine.Command(ctx, "pull", PulledImage)
	cmd.Stdout, cmd.Stderr = answered, answered
	cmd.WaitDelay = 5 * time.Second
	stop := m.beat("pulling", said.last)
	err := cmd.Run()
	stop()
	if ctx.Err() != nil {
		return fmt.Errorf("pulling %s, %w", PulledImage, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("pulling %s, %w: %s", PulledImage, err, said.last())
	}
	m.say("pulled %s", PulledImage)
	return nil
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
