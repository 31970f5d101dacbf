package docker

// Installing Debian's Docker without starting it as a service.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// policyFile is asked by Debian's packages before they start a service.
const policyFile = "/usr/sbin/policy-rc.d"

// noServices answers that no service may be started.
const noServices = "#!/bin/sh\n# Written for the time of one installation by ladder-lab.\nexit 101\n"

// install installs docker.io, and the client where it is a package of its own.
// The policy file is the one that Debian's packages ask.
func install(ctx context.Context, progress io.Writer, policy string, lookPath func(string) (string, error)) (err error) {
	restore, err := forbidServices(policy)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	fmt.Fprintln(progress, "installing docker.io with apt-get")
	start := time.Now()
	if err := apt(ctx, progress, "install", "-y", "--no-install-recommends", "docker.io"); err != nil {
		// The lists may be missing or old.
		if updateErr := apt(ctx, progress, "update"); updateErr != nil {
			return errors.Join(err, updateErr)
		}
		if err := apt(ctx, progress, "install", "-y", "--no-install-recommends", "docker.io"); err != nil {
			return err
		}
	}
	if _, err := lookPath("docker"); err != nil {
		if err := apt(ctx, progress, "install", "-y", "--no-install-recommends", "docker-cli"); err != nil {
			return err
		}
	}
	for _, name := range daemonPrograms {
		if _, err := lookPath(name); err != nil {
			return fmt.Errorf("installing docker.io, it brought no %s, %w", name, err)
		}
	}
	fmt.Fprintf(progress, "installed docker.io in %.0f s\n", time.Since(start).Seconds())
	return nil
}

// forbidServices writes the policy file, unless there is one, and returns how
// to take it back.
func forbidServices(path string) (func() error, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return func() error { return nil }, nil // the administrator's own policy holds
	}
	if err != nil {
		return nil, fmt.Errorf("keeping apt-get from starting services, %w", err)
	}
	_, err = f.WriteString(noServices)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("keeping apt-get from starting services, %w", err)
	}
	return func() error {
		if content, err := os.ReadFile(path); err != nil || string(content) != noServices {
			return nil // somebody else's by now
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("allowing services to be started again, %w", err)
		}
		return nil
	}, nil
}

// apt runs apt-get, and says that it goes on where it takes long.
func apt(ctx context.Context, progress io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=120"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	// Breaking off by SIGKILL would leave half-configured packages.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	stop := make(chan struct{})
	var beat sync.WaitGroup
	beat.Go(func() {
		tick := time.NewTicker(20 * time.Second)
		defer tick.Stop()
		start := time.Now()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				fmt.Fprintf(progress, "apt-get %s … %.0f s\n", args[0], time.Since(start).Seconds())
			}
		}
	})
	err := cmd.Run()
	close(stop)
	beat.Wait()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		return fmt.Errorf("running apt-get %s, %w; its last words are\n%s", strings.Join(args, " "), err,
			strings.Join(lines[max(0, len(lines)-10):], "\n"))
	}
	return nil
}
