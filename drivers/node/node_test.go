package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpuladder.dev/ladder/drivers/engine"
	driverfake "gpuladder.dev/ladder/drivers/fake"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/plugin"
	"gpuladder.dev/ladder/drivers/publish/publishtest"
	"gpuladder.dev/ladder/policies/fault"
)

// place is a cluster with node n, and options for a driver of it.
func place(t *testing.T) (*fake.Clientset, *Options) {
	t.Helper()
	client := publishtest.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid"}})
	folder, err := os.MkdirTemp("", "ladder") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	o := &Options{
		Name: "n", PodUID: "pod", Plugins: filepath.Join(folder, "p"), Registrar: filepath.Join(folder, "r"),
		CDIFolder: filepath.Join(folder, "cdi"), BootIDFile: filepath.Join(folder, "boot"),
		Health: 20 * time.Millisecond, Recovery: 20 * time.Millisecond, Collect: time.Second, Stale: time.Minute,
	}
	if err := os.WriteFile(o.BootIDFile, []byte("boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(o.Registrar, 0o700); err != nil {
		t.Fatal(err)
	}
	return client, o
}

// freeAddress may be taken by someone else before it is used, which is rare.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func poolOf(names ...string) inventory.Pool {
	var pool inventory.Pool
	for _, name := range names {
		pool.Devices = append(pool.Devices, resourcev1.Device{Name: name})
	}
	return pool
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not come", what)
		}
	}
}

// published are the names of the devices, and how many taints each has.
func published(t *testing.T, client *fake.Clientset) string {
	t.Helper()
	list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, slice := range list.Items {
		for _, device := range slice.Spec.Devices {
			all = append(all, fmt.Sprintf("%s/%d", device.Name, len(device.Taints)))
		}
	}
	return strings.Join(all, " ")
}

// TestRun: the hardware is made with what it needs, and driven.
func TestRun(t *testing.T) {
	client, o := place(t)
	left := filepath.Join(plugin.DataFolder(o.Plugins), ".tier.json.123.tmp") // by a driver that was killed
	if err := os.MkdirAll(filepath.Dir(left), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Metrics = freeAddress(t)
	o.AllowFaults = true
	ctx, cancel := context.WithCancel(t.Context())
	ended, ran := make(chan error, 1), make(chan int, 1)
	go func() {
		ended <- o.Run(ctx, client, func(ctx context.Context, on *Node) (Hardware, error) {
			if on.Object.UID != "uid" || on.Client == nil || on.Recorder == nil || on.Registry == nil || on.Clock == nil || on.Faults == nil ||
				on.BootIDFile != o.BootIDFile || on.DataFolder != plugin.DataFolder(o.Plugins) {
				t.Errorf("hardware is made with %+v", on)
			}
			if _, err := os.Stat(left); !os.IsNotExist(err) {
				t.Errorf("hardware, which may write, is made before leftovers are removed: %v", err)
			}
			return Hardware{
				Inventory: driverfake.NewHardware(ctx, poolOf("gpu-0", "gpu-1"), on.Faults),
				Run: func(ctx context.Context, engine *engine.Engine) error {
					held, err := engine.Held(ctx)
					ran <- len(held)
					<-ctx.Done()
					return err
				},
			}, nil
		})
	}()
	eventually(t, "slices", func() bool { return published(t, client) == "gpu-0/0 gpu-1/0" })
	if held := <-ran; held != 0 {
		t.Errorf("%d claims are held", held)
	}
	faults := fault.NewClient(filepath.Join(plugin.DataFolder(o.Plugins), "fault.sock"))
	if _, err := faults.Inject(t.Context(), fault.Spec{Kind: fault.Lost, Device: "gpu-1"}); err != nil {
		t.Error(err)
	}
	eventually(t, "taints", func() bool { return published(t, client) == "gpu-0/0 gpu-1/2" })
	if _, err := faults.Inject(t.Context(), fault.Spec{Kind: fault.Lost, Device: "gpu-2"}); !fault.Refused(err) {
		t.Errorf("a fault of a device that is not there: %v", err)
	}
	if _, err := faults.Inject(t.Context(), fault.Spec{Kind: fault.WithholdSlice}); err != nil {
		t.Error(err)
	}
	eventually(t, "the slices are held back", func() bool { return published(t, client) == "" })
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "kubelet has not registered the driver", "/metrics": "go_goroutines",
	} {
		if _, words := answers(t, o.Metrics, path); !strings.Contains(words, want) {
			t.Errorf("%s is %s", path, words)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(o.Plugins), "*", "*", "*.sock")); err != nil || len(left) != 0 {
		t.Errorf("sockets are left: %v, %v", left, err)
	}
}

// TestTheNodeIsRegisteredAgain: slices of a Node that is gone would be removed
// as fast as they are written.
func TestTheNodeIsRegisteredAgain(t *testing.T) {
	client, o := place(t)
	ended := make(chan error, 1)
	go func() {
		ended <- o.Run(t.Context(), client, func(ctx context.Context, _ *Node) (Hardware, error) {
			return Hardware{Inventory: driverfake.NewHardware(ctx, poolOf("gpu-0"), nil)}, nil
		})
	}()
	eventually(t, "slices", func() bool { return published(t, client) == "gpu-0/0" })
	nodes := client.CoreV1().Nodes()
	if err := nodes.Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Fatalf("without a Node it ended with %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	for _, again := range []*corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "uid-2"}}, {ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-3"}},
	} {
		if _, err := nodes.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-ended:
		if !errors.Is(err, ErrAnotherNode) || !strings.Contains(err.Error(), "UID uid-3 instead of uid") {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it goes on with the Node that is gone")
	}
}

