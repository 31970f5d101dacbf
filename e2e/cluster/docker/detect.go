package docker

// Which engine there is, and what has to be done to have one.

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

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/docker/capability"
)

// answerTimeout is how long an engine has to answer before it counts as none.
const answerTimeout = 20 * time.Second

// Options say what may be done. The zero value uses what is there and installs
// nothing.
type Options struct {
	// Install allows docker.io to be installed with apt-get where it is missing.
	Install bool
	// Private asks for a private daemon even where another engine answers.
	Private bool
	// Dir is the private daemon's folder; by default the first of
	// <cache>/docker and /var/lib/ladder/docker on which overlay works.
	Dir string
	// Progress is told what is being done, line by line.
	Progress io.Writer
}

// Plan is what Open will do. Nothing has been changed when it is made.
type Plan struct {
	Kind Kind
	// Steps say in one sentence each what will be done, in order.
	Steps []string
	// Notes say what the user may want to know besides.
	Notes []string

	program string
	host    string
	options Options
	paths   paths
	install bool
	running bool     // a private daemon that runs already
	trim    []string // capabilities that the machine lacks
}

// Running returns the engine where nothing need be started to have it, else
// nil.
func (p *Plan) Running() *Engine {
	switch {
	case p.Kind != Private:
		return &Engine{kind: p.Kind, program: p.program, host: p.host}
	case p.running:
		return newPrivate(p.paths, clientProgram(systemHost()), p.options.Progress)
	}
	return nil
}

// String is the plan as text for a person.
func (p *Plan) String() string {
	var b strings.Builder
	for _, step := range p.Steps {
		fmt.Fprintf(&b, "- %s\n", step)
	}
	for _, note := range p.Notes {
		fmt.Fprintf(&b, "  note: %s\n", note)
	}
	return b.String()
}

// MissingError says that there is no container engine and why none can be had.
type MissingError struct {
	// Tried says what was looked for and what was found.
	Tried []string
	// Remedies say what the user can do.
	Remedies []string
}

func (e *MissingError) Error() string {
	return "finding a container engine, none is usable: " + strings.Join(e.Tried, "; ") +
		". What helps: " + strings.Join(e.Remedies, "; ")
}

// Detect finds out which engine to use: a Docker daemon that answers, else
// podman, else a private daemon. It starts and changes nothing. The error is a
// *MissingError where there is no way.
func Detect(ctx context.Context, options Options) (*Plan, error) {
	return detect(ctx, options, systemHost())
}

// host is what Detect asks about this machine.
type host struct {
	lookPath func(string) (string, error)
	// run calls a client of the daemon at a host, or of the user's own for none.
	run       func(ctx context.Context, at, name string, args ...string) (string, error)
	root      bool
	osRelease string
	missing   func() ([]string, error)
	effective func() (capability.Set, error)
	cgroups   func() (int, error)
	overlay   func(dir string) error
	cacheDir  func() (string, error)
	others    func(paths) (bool, error)
	// remembered is what is remembered of the private daemon in a state file.
	remembered func(file string) (*state, error)
	// dockerHost is the user's choice of a daemon, which is no private one.
	dockerHost string
}

func systemHost() host {
	release, _ := os.ReadFile("/etc/os-release") // a system without one is not Debian
	return host{
		lookPath: lookPath,
		run: func(ctx context.Context, at, name string, args ...string) (string, error) {
			cmd := exec.CommandContext(ctx, name, args...)
			cmd.Env = clientEnv(at)
			return output(cmd)
		},
		root:       os.Geteuid() == 0,
		osRelease:  string(release),
		missing:    capability.Missing,
		effective:  capability.Effective,
		cgroups:    CgroupVersion,
		overlay:    overlayWorks,
		cacheDir:   binaries.CacheDir,
		others:     othersInUse,
		remembered: readState,
		dockerHost: usersHost(os.Getenv("DOCKER_HOST")),
	}
}

// usersHost is what DOCKER_HOST says of the user's own Docker. Where it names a
// private daemon, as `ladder-lab kind up` prints it, it says nothing.
func usersHost(value string) string {
	if IsPrivate(value) {
		return ""
	}
	return value
}

