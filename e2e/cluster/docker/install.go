package docker

// Installing Debian's Docker without starting it as a service.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"gpuladder.dev/ladder/e2e/cluster/apt"
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
	installer := apt.New(progress)
	if err := installer.Ensure(ctx, "docker.io"); err != nil {
		return err
	}
	if _, err := lookPath("docker"); err != nil {
		if err := installer.Ensure(ctx, "docker-cli"); err != nil {
			return err
		}
	}
	for _, name := range daemonPrograms {
		if _, err := lookPath(name); err != nil {
			return fmt.Errorf("installing docker.io, it brought no %s, %w", name, err)
		}
	}
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
	restore := func() error {
		if content, err := os.ReadFile(path); err != nil || string(content) != noServices {
			return nil //nolint:nilerr // somebody else's by now
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("allowing services to be started again, %w", err)
		}
		return nil
	}
	_, err = f.WriteString(noServices)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("keeping apt-get from starting services, %w", err), restore())
	}
	return restore, nil
}
