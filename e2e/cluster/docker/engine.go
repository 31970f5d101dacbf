// Package docker provides a container engine: the one that the user has, or,
// where root has none on Debian or Ubuntu, a private Docker daemon with a
// socket and a data folder of its own that disturbs nothing else and is
// stopped at the end.
//
// Detect says what will be done before anything is, Plan.Open does it, and
// Engine.Close undoes it.
package docker

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Kind says what an engine is.
type Kind string

const (
	// Docker is a daemon that the user has.
	Docker Kind = "docker"
	// Podman is what the user has in place of Docker.
	Podman Kind = "podman"
	// Private is a Docker daemon of our own.
	Private Kind = "private"
)

// Engine is a container engine that answers.
type Engine struct {
	kind    Kind
	program string
	host    string
	started bool
	daemon  *daemon // nil unless private
}

// Kind says what the engine is.
func (e *Engine) Kind() Kind { return e.kind }

// Program is the command line client: docker or podman.
func (e *Engine) Program() string { return e.program }

// Host is the value of DOCKER_HOST with which clients find the engine; "" means
// that they find it by themselves.
func (e *Engine) Host() string { return e.host }

// Started says that this process started the daemon, rather than finding it.
func (e *Engine) Started() bool { return e.started }

// Env is the environment for programs that use the engine.
func (e *Engine) Env() []string { return clientEnv(e.host) }

// clientEnv is the environment for a client of the daemon at that host; for
// none, the user's own, which a private daemon never is.
func clientEnv(host string) []string {
	env := os.Environ()
	if host == "" {
		return slices.DeleteFunc(env, func(v string) bool {
			set, is := strings.CutPrefix(v, "DOCKER_HOST=")
			return is && IsPrivate(set)
		})
	}
	// A context that the user chose would win over the host in some clients.
	env = slices.DeleteFunc(env, func(v string) bool {
		return strings.HasPrefix(v, "DOCKER_HOST=") || strings.HasPrefix(v, "DOCKER_CONTEXT=") ||
			strings.HasPrefix(v, "DOCKER_TLS")
	})
	return append(env, "DOCKER_HOST="+host)
}

// Command returns a call of the command line client.
func (e *Engine) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.program, args...)
	cmd.Env = e.Env()
	return cmd
}

// Output runs the client and returns what it prints, without the space around
// it. The error holds what it said on standard error.
func (e *Engine) Output(ctx context.Context, args ...string) (string, error) {
	return output(e.Command(ctx, args...))
}

// Idle says that no container runs, so that closing the engine ends nobody's
// work.
func (e *Engine) Idle(ctx context.Context) (bool, error) {
	running, err := e.Output(ctx, "ps", "--quiet")
	if err != nil {
		return false, fmt.Errorf("listing containers, %w", err)
	}
	return running == "", nil
}

// Close stops a private daemon and everything that runs under it, and removes
// the mounts, bridges and packet filter rules that it leaves. Its images stay
// as a cache. An engine of the user's is left alone.
func (e *Engine) Close(ctx context.Context) error {
	if e.daemon == nil {
		return nil
	}
	return e.daemon.stop(ctx)
}

// Purge stops a private daemon as Close does and removes its data too.
func (e *Engine) Purge(ctx context.Context) error {
	if e.daemon == nil {
		return nil
	}
	if err := e.daemon.stop(ctx); err != nil {
		return err
	}
	return e.daemon.purge()
}

// output runs a command; its error says what the command said.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(stderr.String())
		if said == "" {
			said = "it said nothing"
		}
		return "", fmt.Errorf("running %s, %w: %s", strings.Join(cmd.Args, " "), err, said)
	}
	return strings.TrimSpace(stdout.String()), nil
}
