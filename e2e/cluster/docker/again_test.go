package docker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// died is what a private daemon leaves in /run when it is killed: the processes
// that are remembered are gone.
func died(dir string) map[string]*state {
	return map[string]*state{pathsOf(dir).state: {Dir: dir}}
}

func TestIsPrivate(t *testing.T) {
	for host, want := range map[string]bool{
		hostOf("/any/folder"):                true,
		"unix:///run/ladder/abc/docker.sock": true,
		"":                                   false,
		"tcp://h:1":                          false,
		"unix:///var/run/docker.sock":        false,
		"unix:///run/docker.sock":            false,
		"unix:///run/ladder/docker.sock":     false,
		"unix:///run/ladder/a/b.sock":        false,
		"/run/ladder/abc/docker.sock":        false,
	} {
		if IsPrivate(host) != want {
			t.Errorf("IsPrivate(%q) = %t", host, !want)
		}
	}
}

// An engine is found by what is remembered of it, whatever else runs.
func TestFind(t *testing.T) {
	const elsewhere = "tcp://h:1"
	both := machine{programs: everything, answers: merge(podmanUp, dockerUp), daemons: runningIn("/some/docker")}
	for name, tc := range map[string]struct {
		machine machine
		kind    Kind
		host    string
		gone    string // what the error says, "" for none
	}{
		"Docker":                  {machine: both, kind: Docker},
		"Docker elsewhere":        {machine: both, kind: Docker, host: elsewhere},
		"podman beside Docker":    {machine: both, kind: Podman},
		"private beside Docker":   {machine: both, kind: Private, host: hostOf("/some/docker")},
		"Docker has ended":        {machine: machine{programs: everything}, kind: Docker, host: elsewhere, gone: "Docker at tcp://h:1 does not answer (connection refused)"},
		"Docker is uninstalled":   {machine: machine{}, kind: Docker, gone: "Docker does not answer (docker: "},
		"podman does not work":    {machine: machine{programs: everything, answers: dockerUp}, kind: Podman, gone: "podman does not work any more"},
		"only another host":       {machine: machine{programs: everything, answers: dockerUp, answersAt: []string{""}}, kind: Docker, host: elsewhere, gone: "Docker at tcp://h:1"},
		"private, killed":         {machine: machine{programs: everything, answers: dockerUp, daemons: died("/some/docker")}, kind: Private, host: hostOf("/some/docker"), gone: "the private Docker daemon at " + hostOf("/some/docker") + " does not run any more"},
		"private, after a boot":   {machine: machine{programs: everything, answers: dockerUp}, kind: Private, host: hostOf("/some/docker"), gone: "the private Docker daemon at"},
		"private, another one is": {machine: both, kind: Private, host: hostOf("/other/docker"), gone: "the private Docker daemon at"},
	} {
		t.Run(name, func(t *testing.T) {
			engine, err := find(t.Context(), tc.kind, tc.host, Options{}, tc.machine.host(t))
			if tc.gone == "" {
				if err != nil {
					t.Fatal(err)
				}
				if engine.Kind() != tc.kind || engine.Host() != tc.host || engine.Started() {
					t.Errorf("found %+v", engine)
				}
				return
			}
			gone := new(GoneError)
			if !errors.As(err, &gone) || gone.Kind != tc.kind || gone.Host != tc.host || !strings.HasPrefix(err.Error(), tc.gone) {
				t.Errorf("find = %+v, %v, want %q", engine, err, tc.gone)
			}
		})
	}
}

// A private daemon that has ended is started on its own folder again, even
// where Docker answers now.
func TestAgain(t *testing.T) {
	root := rootOnEmpty
	root.programs, root.answers = everything, dockerUp
	root.overlay = map[string]bool{cachedDir: true, "/some/docker": true}
	with := func(daemons map[string]*state) machine {
		m := root
		m.daemons = daemons
		return m
	}
	for name, tc := range map[string]struct {
		machine machine
		dir     string
		says    string
		running bool
	}{
		"killed":                   {with(died(cachedDir)), cachedDir, "start a private Docker daemon: data in " + cachedDir + "/data", false},
		"killed, in another place": {with(died("/some/docker")), "/some/docker", "data in /some/docker/data", false},
		"after a boot":             {root, cachedDir, "data in " + cachedDir + "/data", false},
		"it runs":                  {with(runningIn(cachedDir)), cachedDir, "runs already", true},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := again(t.Context(), Private, hostOf(tc.dir), Options{}, tc.machine.host(t))
			if err != nil {
				t.Fatal(err)
			}
			if plan.Kind != Private || plan.host != hostOf(tc.dir) || !strings.Contains(plan.String(), tc.says) || plan.install {
				t.Errorf("the plan is %+v", plan)
			}
			if (plan.Running() != nil) != tc.running {
				t.Errorf("Running = %+v", plan.Running())
			}
		})
	}

	gone := new(GoneError)
	if plan, err := again(t.Context(), Private, hostOf("/lost/docker"), Options{}, root.host(t)); !errors.As(err, &gone) || !strings.Contains(err.Error(), "its data are not in "+cachedDir) {
		t.Errorf("a folder that nobody remembers: %+v, %v", plan, err)
	}
	if plan, err := again(t.Context(), Docker, "tcp://h:1", Options{}, machine{}.host(t)); !errors.As(err, &gone) || gone.Kind != Docker {
		t.Errorf("Docker that is away: %+v, %v", plan, err)
	}
	plan, err := again(t.Context(), Docker, "tcp://h:1", Options{}, root.host(t))
	if err != nil {
		t.Fatal(err)
	}
	if e := plan.Running(); e == nil || e.Kind() != Docker || !slices.Contains(e.Env(), "DOCKER_HOST=tcp://h:1") {
		t.Errorf("Docker again: %+v", e)
	}
	missing := new(MissingError)
	if plan, err := again(t.Context(), Private, hostOf(cachedDir), Options{}, machine{programs: everything}.host(t)); !errors.As(err, &missing) {
		t.Errorf("without root: %+v, %v", plan, err)
	}
}

func TestGoneErrorKeepsItsReason(t *testing.T) {
	reason := errors.New("first\nsecond")
	err := fmt.Errorf("looking, %w", &GoneError{Kind: Podman, Reason: reason})
	if !errors.Is(err, reason) || err.Error() != "looking, podman does not work any more (first)" {
		t.Errorf("%v", err)
	}
}
