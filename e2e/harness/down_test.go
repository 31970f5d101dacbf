package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/docker/dockertest"
	"gpuladder.dev/ladder/e2e/cluster/kind"
)

// downTest calls Down without an engine of this machine but a fake Docker.
type downTest struct {
	*dockertest.Fake
	t       *testing.T
	cleaned int
}

func newDownTest(t *testing.T) *downTest {
	d := &downTest{Fake: dockertest.NewFake(t), t: t}
	t.Setenv("LADDER_CACHE", t.TempDir())
	return d
}

// remember writes what is remembered of a cluster that was brought up.
func (d *downTest) remember(s kind.State) {
	d.t.Helper()
	content, err := json.Marshal(s)
	if err != nil {
		d.t.Fatal(err)
	}
	dir := filepath.Join(os.Getenv("LADDER_CACHE"), "kind", s.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cluster.json"), content, 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := (&env{Variables: map[string]string{"A": "1"}}).write(s.Name); err != nil {
		d.t.Fatal(err)
	}
}

// down takes the cluster "some" down; users is whether a Docker of the user is
// there, which is the fake one.
func (d *downTest) down(users bool) (said string, err error) {
	d.t.Helper()
	var b bytes.Buffer
	o := Options{Name: "some", Progress: &b}
	o.complete()
	err = down(d.t.Context(), o, docker.Access{
		Running: func(ctx context.Context, _ docker.Options) (*docker.Engine, error) {
			if !users {
				return nil, nil
			}
			return docker.Find(ctx, docker.Docker, "", docker.Options{})
		},
		Detect:  func(context.Context, docker.Options) (*docker.Plan, error) { return nil, &docker.MissingError{} },
		CleanUp: func(context.Context, io.Writer) error { d.cleaned++; return nil },
	})
	return b.String(), err
}

// known says whether the cluster is remembered, by kind and by the harness.
func (d *downTest) known() bool {
	d.t.Helper()
	state, err := kind.Remembered("some")
	if err != nil {
		d.t.Fatal(err)
	}
	_, envErr := Env(Options{Name: "some"})
	if (state == nil) != (envErr != nil) {
		d.t.Errorf("kind remembers %+v, the harness %v", state, envErr)
	}
	return state != nil
}

func TestDownRemovesTheCluster(t *testing.T) {
	d := newDownTest(t)
	d.Add("some", "some-control-plane", "some-worker")
	d.Add("other", "other-control-plane")
	d.remember(kind.State{Name: "some", Engine: docker.Docker})
	if said, err := d.down(false); err != nil || d.known() || !slices.Equal(d.Nodes(), []string{"other-control-plane"}) {
		t.Errorf("down: %v, left %v, said %q", err, d.Nodes(), said)
	}
	if said, err := d.down(true); err != nil || said != "no cluster some is there\n" {
		t.Errorf("down again: %v, said %q", err, said)
	}
}

// Up that was killed has left nodes, and no variables for tests.
func TestDownAfterAnUpThatWasKilled(t *testing.T) {
	d := newDownTest(t)
	d.Add("some", "some-control-plane")
	d.remember(kind.State{Name: "some", Engine: docker.Docker, Unfinished: true})
	if err := forget("some"); err != nil {
		t.Fatal(err)
	}
	if said, err := d.down(false); err != nil || len(d.Nodes()) != 0 || d.known() {
		t.Errorf("down: %v, left %v, said %q", err, d.Nodes(), said)
	}
}

// Where nothing is remembered and no engine runs, nothing is started; what a
// daemon left that was killed is cleaned up.
func TestDownCleansUp(t *testing.T) {
	d := newDownTest(t)
	if said, err := d.down(false); err != nil || d.cleaned != 1 || !strings.Contains(said, "no cluster some is there") {
		t.Errorf("down: %v, cleaned up %d times, said %q", err, d.cleaned, said)
	}
}

// An engine that can't be had keeps Down from forgetting what is on it.
func TestDownWhileTheEngineIsAway(t *testing.T) {
	for name, state := range map[string]kind.State{
		"the user's Docker": {Name: "some", Engine: docker.Docker},
		"a private daemon":  {Name: "some", Engine: docker.Private, Host: "unix:///run/ladder/00000000/docker.sock"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDownTest(t)
			d.remember(state)
			d.Stop()
			gone := new(docker.GoneError)
			if said, err := d.down(false); !errors.As(err, &gone) || gone.Kind != state.Engine || !d.known() || d.cleaned != 0 {
				t.Errorf("down: %v, cleaned up %d times, said %q", err, d.cleaned, said)
			}
		})
	}
}
