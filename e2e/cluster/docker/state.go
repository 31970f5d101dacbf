package docker

// What is remembered of a private daemon, so that another process can find and
// stop it.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/process"
)

// paths are the places of a private daemon.
type paths struct {
	dir   string // its folder, below which the data and the memory lie
	data  string
	state string
	lock  string
	log   string

	run        string // short, for paths of sockets may have 107 bytes
	socket     string
	pidfile    string
	execRoot   string
	containerd string // containerd's folder for state
	runtime    string // the OCI runtime in use
}

func pathsOf(dir string) paths {
	sum := sha256.Sum256([]byte(dir))
	run := filepath.Join("/run/ladder", hex.EncodeToString(sum[:])[:8])
	return paths{
		dir:        dir,
		data:       filepath.Join(dir, "data"),
		state:      filepath.Join(dir, "state.json"),
		lock:       filepath.Join(dir, "lock"),
		log:        filepath.Join(dir, "daemon.log"),
		run:        run,
		socket:     filepath.Join(run, "docker.sock"),
		pidfile:    filepath.Join(run, "dockerd.pid"),
		execRoot:   filepath.Join(run, "exec"),
		containerd: filepath.Join(run, "containerd"),
		runtime:    filepath.Join(run, "ladder-oci-runtime"),
	}
}

func (p paths) containerdSocket() string { return filepath.Join(p.containerd, "containerd.sock") }

// State is what is remembered of a private daemon.
type State struct {
	// Host is the value of DOCKER_HOST.
	Host       string           `json:"host"`
	Daemon     process.Identity `json:"daemon"`
	Containerd process.Identity `json:"containerd"`
	Started    time.Time        `json:"started"`
	// Network is what the machine's network was like before the start.
	Network network `json:"network"`
}

// alive says that the daemon's process runs.
func (s *State) alive() bool { return s.Daemon.Alive() }

// readState returns fs.ErrNotExist if no daemon is remembered.
func readState(p paths) (*State, error) {
	content, err := os.ReadFile(p.state)
	if err != nil {
		return nil, fmt.Errorf("reading what is remembered of the private daemon, %w", err)
	}
	s := &State{}
	if err := json.Unmarshal(content, s); err != nil {
		return nil, fmt.Errorf("reading %s, %w", p.state, err)
	}
	return s, nil
}

func writeState(p paths, s *State) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp := p.state + ".new"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return fmt.Errorf("remembering the private daemon, %w", err)
	}
	if err := os.Rename(tmp, p.state); err != nil {
		return fmt.Errorf("remembering the private daemon, %w", err)
	}
	return nil
}

// Running returns the private daemon that another process has left running, or
// nil if there is none. A daemon that has died and left something behind
// counts, so that closing it cleans up. Of the options only Dir and Progress
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
		if _, err := readState(p); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		program, err := h.lookPath("docker")
		if err != nil {
			program = "docker" // its absence is told where it is called
		}
		return newPrivate(p, program, options.Progress), nil
	}
	return nil, nil
}

// lock takes the daemon's lock, which is held while it is started or stopped.
// The kernel drops it when its holder dies.
func lock(ctx context.Context, p paths, onWait func()) (func(), error) {
	if err := os.MkdirAll(p.dir, 0o711); err != nil {
		return nil, fmt.Errorf("making the private daemon's folder, %w", err)
	}
	f, err := os.OpenFile(p.lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the private daemon, %w", err)
	}
	for told := false; ; told = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking the private daemon, %w", err)
		}
		if !told {
			onWait()
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			f.Close()
			return nil, fmt.Errorf("waiting for another process that starts or stops the private daemon, %w", err)
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
