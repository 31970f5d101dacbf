package lab

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gpuladder.dev/ladder/e2e/cluster"
)

// newPart returns a part that is a shell script, with an URL that is ready or not.
func newPart(t *testing.T, script string, ready *atomic.Bool) (*part, chan error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			http.Error(w, "not yet: still warming up", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	crashes := make(chan error, 1)
	p := &part{
		spec: spec{name: "server", args: []string{"-c", script}, ready: server.URL + "/readyz"},
		path: "/bin/sh", log: filepath.Join(t.TempDir(), "server.log"), home: t.TempDir(),
		prober: &prober{client: server.Client()}, crashed: func(err error) { crashes <- err },
	}
	t.Cleanup(func() { p.end(context.Background(), true) })
	return p, crashes
}

func isReady() *atomic.Bool {
	var ready atomic.Bool
	ready.Store(true)
	return &ready
}

const serves = "echo serving; exec sleep 300"

// saysServing waits until the log tells that many runs.
func saysServing(t *testing.T, p *part, times int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		content, err := os.ReadFile(p.log)
		if err == nil && strings.Count(string(content), "serving") == times {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("log = %q, %v, want %d runs in it", content, err, times)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAPartIsStartedOnceItIsReady(t *testing.T) {
	var ready atomic.Bool
	p, _ := newPart(t, serves, &ready)
	time.AfterFunc(200*time.Millisecond, func() { ready.Store(true) })
	start := time.Now()
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(start); waited < 200*time.Millisecond {
		t.Errorf("ready after %v, before the server said so", waited)
	}
	if s := p.status(); s.PID == 0 || s.Starts != 1 || s.Name != "server" {
		t.Errorf("status = %+v", s)
	}
}

func TestAPartThatEndsAtItsStartShowsItsLog(t *testing.T) {
	var ready atomic.Bool
	p, crashes := newPart(t, "echo 'Error: unknown flag: --wrong' >&2; exit 7", &ready)
	err := p.start(t.Context())
	failure := new(cluster.ComponentError)
	if !errors.As(err, &failure) {
		t.Fatalf("start = %v, want a ComponentError", err)
	}
	if failure.Component != "server" || !strings.Contains(failure.Tail, "unknown flag: --wrong") || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("error = %v", err)
	}
	if s := p.status(); s.PID != 0 {
		t.Errorf("status = %+v", s)
	}
	select {
	case err := <-crashes:
		t.Errorf("a failed start is reported as a crash, too: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
}

func TestAPartThatIsNeverReadySaysWhatItAnswered(t *testing.T) {
	var ready atomic.Bool
	p, _ := newPart(t, serves, &ready)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := p.start(ctx)
	failure := new(cluster.ComponentError)
	if !errors.As(err, &failure) || !strings.Contains(err.Error(), "still warming up") || failure.Tail != "serving" {
		t.Errorf("start = %v", err)
	}
	if s := p.status(); s.PID != 0 {
		t.Errorf("the part still runs: %+v", s)
	}
}

func TestBreakingOffAStartEndsThePart(t *testing.T) {
	var ready atomic.Bool
	p, _ := newPart(t, serves, &ready)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if err := p.start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("start = %v, want context.Canceled", err)
	}
	if s := p.status(); s.PID != 0 {
		t.Errorf("the part still runs: %+v", s)
	}
	if err := p.start(ctx); !errors.Is(err, context.Canceled) || p.status().Starts != 1 {
		t.Errorf("start after that = %v, started %d times", err, p.status().Starts)
	}
}

func TestACrashIsReported(t *testing.T) {
	p, crashes := newPart(t, serves, isReady())
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	saysServing(t, p, 1)
	if err := syscall.Kill(p.status().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err := <-crashes
	failure := new(cluster.ComponentError)
	if !errors.As(err, &failure) || !strings.Contains(err.Error(), "killed") || failure.Tail != "serving" {
		t.Errorf("crash = %v", err)
	}
}

func TestAnEndWithStatus0IsACrashToo(t *testing.T) {
	p, crashes := newPart(t, "sleep 0.3", isReady())
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-crashes; !errors.Is(err, errExitedCleanly) {
		t.Errorf("crash = %v", err)
	}
}

func TestWhatIsAskedForIsNoCrash(t *testing.T) {
	p, crashes := newPart(t, serves, isReady())
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := p.status().PID
	saysServing(t, p, 1)
	p.end(t.Context(), true)
	p.end(t.Context(), true) // nothing to do
	if s := p.status(); s.PID != 0 {
		t.Errorf("status after the end = %+v", s)
	}
	for range 2 { // from down, and from running
		if err := p.restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		saysServing(t, p, p.status().Starts)
	}
	if s := p.status(); s.PID == 0 || s.PID == first || s.Starts != 3 {
		t.Errorf("status after two restarts = %+v", s)
	}
	select {
	case err := <-crashes:
		t.Errorf("an end that was asked for is reported: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
}
