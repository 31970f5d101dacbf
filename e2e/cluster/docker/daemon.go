package docker

// Starting and stopping a private daemon.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/docker/ociruntime"
	"gpuladder.dev/ladder/e2e/cluster/jsonfile"
	"gpuladder.dev/ladder/e2e/cluster/process"
)

const (
	// startTimeout bounds the wait until a daemon answers.
	startTimeout = 90 * time.Second
	// containerGrace is how many seconds the daemon gives its containers to end.
	containerGrace = "15"
	// stopGrace bounds the wait until a daemon has ended by itself.
	stopGrace = 60 * time.Second
)

// daemon is a private daemon, started by this process or found.
type daemon struct {
	paths    paths
	progress io.Writer
}

func newPrivate(p paths, program string, progress io.Writer) *Engine {
	if progress == nil {
		progress = io.Discard
	}
	return &Engine{
		kind: Private, program: program, host: "unix://" + p.socket,
		daemon: &daemon{paths: p, progress: progress},
	}
}

// Open does what the plan says. A private daemon outlives this process unless
// it is closed: Running finds it again.
func (p *Plan) Open(ctx context.Context) (*Engine, error) {
	if p.Kind != Private {
		return p.Running(), nil
	}
	if p.install {
		if err := install(ctx, p.options.Progress, policyFile, lookPath); err != nil {
			return nil, err
		}
	}
	program, err := lookPath("docker")
	if err != nil {
		return nil, fmt.Errorf("looking for the docker client, %w", err)
	}
	e := newPrivate(p.paths, program, p.options.Progress)
	e.started, err = e.daemon.start(ctx, p.trim)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// start makes the daemon run, unless it does already.
func (d *daemon) start(ctx context.Context, trim []string) (started bool, err error) {
	unlock, err := d.lockDaemon(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if old, err := readState(d.paths.state); err == nil {
		if old.alive() && ping(ctx, d.paths.socket) == nil {
			return false, nil
		}
		// It has died or no longer answers: what it left would be in the way.
		if err := d.clean(ctx, old); err != nil {
			return false, err
		}
	}
	s := &state{Dir: d.paths.dir, Starter: process.Self()}
	defer func() {
		if err != nil {
			// The user's context may be done; the cleaning must not be.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
			defer cancel()
			err = errors.Join(err, d.clean(ctx, s))
		}
	}()
	if err := d.register(ctx, s); err != nil {
		return false, err
	}
	var runtime string
	if len(trim) > 0 {
		if runtime, err = d.provideRuntime(ctx); err != nil {
			return false, err
		}
	}
	if err := d.startContainerd(ctx, s); err != nil {
		return false, err
	}
	if err := d.startDockerd(ctx, s, runtime); err != nil {
		return false, err
	}
	fmt.Fprintf(d.progress, "started a private Docker daemon (DOCKER_HOST=unix://%s)\n", d.paths.socket)
	return true, nil
}

// register makes the daemon's folders and remembers it, and what the network
// is like if it is the first of its kind on this machine.
func (d *daemon) register(ctx context.Context, s *state) error {
	unlock, err := d.lockMachine(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, dir := range []string{d.paths.data, d.paths.run, d.paths.execRoot, d.paths.containerd} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("making the private daemon's folders, %w", err)
		}
	}
	if err := writeState(d.paths, s); err != nil {
		return err
	}
	if _, err := os.Stat(d.paths.network); err == nil {
		return nil
	}
	before, err := inspectNetwork(ctx)
	if err != nil {
		return err
	}
	if err := jsonfile.Write(d.paths.network, before); err != nil {
		return fmt.Errorf("remembering the machine's network, %w", err)
	}
	return nil
}

// provideRuntime builds the OCI runtime and copies it to where it stays
// unchanged while the daemon runs.
func (d *daemon) provideRuntime(ctx context.Context) (string, error) {
	set, err := binaries.Ensure(ctx, d.progress, binaries.LadderOCIRuntime)
	if err != nil {
		return "", fmt.Errorf("building the private daemon's runtime, %w", err)
	}
	content, err := os.ReadFile(set.Path(binaries.LadderOCIRuntime))
	if err != nil {
		return "", fmt.Errorf("reading the private daemon's runtime, %w", err)
	}
	tmp := d.paths.runtime + ".new"
	err = os.WriteFile(tmp, content, 0o755)
	if err == nil {
		err = os.Rename(tmp, d.paths.runtime)
	}
	if err != nil {
		return "", fmt.Errorf("installing the private daemon's runtime, %w", err)
	}
	return d.paths.runtime, nil
}

// containerdConfig keeps containerd to its own folders and leaves out the part
// that serves kubelets.
const containerdConfig = `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]

[grpc]
  address = %q
`

// startContainerd starts a containerd for this daemon alone: dockerd itself
// would use one that belongs to the system if there is one.
func (d *daemon) startContainerd(ctx context.Context, s *state) error {
	socket := d.paths.containerdSocket()
	config := d.paths.containerdConfig()
	content := fmt.Sprintf(containerdConfig, filepath.Join(d.paths.data, "containerd-root"), d.paths.containerd, socket)
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		return fmt.Errorf("configuring containerd, %w", err)
	}
	ended, err := d.launch("containerd", []string{"--config", config}, &s.Containerd)
	if err != nil {
		return err
	}
	if err := writeState(d.paths, s); err != nil {
		return err
	}
	return d.await(ctx, "containerd", ended, func() error {
		conn, err := net.DialTimeout("unix", socket, time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (d *daemon) startDockerd(ctx context.Context, s *state, runtime string) error {
	config := d.paths.dockerdConfig()
	// Without a file of its own it would read the system's.
	if err := os.WriteFile(config, []byte("{}\n"), 0o600); err != nil {
		return fmt.Errorf("configuring dockerd, %w", err)
	}
	args := []string{
		"--config-file", config, "--data-root", d.paths.data, "--exec-root", d.paths.execRoot,
		"--pidfile", d.paths.pidfile, "--host", "unix://" + d.paths.socket, "--group", "root",
		"--containerd", d.paths.containerdSocket(), "--shutdown-timeout", containerGrace,
	}
	if overlayWorks(d.paths.data) == nil {
		args = append(args, "--storage-driver", "overlay2")
	}
	// A bridge that is there already keeps the address that it has.
	if _, err := net.InterfaceByName(dockerBridge); err != nil {
		free, err := freeRange()
		if err != nil {
			return err
		}
		args = append(args, "--bip", free.String())
	}
	if runtime != "" {
		args = append(args, "--add-runtime", "ladder="+runtime, "--default-runtime", "ladder")
	}
	ended, err := d.launch("dockerd", args, &s.Daemon)
	if err != nil {
		return err
	}
	if err := writeState(d.paths, s); err != nil {
		return err
	}
	return d.await(ctx, "dockerd", ended, func() error { return ping(ctx, d.paths.socket) })
}

// launch starts a program that outlives this process, in a session of its own.
// The channel is closed when it has ended.
func (d *daemon) launch(name string, args []string, id *process.Identity) (<-chan struct{}, error) {
	path, err := lookPath(name)
	if err != nil {
		return nil, fmt.Errorf("looking for %s, %w", name, err)
	}
	log, err := os.OpenFile(d.paths.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the private daemon's log, %w", err)
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.Env = daemonEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s, %w", name, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended stands in its log
		close(ended)
	}()
	if *id, err = process.Of(cmd.Process.Pid); err != nil {
		return nil, fmt.Errorf("starting %s, it ended at once: %s", name, process.Tail(d.paths.log, 10))
	}
	return ended, nil
}

// daemonEnv is the environment of the daemons: a PATH that has what they call,
// and no settings of clients.
func daemonEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if name != "PATH" && name != ociruntime.EnvNext && !strings.HasPrefix(name, "DOCKER_") && name != "NOTIFY_SOCKET" {
			env = append(env, v)
		}
	}
	return append(env, "PATH="+os.Getenv("PATH")+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

// await waits until the daemon answers.
func (d *daemon) await(ctx context.Context, name string, ended <-chan struct{}, answers func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := answers()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("starting %s, it ended; the end of %s is\n%s", name, d.paths.log, process.Tail(d.paths.log, 15))
		default:
		}
		if ctxErr := pause(ctx, 100*time.Millisecond); ctxErr != nil {
			return fmt.Errorf("waiting for %s to answer, %w; last: %w; the end of %s is\n%s", name, ctxErr, err, d.paths.log, process.Tail(d.paths.log, 15))
		}
	}
}

// ping asks the daemon behind the socket whether it is there.
func ping(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("asking the daemon, status %s", resp.Status)
	}
	return nil
}

// stop ends the daemon, if it is one of ours that still runs, and cleans up.
func (d *daemon) stop(ctx context.Context) error {
	unlock, err := d.lockDaemon(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := readState(d.paths.state)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.alive() {
		fmt.Fprintln(d.progress, "stopping the private Docker daemon")
	}
	return d.clean(ctx, s)
}

// cleanDead removes what is left of a daemon that does not run: with the lock,
// nobody is starting it either.
func (d *daemon) cleanDead(ctx context.Context) error {
	unlock, err := d.lockDaemon(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := readState(d.paths.state)
	if errors.Is(err, fs.ErrNotExist) || err == nil && s.alive() {
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(d.progress, "cleaning up after a private Docker daemon that has died")
	return d.clean(ctx, s)
}

// clean ends what is left of a daemon and removes its traces, its data
// excepted. The caller holds the lock.
func (d *daemon) clean(ctx context.Context, s *state) error {
	err := endAll(ctx, s.Daemon, d.paths.dockerdConfig())
	// Containers that outlived their daemon hold its mounts.
	err = errors.Join(err, d.endShims(), endAll(ctx, s.Containerd, d.paths.containerdConfig()))
	err = errors.Join(err, unmountBelow(d.paths.run, d.paths.data), removeCgroups(d.containers()))
	if err != nil {
		return fmt.Errorf("stopping the private daemon, %w", err)
	}
	unlock, err := d.lockMachine(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.restoreNetwork(ctx); err != nil {
		return fmt.Errorf("stopping the private daemon, %w", err)
	}
	if err := os.RemoveAll(d.paths.run); err != nil {
		return fmt.Errorf("forgetting the private daemon, %w", err)
	}
	return nil
}

// containers returns the IDs of the containers that are stored.
func (d *daemon) containers() []string {
	entries, err := os.ReadDir(filepath.Join(d.paths.data, "containers"))
	if err != nil {
		return nil // there were none yet
	}
	ids := make([]string, 0, len(entries))
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	return ids
}

// restoreNetwork puts the network back once the last private daemon of the
// machine has ended: their rules bear the same names.
func (d *daemon) restoreNetwork(ctx context.Context) error {
	others, err := othersInUse(d.paths)
	if err != nil || others {
		return err
	}
	before := network{}
	if err := jsonfile.Read(d.paths.network, &before); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("reading what the machine's network was like, %w", err)
	}
	if err := before.restore(ctx, d.progress); err != nil {
		return err
	}
	return os.Remove(d.paths.network)
}

// endAll ends the process that is remembered, and any other with that file on
// its command line: a start that was killed may not have come to remember what
// it had started.
func endAll(ctx context.Context, remembered process.Identity, config string) error {
	end(ctx, remembered, stopGrace)
	strays, err := processesOf(func(argv [][]byte) bool { return containsArg(argv, config) })
	for _, stray := range strays {
		end(ctx, stray, stopGrace)
	}
	return err
}

// end asks a process to end, kills it when the grace is over, and returns when
// it is gone.
func end(ctx context.Context, id process.Identity, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if id.Signal(syscall.SIGTERM) != nil {
		return
	}
	for id.Alive() {
		if pause(ctx, 50*time.Millisecond) != nil {
			_ = id.Signal(syscall.SIGKILL) // the only error is that it has ended
			ctx = context.WithoutCancel(ctx)
		}
	}
}

// purge removes the daemon's folder. It must have been stopped.
func (d *daemon) purge() error {
	if err := os.RemoveAll(d.paths.dir); err != nil {
		return fmt.Errorf("removing the private daemon's data, %w", err)
	}
	return nil
}
