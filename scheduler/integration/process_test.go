package integration_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/cli"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/app"
)

// asProcess makes the test binary run as ladder-scheduler.
const asProcess = "LADDER_SCHEDULER_PROCESS"

// runProcess is ladder-scheduler's main in the test binary.
func runProcess() { os.Exit(cli.Run(app.NewCommand())) }

// The program takes kube-scheduler's flags, leads, serves its health, and ends
// in order when it is told to.
func TestProcess(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	c.addPolicy("h100", ladderOf("H100"))
	port := freePort(t)
	process := c.startProcess("--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--leader-elect=true", "--leader-elect-resource-namespace=default")
	c.addPod("pod", "h100")
	assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // its own, made at start
	}}
	response, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/readyz", port))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, http.StatusOK, response.StatusCode)
	lease := &coordinationv1.Lease{}
	require.NoError(t, c.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: v1alpha1.SchedulerName}, lease))
	require.NoError(t, process.Process.Signal(syscall.SIGTERM))
	done := make(chan error, 1)
	go func() { done <- process.Wait() }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("the program did not end")
	}
	assert.Equal(t, "H100 (tier t0, revision 1): h100-0000/h100-0000/gpu-0", conditionOf(c.pod("pod")).Message, "told before it ended")
	require.NoError(t, c.Delete(t.Context(), lease))
}

// startProcess runs ladder-scheduler as a process of its own, at most until the
// test ends.
func (c *cluster) startProcess(args ...string) *exec.Cmd {
	c.t.Helper()
	process := exec.CommandContext(c.t.Context(), os.Args[0], append([]string{"--kubeconfig=" + server.kubeconfig}, args...)...)
	process.Env = append(os.Environ(), asProcess+"=1")
	process.Stderr = &testWriter{c.t}
	require.NoError(c.t, process.Start())
	return process
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// testWriter keeps what a process says with its test.
type testWriter struct{ t *testing.T }

func (w *testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}
