package fault

// This file puts the handler behind its socket.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// maxSocketPath is what fits into sockaddr_un on Linux, with the final zero.
const maxSocketPath = 107

// Listen listens on a socket that only its owner may open. What a driver left
// there, dead or alive, is replaced at once: during a rolling update the newer
// driver has the socket, and the older one does not take it along when it ends.
func Listen(socket string) (net.Listener, error) {
	if len(socket)+len(temporarySuffix) > maxSocketPath {
		return nil, fmt.Errorf("listening for faults, the path of socket %s is longer than %d bytes", socket, maxSocketPath-len(temporarySuffix))
	}
	// The socket is made beside its place and moved there when it is as it
	// should be, so that a client meets the old one or the new one.
	temporary := socket + temporarySuffix
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listening for faults, %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening for faults, %w", err)
	}
	listener.SetUnlinkOnClose(false)
	err = os.Chmod(temporary, 0o600)
	if err == nil {
		err = os.Rename(temporary, socket)
	}
	var made os.FileInfo
	if err == nil {
		made, err = os.Lstat(socket)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening for faults, %w", err), listener.Close())
	}
	return &ownListener{UnixListener: listener, socket: filepath.Clean(socket), made: made}, nil
}

const temporarySuffix = ".new"

// ownListener removes the socket when it is closed, if it is still its own.
type ownListener struct {
	*net.UnixListener
	socket string
	made   os.FileInfo
}

func (l *ownListener) Close() error {
	if now, err := os.Lstat(l.socket); err == nil && os.SameFile(now, l.made) {
		_ = os.Remove(l.socket)
	}
	return l.UnixListener.Close()
}

// Serve serves the protocol on a listener, and closes it, until ctx is done. It
// then returns nil; requests that still run see their context end and are
// waited for, for five seconds.
func Serve(ctx context.Context, listener net.Listener, backend Interface) error {
	server := &http.Server{
		Handler:           Handler(backend),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving faults, %w", err)
	case <-ctx.Done():
	}
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	if err := server.Shutdown(grace); err != nil {
		return errors.Join(fmt.Errorf("serving faults, %w", err), server.Close())
	}
	return nil
}
