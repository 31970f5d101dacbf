package kind

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/docker/dockertest"
)

// fakeEngine is a Docker for this test, with a memory of its own.
func fakeEngine(t *testing.T) *dockertest.Fake {
	t.Helper()
	f := dockertest.NewFake(t)
	t.Setenv("LADDER_CACHE", t.TempDir())
	usersOwn = nil
	t.Cleanup(func() { usersOwn = nil })
	return f
}

// remember writes what Create remembers.
func remember(t *testing.T, s State) {
	t.Helper()
	dir, err := stateDir(s.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.write(dir); err != nil {
		t.Fatal(err)
	}
}

func dockerAt(t *testing.T, host string) *docker.Engine {
	t.Helper()
	engine, err := docker.Find(t.Context(), docker.Docker, host, docker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

func TestRemoveTellsWhatWasNeverThere(t *testing.T) {
	f := fakeEngine(t)
	engine := dockerAt(t, "")
	if err := Remove(t.Context(), "nosuch", engine, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("Remove = %v, want %v", err, ErrNotFound)
	}
	f.Add("other", "other-control-plane")
	f.Add("lab", "lab-control-plane", "lab-worker")
	if err := Remove(t.Context(), "lab", engine, nil); err != nil {
		t.Errorf("nodes that nobody remembers: %v", err)
	}
	remember(t, State{Name: "lab", Engine: docker.Docker, Unfinished: true})
	if err := Remove(t.Context(), "lab", engine, nil); err != nil {
		t.Errorf("a memory without nodes: %v", err)
	}
	if s, err := Remembered("lab"); s != nil || err != nil {
		t.Errorf("it is still remembered: %+v, %v", s, err)
	}
	if err := Remove(t.Context(), "lab", engine, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("Remove again = %v", err)
	}
	if left := f.Nodes(); !slices.Equal(left, []string{"other-control-plane"}) {
		t.Errorf("left: %v", left)
	}
}

// The lock on a kubeconfig that a killed process has left stands in nobody's way.
func TestRemoveAfterAProcessWasKilled(t *testing.T) {
	f := fakeEngine(t)
	f.Add("lab", "lab-control-plane")
	remember(t, State{Name: "lab", Engine: docker.Docker, Unfinished: true})
	dir, err := stateDir("lab")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig.lock"), nil, 0); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if err := Remove(t.Context(), "lab", dockerAt(t, ""), &said); err != nil || len(f.Nodes()) != 0 || strings.Contains(said.String(), "trying again") {
		t.Errorf("Remove = %v, left %v, said %q", err, f.Nodes(), said.String())
	}
}

func TestAttachSaysWhatIsWrong(t *testing.T) {
	f := fakeEngine(t)
	engine := dockerAt(t, "")
	attach := func() error {
		_, err := Attach(t.Context(), "lab", engine, nil)
		return err
	}
	if err := attach(); !errors.Is(err, ErrNotFound) || strings.Contains(err.Error(), "somebody") {
		t.Errorf("nothing: %v", err)
	}
	remember(t, State{Name: "lab", Engine: docker.Docker})
	if err := attach(); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "somebody has removed its nodes") {
		t.Errorf("nodes that are gone: %v", err)
	}
	f.Add("lab", "lab-control-plane")
	remember(t, State{Name: "lab", Engine: docker.Docker, Unfinished: true})
	if err := attach(); !errors.Is(err, ErrUnfinished) || errors.Is(err, ErrNotFound) {
		t.Errorf("a creation that was broken off: %v", err)
	}
}

// A cluster is found on the engine that it was made on, and on no other.
func TestTheEngineOfACluster(t *testing.T) {
	f := fakeEngine(t)
	mine := State{Name: "lab", Engine: docker.Docker, Host: "tcp://h:1"}
	engine, err := mine.FindEngine(t.Context(), nil)
	if err != nil || engine.Host() != "tcp://h:1" {
		t.Fatalf("FindEngine = %+v, %v", engine, err)
	}
	dead := State{Name: "lab", Engine: docker.Private, Host: "unix:///run/ladder/00000000/docker.sock"}
	gone := new(docker.GoneError)
	if _, err := dead.FindEngine(t.Context(), nil); !errors.As(err, &gone) || gone.Kind != docker.Private {
		t.Errorf("a private daemon that has ended: %v", err)
	}
	f.Stop()
	for name, find := range map[string]func() error{
		"find": func() error { _, err := mine.FindEngine(t.Context(), nil); return err },
		"open": func() error { _, err := mine.OpenEngine(t.Context(), nil); return err },
	} {
		if err := find(); !errors.As(err, &gone) || gone.Host != "tcp://h:1" || !strings.Contains(err.Error(), "Cannot connect") {
			t.Errorf("%s: Docker that does not answer: %v", name, err)
		}
	}
	// A daemon of which nothing is known can't be started again; what helps is said.
	home, err := stateDir("lab")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dead.OpenEngine(t.Context(), nil); !errors.As(err, &gone) || !strings.Contains(err.Error(), home) {
		t.Errorf("a private daemon whose data are gone: %v", err)
	}
}

// A new cluster does not take the place of one whose engine does not run.
func TestCreateLeavesNoClusterBehind(t *testing.T) {
	fakeEngine(t)
	old := State{Name: "lab", Image: "node:1", Engine: docker.Private, Host: "unix:///run/ladder/00000000/docker.sock"}
	remember(t, old)
	_, err := Create(t.Context(), Options{Name: "lab", Image: "node:2", Engine: dockerAt(t, "")})
	if !errors.Is(err, ErrElsewhere) || !strings.Contains(err.Error(), old.Host) {
		t.Errorf("Create = %v", err)
	}
	if s, err := Remembered("lab"); err != nil || s == nil || s.Image != "node:1" {
		t.Errorf("it is remembered as %+v, %v", s, err)
	}
	for _, tc := range []struct {
		engine docker.Kind
		host   string
		on     bool
	}{{docker.Docker, "", true}, {docker.Docker, "tcp://h:1", true}, {docker.Podman, "", false}, {docker.Private, "", false}} {
		if s := (State{Engine: tc.engine, Host: tc.host}); s.on(dockerAt(t, "")) != tc.on {
			t.Errorf("%+v is on Docker: %t", s, !tc.on)
		}
	}
}

// Create that fails leaves its logs and no memory of a cluster.
func TestCreateThatFails(t *testing.T) {
	fakeEngine(t)
	var said bytes.Buffer
	c, err := newCluster("lab", dockerAt(t, ""), &said)
	if err != nil {
		t.Fatal(err)
	}
	c.state = State{Name: "lab", Engine: docker.Docker, Unfinished: true}
	remember(t, c.state)
	broken := errors.New("broken")
	if err := c.abandon(t.Context(), true, broken); !errors.Is(err, broken) {
		t.Errorf("abandon = %v", err)
	}
	if s, err := Remembered("lab"); err != nil || s == nil || s.Unfinished {
		t.Errorf("kept, it is remembered as %+v, %v", s, err)
	}
	if err := c.abandon(t.Context(), false, broken); !errors.Is(err, broken) || !strings.Contains(err.Error(), c.LogsDir()) {
		t.Errorf("abandon = %v", err)
	}
	if s, err := Remembered("lab"); err != nil || s != nil {
		t.Errorf("it is remembered as %+v, %v", s, err)
	}
}

// A creation that takes too long leaves its nodes where they are to be kept, and
// not otherwise.
func TestCreateThatIsLate(t *testing.T) {
	for _, keep := range []bool{true, false} {
		f := fakeEngine(t)
		f.Add("lab", "lab-control-plane")
		c, err := newCluster("lab", dockerAt(t, ""), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		c.state = State{Name: "lab", Engine: docker.Docker, Unfinished: true}
		remember(t, c.state)
		late := errors.New("it is not ready after a moment")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(late)
		o := Options{Name: "lab", Image: "node:1", Nodes: DefaultNodes(), Engine: c.engine, Keep: keep}
		err = c.abandon(ctx, keep, c.create(ctx, o, machine{}))
		if !errors.Is(err, late) || strings.Contains(err.Error(), "left as they are") != keep {
			t.Errorf("keep %t: %v", keep, err)
		}
		if left := len(f.Nodes()) > 0; left != keep {
			t.Errorf("keep %t: left are %v", keep, f.Nodes())
		}
	}
}

// One process can use one engine after the other; the user's own is found as the
// user says, and never in a private daemon.
func TestUseChangesBack(t *testing.T) {
	f := fakeEngine(t)
	t.Setenv("DOCKER_CONTEXT", "mine")
	for _, host := range []string{"tcp://h:1", ""} {
		if err := use(dockerAt(t, host)); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"": "mine"}[host]
		if got := os.Getenv("DOCKER_HOST"); got != host {
			t.Errorf("DOCKER_HOST = %q, want %q", got, host)
		}
		if got := os.Getenv("DOCKER_CONTEXT"); got != want {
			t.Errorf("DOCKER_CONTEXT = %q, want %q", got, want)
		}
	}
	usersOwn = nil
	t.Setenv("DOCKER_HOST", "unix:///run/ladder/00000000/docker.sock")
	if err := use(dockerAt(t, "")); err != nil {
		t.Fatal(err)
	}
	if host, set := os.LookupEnv("DOCKER_HOST"); set {
		t.Errorf("DOCKER_HOST = %q", host)
	}
	if hosts := f.Hosts(); !slices.Equal(hosts, []string{"tcp://h:1", ""}) {
		t.Errorf("called at %q", hosts)
	}
}

func TestUnknownTiersAreTold(t *testing.T) {
	nodes, err := ParseWorkers([]string{
		"a=" + TierLabel + "=h1000", "b=" + TierLabel + "=h100", "c=zone=east", "d=" + TierLabel + "=h100-mig",
		"e=" + TierLabel + "=l4,gpuladder.dev/fake-gpus=many",
	})
	if err != nil {
		t.Fatal(err)
	}
	words := CheckTiers(nodes)
	if len(words) != 2 || !strings.Contains(words[0], "node a ") || !strings.Contains(words[0], `no tier "h1000"; there are h100, a100-80`) ||
		!strings.Contains(words[1], "node e ") {
		t.Errorf("said: %q", words)
	}
	if words := CheckTiers(DefaultNodes()); len(words) != 0 {
		t.Errorf("of the default nodes: %q", words)
	}
}

func TestCheckName(t *testing.T) {
	for name, good := range map[string]bool{"ladder-e2e": true, "a": true, "": false, "A B": false, "../x": false, "x-": false, strings.Repeat("x", 41): false} {
		if err := CheckName(name); (err == nil) != good {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
}
