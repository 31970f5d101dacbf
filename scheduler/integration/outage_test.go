package integration_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// way is a connection to the API server that can be cut.
type way struct {
	t       *testing.T
	address string
	target  string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
	// keeps says that requests are kept back; changed tells of its end.
	keeps   bool
	changed *sync.Cond
}

// newWay opens a way and returns the kubeconfig that takes it.
func newWay(t *testing.T) (*way, string) {
	t.Helper()
	text, err := os.ReadFile(server.kubeconfig)
	require.NoError(t, err)
	host := strings.TrimSuffix(strings.TrimPrefix(server.config.Host, "https://"), "/")
	require.Contains(t, string(text), host)
	w := &way{t: t, address: "127.0.0.1:0", target: host, open: map[net.Conn]bool{}}
	w.changed = sync.NewCond(&w.mu)
	w.restore()
	t.Cleanup(w.cut)
	file, err := os.CreateTemp(t.TempDir(), "kubeconfig")
	require.NoError(t, err)
	_, err = file.WriteString(strings.ReplaceAll(string(text), host, w.address))
	require.NoError(t, err)
	require.NoError(t, file.Close())
	return w, file.Name()
}

// restore lets connections through.
func (w *way) restore() {
	w.t.Helper()
	listener, err := net.Listen("tcp", w.address)
	require.NoError(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.address, w.listener = listener.Addr().String(), listener
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go w.pass(conn)
		}
	}()
}

// pass lets one connection through.
func (w *way) pass(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	defer out.Close()
	w.mu.Lock()
	w.open[in] = true
	w.mu.Unlock()
	go func() {
		_, _ = io.Copy(in, out)
		_ = in.Close()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := in.Read(buffer)
		if err != nil || !w.mayAsk(in) {
			return
		}
		if _, err := out.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// mayAsk waits as long as requests are kept, and says whether the connection
// still stands.
func (w *way) mayAsk(in net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.keeps && w.open[in] {
		w.changed.Wait()
	}
	return w.open[in]
}

// keep lets the API server's watches go on, but no request reach it.
func (w *way) keep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keeps = true
}

// cut ends all connections, with the requests that were kept, and refuses new
// ones.
func (w *way) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.listener.Close()
	for conn := range w.open {
		_ = conn.Close()
	}
	clear(w.open)
	w.keeps = false
	w.changed.Broadcast()
}

// The API server goes away just when an allocation is to be written. The Pod's
// attempts run out; when the API server is back, the Pod is placed without
// anybody's help.
func TestAPIServerDownAndBack(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	spec := ladderOf("H100")
	spec.Retry = v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](2)}
	c.addPolicy("h100", spec)
	way, kubeconfig := newWay(t)
	c.startSchedulerAt(kubeconfig, "")
	c.addPod("before", "h100")
	c.placed("before")
	before := gather(t)
	way.keep()
	c.addPod("pod", "h100")
	time.Sleep(5 * time.Second) // it is decided on, and asks for the allocation
	way.cut()
	c.eventually(func() error {
		now := gather(t)
		const unavailable = "ladder_bind_failures_total/" + string(v1alpha1.FailureAPIUnavailable)
		if failed := now[unavailable] - before[unavailable]; failed < 2 {
			return fmt.Errorf("%v attempts failed", failed)
		}
		if now["ladder_retries_given_up_total"] == before["ladder_retries_given_up_total"] {
			return errors.New("the Pod has not been given up")
		}
		return nil
	})
	assert.Nil(t, c.claim("pod").Status.Allocation)
	way.restore()
	assert.Equal(t, "h100-0000/gpu-1", c.placed("pod"))
	c.condition("pod", "Allocated")
}
