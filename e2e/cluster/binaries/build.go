package binaries

// Running the go command: its environment, progress while it works, and an
// error that shows what it said.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/heartbeat"
)

// beatEvery is how often a build that takes long says that it goes on.
const beatEvery = 20 * time.Second

// runner runs the go command in a folder and copies what it prints to the
// writer. Tests put their own in its place.
type runner func(ctx context.Context, dir string, env, args []string, out io.Writer) error

// builder makes programs and tells the progress.
type builder struct {
	cache    string
	progress io.Writer
	run      runner
	// install provides packages of the system that a program is linked against.
	install func(ctx context.Context, packages ...string) error
	version string
}

// goVersion asks the go command once for its version.
func (b *builder) goVersion(ctx context.Context) (string, error) {
	if b.version == "" {
		var out bytes.Buffer
		if err := b.run(ctx, os.TempDir(), moduleEnv(false), []string{"env", "GOVERSION"}, &out); err != nil {
			return "", fmt.Errorf("asking go for its version, %w", err)
		}
		b.version = strings.TrimSpace(out.String())
	}
	return b.version, nil
}

// goBuild runs go build, and says that it goes on where it takes long.
func (b *builder) goBuild(ctx context.Context, group []program, dir string, args, env []string) error {
	var out output
	stop := heartbeat.Start(beatEvery, func(elapsed time.Duration) {
		told := ""
		if !group[0].test { // the go command names no packages then
			told = fmt.Sprintf(", %d packages compiled", out.lineCount())
		}
		fmt.Fprintf(b.progress, "building %s … %.0f s%s\n", named(group), elapsed.Seconds(), told)
	})
	err := b.run(ctx, dir, env, args, &out)
	stop()
	if err != nil {
		return fmt.Errorf("building %s, %w\n%s", named(group), err, out.tail(20))
	}
	return nil
}

// output keeps what the go command prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) lineCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Count(o.buf.Bytes(), []byte("\n"))
}

func (o *output) tail(n int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := lines(o.buf.Bytes())
	return strings.Join(all[max(0, len(all)-n):], "\n")
}

// moduleEnv is the environment for building a throw-away module: programs for
// this machine, whatever workspace or flags the caller has.
func moduleEnv(cgo bool) []string {
	enabled := "CGO_ENABLED=0"
	if cgo {
		enabled = "CGO_ENABLED=1"
	}
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=", enabled,
		"GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
}

// runGo runs the go command in its own process group, so that breaking off
// stops its compilers too.
func runGo(ctx context.Context, dir string, env, args []string, out io.Writer) error {
	path, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("looking for the go command (Go 1.26 or newer must be on PATH), %w", err)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(env, "PWD="+dir)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	return err
}
