// Package socketproxy joins connections to a unix socket with connections to a
// TCP port, one with one.
//
// Kubernetes' DRA suite runs its test driver inside the test program and
// reaches a kubelet through a Pod: a program in the Pod listens at the socket
// that the kubelet knows, and the suite opens connections to a port of the Pod
// in advance, each of which is to be joined with one from the kubelet. The
// image that the suite names for this holds a CSI driver whose option
// --proxy-endpoint does it; this is a stand-in for that option where the image
// can't be had.
package socketproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
)

// Proxy holds the two listeners.
type Proxy struct {
	socket, port net.Listener
	logf         func(format string, args ...any)
}

// Listen opens the socket and the TCP address. A socket that is left from an
// earlier process is removed first. logf is told about each connection.
func Listen(socket, address string, logf func(format string, args ...any)) (*Proxy, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket, %w", err)
	}
	s, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("opening the socket, %w", err)
	}
	p, err := net.Listen("tcp", address)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the port, %w", err), s.Close())
	}
	return &Proxy{socket: s, port: p, logf: logf}, nil
}

// Port is the TCP address that is listened at.
func (p *Proxy) Port() net.Addr { return p.port.Addr() }

// Run joins connections until ctx ends, then closes both listeners, which
// removes the socket, and every connection.
//
// Nothing is accepted before it is needed: what comes early waits in the
// kernel, together with what its sender wrote already.
func (p *Proxy) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var joined sync.WaitGroup
	stop := context.AfterFunc(ctx, func() {
		p.socket.Close()
		p.port.Close()
	})
	defer func() {
		stop()
		cancel()
		joined.Wait()
		p.socket.Close()
		p.port.Close()
	}()
	for n := 1; ; n++ {
		client, err := p.socket.Accept()
		if err != nil {
			return ended(ctx, err)
		}
		server, err := p.port.Accept()
		if err != nil {
			client.Close()
			return ended(ctx, err)
		}
		p.logf("connection %d: joined with %s", n, server.RemoteAddr())
		joined.Go(func() {
			join(ctx, client, server)
			p.logf("connection %d: closed", n)
		})
	}
}

func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // broken off on purpose
	}
	return fmt.Errorf("waiting for a connection, %w", err)
}

// join copies in both directions until one side closes, then closes the other:
// neither gRPC client nor server has a use for half a connection.
func join(ctx context.Context, a, b net.Conn) {
	var once sync.Once
	closeBoth := func() { once.Do(func() { a.Close(); b.Close() }) }
	stop := context.AfterFunc(ctx, closeBoth)
	defer stop()
	defer closeBoth()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			defer closeBoth()
			// The end of a connection is no fault here, however it comes.
			_, _ = io.Copy(way[0], way[1])
		})
	}
	both.Wait()
}
