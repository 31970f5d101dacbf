package integration_test

import (
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/cli"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// When the one that leads is killed the other goes on where it was: the failed
// attempts of a Pod still count.
func TestTheOtherGoesOn(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	spec := ladderOf("H100")
	spec.Retry = v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](50), InitialBackoff: &metav1.Duration{Duration: 2 * time.Second}, MaxBackoff: &metav1.Duration{Duration: 2 * time.Second}}
	c.addPolicy("h100", spec)
	allow := c.refuseAllocations()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v1alpha1.SchedulerName}}
	t.Cleanup(func() { _ = c.Delete(context.Background(), lease) })
	start := func() *exec.Cmd {
		return c.startProcess("--secure-port=0", "--leader-elect=true", "--leader-elect-resource-namespace=default",
			"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms")
	}
	leader := func(not string) (holder string) {
		c.eventually(func() error {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
				return err
			}
			if holder = ptr.Deref(lease.Spec.HolderIdentity, ""); holder == not {
				return fmt.Errorf("%q leads", holder)
			}
			return nil
		})
		return holder
	}
	first := start()
	before := leader("")
	second := start()
	c.addPod("pod", "h100")
	c.eventually(func() error { return c.says("pod", "failed 2 of 50 attempts") })
	began := c.failedAt("pod")
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()
	leader(before)
	c.eventually(func() error { return c.says("pod", "failed 4 of 50 attempts") })
	assert.Equal(t, began, c.failedAt("pod"))
	allow()
	assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	_ = second.Wait()
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
