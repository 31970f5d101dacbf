package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpuladder.dev/ladder/e2e/cluster/docker/capability"
	"gpuladder.dev/ladder/e2e/cluster/docker/dockertest"
)

// testWriter hands progress to the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// needDaemon skips the test where no private daemon can be started at once.
func needDaemon(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a Docker daemon")
	}
	if os.Geteuid() != 0 {
		t.Skip("a private daemon needs root")
	}
	for _, name := range daemonPrograms {
		if _, err := lookPath(name); err != nil {
			t.Skipf("no %s", name)
		}
	}
	if _, err := CgroupVersion(); err != nil {
		t.Skip(err)
	}
	dockertest.Alone(t)
	// What a killed one left would be taken for the machine's own state.
	if err := CleanUp(t.Context(), testWriter{t}); err != nil {
		t.Fatal(err)
	}
	// Starting and stopping here would be felt there, and the other way round.
	if inUse, err := othersInUse(pathsOf(t.Name())); err != nil || inUse {
		t.Skipf("another private daemon runs on this machine (%v)", err)
	}
}

// machineState is what must be the same after a daemon has been stopped.
type machineState struct {
	links, rules, forwarding string
}

func stateOfMachine(t *testing.T) machineState {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var s machineState
	for _, l := range links {
		s.links += l.Name + "\n"
	}
	for _, f := range filters {
		rules, err := listRules(t.Context(), f.program, f.table)
		if err == nil {
			s.rules += fmt.Sprintf("%s %s\n%s\n", f.program, f.table, strings.Join(rules, "\n"))
		}
	}
	for _, path := range forwardingFiles {
		content, err := os.ReadFile(path)
		if err == nil {
			s.forwarding += path + " " + string(content)
		}
	}
	return s
}

