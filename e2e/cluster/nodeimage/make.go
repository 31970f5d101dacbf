package nodeimage

// The steps that make an image: a container is started from the first state of
// the file system, completed, filled with the images of pods, and committed.

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

	"golang.org/x/sync/errgroup"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// stopSignal is the one on which systemd ends. Engines take it from the
// container that is committed.
const stopSignal = "SIGRTMIN+3"

// configured is what an image says besides its files: systemd must know that it
// is in a container.
var configured = []string{
	"ENV container=docker",
	`ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]`,
}

func (m *maker) make(ctx context.Context) (err error) {
	programs, root, err := m.parts(ctx)
	if err != nil {
		return err
	}
	kind, err := kindDir(ctx)
	if err != nil {
		return err
	}
	images, err := askKubeadm(ctx, programs.Path(binaries.Kubeadm))
	if err != nil {
		return err
	}
	files, err := nodeFiles(kind, programs, sandbox(images))
	if err != nil {
		return err
	}
	base := m.recipe.base()
	m.say("importing the file system of a node")
	if err := m.importBase(ctx, base, root, files); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.remove(ctx, "rmi", "--force", base)) }()

	container := "ladder-node-" + strings.ReplaceAll(base[strings.LastIndexByte(base, ':')+1:], ":", "-")
	if err := m.remove(ctx, "rm", "--force", "--volumes", container); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.remove(ctx, "rm", "--force", "--volumes", container)) }()
	if _, err := m.engine(ctx, nil, "run", "--detach", "--privileged", "--network=none", "--name="+container,
		"--stop-signal="+stopSignal,
		"--entrypoint=/bin/sleep", base, "infinity"); err != nil {
		return err
	}
	if _, err := m.engine(ctx, nil, "exec", container, "/"+setupPath); err != nil {
		return fmt.Errorf("completing the node image, %w", err)
	}
	if err := m.bake(ctx, container, images, programs, root); err != nil {
		return err
	}
	m.say("committing the image")
	args := []string{"commit"}
	for _, change := range configured {
		args = append(args, "--change="+change)
	}
	if _, err := m.engine(ctx, nil, append(args, container, m.recipe.image())...); err != nil {
		return fmt.Errorf("committing the node image, %w", err)
	}
	return nil
}

// parts makes what the image consists of: the programs and, beside that, the
// root file system, which is mostly downloaded and unpacked.
func (m *maker) parts(ctx context.Context) (programs *binaries.Set, root string, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		programs, err = binaries.Ensure(ctx, m.Progress, binaries.Node()...)
		return err
	})
	group.Go(func() (err error) {
		root, err = m.root(ctx)
		return err
	})
	err = group.Wait()
	return programs, root, err
}

// importBase streams the first state of the file system to the engine.
func (m *maker) importBase(ctx context.Context, name, root string, files []file) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeFileSystem(w, root, files)) }()
	_, err := m.engine(ctx, r, "import", "-", name)
	r.CloseWithError(errors.New("the engine reads no more"))
	if err != nil {
		return fmt.Errorf("importing the file system, %w", err)
	}
	return nil
}

// bake puts the images of pods into the container's containerd.
func (m *maker) bake(ctx context.Context, container string, images []podImage, programs *binaries.Set, root string) error {
	dir, err := os.MkdirTemp(m.cache, ".images-")
	if err != nil {
		return fmt.Errorf("making a folder for images, %w", err)
	}
	defer os.RemoveAll(dir)
	if _, err := m.engine(ctx, nil, "exec", "--detach", container, "containerd"); err != nil {
		return fmt.Errorf("starting containerd, %w", err)
	}
	if err := m.await(ctx, container); err != nil {
		return err
	}
	for _, image := range images {
		m.say("adding the image %s", image.ref)
		archive, err := image.write(dir, programs.Path(image.program), root, m.recipe.arch)
		if err != nil {
			return err
		}
		if err := m.importImage(ctx, container, archive); err != nil {
			return fmt.Errorf("adding the image of %s, %w", image.program, err)
		}
		if err := os.Remove(archive); err != nil {
			return fmt.Errorf("removing an archive, %w", err)
		}
	}
	// It writes its database when it ends.
	if _, err := m.engine(ctx, nil, "exec", container, "sh", "-c",
		"pkill -x containerd; for i in $(seq 100); do pgrep -x containerd >/dev/null || break; sleep 0.1; done; "+
			"! pgrep -x containerd && rm -rf /"+setupPath+" /run/containerd"); err != nil {
		return fmt.Errorf("ending containerd, %w", err)
	}
	return nil
}

func (m *maker) importImage(ctx context.Context, container, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = m.engine(ctx, f, "exec", "--interactive", container,
		"ctr", "--namespace=k8s.io", "images", "import", "--all-platforms", "--no-unpack", "-")
	return err
}

// readyWithin is how long containerd may take to answer.
const readyWithin = time.Minute

func (m *maker) await(ctx context.Context, container string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, errors.New("containerd does not answer"))
	defer cancel()
	for {
		_, err := m.engine(ctx, nil, "exec", container, "ctr", "version")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for containerd, %w: %w", context.Cause(ctx), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// remove removes something of the engine's that may not be there. It works
// after a break-off too.
func (m *maker) remove(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_, err := m.engine(ctx, nil, args...)
	if err != nil && !strings.Contains(strings.ToLower(err.Error()), "no such") {
		return err
	}
	return nil
}

// engine runs one command of the engine and returns what it prints.
func (m *maker) engine(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	var stdout, stderr strings.Builder
	cmd := m.Engine.Command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", errors.Join(ctx.Err(), err)
	case errors.As(err, &exit):
		return "", fmt.Errorf("running %s %s, %w: %s", filepath.Base(cmd.Path), args[0], err, strings.TrimSpace(stderr.String()))
	case err != nil:
		return "", fmt.Errorf("running %s %s, %w", filepath.Base(cmd.Path), args[0], err)
	}
	return strings.TrimSpace(stdout.String()), nil
}
