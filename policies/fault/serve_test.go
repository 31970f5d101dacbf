package fault

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever may open the socket can break the node.
func TestSocketIsPrivate(t *testing.T) {
	info, err := os.Stat(serve(t, &node{}))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 || info.Mode().Type() != os.ModeSocket {
		t.Errorf("mode is %v", info.Mode())
	}
}

// During a rolling update two drivers overlap: the newer one answers from the
// start on, and still does when the older one has ended.
func TestNewerDriverTakesOver(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "fault.sock")
	older, newer := &node{}, &node{}
	first, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	stopOlder := serveOn(t, first, older)
	client := NewClient(socket)
	if _, err := client.Inject(t.Context(), Spec{Kind: StaleSlice}); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	stopNewer := serveOn(t, second, newer)
	if faults, err := client.List(t.Context()); err != nil || len(faults) != 0 {
		t.Errorf("the older driver still answers: %v, %v", faults, err)
	}
	stopOlder()
	if _, err := client.List(t.Context()); err != nil {
		t.Errorf("the older driver took the socket along: %v", err)
	}
	stopNewer()
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a driver that ended left its socket: %v", err)
	}
}

// What a driver left that was killed is no obstacle, at either place.
func TestListenReplacesLeftovers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "fault.sock")
	for _, name := range []string{socket, socket + temporarySuffix} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, listener, &node{})
	if _, err := NewClient(socket).List(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestListenErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Listen(filepath.Join(dir, "none", "fault.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if _, err := Listen(filepath.Join(dir, strings.Repeat("x", 120))); err == nil || !strings.Contains(err.Error(), "longer than 103 bytes") {
		t.Errorf("a long path: %v", err)
	}
}
