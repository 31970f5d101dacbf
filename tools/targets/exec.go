package targets

// How targets run commands: at the repository's root, with output passed
// through and a line that says what is running and how long it took.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// command is one program to run.
type command struct {
	dir  string   // relative to the root
	env  []string // added to the environment
	args []string
}

func cmd(args ...string) command { return command{args: args} }

func (c command) in(dir string) command { c.dir = dir; return c }

func (c command) with(env ...string) command {
	c.env = append(append([]string(nil), c.env...), env...)
	return c
}

func (c command) prepare(ctx context.Context) (*exec.Cmd, error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	x := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	x.Dir = filepath.Join(root, c.dir)
	x.Env = append(os.Environ(), c.env...)
	// An interrupt reaches the child first, so that it can tidy up.
	x.Cancel = func() error { return x.Process.Signal(syscall.SIGTERM) }
	x.WaitDelay = 30 * time.Second
	return x, nil
}

// run runs the command with its output passed through.
func (c command) run(ctx context.Context) error {
	x, err := c.prepare(ctx)
	if err != nil {
		return err
	}
	x.Stdout, x.Stderr, x.Stdin = os.Stdout, os.Stderr, os.Stdin
	if err := x.Run(); err != nil {
		return fmt.Errorf("running %s, %w", strings.Join(c.args, " "), err)
	}
	return nil
}

// output runs the command and returns what it wrote on standard output.
func (c command) output(ctx context.Context) (string, error) {
	x, err := c.prepare(ctx)
	if err != nil {
		return "", err
	}
	var out, errOut bytes.Buffer
	x.Stdout, x.Stderr = &out, &errOut
	if err := x.Run(); err != nil {
		return "", fmt.Errorf("running %s, %w\n%s%s", strings.Join(c.args, " "), err, out.String(), errOut.String())
	}
	return out.String(), nil
}

// step prints what is about to happen and, afterwards, how long it took.
func step(what string, f func() error) error {
	start := time.Now()
	fmt.Printf("==> %s\n", what)
	err := f()
	took := time.Since(start).Round(100 * time.Millisecond)
	if err != nil {
		fmt.Printf("<== %s FAILED after %s\n", what, took)
		return err
	}
	fmt.Printf("<== %s (%s)\n", what, took)
	return nil
}

// repositoryRoot is the folder that holds go.work.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("finding go.work, run this inside the repository")
		}
		dir = parent
	}
}

// modules are the folders of the workspace's modules, sorted.
func modules() []string {
	return []string{"controllers", "drivers", "e2e", "policies", "scheduler", "tools"}
}

// pinnedTool builds a tool of tools/<module> once and returns its path. The
// modules lie outside go.work, so that their dependencies don't raise ours.
func pinnedTool(ctx context.Context, module, pkg string) (string, error) {
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, ".cache", "bin", filepath.Base(pkg))
	err = cmd("go", "build", "-o", bin, pkg).in(filepath.Join("tools", module)).with("GOWORK=off", "GOFLAGS=").run(ctx)
	return bin, err
}

// compileFlags are those with which ladder-lab builds the other programs, so that
// what they share is compiled once. The debug information, a tenth of the work,
// is in none of them; stack traces don't need it.
var compileFlags = []string{"-trimpath", "-gcflags=all=-dwarf=false"}

// goBuild builds the program pkg, a path below the root, as the file or into the
// folder out.
func goBuild(ctx context.Context, out, pkg string) error {
	args := slices.Concat([]string{"go", "build"}, compileFlags, []string{"-ldflags=-s -w", "-o", out, pkg})
	return cmd(args...).with("CGO_ENABLED=0").run(ctx)
}

// ladderLab builds the program ladder-lab and returns how to run it.
func ladderLab(ctx context.Context) (func(args ...string) command, error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(root, ".cache", "bin", "ladder-lab")
	err = step("building ladder-lab (some minutes the first time)", func() error {
		return goBuild(ctx, bin, "./e2e/cmd/ladder-lab")
	})
	return func(args ...string) command { return cmd(append([]string{bin}, args...)...) }, err
}
