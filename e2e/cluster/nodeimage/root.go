package nodeimage

// The root file system of a node, from the packages of the host's
// distribution.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/apt"
	"gpuladder.dev/ladder/e2e/cluster/heartbeat"
)

// leftOut are folders whose content a node does without.
var leftOut = []string{
	"proc", "sys", "dev", "run", "tmp",
	"var/cache/apt", "var/cache/debconf", "var/lib/apt/lists", "var/log",
	"usr/share/doc", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man",
}

// beatEvery is how often a long step says that it goes on.
const beatEvery = 20 * time.Second

// root returns the archive of the root file system and makes it where the
// cache has none.
func (m *maker) root(ctx context.Context) (string, error) {
	target := filepath.Join(m.cache, m.recipe.rootArchive())
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	if m.recipe.distribution != "debian" && m.recipe.distribution != "ubuntu" {
		return "", errNoSuite
	}
	if err := apt.New(m.Progress).Ensure(ctx, hostPackages...); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(m.cache, ".root-")
	if err != nil {
		return "", fmt.Errorf("making a folder for a root file system, %w", err)
	}
	defer os.RemoveAll(dir)
	m.say("making a root file system of %s with debootstrap (first time, about a minute)", m.recipe.suite)
	start := time.Now()
	args := bootstrapArgs(m.recipe, dir, mirror(ctx))
	if err := m.long(ctx, "debootstrap", args...); err != nil {
		return "", err
	}
	new := target + ".new"
	defer os.Remove(new)
	if err := m.long(ctx, "tar", archiveArgs(dir, new)...); err != nil {
		return "", err
	}
	if err := os.Rename(new, target); err != nil {
		return "", fmt.Errorf("keeping the root file system, %w", err)
	}
	m.say("made the root file system in %.0f s", time.Since(start).Seconds())
	return target, nil
}

// mirror is where the host's apt takes packages from: it may be one near by.
// Without an answer debootstrap uses that of the distribution.
func mirror(ctx context.Context) string {
	out, err := output(ctx, "apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		// An archive of security updates alone holds no base system.
		if strings.HasPrefix(line, "http") && !strings.Contains(line, "security") {
			return line
		}
	}
	return ""
}

func bootstrapArgs(r recipe, dir, mirror string) []string {
	args := []string{"--variant=minbase", "--include=" + strings.Join(rootPackages, ",")}
	if r.distribution == "ubuntu" {
		args = append(args, "--components=main,universe")
	}
	args = append(args, r.suite, dir)
	if mirror != "" {
		args = append(args, mirror)
	}
	return args
}

// archiveArgs make tar write the root file system without what is left out.
// The folders themselves stay.
func archiveArgs(dir, target string) []string {
	args := []string{"--create", "--file=" + target, "--use-compress-program=gzip -1", "--numeric-owner", "--sort=name", "--anchored"}
	for _, path := range leftOut {
		args = append(args, "--exclude=./"+path+"/*")
	}
	return append(args, "--directory="+dir, ".")
}

// long runs a program of this machine that takes long, in mounts of its own:
// what debootstrap mounts is gone when it ends, however it ends.
func (m *maker) long(ctx context.Context, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("looking for %s, %w", name, err)
	}
	out := &tail{}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	stop := m.beat(name, out.last)
	err = cmd.Run()
	stop()
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return fmt.Errorf("running %s, %w\n%s", name, err, out.text())
	}
	return nil
}

// beat says at intervals that a step goes on, until the returned function is
// called.
func (m *maker) beat(what string, detail func() string) (stop func()) {
	return heartbeat.Start(beatEvery, func(elapsed time.Duration) {
		m.say("%s … %.0f s %s", what, elapsed.Seconds(), detail())
	})
}

// tail keeps the end of what a program prints.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

var _ io.Writer = (*tail)(nil)

const tailSize = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-tailSize):]
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}

// last is the last line.
func (t *tail) last() string {
	text := t.text()
	return text[strings.LastIndexByte(text, '\n')+1:]
}
