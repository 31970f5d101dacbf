package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/deviceplugin"
	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/policies/fault"
)

// output collects what several goroutines print.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func TestBadCommandLines(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("groups: 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no node":        {[]string{"--kubelet-dir", dir}, "--node-name or $NODE_NAME is required"},
		"no folder":      {[]string{"--node-name", "n", "--kubelet-dir", filepath.Join(dir, "none")}, "--kubelet-dir, stat"},
		"a file":         {[]string{"--node-name", "n", "--kubelet-dir", file}, "is no folder"},
		"a bad resource": {[]string{"--node-name", "n", "--kubelet-dir", dir, "--resource-name", "a gpu"}, `--resource-name "a gpu"`},
		"a bad catalog":  {[]string{"--node-name", "n", "--kubelet-dir", dir, "--catalog", file}, "reading tier catalog"},
		"unknown flag":   {[]string{"--fast"}, "unknown flag: --fast"},
		"an argument":    {[]string{"now"}, `unknown command "now"`},
	} {
		out := &output{}
		if code := run(t.Context(), tc.args, out); code != exit.Usage || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: ended with %d: %s", name, code, out)
		}
	}
}

func TestNoCluster(t *testing.T) {
	out := &output{}
	args := []string{"--node-name", "n", "--kubelet-dir", t.TempDir(), "--kubeconfig", filepath.Join(t.TempDir(), "none")}
	if code := run(t.Context(), args, out); code != exit.Failed || !strings.Contains(out.String(), "finding the cluster") {
		t.Errorf("ended with %d: %s", code, out)
	}
}

// kubelet notes registrations and the length of the last list.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	requests chan *pluginapi.RegisterRequest
}

func (k *kubelet) Register(_ context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	k.requests <- request
	return &pluginapi.Empty{}, nil
}

// TestProgram runs all parts together: registration, health, faults, the end.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{requests: make(chan *pluginapi.RegisterRequest, 10)}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, k)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{
		tiers.LabelTier: "t4", tiers.LabelGPUs: "2", deviceplugin.LabelStack: deviceplugin.StackDevicePlugin,
	}}})
	health := freeAddress(t)
	socket := filepath.Join(t.TempDir(), "made", "fault.sock")
	o := &options{client: func(string) (kubernetes.Interface, error) { return client, nil }}
	out := &output{}
	cmd := o.command(out)
	cmd.SetArgs([]string{"--node-name", "n", "--kubelet-dir", dir, "--resource-name", "example.com/gpu", "--v=4", "--health-address", health, "--allow-faults", "--fault-socket", socket})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()

	select {
	case request := <-k.requests:
		if request.ResourceName != "example.com/gpu" || request.Endpoint != "ladder-example-com-gpu.sock" {
			t.Errorf("registered %+v", request)
		}
	case err := <-ended:
		t.Fatalf("ended with %v: %s", err, out)
	}
	for _, page := range []string{"/healthz", "/readyz"} {
		if code, body := waitFor(t, "http://"+health+page, http.StatusOK); body != "ok\n" {
			t.Errorf("%s: %d %s", page, code, body)
		}
	}
	faults := fault.NewClient(socket)
	if _, err := faults.Inject(t.Context(), fault.Spec{Kind: fault.Lost, Device: "gpu-1"}); err != nil {
		t.Error(err)
	}
	if _, err := faults.Inject(t.Context(), fault.Spec{Kind: fault.Lost, Device: "gpu-2"}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a third GPU: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v: %s", err, out)
	}
	if _, err := faults.List(t.Context()); !errors.Is(err, fault.ErrOff) {
		t.Errorf("faults after the end: %v", err)
	}
}

// TestNotReady: without kubelet the program is alive and not ready.
func TestNotReady(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveHealth(ctx, listener, func() bool { return false }) }()
	base := "http://" + listener.Addr().String()
	waitFor(t, base+"/healthz", http.StatusOK)
	if _, body := waitFor(t, base+"/readyz", http.StatusServiceUnavailable); body != "kubelet does not know the plugin yet\n" {
		t.Errorf("not ready: %s", body)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// waitFor asks until the status is as wanted.
func waitFor(t *testing.T, url string, want int) (int, string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		response, err := http.Get(url)
		if err == nil {
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode == want {
				return response.StatusCode, string(body)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s never answered %d (%v)", url, want, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
