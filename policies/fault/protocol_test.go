package fault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// node is an [Interface] over two devices, as simple as one can be.
type node struct {
	mu     sync.Mutex
	faults []Fault
	next   int
	broken error
}

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func (n *node) List(context.Context) ([]Fault, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]Fault(nil), n.faults...), n.broken
}

func (n *node) Inject(_ context.Context, spec Spec) (Fault, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.known(spec.Device); err != nil {
		return Fault{}, fmt.Errorf("injecting, %w", err)
	}
	n.next++
	fault := Fault{ID: fmt.Sprint(n.next), Spec: spec, Since: noon}
	n.faults = append(n.faults, fault)
	return fault, n.broken
}

func (n *node) Clear(_ context.Context, which Selector) ([]Fault, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.known(which.Device); err != nil {
		return nil, err
	}
	var kept, cleared []Fault
	for _, f := range n.faults {
		if which.Matches(f) {
			cleared = append(cleared, f)
		} else {
			kept = append(kept, f)
		}
	}
	if which.ID != "" && cleared == nil {
		return nil, UnknownFault(which.ID)
	}
	n.faults = kept
	return cleared, n.broken
}

func (n *node) known(device string) error {
	if device == "" || device == "gpu-0" || device == "gpu-1" {
		return nil
	}
	return UnknownDevice(device, []string{"gpu-0", "gpu-1"})
}

// serve serves a backend on a real socket until the test ends.
func serve(t *testing.T, backend Interface) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "fault.sock")
	listener, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, listener, backend)
	return socket
}

