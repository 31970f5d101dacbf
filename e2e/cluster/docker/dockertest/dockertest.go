// Package dockertest keeps tests that start Docker daemons from disturbing each
// other, and has a daemon that is none for those that need not start one.
package dockertest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Alone has the test wait until no other test of this machine, in whatever
// process, is between Alone and its end: private daemons share bridges, packet
// filter rules and settings of the kernel, which tests compare before and after.
func Alone(t *testing.T) {
	t.Helper()
	path := filepath.Join(os.TempDir(), "ladder-docker-test.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	// Registered first, so that it runs after the test's other cleanups.
	t.Cleanup(func() { f.Close() })
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			t.Fatalf("locking %s: %v", path, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("waiting for another test that uses Docker (%s): %v", path, t.Context().Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