func detect(ctx context.Context, options Options, h host) (*Plan, error) {
	if options.Progress == nil {
		options.Progress = io.Discard
	}
	none := &MissingError{}
	if !options.Private {
		if plan := usersOwn(ctx, h, none); plan != nil {
			plan.options = options
			return plan, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("finding a container engine, %w", err)
	}
	plan := private(options, h, none)
	if plan == nil {
		return nil, none
	}
	return plan, nil
}

// usersOwn returns the plan for an engine that answers, or nil, having noted
// what was tried.
func usersOwn(ctx context.Context, h host, none *MissingError) *Plan {
	if program, err := h.lookPath("docker"); err != nil {
		none.Tried = append(none.Tried, "no program docker")
	} else if version, isPodman, err := answer(ctx, h, h.dockerHost, program); err != nil {
		none.Tried = append(none.Tried, "Docker does not answer"+because(h, err))
		if strings.Contains(err.Error(), "permission denied") {
			none.Remedies = append(none.Remedies, "become a member of the group docker (and log in anew), or run as root")
		}
	} else if !isPodman {
		return &Plan{
			Kind: Docker, program: program, host: h.dockerHost,
			Steps: []string{"use the Docker daemon that answers (" + version + ")"},
		}
	}
	program, err := h.lookPath("podman")
	if err != nil {
		none.Tried = append(none.Tried, "no program podman")
		return nil
	}
	version, err := podmanAnswer(ctx, h, program)
	if err != nil {
		none.Tried = append(none.Tried, "podman does not work ("+firstLine(err)+")")
		return nil
	}
	// A node asks for every capability. Who set up a Docker daemon here has seen
	// to that; podman hands the wish on, and its runtime fails.
	if missing, err := h.missing(); err == nil && len(missing) > 0 {
		none.Tried = append(none.Tried, "podman can't run the privileged containers of nodes, for this machine grants nobody "+strings.Join(missing, ", "))
		none.Remedies = append(none.Remedies, "run on a machine that grants "+strings.Join(missing, ", "))
		return nil
	}
	return &Plan{Kind: Podman, program: program, Steps: []string{"use podman (" + version + ")"}}
}

// answer asks the daemon behind the docker client for its version. A client
// that is podman under another name is told apart.
func answer(ctx context.Context, h host, at, program string) (version string, isPodman bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if own, err := h.run(ctx, at, program, "--version"); err == nil && strings.Contains(strings.ToLower(own), "podman") {
		return own, true, nil
	}
	version, err = h.run(ctx, at, program, "version", "--format", "{{.Server.Version}}")
	return version, false, err
}

// podmanAnswer is the version of a podman that works.
func podmanAnswer(ctx context.Context, h host, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	version, err := h.run(ctx, "", program, "version", "--format", "{{.Client.Version}}")
	if err == nil {
		// version answers without looking at anything; info does look.
		_, err = h.run(ctx, "", program, "info", "--format", "{{.Host.Security.Rootless}}")
	}
	return version, err
}

func because(h host, err error) string {
	if h.dockerHost != "" {
		return " at DOCKER_HOST=" + h.dockerHost
	}
	if strings.Contains(err.Error(), "permission denied") {
		return " to this user"
	}
	return ""
}

// daemonPrograms are what a private daemon is made of, and its client.
var daemonPrograms = []string{"dockerd", "containerd", "runc", "docker"}

// private returns the plan for a private daemon, or nil, having noted why there
// can't be one.
func private(options Options, h host, none *MissingError) *Plan {
	problems := len(none.Tried)
	lack := func(tried, remedy string) {
		none.Tried = append(none.Tried, tried)
		none.Remedies = append(none.Remedies, remedy)
	}
	if !h.root {
		lack("this user is not root, so no private daemon can be started",
			"start Docker, install podman, or run as root on Debian or Ubuntu")
		return nil
	}
	plan := &Plan{Kind: Private, options: options}
	var absent []string
	for _, name := range daemonPrograms {
		if _, err := h.lookPath(name); err != nil {
			absent = append(absent, name)
		}
	}
	if len(absent) > 0 {
		switch {
		case !debian(h.osRelease):
			lack("no "+strings.Join(absent, ", no ")+", and this system is neither Debian nor Ubuntu", "install Docker or podman")
		case !options.Install:
			lack("no "+strings.Join(absent, ", no "), "install the package docker.io, or allow its installation")
		default:
			plan.install = true
			plan.Steps = append(plan.Steps, "install the package docker.io with apt-get, without starting it as a service")
			plan.Notes = append(plan.Notes, "docker.io stays installed; its own service will start at the next boot unless it is disabled")
		}
	}
	effective, err := h.effective()
	if err == nil && (!effective.Has("CAP_SYS_ADMIN") || !effective.Has("CAP_NET_ADMIN")) {
		lack("root lacks CAP_SYS_ADMIN or CAP_NET_ADMIN here", "run on a machine, or in a privileged container")
	}
	version, cgroupErr := h.cgroups()
	if cgroupErr != nil {
		lack(cgroupErr.Error(), "mount the control groups as the system's init does")
	}
	missing, err := h.missing()
	if err != nil {
		lack(err.Error(), "mount /proc")
	}
	if len(none.Tried) > problems {
		return nil
	}
	dir, note, err := chooseDir(options, h)
	if err != nil {
		lack(err.Error(), "name a folder on a local disk")
		return nil
	}
	plan.trim, plan.paths = missing, pathsOf(dir)
	if note != "" {
		plan.Notes = append(plan.Notes, note)
	}
	plan.host = "unix://" + plan.paths.socket
	if s, err := h.remembered(plan.paths.state); err == nil && s.alive() {
		plan.running = true
		plan.Steps = []string{"use the private Docker daemon that runs already (socket " + plan.paths.socket + ")"}
		return plan
	}
	if others, err := h.others(plan.paths); err == nil && others {
		plan.Notes = append(plan.Notes, "another private Docker daemon runs on this machine: ports that its containers publish may be reached through loopback only from now on")
	}
	plan.Steps = append(plan.Steps, fmt.Sprintf("start a private Docker daemon: data in %s, socket %s, log %s, control groups v%d",
		plan.paths.data, plan.paths.socket, plan.paths.log, version))
	if len(missing) > 0 {
		plan.Steps = append(plan.Steps, "run its containers without "+strings.Join(missing, ", ")+", which this machine does not grant to anybody")
	}
	plan.Steps = append(plan.Steps, "stop it at the end; what it has stored stays in "+plan.paths.data+" as a cache")
	return plan
}

// chooseDir finds a folder for the daemon's data. Where overlay works on none,
// the first is taken and the daemon finds another storage driver.
func chooseDir(options Options, h host) (dir, note string, err error) {
	candidates := []string{options.Dir}
	if options.Dir == "" {
		if candidates, err = defaultDirs(h); err != nil {
			return "", "", err
		}
	}
	var errs []error
	for _, dir := range candidates {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", "", fmt.Errorf("resolving %s, %w", dir, err)
		}
		if err = h.overlay(abs); err == nil {
			return abs, "", nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", abs, err))
	}
	abs, err := filepath.Abs(candidates[0])
	return abs, "overlay does not work, so images will be slow and large (" + strings.ReplaceAll(errors.Join(errs...).Error(), "\n", "; ") + ")", err
}

// defaultDirs are where a private daemon may lie, in the order in which they
// are tried.
func defaultDirs(h host) ([]string, error) {
	cache, err := h.cacheDir()
	if err != nil {
		return nil, err
	}
	return []string{filepath.Join(cache, "docker"), "/var/lib/ladder/docker"}, nil
}

// debian says whether the system is Debian, Ubuntu or one made from them.
func debian(osRelease string) bool {
	for line := range strings.Lines(osRelease) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key != "ID" && key != "ID_LIKE" {
			continue
		}
		for _, id := range strings.Fields(strings.Trim(value, `"'`)) {
			if id == "debian" || id == "ubuntu" {
				return true
			}
		}
	}
	return false
}

// lookPath also looks where daemons lie, which is not on every root's PATH.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path := filepath.Join(dir, name); executable(path) {
			return path, nil
		}
	}
	return "", err
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