// processesNaming returns the command lines that name the folder.
func processesNaming(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	_, err := processesOf(func(argv [][]byte) bool {
		line := string(bytes.Join(argv, []byte(" ")))
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// assertNothingLeft fails if anything but the data is left of the daemon.
func assertNothingLeft(t *testing.T, p paths, before machineState) {
	t.Helper()
	if left := processesNaming(t, p.run); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	mounts, err := mountsBelow(p.run, p.dir)
	if err != nil || len(mounts) > 0 {
		t.Errorf("mounts are left: %v, %v", mounts, err)
	}
	if groups, err := cgroupsOf((&daemon{paths: p}).containers()); err != nil || len(groups) > 0 {
		t.Errorf("control groups are left: %v, %v", groups, err)
	}
	if _, err := os.Stat(p.run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", p.run, err)
	}
	after := stateOfMachine(t)
	if after.links != before.links {
		t.Errorf("interfaces: before\n%safter\n%s", before.links, after.links)
	}
	if after.rules != before.rules {
		t.Errorf("packet filter: before\n%safter\n%s", before.rules, after.rules)
	}
	if after.forwarding != before.forwarding {
		t.Errorf("forwarding: before\n%safter\n%s", before.forwarding, after.forwarding)
	}
}

// open starts a private daemon below the folder.
func open(t *testing.T, dir string) *Engine {
	t.Helper()
	plan, err := Detect(t.Context(), Options{Private: true, Dir: dir, Progress: testWriter{t}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the plan:\n%s", plan)
	e, err := plan.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// buildSleeper makes an image from the test's program and nothing else.
func buildSleeper(t *testing.T, e *Engine) {
	t.Helper()
	context := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(context, "sleeper"), "./testdata/sleeper")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const dockerfile = "FROM scratch\nCOPY sleeper /sleeper\nENTRYPOINT [\"/sleeper\"]\n"
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(dockerfile), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := e.Command(t.Context(), "build", "--tag", "sleeper", context)
	cmd.Env = append(cmd.Env, "DOCKER_BUILDKIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func docker(t *testing.T, e *Engine, args ...string) string {
	t.Helper()
	out, err := e.Output(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// assertPrivileged checks what a privileged process printed: it may do nearly
// everything (an older Docker knows not all capabilities of the kernel), and
// nothing that the machine does not grant.
func assertPrivileged(t *testing.T, printed string) {
	t.Helper()
	granted, err := capability.Bounding()
	if err != nil {
		t.Fatal(err)
	}
	var has uint64
	if _, err := fmt.Sscanf(printed, "CapBnd:\t%x", &has); err != nil {
		t.Fatalf("reading %q: %v", printed, err)
	}
	const old = 1<<(unix.CAP_AUDIT_READ+1) - 1 // what every Docker knows
	if has&^uint64(granted) != 0 || has&old != uint64(granted)&old {
		t.Errorf("a privileged process may do %x of %x", has, uint64(granted))
	}
}

// The life of a private daemon: privileged containers, a network of the user's,
// found by a second process, stopped without a trace, its images still there
// when it is started again.
func TestPrivateDaemon(t *testing.T) {
	needDaemon(t)
	dir := t.TempDir()
	p := pathsOf(dir)
	before := stateOfMachine(t)
	e := open(t, dir)
	if !e.Started() || e.Kind() != Private || e.Host() != "unix://"+p.socket {
		t.Errorf("engine = %+v", e)
	}
	buildSleeper(t, e)

	assertPrivileged(t, docker(t, e, "run", "--rm", "--privileged", "sleeper"))
	docker(t, e, "network", "create", "--ipv6", "--subnet", "fd00:1ad:de2::/64", "test-network")
	docker(t, e, "run", "--detach", "--privileged", "--name", "held", "--network", "test-network", "--publish", "127.0.0.1::8080", "sleeper", "wait")
	assertPrivileged(t, docker(t, e, "exec", "--privileged", "held", "/sleeper"))
	if got := docker(t, e, "exec", "held", "/sleeper"); !strings.HasPrefix(got, "CapBnd:") {
		t.Errorf("a command in a container prints %q", got)
	}
	if idle, err := e.Idle(t.Context()); err != nil || idle {
		t.Errorf("Idle = %v, %v, while a container runs", idle, err)
	}

	second, err := Detect(t.Context(), Options{Private: true, Dir: dir})
	if err != nil || !strings.Contains(second.String(), "runs already") {
		t.Errorf("a second plan is %v, %v", second, err)
	}
	again, err := second.Open(t.Context())
	if err != nil || again.Started() {
		t.Errorf("a second start: %+v, %v", again, err)
	}
	found, err := Running(t.Context(), Options{Dir: dir, Progress: testWriter{t}})
	if err != nil || found == nil {
		t.Fatalf("Running = %v, %v", found, err)
	}
	if err := found.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	assertNothingLeft(t, p, before)
	if found, err := Running(t.Context(), Options{Dir: dir}); err != nil || found != nil {
		t.Errorf("Running after the end = %v, %v", found, err)
	}

	e = open(t, dir)
	if images := docker(t, e, "images", "--quiet", "sleeper"); images == "" {
		t.Error("the image is gone with the daemon")
	}
	if got := docker(t, e, "run", "--rm", "--network", "test-network", "sleeper"); !strings.HasPrefix(got, "CapBnd:") {
		t.Errorf("a container on the network made before prints %q", got)
	}
	if err := e.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	assertNothingLeft(t, p, before)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data are left after a purge: %v", err)
	}
}

// A daemon that was killed leaves containers, mounts, rules and bridges; closing
// it, or starting anew, puts that right.
func TestKilledDaemon(t *testing.T) {
	needDaemon(t)
	dir := t.TempDir()
	p := pathsOf(dir)
	before := stateOfMachine(t)
	e := open(t, dir)
	buildSleeper(t, e)
	kill := func() {
		t.Helper()
		docker(t, e, "run", "--detach", "--privileged", "--publish", "127.0.0.1::8080", "sleeper", "wait")
		s, err := readState(p.state)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []interface{ Signal(syscall.Signal) error }{s.Daemon, s.Containerd} {
			if err := id.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		for s.Daemon.Alive() || s.Containerd.Alive() {
			time.Sleep(10 * time.Millisecond)
		}
		if !slices.ContainsFunc(processesNaming(t, p.run), func(line string) bool { return strings.Contains(line, "shim") }) {
			t.Error("no shim is left, so this test shows nothing")
		}
	}
	kill()
	e = open(t, dir)
	if !e.Started() {
		t.Error("a dead daemon is taken for one that runs")
	}
	if running := docker(t, e, "ps", "--quiet"); running != "" {
		t.Errorf("containers of the dead daemon run: %s", running)
	}
	kill()
	_, err := os.Stat("/run/systemd/system") // where systemd rules, it owns the control groups
	if groups, cgroupErr := cgroupsOf(e.daemon.containers()); cgroupErr != nil || len(groups) == 0 && err != nil {
		t.Errorf("no control group is left, so this test shows less than it should: %v, %v", groups, cgroupErr)
	}
	if left, err := Running(t.Context(), Options{Dir: dir}); err != nil || left != nil {
		t.Errorf("Running = %v, %v, for a dead daemon", left, err)
	}
	if err := CleanUp(t.Context(), testWriter{t}); err != nil {
		t.Fatal(err)
	}
	assertNothingLeft(t, p, before)
}

// Breaking off a start leaves nothing behind.
func TestStartBrokenOff(t *testing.T) {
	needDaemon(t)
	dir := t.TempDir()
	p := pathsOf(dir)
	before := stateOfMachine(t)
	plan, err := Detect(t.Context(), Options{Private: true, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if s, err := readState(p.state); err == nil && s.Daemon.PID != 0 {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := plan.Open(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Open = %v, want %v", err, context.Canceled)
	}
	assertNothingLeft(t, p, before)
}

// A start that was killed before it had noted which processes it started is
// cleaned up all the same.
func TestForgottenProcesses(t *testing.T) {
	needDaemon(t)
	dir := t.TempDir()
	p := pathsOf(dir)
	before := stateOfMachine(t)
	open(t, dir)
	if err := writeState(p, &state{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if err := CleanUp(t.Context(), testWriter{t}); err != nil {
		t.Fatal(err)
	}
	assertNothingLeft(t, p, before)
}

// Two daemons share the names of rules and bridges: the first to end leaves
// them to the other.
func TestTwoDaemons(t *testing.T) {
	needDaemon(t)
	first, second := t.TempDir(), t.TempDir()
	before := stateOfMachine(t)
	a := open(t, first)
	b := open(t, second)
	buildSleeper(t, b)
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	docker(t, b, "run", "--detach", "--publish", "127.0.0.1::8080", "sleeper", "wait")
	if _, err := net.InterfaceByName(dockerBridge); err != nil {
		t.Errorf("the bridge of the daemon that runs is gone: %v", err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	assertNothingLeft(t, pathsOf(first), before)
	assertNothingLeft(t, pathsOf(second), before)
}
