package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/e2e/cluster/docker/capability"
	"gpuladder.dev/ladder/e2e/cluster/process"
)

const bookworm = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n"

// machine describes a host for detect: which programs it has and what they
// answer, by their command line; a program that is not named in answers fails.
type machine struct {
	programs   []string
	answers    map[string]string
	fails      map[string]string
	root       bool
	release    string
	missing    []string
	effective  capability.Set
	cgroupErr  error
	overlay    map[string]bool
	others     bool
	dockerHost string
	// answersAt are the hosts at which there is a daemon; all, where it is nil.
	answersAt []string
	// daemons are the private ones that are remembered, by their state file.
	daemons map[string]*state
}

func (m machine) host(t *testing.T) host {
	t.Helper()
	return host{
		lookPath: func(name string) (string, error) {
			if slices.Contains(m.programs, name) {
				return "/bin/" + name, nil
			}
			return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
		},
		run: func(_ context.Context, at, name string, args ...string) (string, error) {
			if m.answersAt != nil && !slices.Contains(m.answersAt, at) {
				return "", errors.New("no such host")
			}
			line := strings.TrimPrefix(name, "/bin/") + " " + args[0]
			if answer, found := m.answers[line]; found {
				return answer, nil
			}
			if fail, found := m.fails[line]; found {
				return "", errors.New(fail)
			}
			return "", errors.New("connection refused")
		},
		root:       m.root,
		osRelease:  m.release,
		missing:    func() ([]string, error) { return m.missing, nil },
		effective:  func() (capability.Set, error) { return m.effective, nil },
		cgroups:    func() (int, error) { return 2, m.cgroupErr },
		overlay:    func(dir string) error { return map[bool]error{false: errors.New("not supported")}[m.overlay[dir]] },
		cacheDir:   func() (string, error) { return "/home/user/.cache/ladder", nil },
		others:     func(paths) (bool, error) { return m.others, nil },
		dockerHost: usersHost(m.dockerHost),
		remembered: func(file string) (*state, error) {
			if s, found := m.daemons[file]; found {
				return s, nil
			}
			return nil, fmt.Errorf("%s: %w", file, fs.ErrNotExist)
		},
	}
}

var (
	everything  = append([]string{"podman"}, daemonPrograms...)
	dockerUp    = map[string]string{"docker --version": "Docker version 28.2.2, build x", "docker version": "28.2.2"}
	podmanUp    = map[string]string{"podman version": "5.4.0", "podman info": "true"}
	inTheCache  = map[string]bool{"/home/user/.cache/ladder/docker": true, "/var/lib/ladder/docker": true}
	rootOnEmpty = machine{root: true, release: bookworm, effective: ^capability.Set(0), overlay: inTheCache}
)

// cachedDir is where a private daemon lies by default.
const cachedDir = "/home/user/.cache/ladder/docker"

// runningIn is what is remembered of a private daemon that runs: its process is
// this one.
func runningIn(dir string) map[string]*state {
	return map[string]*state{pathsOf(dir).state: {Dir: dir, Daemon: process.Self()}}
}

func hostOf(dir string) string { return "unix://" + pathsOf(dir).socket }

