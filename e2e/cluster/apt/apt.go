// Package apt installs packages of Debian and Ubuntu that a machine lacks and
// that the lab cannot build from Go modules: a C library to link against, the
// tool that makes a root file system, a container engine.
package apt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// MissingError says that packages are needed and that this process can't
// install them.
type MissingError struct {
	Packages []string
	// Why says what stands in the way.
	Why string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("the packages %s are needed and %s; install them with: apt-get install %s",
		strings.Join(e.Packages, " "), e.Why, strings.Join(e.Packages, " "))
}

// lockTimeout is how long apt-get waits for another apt-get.
const lockTimeout = 5 * time.Minute

// Installer installs packages.
type Installer struct {
	// Progress is told each step.
	Progress io.Writer
	// run and look stand for the system in tests.
	run  func(ctx context.Context, out io.Writer, name string, args ...string) error
	look func(name string) error
	root bool
}

// New returns an installer for this machine.
func New(progress io.Writer) *Installer {
	if progress == nil {
		progress = io.Discard
	}
	return &Installer{
		Progress: progress, run: run, root: os.Geteuid() == 0,
		look: func(name string) error { _, err := exec.LookPath(name); return err },
	}
}

// Missing returns those of the packages that are not installed, in the order
// given. On a system without dpkg that is all of them.
func (i *Installer) Missing(ctx context.Context, packages ...string) []string {
	var missing []string
	for _, name := range packages {
		var out bytes.Buffer
		err := i.run(ctx, &out, "dpkg-query", "-W", "-f=${Status}", name)
		if err != nil || !strings.HasSuffix(strings.TrimSpace(out.String()), " installed") {
			missing = append(missing, name)
		}
	}
	return missing
}

// Check returns nil where Ensure would succeed as far as can be known without
// a change to the machine, and a *MissingError otherwise.
func (i *Installer) Check(ctx context.Context, packages ...string) error {
	missing := i.Missing(ctx, packages...)
	if len(missing) == 0 {
		return nil
	}
	return i.able(missing)
}

func (i *Installer) able(missing []string) error {
	switch {
	case i.look("apt-get") != nil:
		return &MissingError{Packages: missing, Why: "this is not Debian or Ubuntu (no apt-get)"}
	case !i.root:
		return &MissingError{Packages: missing, Why: "only root can install them"}
	}
	return nil
}

// one is held by whoever installs: of two apt-get that update the lists at once
// one fails.
var one sync.Mutex

// Ensure installs those of the packages that are missing. Several goroutines
// may call it.
func (i *Installer) Ensure(ctx context.Context, packages ...string) error {
	one.Lock()
	defer one.Unlock()
	missing := i.Missing(ctx, packages...)
	if len(missing) == 0 {
		return nil
	}
	if err := i.able(missing); err != nil {
		return err
	}
	names := strings.Join(missing, " ")
	fmt.Fprintf(i.Progress, "installing the packages %s with apt-get\n", names)
	start := time.Now()
	if err := i.install(ctx, missing); err != nil {
		// The lists of packages may be missing or old.
		fmt.Fprintln(i.Progress, "updating the package lists (apt-get update)")
		if err := i.step(ctx, "update"); err != nil {
			return fmt.Errorf("updating the package lists, %w", err)
		}
		if err := i.install(ctx, missing); err != nil {
			return fmt.Errorf("installing %s, %w", names, err)
		}
	}
	if left := i.Missing(ctx, missing...); len(left) > 0 {
		return fmt.Errorf("installing %s, %w", names,
			&MissingError{Packages: left, Why: "apt-get did not install them"})
	}
	fmt.Fprintf(i.Progress, "installed %s in %.0f s\n", names, time.Since(start).Seconds())
	return nil
}

func (i *Installer) install(ctx context.Context, packages []string) error {
	return i.step(ctx, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)...)
}

func (i *Installer) step(ctx context.Context, args ...string) error {
	var out bytes.Buffer
	lock := fmt.Sprintf("DPkg::Lock::Timeout=%.0f", lockTimeout.Seconds())
	if err := i.run(ctx, &out, "apt-get", append([]string{"-q", "-o", lock}, args...)...); err != nil {
		return fmt.Errorf("running apt-get %s, %w\n%s", args[0], err, tail(out.String(), 15))
	}
	return nil
}

func tail(text string, n int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}

// run runs a program without a terminal and without questions, in its own
// process group, so that Ctrl-C at a terminal does not break dpkg off.
func run(ctx context.Context, out io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	return err
}
