package command

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

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/docker/dockertest"
	"gpuladder.dev/ladder/e2e/cluster/kind"
	"gpuladder.dev/ladder/e2e/cluster/nodeimage"
)

// deadHost is the socket of a private daemon that does not run.
const deadHost = "unix:///run/ladder/00000000/docker.sock"

// kindTest runs the commands of kind without an engine of this machine: the only
// one is a fake Docker, which also stands for a private daemon that is started
// again.
type kindTest struct {
	*dockertest.Fake
	t       *testing.T
	opened  []string
	cleaned int
}

func newKindTest(t *testing.T) *kindTest {
	k := &kindTest{Fake: dockertest.NewFake(t), t: t}
	t.Setenv(binaries.EnvCache, t.TempDir())
	return k
}

func (k *kindTest) engines() engines {
	own := func(ctx context.Context) (*docker.Engine, error) {
		return docker.Find(ctx, docker.Docker, "", docker.Options{})
	}
	return engines{
		Access: docker.Access{
			Running: func(ctx context.Context, _ docker.Options) (*docker.Engine, error) {
				engine, err := own(ctx)
				if gone := new(docker.GoneError); errors.As(err, &gone) {
					return nil, nil
				}
				return engine, err
			},
			Detect:  func(context.Context, docker.Options) (*docker.Plan, error) { return nil, &docker.MissingError{} },
			CleanUp: func(context.Context, io.Writer) error { k.cleaned++; return nil },
		},
		open: func(s kind.State, ctx context.Context, progress io.Writer) (*docker.Engine, error) {
			if s.Engine != docker.Private {
				return s.OpenEngine(ctx, progress)
			}
			k.opened = append(k.opened, s.Host)
			return own(ctx)
		},
	}
}

// remember writes the memory of a cluster.
func (k *kindTest) remember(s kind.State) {
	k.t.Helper()
	content, err := json.Marshal(s)
	if err != nil {
		k.t.Fatal(err)
	}
	dir := filepath.Join(os.Getenv(binaries.EnvCache), "kind", s.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		k.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cluster.json"), content, 0o600); err != nil {
		k.t.Fatal(err)
	}
}

// run calls ladder-lab kind.
func (k *kindTest) run(args ...string) (code int, stdout, stderr string) {
	k.t.Helper()
	var out, errOut bytes.Buffer
	cmd := newKind(k.engines())
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	code = Execute(k.t.Context(), cmd, &errOut)
	return code, out.String(), errOut.String()
}

func (k *kindTest) remembered() []string {
	k.t.Helper()
	names, err := kind.List()
	if err != nil {
		k.t.Fatal(err)
	}
	return names
}

func TestKindDownSaysWhatWasThere(t *testing.T) {
	k := newKindTest(t)
	if code, stdout, stderr := k.run("down", "--name", "nosuch"); code != ExitOK || stdout != "no cluster nosuch is there\n" || k.cleaned != 0 {
		t.Errorf("nothing: code %d, %q, %q, cleaned up %d times", code, stdout, stderr, k.cleaned)
	}
	if code, stdout, stderr := k.run("down", "--all"); code != ExitOK || stdout != "no cluster is there\n" {
		t.Errorf("nothing at all: code %d, %q, %q", code, stdout, stderr)
	}
	k.Add("strange", "strange-control-plane")
	k.Add("mine", "mine-control-plane", "mine-worker")
	k.remember(kind.State{Name: "mine", Engine: docker.Docker})
	k.remember(kind.State{Name: "begun", Engine: docker.Docker, Unfinished: true})
	if code, stdout, stderr := k.run("down", "--all"); code != ExitOK || stdout != "cluster begun is down\ncluster mine is down\n" {
		t.Errorf("all: code %d, %q, %q", code, stdout, stderr)
	}
	if nodes := k.Nodes(); !slices.Equal(nodes, []string{"strange-control-plane"}) || len(k.remembered()) != 0 {
		t.Errorf("left: %v, %v", nodes, k.remembered())
	}
	if code, stdout, _ := k.run("down", "--name", "strange"); code != ExitOK || stdout != "cluster strange is down\n" || len(k.Nodes()) != 0 {
		t.Errorf("one that nobody remembers: code %d, %q", code, stdout)
	}
}