func TestDetect(t *testing.T) {
	with := func(m machine, change func(*machine)) machine {
		change(&m)
		return m
	}
	for name, tc := range map[string]struct {
		machine machine
		options Options
		kind    Kind
		host    string
		says    []string
		not     []string
	}{
		"docker answers": {
			machine: machine{programs: everything, answers: dockerUp},
			kind:    Docker, says: []string{"the Docker daemon that answers (28.2.2)"},
		},
		"docker answers elsewhere": {
			machine: machine{programs: everything, answers: dockerUp, dockerHost: "tcp://h:1"},
			kind:    Docker, host: "tcp://h:1",
		},
		"podman": {
			machine: machine{programs: everything, answers: podmanUp},
			kind:    Podman, says: []string{"use podman (5.4.0)"},
		},
		"podman that is called docker": {
			machine: machine{programs: everything, answers: merge(podmanUp, map[string]string{"docker --version": "podman version 5.4.0", "docker version": "5.4.0"})},
			kind:    Podman,
		},
		"docker before podman": {
			machine: machine{programs: everything, answers: merge(podmanUp, dockerUp)},
			kind:    Docker,
		},
		"nothing answers, the programs are there": {
			machine: with(rootOnEmpty, func(m *machine) { m.programs = daemonPrograms }),
			kind:    Private,
			says:    []string{"data in /home/user/.cache/ladder/docker/data", "control groups v2", "stop it at the end"},
			not:     []string{"apt-get", "without CAP", "note"},
		},
		"another private daemon is at work": {
			machine: with(rootOnEmpty, func(m *machine) { m.programs, m.others = daemonPrograms, true }),
			kind:    Private,
			says:    []string{"note: another private Docker daemon runs"},
		},
		"to be installed": {
			machine: rootOnEmpty, options: Options{Install: true},
			kind: Private, says: []string{"install the package docker.io with apt-get", "stays installed"},
		},
		"Ubuntu": {
			machine: with(rootOnEmpty, func(m *machine) { m.release = "ID=\"ubuntu\"\nID_LIKE=debian\n" }),
			options: Options{Install: true}, kind: Private,
		},
		"no Debian, but the programs are there": {
			machine: with(rootOnEmpty, func(m *machine) { m.programs, m.release = daemonPrograms, "ID=arch\n" }),
			kind:    Private,
		},
		"capabilities lack": {
			machine: with(rootOnEmpty, func(m *machine) { m.programs, m.missing = daemonPrograms, []string{"CAP_SYS_RESOURCE", "CAP_SYS_TIME"} }),
			kind:    Private, says: []string{"without CAP_SYS_RESOURCE, CAP_SYS_TIME"},
		},
		"podman, but capabilities lack": {
			machine: with(rootOnEmpty, func(m *machine) {
				m.programs, m.answers, m.missing = everything, podmanUp, []string{"CAP_SYS_RESOURCE"}
			}),
			kind: Private, says: []string{"without CAP_SYS_RESOURCE"}, not: []string{"podman"},
		},
		"the cache lies on an overlay itself": {
			machine: with(rootOnEmpty, func(m *machine) {
				m.programs, m.overlay = daemonPrograms, map[string]bool{"/var/lib/ladder/docker": true}
			}),
			kind: Private, says: []string{"data in /var/lib/ladder/docker/data"}, not: []string{"note"},
		},
		"no overlay anywhere": {
			machine: with(rootOnEmpty, func(m *machine) { m.programs, m.overlay = daemonPrograms, nil }),
			kind:    Private, says: []string{"data in /home/user/.cache/ladder/docker/data", "note: overlay does not work", "not supported"},
		},
		"a folder is named": {
			machine: with(rootOnEmpty, func(m *machine) { m.programs, m.overlay = daemonPrograms, map[string]bool{"/data/docker": true} }),
			options: Options{Dir: "/data/docker"},
			kind:    Private, says: []string{"data in /data/docker/data"},
		},
		"a private daemon runs": {
			machine: with(rootOnEmpty, func(m *machine) { m.programs, m.daemons = daemonPrograms, runningIn(cachedDir) }),
			kind:    Private, says: []string{"use the private Docker daemon that runs already (socket " + pathsOf(cachedDir).socket},
		},
		"DOCKER_HOST names the private daemon that runs": {
			machine: with(rootOnEmpty, func(m *machine) {
				m.programs, m.daemons = everything, runningIn(cachedDir)
				m.dockerHost = hostOf(cachedDir)
				m.answers, m.answersAt = dockerUp, []string{m.dockerHost}
			}),
			kind: Private, says: []string{"use the private Docker daemon that runs already"}, not: []string{"that answers"},
		},
		"DOCKER_HOST names a private daemon that has died": {
			machine: with(rootOnEmpty, func(m *machine) {
				m.programs, m.daemons = daemonPrograms, map[string]*state{pathsOf(cachedDir).state: {Dir: cachedDir}}
				m.dockerHost = hostOf(cachedDir)
			}),
			kind: Private, says: []string{"start a private Docker daemon"}, not: []string{"runs already"},
		},
		"DOCKER_HOST names a private daemon beside the user's own": {
			machine: machine{programs: everything, answers: dockerUp, answersAt: []string{""}, dockerHost: hostOf(cachedDir)},
			kind:    Docker, host: "", says: []string{"the Docker daemon that answers"},
		},
		"a private one is asked for": {
			machine: with(rootOnEmpty, func(m *machine) { m.programs, m.answers = everything, dockerUp }),
			options: Options{Private: true}, kind: Private,
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := detect(t.Context(), tc.options, tc.machine.host(t))
			if err != nil {
				t.Fatal(err)
			}
			wantHost := tc.host
			if tc.kind == Private {
				wantHost = "unix://" + plan.paths.socket
			}
			if plan.Kind != tc.kind || plan.host != wantHost || len(plan.Steps) == 0 {
				t.Errorf("plan = %+v", plan)
			}
			for _, want := range tc.says {
				if !strings.Contains(plan.String(), want) {
					t.Errorf("the plan does not say %q:\n%s", want, plan)
				}
			}
			for _, unwanted := range tc.not {
				if strings.Contains(plan.String(), unwanted) {
					t.Errorf("the plan says %q:\n%s", unwanted, plan)
				}
			}
		})
	}
}

