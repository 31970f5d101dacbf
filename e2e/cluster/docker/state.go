package docker

// What is remembered of a private daemon, so that another process can find and
// stop it.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/jsonfile"
	"gpuladder.dev/ladder/e2e/cluster/process"
)

// stateFile is the name of the file in a daemon's folder below /run.
const stateFile = "state.json"

// runRoot holds what must not survive a boot of all private daemons.
const runRoot = "/run/ladder"

// paths are the places of a private daemon.
type paths struct {
	dir  string // its folder, below which the data lie
	data string
	lock string
	log  string

	root       string // holds what all private daemons of the machine share
	network    string // what the network was like before the first of them
	run        string // goes with the next boot; short, for paths of sockets may have 107 bytes
	state      string
	socket     string
	pidfile    string
	execRoot   string
	containerd string // containerd's folder for state
	runtime    string // the OCI runtime in use
}

func pathsOf(dir string) paths {
	sum := sha256.Sum256([]byte(dir))
	run := filepath.Join(runRoot, hex.EncodeToString(sum[:])[:8])
	return paths{
		dir:        dir,
		data:       filepath.Join(dir, "data"),
		lock:       filepath.Join(dir, "lock"),
		log:        filepath.Join(dir, "daemon.log"),
		root:       runRoot,
		network:    filepath.Join(runRoot, "network.json"),
		run:        run,
		state:      filepath.Join(run, stateFile),
		socket:     filepath.Join(run, socketFile),
		pidfile:    filepath.Join(run, "dockerd.pid"),
		execRoot:   filepath.Join(run, "exec"),
		containerd: filepath.Join(run, "containerd"),
		runtime:    filepath.Join(run, "ladder-oci-runtime"),
	}
}

func (p paths) containerdSocket() string { return filepath.Join(p.containerd, "containerd.sock") }
func (p paths) containerdConfig() string { return filepath.Join(p.run, "containerd.toml") }
func (p paths) dockerdConfig() string    { return filepath.Join(p.run, "dockerd.json") }

// state is what is remembered of a private daemon.
type state struct {
	// Dir is the daemon's folder.
	Dir string `json:"dir"`
	// Starter is the process that started it.
	Starter    process.Identity `json:"starter"`
	Daemon     process.Identity `json:"daemon"`
	Containerd process.Identity `json:"containerd"`
}

// alive says that the daemon's process runs.
func (s *state) alive() bool { return s.Daemon.Alive() }

// inUse says that somebody is at work with the daemon, if only starting it.
func (s *state) inUse() bool { return s.alive() || s.Containerd.Alive() || s.Starter.Alive() }

// readState returns fs.ErrNotExist if no daemon is remembered.
func readState(path string) (*state, error) {
	s := &state{}
	if err := jsonfile.Read(path, s); err != nil {
		return nil, fmt.Errorf("reading what is remembered of the private daemon, %w", err)
	}
	return s, nil
}

func writeState(p paths, s *state) error {
	if err := jsonfile.Write(p.state, s); err != nil {
		return fmt.Errorf("remembering the private daemon, %w", err)
	}
	return nil
}

// othersInUse says whether another private daemon of this machine is at work.
func othersInUse(p paths) (bool, error) {
	found, err := filepath.Glob(filepath.Join(p.root, "*", stateFile))
	if err != nil {
		return false, err
	}
	for _, path := range found {
		if path == p.state {
			continue
		}
		if s, err := readState(path); err == nil && s.inUse() {
			return true, nil
		}
	}
	return false, nil
}

// Running returns the private daemon that another process has left running, or
// nil if there is none. One that has died does not count: starting it anew, or
// CleanUp, puts right what it left. Of the options only Dir and Progress
// matter.
func Running(_ context.Context, options Options) (*Engine, error) {
	h := systemHost()
	dirs := []string{options.Dir}
	if options.Dir == "" {
		var err error
		if dirs, err = defaultDirs(h); err != nil {
			return nil, err
		}
	}
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("resolving %s, %w", dir, err)
		}
		p := pathsOf(abs)
		if s, err := h.remembered(p.state); errors.Is(err, fs.ErrNotExist) || err == nil && !s.alive() {
			continue
		} else if err != nil {
			return nil, err
		}
		return newPrivate(p, clientProgram(h), options.Progress), nil
	}
	return nil, nil
}

// clientProgram is where the docker client is; its absence is told where it is
// called.
func clientProgram(h host) string {
	program, err := h.lookPath("docker")
	if err != nil {
		return "docker"
	}
	return program
}

// CleanUp removes what private daemons of this machine left that were killed,
// or that died with the machine's last boot: containers, mounts, control
// groups, rules and bridges. Their images stay as a cache. Daemons at work are
// left alone.
func CleanUp(ctx context.Context, progress io.Writer) error {
	found, err := filepath.Glob(filepath.Join(runRoot, "*", stateFile))
	if err != nil {
		return err
	}
	h := systemHost()
	var errs []error
	for _, path := range found {
		s, err := readState(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && s.alive() {
			continue
		}
		if err == nil {
			err = newPrivate(pathsOf(s.Dir), clientProgram(h), progress).daemon.cleanDead(ctx)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lockDaemon takes the daemon's lock, which is held while it is started or
// stopped.
func (d *daemon) lockDaemon(ctx context.Context) (func(), error) {
	if err := os.MkdirAll(d.paths.dir, 0o711); err != nil {
		return nil, fmt.Errorf("making the private daemon's folder, %w", err)
	}
	return lock(ctx, d.paths.lock, os.O_CREATE|os.O_RDWR, func() {
		fmt.Fprintln(d.progress, "waiting for another process that starts or stops the private Docker daemon")
	})
}

// lockMachine takes the lock on what private daemons share.
func (d *daemon) lockMachine(ctx context.Context) (func(), error) {
	if err := os.MkdirAll(d.paths.root, 0o711); err != nil {
		return nil, fmt.Errorf("making the folder of private daemons, %w", err)
	}
	return lock(ctx, d.paths.root, os.O_RDONLY, func() {})
}

// lock takes an exclusive lock on a file or folder. The kernel drops it when
// its holder dies.
func lock(ctx context.Context, path string, flags int, onWait func()) (func(), error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking %s, %w", path, err)
	}
	for told := false; ; told = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking %s, %w", path, err)
		}
		if !told {
			onWait()
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			f.Close()
			return nil, fmt.Errorf("waiting for another process to release %s, %w", path, err)
		}
	}
}

// pause waits, unless the context is done before.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