// A private daemon that was killed, its cluster remembered: status and up say
// so, and change nothing; down and up --recreate remove what it has stored.
func TestKindAfterThePrivateDaemonWasKilled(t *testing.T) {
	k := newKindTest(t)
	k.Add("dead", "dead-control-plane", "dead-worker") // stored, and seen again once a daemon runs
	k.remember(kind.State{Name: "dead", Image: "node:1", Engine: docker.Private, Host: deadHost})

	code, stdout, _ := k.run("status")
	for _, want := range []string{"cluster dead  not well", "private Docker daemon at " + deadHost + " does not run any more", "ladder-lab kind down --name dead", "--recreate --name dead"} {
		if code != ExitNotRunning || !strings.Contains(stdout, want) {
			t.Errorf("status: code %d, %q, want %q", code, stdout, want)
		}
	}
	code, stdout, _ = k.run("status", "-o", "json")
	var list struct{ Clusters []kindStatus }
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || code != ExitNotRunning || len(list.Clusters) != 1 ||
		list.Clusters[0].Image != "node:1" || list.Clusters[0].Host != deadHost || list.Clusters[0].Problem == "" {
		t.Errorf("status as JSON: code %d, %q, %v", code, stdout, err)
	}
	for _, args := range [][]string{{"up"}, {"up", "--plan"}, {"load", "x.tar"}, {"kill", "etcd@dead-control-plane"}, {"restart", "node@dead-worker"}} {
		code, stdout, stderr := k.run(append(args, "--name", "dead")...)
		if code != ExitFailed || stdout != "" || !strings.Contains(stderr, "does not run any more, and neither do its nodes") || !strings.Contains(stderr, "kind down --name dead") {
			t.Errorf("%v: code %d, %q, %q", args, code, stdout, stderr)
		}
	}
	if len(k.opened) != 0 || k.cleaned != 0 || len(k.Nodes()) != 2 || !slices.Equal(k.remembered(), []string{"dead"}) {
		t.Fatalf("something was changed: opened %v, cleaned up %d times, %v, %v", k.opened, k.cleaned, k.Nodes(), k.remembered())
	}

	if code, stdout, stderr := k.run("down", "--name", "dead"); code != ExitOK || stdout != "cluster dead is down\n" {
		t.Errorf("down: code %d, %q, %q", code, stdout, stderr)
	}
	if !slices.Equal(k.opened, []string{deadHost}) || len(k.Nodes()) != 0 || len(k.remembered()) != 0 {
		t.Errorf("down: opened %v, left %v, %v", k.opened, k.Nodes(), k.remembered())
	}
	if code, stdout, _ := k.run("status"); code != ExitNotRunning || stdout != "no cluster is there\n" {
		t.Errorf("status: code %d, %q", code, stdout)
	}

	k.Add("dead", "dead-control-plane")
	k.remember(kind.State{Name: "dead", Engine: docker.Private, Host: deadHost})
	up := kindUp{engines: k.engines(), name: "dead", again: true}
	if c, err := up.existing(t.Context(), kind.DefaultNodes(), io.Discard); c != nil || err != nil || len(k.Nodes()) != 0 || len(k.remembered()) != 0 {
		t.Errorf("up --recreate: %v, %v, left %v, %v", c, err, k.Nodes(), k.remembered())
	}
}

// Without a memory of a cluster nothing is started: what a daemon left that was
// killed is cleaned up.
func TestKindDownCleansUp(t *testing.T) {
	k := newKindTest(t)
	k.Stop()
	for _, args := range [][]string{{"down"}, {"down", "--all"}} {
		k.cleaned = 0
		if code, stdout, stderr := k.run(args...); code != ExitOK || !strings.Contains(stdout, "is there\n") || k.cleaned != 1 || len(k.opened) != 0 {
			t.Errorf("%v: code %d, %q, %q, cleaned up %d times, opened %v", args, code, stdout, stderr, k.cleaned, k.opened)
		}
	}
	if code, stdout, _ := k.run("status"); code != ExitNotRunning || stdout != "no cluster is there\n" {
		t.Errorf("status: code %d, %q", code, stdout)
	}
}

// The user's own Docker can't be started by us, nor replaced by another engine.
func TestKindWhileTheUsersDockerIsAway(t *testing.T) {
	k := newKindTest(t)
	k.Add("mine", "mine-control-plane")
	k.remember(kind.State{Name: "mine", Engine: docker.Docker})
	k.Stop()
	if code, stdout, _ := k.run("status"); code != ExitNotRunning || !strings.Contains(stdout, "Docker does not answer") || !strings.Contains(stdout, "start it again") {
		t.Errorf("status: code %d, %q", code, stdout)
	}
	for _, args := range [][]string{{"down"}, {"up"}, {"up", "--recreate"}} {
		code, stdout, stderr := k.run(append(args, "--name", "mine")...)
		if code != ExitFailed || stdout != "" || !strings.Contains(stderr, "Docker does not answer") {
			t.Errorf("%v: code %d, %q, %q", args, code, stdout, stderr)
		}
	}
	if k.cleaned != 0 || !slices.Equal(k.remembered(), []string{"mine"}) {
		t.Errorf("cleaned up %d times, remembered %v", k.cleaned, k.remembered())
	}
	k.Start()
	if code, stdout, stderr := k.run("down", "--name", "mine"); code != ExitOK || len(k.Nodes()) != 0 {
		t.Errorf("down: code %d, %q, %q, left %v", code, stdout, stderr, k.Nodes())
	}
}

func TestKindStatusOfACreationThatWasBrokenOff(t *testing.T) {
	k := newKindTest(t)
	k.Add("half", "half-control-plane")
	k.remember(kind.State{Name: "half", Engine: docker.Docker, Unfinished: true})
	if code, stdout, _ := k.run("status"); code != ExitNotRunning || !strings.Contains(stdout, "creation goes on, or was broken off") || !strings.Contains(stdout, "kind down --name half") {
		t.Errorf("status: code %d, %q", code, stdout)
	}
}

// Nodes that nobody remembers, on an engine that had to be started to see them.
func TestKindUpOnNodesThatNobodyRemembers(t *testing.T) {
	k := newKindTest(t)
	engine, err := docker.Find(t.Context(), docker.Docker, "", docker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	k.Add("lost", "lost-control-plane")
	up := kindUp{engines: k.engines(), name: "lost", image: "node:1"}
	_, err = up.createOn(t.Context(), engine, kind.DefaultNodes(), nodeimage.Auto, io.Discard)
	if !errors.Is(err, kind.ErrExists) || !strings.Contains(err.Error(), "--recreate") || len(k.Nodes()) != 1 {
		t.Errorf("createOn = %v, left %v", err, k.Nodes())
	}
}

func TestKindUpTellsUnknownTiers(t *testing.T) {
	k := newKindTest(t)
	_, _, stderr := k.run("up", "--plan", "--worker", "a="+kind.TierLabel+"=h1000")
	if !strings.Contains(stderr, `node a gets no GPUs`) || !strings.Contains(stderr, `there are h100, `) {
		t.Errorf("said %q", stderr)
	}
}
