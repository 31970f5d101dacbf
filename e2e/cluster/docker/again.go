package docker

// Finding an engine again that another process has used: by its kind and host,
// as they are remembered with what runs on it.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// GoneError says that an engine which was in use does not run any more.
type GoneError struct {
	Kind Kind
	Host string
	// Reason is what was found in its place, if that says more.
	Reason error
}

func (e *GoneError) Error() string {
	at := ""
	if e.Host != "" {
		at = " at " + e.Host
	}
	said := ""
	if e.Reason != nil {
		said = " (" + firstLine(e.Reason) + ")"
	}
	switch e.Kind {
	case Private:
		return "the private Docker daemon" + at + " does not run any more" + said
	case Podman:
		return "podman does not work any more" + said
	}
	return "Docker" + at + " does not answer" + said
}

func (e *GoneError) Unwrap() error { return e.Reason }

// socketFile is the name of a private daemon's socket in its folder below /run.
const socketFile = "docker.sock"

// IsPrivate says whether a value of DOCKER_HOST names a private daemon,
// running or not.
func IsPrivate(host string) bool {
	socket, isSocket := strings.CutPrefix(host, "unix://")
	return isSocket && filepath.Base(socket) == socketFile && filepath.Dir(filepath.Dir(socket)) == runRoot
}

// Find returns the engine of a kind at a host, without a change to the machine.
// The error is a *GoneError where it does not run. Of the options only Progress
// matters.
func Find(ctx context.Context, kind Kind, at string, options Options) (*Engine, error) {
	return find(ctx, kind, at, options, systemHost())
}

func find(ctx context.Context, kind Kind, at string, options Options, h host) (*Engine, error) {
	gone := &GoneError{Kind: kind, Host: at}
	if kind == Private {
		s, err := h.remembered(filepath.Join(filepath.Dir(strings.TrimPrefix(at, "unix://")), stateFile))
		switch {
		case err == nil && s.alive():
			return newPrivate(pathsOf(s.Dir), clientProgram(h), options.Progress), nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		return nil, gone
	}
	name := string(Docker)
	if kind == Podman {
		name = string(Podman)
	}
	program, err := h.lookPath(name)
	if err == nil && kind == Podman {
		_, err = podmanAnswer(ctx, h, program)
	} else if err == nil {
		_, _, err = answer(ctx, h, at, program)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("finding a container engine, %w", ctx.Err())
	}
	if err != nil {
		gone.Reason = err
		return nil, gone
	}
	return &Engine{kind: kind, program: program, host: at}, nil
}

// Again plans to have the engine of a kind at a host once more: a private
// daemon that has ended is started on what it has stored. The error is a
// *GoneError where only the user can start it.
func Again(ctx context.Context, kind Kind, at string, options Options) (*Plan, error) {
	return again(ctx, kind, at, options, systemHost())
}

func again(ctx context.Context, kind Kind, at string, options Options, h host) (*Plan, error) {
	if kind != Private {
		engine, err := find(ctx, kind, at, options, h)
		if err != nil {
			return nil, err
		}
		return &Plan{Kind: kind, program: engine.program, host: at}, nil
	}
	dirs := []string{}
	if s, err := h.remembered(filepath.Join(filepath.Dir(strings.TrimPrefix(at, "unix://")), stateFile)); err == nil {
		dirs = append(dirs, s.Dir)
	}
	usual, err := defaultDirs(h)
	if err != nil {
		return nil, err
	}
	for _, dir := range append(dirs, usual...) {
		if "unix://"+pathsOf(dir).socket == at {
			options.Private, options.Dir = true, dir
			return detect(ctx, options, h)
		}
	}
	return nil, &GoneError{Kind: kind, Host: at, Reason: errors.New("its data are not in " + strings.Join(usual, " or "))}
}