func merge(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func TestDetectWhereThereIsNone(t *testing.T) {
	const denied = "dial unix /var/run/docker.sock: connect: permission denied"
	for name, tc := range map[string]struct {
		machine machine
		says    []string
	}{
		"a user without anything": {
			machine{release: bookworm},
			[]string{"no program docker", "no program podman", "not root", "install podman"},
		},
		"a user whom Docker does not know": {
			machine{programs: []string{"docker"}, fails: map[string]string{"docker version": denied}},
			[]string{"does not answer to this user", "group docker"},
		},
		"a remote Docker that is away": {
			machine{programs: []string{"docker"}, dockerHost: "tcp://h:1"},
			[]string{"does not answer at DOCKER_HOST=tcp://h:1"},
		},
		"podman where capabilities are missing": {
			machine{programs: []string{"podman"}, answers: podmanUp, missing: []string{"CAP_SYS_RESOURCE"}},
			[]string{"podman can't run the privileged containers of nodes, for this machine grants nobody CAP_SYS_RESOURCE", "run on a machine that grants"},
		},
		"podman without its machine": {
			machine{programs: []string{"podman"}, answers: map[string]string{"podman version": "5"}, fails: map[string]string{"podman info": "cannot connect\nmore"}},
			[]string{"podman does not work (cannot connect)"},
		},
		"root on another system": {
			machine{root: true, release: "ID=fedora\n", effective: ^capability.Set(0)},
			[]string{"no dockerd, no containerd, no runc, no docker", "neither Debian nor Ubuntu", "install Docker or podman"},
		},
		"root who does not allow the installation": {
			rootOnEmpty, []string{"no dockerd", "allow its installation"},
		},
		"root in a container": {
			machine{root: true, programs: daemonPrograms, cgroupErr: ErrNoCgroups, effective: 0},
			[]string{"CAP_SYS_ADMIN", "no control groups", "privileged container"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := detect(t.Context(), Options{}, tc.machine.host(t))
			missing := new(MissingError)
			if !errors.As(err, &missing) || plan != nil {
				t.Fatalf("detect = %+v, %v", plan, err)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
			if len(missing.Remedies) == 0 {
				t.Error("nothing is said that helps")
			}
		})
	}
}

func TestDetectBrokenOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := rootOnEmpty
	m.programs = daemonPrograms
	if plan, err := detect(ctx, Options{}, m.host(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("detect = %+v, %v", plan, err)
	}
}

func TestDebian(t *testing.T) {
	for release, want := range map[string]bool{
		bookworm:                               true,
		"ID=ubuntu\n":                          true,
		"ID=linuxmint\nID_LIKE=\"ubuntu x\"\n": true,
		"ID=raspbian\nID_LIKE=debian":          true,
		"ID=fedora\nVARIANT_ID=debian\n":       false,
		"ID=notdebian\n":                       false,
		"":                                     false,
	} {
		if got := debian(release); got != want {
			t.Errorf("debian(%q) = %v", release, got)
		}
	}
}

// A real Detect on this machine makes nothing.
func TestDetectChangesNothing(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "a", "b")
	plan, err := Detect(t.Context(), Options{Private: true, Dir: dir})
	missing := new(MissingError)
	if err != nil && !errors.As(err, &missing) {
		t.Fatal(err)
	}
	if err == nil && plan.paths.dir != dir {
		t.Errorf("the folder is %s", plan.paths.dir)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 0 {
		t.Errorf("made %v, %v", entries, err)
	}
}

func TestEngineOfTheUser(t *testing.T) {
	t.Setenv("DOCKER_HOST", "tcp://old:1")
	t.Setenv("DOCKER_CONTEXT", "other")
	t.Setenv("DOCKER_TLS_VERIFY", "1")
	theirs := &Engine{kind: Docker, program: "docker"}
	if err := theirs.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := theirs.Purge(t.Context()); err != nil {
		t.Error(err)
	}
	if env := theirs.Env(); !slices.Contains(env, "DOCKER_CONTEXT=other") || !slices.Contains(env, "DOCKER_HOST=tcp://old:1") {
		t.Errorf("their environment is changed: %v", env)
	}
	t.Setenv("DOCKER_HOST", hostOf("/x"))
	if env := theirs.Env(); slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "DOCKER_HOST=") }) {
		t.Errorf("a private daemon is taken for theirs: %v", env)
	}
	ours := newPrivate(pathsOf("/x"), "docker", nil)
	env := ours.Command(t.Context(), "ps").Env
	if hosts := slices.DeleteFunc(slices.Clone(env), func(v string) bool { return !strings.HasPrefix(v, "DOCKER_") }); !slices.Equal(hosts, []string{"DOCKER_HOST=" + ours.Host()}) {
		t.Errorf("our environment says %v", hosts)
	}
}