func serveOn(t *testing.T, listener net.Listener, backend Interface) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, backend) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("serving ended with %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// Every kind goes over the wire and comes back as it was.
func TestEveryKindOverASocket(t *testing.T) {
	client := NewClient(serve(t, &node{}))
	given := []Spec{
		{Kind: XID, Device: "gpu-0", Code: 79},
		{Kind: Lost, Device: "gpu-1"},
		{Kind: Remap, Device: "gpu-1"},
		{Kind: SlowPrepare, Duration: Duration(1500 * time.Millisecond)},
		{Kind: FailPrepare, Times: 3, Message: "no <such> device"},
		{Kind: TornCheckpoint},
		{Kind: StaleSlice},
		{Kind: WithholdSlice},
		{Kind: CrashAt, Point: AfterCDI, Once: true},
	}
	if len(given) != len(Kinds()) {
		t.Fatalf("%d kinds are tried, there are %d", len(given), len(Kinds()))
	}
	for i, spec := range given {
		got, err := client.Inject(t.Context(), spec)
		if err != nil {
			t.Fatalf("%s: %v", spec.Kind, err)
		}
		if want := (Fault{ID: fmt.Sprint(i + 1), Spec: spec, Since: noon}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", spec.Kind, got, want)
		}
	}
	faults, err := client.List(t.Context())
	if err != nil || len(faults) != len(given) {
		t.Fatalf("listing: %d faults, %v", len(faults), err)
	}
	for i, f := range faults {
		if f.Spec != given[i] {
			t.Errorf("fault %d is listed as %+v", i, f.Spec)
		}
	}
}

func TestClear(t *testing.T) {
	client := NewClient(serve(t, &node{}))
	for _, spec := range []Spec{
		{Kind: XID, Device: "gpu-0", Code: 79}, {Kind: Lost, Device: "gpu-1"}, {Kind: Remap, Device: "gpu-0"}, {Kind: StaleSlice},
	} {
		if _, err := client.Inject(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		which Selector
		want  string
	}{
		{Selector{Device: "gpu-0"}, "1 3"},
		{Selector{Device: "gpu-0"}, ""},
		{Selector{ID: "4"}, "4"},
		{Selector{}, "2"},
		{Selector{}, ""},
	} {
		cleared, err := client.Clear(t.Context(), step.which)
		if err != nil {
			t.Fatalf("%+v: %v", step.which, err)
		}
		var ids []string
		for _, f := range cleared {
			ids = append(ids, f.ID)
		}
		if got := strings.Join(ids, " "); got != step.want {
			t.Errorf("clearing %+v ended %q, want %q", step.which, got, step.want)
		}
	}
}

// What makes no sense says so in the driver's words, and can be told from what
// may go well another time.
func TestErrorsOverASocket(t *testing.T) {
	backend := &node{}
	client := NewClient(serve(t, backend))
	inject := func(spec Spec) func(context.Context) error {
		return func(ctx context.Context) error { _, err := client.Inject(ctx, spec); return err }
	}
	clearing := func(which Selector) func(context.Context) error {
		return func(ctx context.Context) error { _, err := client.Clear(ctx, which); return err }
	}
	for name, tc := range map[string]struct {
		do       func(context.Context) error
		want     string
		notFound bool
	}{
		"unknown device":  {inject(Spec{Kind: Lost, Device: "gpu-9"}), `injecting, there is no device "gpu-9"; this node has gpu-0, gpu-1`, true},
		"clear no device": {clearing(Selector{Device: "gpu-9"}), `there is no device "gpu-9"; this node has gpu-0, gpu-1`, true},
		"clear no fault":  {clearing(Selector{ID: "7"}), `no fault "7" is in force`, true},
		"clear both":      {clearing(Selector{ID: "7", Device: "gpu-0"}), "id: goes with no device", false},
		"no code":         {inject(Spec{Kind: XID, Device: "gpu-0"}), "code: xid needs one", false},
	} {
		err := tc.do(t.Context())
		if err == nil || err.Error() != tc.want {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
		if !Refused(err) || errors.Is(err, ErrNotFound) != tc.notFound {
			t.Errorf("%s: refused %t, not found %t", name, Refused(err), errors.Is(err, ErrNotFound))
		}
	}
	backend.broken = fmt.Errorf("there is no checkpoint, %w", ErrUnsupported)
	if err := inject(Spec{Kind: TornCheckpoint})(t.Context()); !errors.Is(err, ErrUnsupported) || errors.Is(err, ErrNotFound) || !Refused(err) {
		t.Errorf("a fault that can't be: %v", err)
	}
	backend.broken = errors.New("disk full")
	if _, err := client.List(t.Context()); err == nil || err.Error() != "disk full" || Refused(err) {
		t.Errorf("an error of the driver's own: %v, refused %t", err, Refused(err))
	}
}

func TestFaultsAreOff(t *testing.T) {
	dir := t.TempDir()
	_, err := NewClient(filepath.Join(dir, "none.sock")).List(t.Context())
	if !errors.Is(err, ErrOff) || !strings.Contains(err.Error(), "there is no socket") || !strings.Contains(err.Error(), "--allow-faults") {
		t.Errorf("no socket: %v", err)
	}
	// A driver that was killed leaves its socket.
	dead := filepath.Join(dir, "dead.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewClient(dead).List(t.Context()); !errors.Is(err, ErrOff) || !strings.Contains(err.Error(), "nobody listens") {
		t.Errorf("a dead socket: %v", err)
	}
}

// A client that gives up is not told that faults are off.
func TestClientGivesUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "mute.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := NewClient(socket).List(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrOff) {
		t.Errorf("got %v", err)
	}
}

func TestConcurrentClients(t *testing.T) {
	socket := serve(t, &node{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			client := NewClient(socket)
			for range 10 {
				f, err := client.Inject(context.Background(), Spec{Kind: StaleSlice})
				if err != nil {
					t.Error(err)
					return
				}
				if cleared, err := client.Clear(context.Background(), Selector{ID: f.ID}); err != nil || len(cleared) != 1 {
					t.Errorf("clearing %s: %v, %v", f.ID, cleared, err)
				}
			}
		})
	}
	wg.Wait()
	if faults, err := NewClient(socket).List(t.Context()); err != nil || len(faults) != 0 {
		t.Errorf("left: %v, %v", faults, err)
	}
}