// TestTheGPUsOfTheDevicePlugin are not offered by slices, from the moment that
// the label says so.
func TestTheGPUsOfTheDevicePlugin(t *testing.T) {
	client, o := place(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- o.Run(ctx, client, func(ctx context.Context, _ *Node) (Hardware, error) {
			return Hardware{Inventory: driverfake.NewHardware(ctx, poolOf("gpu-0"), nil)}, nil
		})
	}()
	eventually(t, "slices", func() bool { return published(t, client) == "gpu-0/0" })
	for _, step := range []struct{ stack, want string }{{"device-plugin", ""}, {"dra", "gpu-0/0"}, {"device-plugin", ""}} {
		patch := fmt.Sprintf(`{"metadata": {"labels": {"gpuladder.dev/stack": %q}}}`, step.stack)
		if _, err := client.CoreV1().Nodes().Patch(t.Context(), "n", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, step.stack, func() bool { return published(t, client) == step.want })
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// answers is the status and the words at a path of the probes.
func answers(t *testing.T, address, path string) (int, string) {
	t.Helper()
	response, err := http.Get("http://" + address + path) //nolint:noctx // a test's own server
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, strings.TrimSpace(string(body))
}

// TestWaitingIsAlive: a driver that starts while the API server is away is not
// ended by its probes, and says what it waits for.
func TestWaitingIsAlive(t *testing.T) {
	client, o := place(t)
	o.Metrics = freeAddress(t)
	away := make(chan struct{})
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case <-away:
			return false, nil, nil
		default:
			return true, nil, apierrors.NewServiceUnavailable("it is away")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- o.Run(ctx, client, func(ctx context.Context, _ *Node) (Hardware, error) {
			return Hardware{Inventory: driverfake.NewHardware(ctx, poolOf("gpu-0"), nil)}, nil
		})
	}()
	eventually(t, "it is alive", func() bool {
		code, words := answers(t, o.Metrics, "/healthz")
		return code == http.StatusOK && words == "waiting for the API server"
	})
	if code, words := answers(t, o.Metrics, "/readyz"); code != http.StatusServiceUnavailable || words != "waiting for the API server" {
		t.Errorf("/readyz is %d, %s", code, words)
	}
	close(away)
	eventually(t, "its sockets answer", func() bool {
		code, words := answers(t, o.Metrics, "/healthz")
		return code == http.StatusOK && words == "ok"
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// TestErrorsEndIt, whichever part they are of.
func TestErrorsEndIt(t *testing.T) {
	broken := errors.New("broken")
	good := func(ctx context.Context, on *Node) (Hardware, error) {
		if on.Faults != nil {
			t.Error("there are faults, and none are allowed")
		}
		return Hardware{Inventory: driverfake.NewHardware(ctx, poolOf("gpu-0"), nil)}, nil
	}
	for name, test := range map[string]struct {
		change   func(o *Options)
		hardware func(context.Context, *Node) (Hardware, error)
		want     string
	}{
		"no node":     {func(o *Options) { o.Name = "other" }, good, "looking up node other"},
		"no boot":     {func(o *Options) { o.BootIDFile += ".gone" }, good, "reading boot ID"},
		"address":     {func(o *Options) { o.Metrics = "nowhere:nothing" }, good, "serving metrics"},
		"no hardware": {nil, func(context.Context, *Node) (Hardware, error) { return Hardware{}, broken }, "broken"},
		"its run": {nil, func(ctx context.Context, on *Node) (Hardware, error) {
			made, err := good(ctx, on)
			made.Run = func(context.Context, *engine.Engine) error { return broken }
			return made, err
		}, "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			client, o := place(t)
			if test.change != nil {
				test.change(o)
			}
			if err := o.Run(t.Context(), client, test.hardware); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("it ended with %v, want %s", err, test.want)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	t.Setenv("POD_UID", "pod")
	var o Options
	cmd := &cobra.Command{Use: "node"}
	o.AddFlags(cmd)
	o.AddFaultFlags(cmd)
	if err := o.Check(); err == nil || !strings.Contains(err.Error(), "--node-name is required") {
		t.Errorf("without a node: %v", err)
	}
	if err := cmd.ParseFlags([]string{"--node-name=n", "--plugins-dir=/p", "--stale-after=1h"}); err != nil {
		t.Fatal(err)
	}
	if err := o.Check(); err != nil || o.PodUID != "pod" || o.Stale != time.Hour || o.Health != plugin.DefaultHealthPeriod || o.Metrics != ":9400" {
		t.Errorf("the options are %+v, %v", o, err)
	}
	if got, want := o.Socket(), "/p/gpu.gpuladder.dev/fault.sock"; got != want {
		t.Errorf("the socket is %s, want %s", got, want)
	}
	if o.FaultSocket = "/elsewhere"; o.Socket() != "/elsewhere" {
		t.Errorf("the socket is %s", o.Socket())
	}
}

func TestConnectingToNoCluster(t *testing.T) {
	if _, err := Connect(filepath.Join(t.TempDir(), "gone")); err == nil || !strings.HasPrefix(err.Error(), "finding the cluster, ") {
		t.Errorf("got %v", err)
	}
}

// TestTheAPIServerIsAway: it is waited for, and its word is final.
func TestTheAPIServerIsAway(t *testing.T) {
	client, _ := place(t)
	asked := 0
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		return asked == 1, nil, apierrors.NewServiceUnavailable("it is away")
	})
	if node, err := lookUp(t.Context(), client, "n"); err != nil || node.UID != "uid" || asked != 2 {
		t.Errorf("asked %d times, got %v, %v", asked, node, err)
	}
	if _, err := lookUp(t.Context(), client, "other"); !apierrors.IsNotFound(err) || asked != 3 {
		t.Errorf("asked %d times, got %v", asked, err)
	}
}
