package binaries

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// turns notes which programs are being built at the same time.
type turns struct {
	fakeGo
	mu    sync.Mutex
	now   map[string]bool
	saw   map[string]bool // "a+b" for each two at once
	fails string
}

func (t *turns) run(ctx context.Context, dir string, env, args []string, out io.Writer) error {
	if args[0] == "env" {
		return t.fakeGo.run(ctx, dir, env, args, out)
	}
	pkg := args[len(args)-1]
	name := pkg[strings.LastIndexByte(pkg, '/')+1:]
	t.mu.Lock()
	for other := range t.now {
		t.saw[min(name, other)+"+"+max(name, other)] = true
	}
	t.now[name] = true
	t.mu.Unlock()
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
	}
	t.mu.Lock()
	delete(t.now, name)
	t.mu.Unlock()
	if name == t.fails {
		return errors.New("it does not compile")
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return t.fakeGo.run(ctx, dir, env, args, out)
}

func newTurns(t *testing.T) (*turns, *builder) {
	t.Helper()
	f := &turns{fakeGo: fakeGo{content: "program"}, now: map[string]bool{}, saw: map[string]bool{}}
	return f, &builder{cache: t.TempDir(), progress: io.Discard, run: f.run}
}

func programsOf(t *testing.T, names ...string) []program {
	t.Helper()
	wanted, err := inBuildOrder(names)
	if err != nil {
		t.Fatal(err)
	}
	return wanted
}

// What shares packages is built one after another, so that nothing is compiled
// twice; what shares none is built beside.
func TestTwoLanes(t *testing.T) {
	t.Setenv(EnvAssets, "")
	f, b := newTurns(t)
	paths, err := b.ensureAll(t.Context(), programsOf(t, APIServer, Kubectl, Kubelet, Ctr, Crictl, HostLocal))
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(paths)); !slices.Equal(got, []string{Crictl, Ctr, HostLocal, APIServer, Kubectl, Kubelet}) {
		t.Errorf("provided %v", got)
	}
	if len(f.saw) == 0 {
		t.Error("nothing was built beside anything")
	}
	kubernetes := []string{APIServer, Kubectl, Kubelet}
	for pair := range f.saw {
		a, c, _ := strings.Cut(pair, "+")
		if slices.Contains(kubernetes, a) == slices.Contains(kubernetes, c) {
			t.Errorf("%s were built at once", pair)
		}
	}
}

func TestAFailureEndsTheOtherLane(t *testing.T) {
	t.Setenv(EnvAssets, "")
	f, b := newTurns(t)
	f.fails = Ctr
	_, err := b.ensureAll(t.Context(), programsOf(t, APIServer, Kubectl, Kubelet, Ctr))
	if err == nil || !strings.Contains(err.Error(), "providing ctr") || !strings.Contains(err.Error(), "does not compile") {
		t.Errorf("got %v", err)
	}
	if n := f.builds.Load(); n > 1 {
		t.Errorf("%d programs were built after the failure", n)
	}
}
