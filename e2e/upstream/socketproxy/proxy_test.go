package socketproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// running starts a proxy that ends with the test.
func running(t *testing.T, socket string) (p *Proxy, stop func() error) {
	t.Helper()
	p, err := Listen(socket, "127.0.0.1:0", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var result error
	stopped := false
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-done
		}
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return p, stop
}

func dial(t *testing.T, network, address string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func say(t *testing.T, c net.Conn, words string) {
	t.Helper()
	if _, err := c.Write([]byte(words)); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("heard %q, %v, want %q", got, err, want)
	}
}

// The suite opens its connections first and its gRPC server speaks at once.
func TestWhatServersSayEarlyReachesLaterClients(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "dra.sock")
	p, _ := running(t, socket)
	var servers []net.Conn
	for i := range 5 {
		server := dial(t, "tcp", p.Port().String())
		say(t, server, fmt.Sprintf("settings %d", i))
		servers = append(servers, server)
	}
	for i, server := range servers {
		client := dial(t, "unix", socket)
		hear(t, client, fmt.Sprintf("settings %d", i))
		say(t, client, "request")
		hear(t, server, "request")
		say(t, server, "answer")
		hear(t, client, "answer")
	}
}

func TestAClientMayComeFirst(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "dra.sock")
	p, _ := running(t, socket)
	client := dial(t, "unix", socket)
	say(t, client, "early")
	hear(t, dial(t, "tcp", p.Port().String()), "early")
}

func TestOneSideClosedClosesTheOther(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "dra.sock")
	p, _ := running(t, socket)
	for name, closes := range map[string]func(client, server net.Conn) (closed, other net.Conn){
		"client": func(client, server net.Conn) (net.Conn, net.Conn) { return client, server },
		"server": func(client, server net.Conn) (net.Conn, net.Conn) { return server, client },
	} {
		t.Run(name, func(t *testing.T) {
			server := dial(t, "tcp", p.Port().String())
			client := dial(t, "unix", socket)
			say(t, client, "x")
			hear(t, server, "x")
			closed, other := closes(client, server)
			if err := closed.Close(); err != nil {
				t.Fatal(err)
			}
			if n, err := other.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("read %d bytes, %v, want the end", n, err)
			}
		})
	}
}

func TestTheEndClosesEverything(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "dra.sock")
	p, stop := running(t, socket)
	server, client := dial(t, "tcp", p.Port().String()), dial(t, "unix", socket)
	say(t, client, "x")
	hear(t, server, "x")
	if err := stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("the client's connection is still open")
	}
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestASocketLeftBehindIsReplaced(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "dra.sock")
	if err := os.WriteFile(socket, []byte("left"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, _ := running(t, socket)
	server := dial(t, "tcp", p.Port().String())
	say(t, server, "hello")
	hear(t, dial(t, "unix", socket), "hello")
}

func TestAPortThatIsTakenLeavesNoSocket(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	socket := filepath.Join(t.TempDir(), "dra.sock")
	if _, err := Listen(socket, taken.Addr().String(), t.Logf); err == nil {
		t.Fatal("a port was opened twice")
	}
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket was left: %v", err)
	}
}
